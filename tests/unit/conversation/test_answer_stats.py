"""The statistics line and the JSON object: every figure in its place, and no gain that was not measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from doubles.scripted_client import ScriptedClient, says, scripted_plan

from eaglelocal.conversation.answer_stats import (
    answer_line,
    answer_object,
    describe_draft_length,
    model_lines,
    statistics_line,
    total_lines,
)
from eaglelocal.conversation.conversation import ContextUse
from eaglelocal.core.draft import describe_cut_length
from eaglelocal.core.events import EngineSnapshot, Finished
from eaglelocal.core.request import AUTO_SPEC, OFF, fixed_spec
from eaglelocal.core.stats import SpeculationStats, Timings

TIMINGS = Timings(
    ttft_s=0.2149, prefill_s=0.1, decode_s=2.0, draft_s=0.5, verify_s=1.2, host_s=0.02, decode_tok_s=41.23
)
ON = SpeculationStats("on", "", 35, 118, 74, (30, 24, 20), 1.637, emitted_tokens=109)


def finished(speculation: SpeculationStats, *, tokens: int = 110, reason: str = "stop") -> Finished:
    return Finished("r", reason, "", 12, tokens, TIMINGS, speculation)


def test_the_line_of_a_drafted_answer() -> None:
    assert statistics_line(finished(ON)) == "110 tokens · 41.2 tok/s · 1.64x plain (estimated) · first token 0.21 s"


def test_a_gain_that_was_not_measured_is_not_invented() -> None:
    line = statistics_line(finished(SpeculationStats("on", "", 1, 2, 1, (1,), emitted_tokens=2)))
    assert line == "110 tokens · 41.2 tok/s · first token 0.21 s"


def test_nothing_drafted_shows_no_gain() -> None:
    assert "plain" not in statistics_line(finished(SpeculationStats("off", "switched off", speedup_estimate=1.2)))


def test_one_token_has_no_rate() -> None:
    assert "tok/s" not in statistics_line(finished(SpeculationStats("off", "x"), tokens=1))


def test_a_cut_answer_says_so() -> None:
    assert statistics_line(finished(ON, reason="length")).endswith("cut at 110 tokens")
    assert statistics_line(finished(ON, reason="length"), 2048).endswith("cut at 110 tokens")
    cut = statistics_line(finished(ON, reason="length"), 122)  # with 12 tokens of the prompt
    assert cut.endswith("cut at 110 tokens: the context of 122 tokens is full")
    assert statistics_line(finished(ON, reason="cancelled")).endswith("stopped")


def test_the_object_has_exactly_the_keys_of_the_contract() -> None:
    value = json.loads(json.dumps(answer_object("hi", finished(ON), ScriptedClient((says("x"),)).info)))
    assert list(value) == ["text", "finish_reason", "target", "draft", "usage", "timings", "speculation"]
    assert list(value["usage"]) == ["prompt_tokens", "completion_tokens", "reasoning_tokens"]
    assert list(value["timings"]) == ["ttft_s", "decode_tok_s", "draft_s", "verify_s", "host_s"]
    assert list(value["speculation"]) == [
        "state",
        "reason",
        "drafts",
        "draft_tokens",
        "accepted_tokens",
        "acceptance_rate",
        "acceptance_length",
        "accepted_per_position",
        "speedup_estimate",
    ]
    assert value["speculation"]["acceptance_length"] == 109 / 35
    assert value["speculation"]["accepted_per_position"] == [30, 24, 20]


def test_tokens_of_thinking_are_counted() -> None:
    thought = replace(finished(ON), reasoning_tokens=31)
    assert statistics_line(thought).startswith("110 tokens (31 thinking) · 41.2 tok/s")
    assert answer_line(thought) == "110 tokens (31 thinking) · 2.2 s"
    assert answer_object("hi", thought, ScriptedClient((says("x"),)).info)["usage"]["reasoning_tokens"] == 31
    totals = total_lines(
        [thought, thought], EngineSnapshot(0, 0, 70, 24, 220, ON, 0.1, 3.9, 600 * 2**20), 0, ContextUse()
    )
    assert totals[0].endswith("2, 220 tokens (62 thinking), 54.5 tok/s")


def test_totals_add_up_over_answers() -> None:
    snapshot = EngineSnapshot(0, 0, 70, 24, 220, ON, 0.1, 3.9, 600 * 2**20)
    text = "\n".join(total_lines([finished(ON), finished(ON)], snapshot, 1, ContextUse(488, 22, 100)))
    assert "220 tokens, 54.5 tok/s" in text  # 2 * 109 tokens after the first in 4 s
    untimed = replace(finished(ON), timings=replace(TIMINGS, decode_tok_s=0.0))
    assert total_lines([finished(ON), untimed], snapshot, 1, ContextUse())[0].endswith("220 tokens, 54.5 tok/s")
    assert "236 in 70 drafts, 148 accepted, 88 wasted" in text
    assert "length 3.11, rate 63%" in text
    assert "by position   86% 69% 57%\n" in text  # 60 of 70 drafts had their first token accepted
    assert "context       122 of 488 tokens, 25% full" in text
    estimated = total_lines([], snapshot, 1, ContextUse(488, 0, 122, is_counted=False))
    assert "context       about 122 of 488 tokens, 25% full" in estimated
    assert "2.5% of the time outside llama.cpp" in text
    assert "600 MiB at most, restarted 1 time" in text


def test_totals_without_drafts_give_the_reason() -> None:
    snapshot = EngineSnapshot(0, 0, 0, 0, 0, SpeculationStats(), 0.0, 0.0, 0)
    assert "drafting      drafting off (your setting)" in "\n".join(
        total_lines([finished(SpeculationStats("off", "switched off"))], snapshot, 0, ContextUse())
    )
    assert total_lines([], snapshot, 0, ContextUse())[0] == "no answers yet"


def test_the_model_names_itself() -> None:
    client = ScriptedClient((says("x"),), label="embedded guide at the cost of a 0.3 B model")
    text = "\n".join(model_lines(client.info, scripted_plan(client.label)))
    assert "embedded guide at the cost of a 0.3 B model" in text
    assert "scripted head, automatic" in text
    assert "context  2048 tokens" in text
    assert "none: no draft is known" in "\n".join(model_lines(client.info, scripted_plan(client.label, spec=OFF)))


@pytest.mark.parametrize(("most", "words"), [(0, "16 tokens ahead"), (5, "5 tokens ahead"), (16, "16 tokens ahead")])
def test_no_more_tokens_are_promised_than_can_be_drafted(most: int, words: str) -> None:
    assert describe_draft_length(fixed_spec(16), most) == words
    assert bool(describe_cut_length(16, most)) == (most == 5)
    assert describe_draft_length(AUTO_SPEC, most) == "automatic"

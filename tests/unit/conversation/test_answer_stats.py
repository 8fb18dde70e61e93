"""The statistics line and the JSON object: every figure in its place, and no gain that was not measured."""

from __future__ import annotations

import json

from doubles.scripted_client import ScriptedClient, says, scripted_plan

from eaglelocal.conversation.answer_stats import answer_object, model_lines, statistics_line, total_lines
from eaglelocal.core.events import EngineSnapshot, Finished
from eaglelocal.core.request import OFF
from eaglelocal.core.stats import SpeculationStats, Timings

TIMINGS = Timings(
    ttft_s=0.2149, prefill_s=0.1, decode_s=2.0, draft_s=0.5, verify_s=1.2, host_s=0.02, decode_tok_s=41.23
)
ON = SpeculationStats("on", "", 35, 118, 74, (30, 24, 20), 1.637, emitted_tokens=109)


def finished(speculation: SpeculationStats, *, tokens: int = 110, reason: str = "stop") -> Finished:
    return Finished("r", reason, "", 12, tokens, TIMINGS, speculation)


def test_the_line_of_a_drafted_answer() -> None:
    assert statistics_line(finished(ON)) == (
        "41.2 tok/s · acceptance length 3.11 · 74/118 drafted accepted · first token 0.21 s · 1.64x plain (estimated)"
    )


def test_a_gain_that_was_not_measured_is_not_invented() -> None:
    assert statistics_line(finished(SpeculationStats("on", "", 1, 2, 1, (1,), emitted_tokens=2))).endswith(
        "gain not measured"
    )


def test_off_says_why() -> None:
    line = statistics_line(finished(SpeculationStats("off", "switched off")))
    assert line == "41.2 tok/s · first token 0.21 s · speculation off: switched off"


def test_asleep_after_some_drafts_shows_both() -> None:
    line = statistics_line(
        finished(SpeculationStats("asleep", "0.94x over 256 tokens", 3, 9, 1, (1,), 0.94, emitted_tokens=4))
    )
    assert "1/9 drafted accepted" in line
    assert "speculation asleep: 0.94x over 256 tokens" in line


def test_one_token_has_no_rate() -> None:
    assert "tok/s" not in statistics_line(finished(SpeculationStats("off", "x"), tokens=1))


def test_a_cut_answer_says_so() -> None:
    assert statistics_line(finished(ON, reason="length")).endswith("cut at 110 tokens")
    assert statistics_line(finished(ON, reason="cancelled")).endswith("stopped")


def test_the_object_has_exactly_the_keys_of_the_contract() -> None:
    value = json.loads(json.dumps(answer_object("hi", finished(ON), ScriptedClient((says("x"),)).info)))
    assert list(value) == ["text", "finish_reason", "target", "draft", "usage", "timings", "speculation"]
    assert list(value["usage"]) == ["prompt_tokens", "completion_tokens"]
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


def test_totals_add_up_over_answers() -> None:
    snapshot = EngineSnapshot(0, 0, 70, 24, 220, ON, 0.1, 3.9, 600 * 2**20)
    text = "\n".join(total_lines([finished(ON), finished(ON)], snapshot, 1))
    assert "220 tokens, 54.5 tok/s" in text  # 2 * 109 tokens after the first in 4 s
    assert "236 in 70 drafts, 148 accepted, 88 wasted" in text
    assert "length 3.11, rate 63%" in text
    assert " 86%" in text  # 60 of 70 drafts had their first token accepted
    assert "2.5% of the time outside llama.cpp" in text
    assert "600 MiB at most, restarted 1 time" in text


def test_totals_without_drafts_give_the_reason() -> None:
    snapshot = EngineSnapshot(0, 0, 0, 0, 0, SpeculationStats(), 0.0, 0.0, 0)
    assert "off: switched off" in "\n".join(
        total_lines([finished(SpeculationStats("off", "switched off"))], snapshot, 0)
    )
    assert total_lines([], snapshot, 0)[0] == "no answers yet"


def test_the_model_names_itself() -> None:
    client = ScriptedClient((says("x"),), label="embedded guide at the cost of a 0.3 B model")
    text = "\n".join(model_lines(client.info, scripted_plan(client.label)))
    assert "embedded guide at the cost of a 0.3 B model" in text
    assert "scripted head, as much as pays" in text
    assert "context  2048 tokens" in text
    assert "none: no draft is known" in "\n".join(model_lines(client.info, scripted_plan(client.label, spec=OFF)))

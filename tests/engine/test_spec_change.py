"""Drafting is switched while answers run: no text changes, and the engine's totals are those of its answers."""

from __future__ import annotations

import pytest
from doubles.engine_harness import AnswerResult, EngineHarness, plain_text
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedHead, Table
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.events import Finished, SpeculationChanged, Started, Tokens
from eaglelocal.core.request import AUTO_SPEC, OFF, PID, ChatRequest, Spec, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.ngram import Ngram

TABLE = Table(seed=1)
SPECS = [AUTO_SPEC, PID, OFF, fixed_spec(3), fixed_spec(7)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def harness_of(num_slots: int, spec: Spec = AUTO_SPEC) -> EngineHarness:
    return EngineHarness(TABLE, (Ngram(128), Eagle3(ScriptedHead(TABLE), (0,))), spec=spec, num_slots=num_slots)


def asked(name: str, prompt: tuple[int, ...], spec: Spec | None = None) -> ChatRequest:
    return ChatRequest(id=name, tokens=prompt, spec=spec, params=PARAMS)


def driven(harness: EngineHarness, requests: list[ChatRequest], switches: dict[int, Spec]) -> dict[str, AnswerResult]:
    """Steps until nothing is left; before the step with that number drafting is switched."""
    result = {request.id: AnswerResult() for request in requests}
    for request in requests:
        harness.engine.submit(request)
    step = 0
    while harness.engine.has_work:
        if step in switches:
            harness.engine.set_spec(switches[step])
        for event in harness.engine.step():
            result[event.request_id].add(event)
        step += 1
    return result


@examples(60)
@given(data=st.data())
def test_no_switch_changes_a_text(data: st.DataObject) -> None:
    prompts = data.draw(st.lists(st.lists(st.integers(1, 23), min_size=1, max_size=20), min_size=1, max_size=5))
    requests = [
        asked(str(i), tuple(prompt), data.draw(st.sampled_from([None, None, *SPECS])))
        for i, prompt in enumerate(prompts)
    ]
    switches = data.draw(st.dictionaries(st.integers(0, 60), st.sampled_from(SPECS), max_size=8))
    harness = harness_of(data.draw(st.integers(1, 4)))
    result = driven(harness, requests, switches)
    assert [result[each.id].tokens for each in requests] == [plain_text(TABLE, each) for each in requests]
    assert harness.engine.snapshot().miscounted_slots == ()


def test_off_is_one_token_a_step_and_on_is_more_again() -> None:
    harness = harness_of(1, fixed_spec(4))
    harness.engine.submit(asked("a", (1, 2, 3)))
    sizes: list[int] = []
    while harness.engine.has_work:
        if len(sizes) in (4, 14):
            harness.engine.set_spec(OFF if len(sizes) == 4 else fixed_spec(4))
        sizes.append(sum(len(event.pieces) for event in harness.engine.step() if isinstance(event, Tokens)))
    assert max(sizes[:4]) > 1 and max(sizes[14:]) > 1
    assert sizes[4:14] == [1] * 10


def test_the_state_is_what_the_next_request_gets() -> None:
    harness = harness_of(1)
    assert (harness.engine.snapshot().speculation.state, harness.engine.snapshot().spec) == ("on", "auto")
    harness.engine.set_spec(OFF)
    snapshot = harness.engine.snapshot()
    assert (snapshot.speculation.state, snapshot.speculation.reason) == ("off", "switched off")
    assert snapshot.spec == "off"


def test_totals_are_those_of_the_answers() -> None:
    harness = harness_of(2)
    result = driven(harness, [asked(str(i), tuple(range(1, 12))) for i in range(4)], {})
    snapshot = harness.engine.snapshot()
    ended = [each.finished for each in result.values() if each.finished is not None]
    assert len(ended) == 4
    assert snapshot.answer_s == pytest.approx(sum(each.timings.decode_s for each in ended))
    gains = [each.speculation.speedup_estimate or 0.0 for each in ended]
    assert min(gains) <= (snapshot.speculation.speedup_estimate or 0.0) <= max(gains)
    assert snapshot.reused_tokens == sum(each.started.cached_tokens for each in result.values() if each.started)
    assert snapshot.reused_tokens > 0


def states(harness: EngineHarness, request_id: str, switches: dict[int, Spec]) -> list[tuple[str, str]]:
    """The drafting states reported from Started to Finished."""
    seen: list[tuple[str, str]] = []
    step = 0
    while harness.engine.has_work:
        if step in switches:
            harness.engine.set_spec(switches[step])
        for event in harness.engine.step():
            match event:
                case Started(name, _, _) if name == request_id:
                    seen.append(("on", "begun"))
                case SpeculationChanged(name, state, reason) if name == request_id:
                    seen.append((state, reason))
                case Finished(name, speculation=stats) if name == request_id:
                    seen.append((stats.state, "finished"))
        step += 1
    return seen


def test_a_switch_is_reported_to_every_answer_that_it_changes() -> None:
    harness = harness_of(2, fixed_spec(4))
    harness.engine.submit(asked("wishless", (1, 2, 3)))
    harness.engine.submit(asked("wishes", (4, 5, 6), fixed_spec(3)))
    result = states(harness, "wishless", {3: OFF, 6: fixed_spec(2), 9: fixed_spec(7)})
    assert result == [("on", "begun"), ("off", "switched off"), ("on", "2 tokens"), ("on", "finished")]
    harness.engine.submit(asked("again", (4, 5, 6), fixed_spec(3)))
    assert states(harness, "again", {3: OFF}) == [("on", "begun"), ("on", "finished")]


def test_a_request_that_waits_for_a_shared_prefix_is_reported_when_it_starts() -> None:
    harness = harness_of(2)
    prompt = tuple(range(1, 24)) * 4  # more than one step reads
    harness.engine.submit(asked("reads", prompt))
    harness.engine.submit(asked("waits", prompt))
    result = states(harness, "waits", {1: OFF})
    assert result == [("on", "begun"), ("off", "switched off"), ("off", "finished")]


def test_an_answer_that_begins_without_drafting_says_so_at_once() -> None:
    harness = harness_of(1)
    harness.engine.set_spec(OFF)
    harness.engine.submit(asked("off", (1, 2, 3)))
    assert states(harness, "off", {}) == [("on", "begun"), ("off", "switched off"), ("off", "finished")]
    harness.engine.submit(asked("wishes", (1, 2, 3), fixed_spec(3)))
    assert states(harness, "wishes", {}) == [("on", "begun"), ("on", "finished")]


def test_an_answer_without_any_drafter_is_never_said_to_be_drafted_for() -> None:
    harness = harness_of(1, OFF)  # no drafters at all
    harness.engine.submit(asked("plain", (1, 2, 3)))
    assert [state for state, _ in states(harness, "plain", {})] == ["on", "off", "off"]

"""A step that is reported while the next one is decoded gives what a step that is reported at once gives.

Random traffic runs through both: drafters of every kind, trees, caches that cannot be cut, stop strings, seeds,
constraints, limits, cancels, failed decodes, evicted conversations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from doubles.drafters import FlakyDrafter
from doubles.engine_harness import AnswerResult, EngineHarness, drive, plain_text
from doubles.property_tests import examples
from doubles.restricted_contexts import NUM_SNAPSHOTS, RecurrentContext, SlidingWindowContext
from doubles.scripted_context import ScriptedContext, ScriptedHead, Table
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.events import Finished, RequestEvent, Tokens
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest, Spec, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.scheduler.host_swap import HostSwap
from eaglelocal.scheduler.slot import Checkpoints

TABLE, OTHER = Table(seed=1), Table(seed=2)
DRAFTERS = ("eagle3 right", "eagle3 other", "model right", "model other", "ngram", "flaky")
THREE = fixed_spec(3)
BOUND = Constraint(Syntax.REGEX, "[abcdef][ghijkl]" * 4 + "[mnopqrs]" * 3)


class AsynchronousContext(ScriptedContext):
    is_asynchronous = True


class AsynchronousRecurrentContext(RecurrentContext):
    is_asynchronous = True


class AsynchronousWindowContext(SlidingWindowContext):
    is_asynchronous = True


ASYNCHRONOUS = {
    ScriptedContext: AsynchronousContext,
    RecurrentContext: AsynchronousRecurrentContext,
    SlidingWindowContext: AsynchronousWindowContext,
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """An engine that can be built twice."""

    drafter: str = "eagle3 right"
    spec: Spec = THREE
    num_slots: int = 1
    branches: int = 0
    is_swapping: bool = False
    refused: frozenset[int] = frozenset()

    def build(self, context_kind: type[ScriptedContext]) -> EngineHarness:
        harness = EngineHarness(
            TABLE,
            self._make_drafter(),
            spec=self.spec,
            num_slots=self.num_slots,
            branches=self.branches,
            context_kind=context_kind,
            min_fork=3 if context_kind in (ScriptedContext, AsynchronousContext) else None,
            swap=HostSwap(10**6, min_rows=20) if self.is_swapping else None,
            most_drafted=NUM_SNAPSHOTS if issubclass(context_kind, RecurrentContext) else None,
        )
        if issubclass(context_kind, RecurrentContext):
            prefix_cache = harness.scheduler.prefix_cache
            prefix_cache.can_cut, prefix_cache.checkpoints = False, Checkpoints(4, min_gain_rows=3)
        harness.context.refused = set(self.refused)
        return harness

    def _make_drafter(self) -> Drafter:
        kind, _, which = self.drafter.partition(" ")
        table = TABLE if which == "right" else OTHER
        if kind == "eagle3":
            return Eagle3(ScriptedHead(table), (0,), num_choices=1 + (self.branches > 0))
        if kind == "model":
            return DraftModel(ScriptedContext(table, gives_features=False, num_branches=self.branches))
        return FlakyDrafter(TABLE.n_vocab) if kind == "flaky" else Ngram(128)


def ask(name: str, prompt: Sequence[int], *, constraint: Constraint | None = None, **params: Any) -> ChatRequest:
    fields = {"temperature": 0.0, "max_tokens": 20} | params
    return ChatRequest(id=name, tokens=tuple(prompt), params=SamplingParams(**fields), constraint=constraint)


def outcome(answer: AnswerResult) -> tuple[object, ...]:
    """Return what a client can see of an answer, without times, drafts and reused tokens."""
    if answer.failed is not None:
        return answer.tokens, answer.text, str(answer.failed.error)
    assert answer.finished is not None
    finished = answer.finished
    assert finished.completion_tokens == len(answer.tokens)
    counts = finished.prompt_tokens, finished.completion_tokens
    return answer.tokens, answer.text, finished.reason, finished.stop, *counts


def run_both(
    setup: Setup,
    asked: Sequence[ChatRequest],
    cancel_at: Mapping[str, int] | None = None,
    context_kind: type[ScriptedContext] = ScriptedContext,
) -> list[dict[str, AnswerResult]]:
    """Return the results of both kinds of engine; afterwards their caches hold what the scheduler counts."""
    results = []
    for kind in (context_kind, ASYNCHRONOUS[context_kind]):
        harness = setup.build(kind)
        results.append(harness.run(asked, cancel_at))
        assert harness.engine.miscounted_slots() == []
        assert all(sampler.closed for sampler in harness.context.samplers)
    return results


@st.composite
def requests(draw: st.DrawFn, *, has_stops: bool) -> list[ChatRequest]:
    stem = draw(st.lists(st.integers(1, 23), min_size=1, max_size=50))
    asked = []
    for number in range(draw(st.integers(1, 8))):
        params: dict[str, object] = {"max_tokens": draw(st.integers(0, 30)), "ignore_eos": draw(st.booleans())}
        if draw(st.booleans()):
            params |= {"temperature": 1.0, "seed": number, "repeat_penalty": draw(st.sampled_from([1.0, 1.3]))}
        if has_stops and draw(st.booleans()):
            params["stop"] = tuple(draw(st.lists(st.text("abcdefghijkl", min_size=1, max_size=2), max_size=4)))
        tail = draw(st.lists(st.integers(1, 23), min_size=1, max_size=8))
        constraint = draw(st.sampled_from([None, None, BOUND]))
        prompt = (*stem[: draw(st.integers(0, len(stem)))], *tail)
        asked.append(ask(str(number), prompt, constraint=constraint, **params))
    return asked


SETUPS = st.builds(
    Setup,
    drafter=st.sampled_from(DRAFTERS),
    spec=st.sampled_from([OFF, fixed_spec(1), fixed_spec(5)]),
    num_slots=st.integers(1, 4),
    is_swapping=st.booleans(),
    refused=st.frozensets(st.integers(0, 30), max_size=1),
)


@examples(150)
@given(data=st.data())
def test_everything_a_client_sees_is_the_same(data: st.DataObject) -> None:
    """Without stop strings both engines run the same decodes, so even cancels and failures cut texts at one token."""
    setup = data.draw(SETUPS)
    asked = data.draw(requests(has_stops=False))
    names = [one.id for one in asked]
    cancels = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 12), max_size=3))
    plain, deferred = run_both(setup, asked, cancels)
    assert {name: outcome(plain[name]) for name in names} == {name: outcome(deferred[name]) for name in names}
    assert [plain[name].drafted for name in names] == [deferred[name].drafted for name in names]


@examples(150)
@given(data=st.data())
def test_answers_that_meet_stop_strings_end_at_the_same_token(data: st.DataObject) -> None:
    setup = dataclasses.replace(
        data.draw(SETUPS),
        spec=data.draw(st.sampled_from([OFF, fixed_spec(2), fixed_spec(6), AUTO_SPEC])),
        branches=data.draw(st.sampled_from([0, 0, 2])),
        is_swapping=False,
        refused=frozenset(),
    )
    asked = data.draw(requests(has_stops=True))
    names = [one.id for one in asked]
    cancels = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 12), max_size=2))
    plain, deferred = run_both(setup, asked, cancels)
    for name in names:
        if name in cancels:  # a slot is free a step later than at once: what follows may be cancelled earlier
            tokens = [plain[name].tokens, deferred[name].tokens]
            assert min(tokens, key=len) == max(tokens, key=len)[: len(min(tokens, key=len))]
        else:
            assert outcome(plain[name]) == outcome(deferred[name])


@pytest.mark.parametrize("context_kind", [RecurrentContext, SlidingWindowContext])
@examples(40)
@given(data=st.data())
def test_caches_that_cannot_be_cut_anywhere(context_kind: type[ScriptedContext], data: st.DataObject) -> None:
    """An answer that ends while its rows are decoded leaves its root in the cache: only drafts are taken back."""
    setup = Setup(data.draw(st.sampled_from(DRAFTERS[:3])), fixed_spec(NUM_SNAPSHOTS - 1), data.draw(st.integers(1, 3)))
    asked = data.draw(requests(has_stops=True))
    plain, deferred = run_both(setup, asked, context_kind=context_kind)
    assert {one.id: outcome(plain[one.id]) for one in asked} == {one.id: outcome(deferred[one.id]) for one in asked}


# ---- what is reported, and when
def steps_of(harness: EngineHarness, *asked: ChatRequest) -> list[list[RequestEvent]]:
    """Return the events of every step."""
    for request in asked:
        harness.engine.submit(request)
    steps = []
    while harness.engine.has_work:
        steps.append(harness.engine.step())
    return steps


def test_the_events_of_a_step_come_with_the_next_submission() -> None:
    request = ask("a", (3, 4, 5), ignore_eos=True, max_tokens=9)
    at_once = steps_of(Setup(spec=fixed_spec(1)).build(ScriptedContext), request)
    deferred = steps_of(Setup(spec=fixed_spec(1)).build(AsynchronousContext), request)
    tokens = [[e for e in events if isinstance(e, Tokens)] for events in at_once]
    assert len(tokens[0]) == 1  # emitted as early as possible
    assert [[e for e in events if isinstance(e, Tokens)] for events in deferred] == [[], *tokens]
    assert len(deferred) == len(at_once) + 1


def test_an_answer_that_ends_frees_its_slot_for_the_very_next_decode() -> None:
    harness = Setup(spec=OFF).build(AsynchronousContext)
    steps_of(harness, *(ask(name, (3, 4, 5), ignore_eos=True, max_tokens=4) for name in "ab"))
    assert len(harness.context.decodes) == 2 * 4


def test_rows_after_a_stop_string_are_neither_reported_nor_learned_from() -> None:
    text = "".join(chr(ord("a") + token - 1) for token in plain_text(TABLE, ask("a", (3, 4, 5), ignore_eos=True)))
    harness = Setup(spec=OFF).build(AsynchronousContext)
    request = ask("a", (3, 4, 5), stop=(text[5],), ignore_eos=True)
    answer = drive(harness.engine, [request])["a"]
    assert answer.finished is not None
    assert (answer.text, answer.finished.reason) == (text[: text.index(text[5])], "stop")
    num_told = text.index(text[5]) + 1
    assert answer.finished.completion_tokens == len(answer.tokens) == num_told
    assert len(harness.context.decodes) == num_told + 1  # the decode that was under way when the stop was found
    assert harness.context.submitted is None  # it was work, although no call waited for it
    assert harness.engine.snapshot().generated_tokens == num_told


def test_a_snapshot_sees_the_state_between_two_steps() -> None:
    counts = []
    for kind in (ScriptedContext, AsynchronousContext):
        harness = Setup().build(kind)
        harness.engine.submit(ask("a", (3, 4, 5), ignore_eos=True))
        for _ in range(3):
            harness.engine.step()
        snapshot = harness.engine.snapshot()
        assert snapshot.miscounted_slots == ()
        counts.append((snapshot.steps, snapshot.generated_tokens, snapshot.cached_tokens, snapshot.running))
    assert counts[0] == counts[1]


def test_a_cancel_ends_with_all_tokens_that_were_decoded() -> None:
    ends = []
    for kind in (ScriptedContext, AsynchronousContext):
        harness = Setup(num_slots=2).build(kind)
        for name in "ab":
            harness.engine.submit(ask(name, (3, 4, 5), ignore_eos=True))
        for _ in range(3):
            harness.engine.step()
        harness.engine.cancel("a")
        (finished,) = [e for e in harness.engine.step() if isinstance(e, Finished)]
        ends.append((finished.request_id, finished.reason, finished.completion_tokens))
        harness.engine.close()
    assert ends[0] == ends[1] == ("a", "cancelled", 9)


def test_a_failed_decode_fails_its_requests_after_their_last_tokens() -> None:
    harness = Setup(spec=OFF, refused=frozenset({3})).build(AsynchronousContext)
    answer = drive(harness.engine, [ask("a", (3, 4, 5), ignore_eos=True)])["a"]
    assert answer.failed is not None
    assert answer.tokens == plain_text(TABLE, ask("a", (3, 4, 5), ignore_eos=True))[:3]
    (again,) = drive(harness.engine, [ask("b", (3, 4, 5), ignore_eos=True)]).values()
    assert again.tokens == plain_text(TABLE, ask("b", (3, 4, 5), ignore_eos=True))

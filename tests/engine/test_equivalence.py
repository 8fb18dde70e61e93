"""Speculation never changes the text: every drafter, draft length 0 to 8, 1 to 4 slots, random cancels."""

from __future__ import annotations

import random

import pytest
from doubles.drafters import FlakyDrafter, NoDrafter
from doubles.engine_harness import EngineHarness, plain_text
from doubles.property_tests import examples
from doubles.scripted_context import (
    PromptlessContext,
    ScriptedContext,
    ScriptedHead,
    ScriptedMedusa,
    ScriptedParallelHead,
    Table,
)
from doubles.tiers import some_of
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.block_drafter import Medusa, PEagle
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.lookahead import Lookahead

TABLE = Table(seed=1)
OTHER_TABLE = Table(seed=2)
WORST_TABLE = Table(seed=1, end_bias=3.0, sharpness=-2.0)


TABLES = {"right": TABLE, "other": OTHER_TABLE, "worst": WORST_TABLE}


def drafter_of(kind: str) -> Drafter:
    method, _, how = kind.rpartition("-")
    match method or kind:
        case "eagle3":
            return Eagle3(ScriptedHead(TABLES[how]), (0,))
        case "p-eagle":
            return PEagle(ScriptedParallelHead(TABLES[how]), (0,), ScriptedParallelHead.mask)
        case "medusa":
            return Medusa(ScriptedMedusa(TABLES[how]), 0, block_size=6)
        case "model":
            return DraftModel(ScriptedContext(TABLES[how], gives_features=False))
        case "lookahead":
            return Lookahead()
    return FlakyDrafter(TABLE.n_vocab) if kind == "flaky" else NoDrafter()


KINDS = [
    "none",
    "flaky",
    "lookahead",
    *(f"{method}-{how}" for method in ("eagle3", "p-eagle", "medusa", "model") for how in TABLES),
]


def request(name: str, prompt: tuple[int, ...], **changes: object) -> ChatRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 20} | changes
    return ChatRequest(id=name, tokens=prompt, params=SamplingParams(**fields))  # type: ignore[arg-type]


def prompts(seed: int, count: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(1, 24) for _ in range(rng.randint(1, 40))) for _ in range(count)]


@pytest.mark.parametrize("kind", some_of(KINDS, 5))
def test_greedy_text_is_the_plain_text(kind: str) -> None:
    for num_draft_tokens in (0, 1, 2, 4, 8):
        asked = [request(str(i), p) for i, p in enumerate(prompts(num_draft_tokens, 7))]
        plain = {one.id: plain_text(TABLE, one) for one in asked}
        for num_slots in (1, 2, 3, 4):
            harness = EngineHarness(TABLE, drafter_of(kind), num_draft_tokens=num_draft_tokens, num_slots=num_slots)
            answers = harness.run(asked)
            assert {name: answer.tokens for name, answer in answers.items()} == plain, (num_draft_tokens, num_slots)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", [{"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.0, "repeat_penalty": 1.3}])
def test_seeded_text_is_the_plain_text(kind: str, params: dict[str, float]) -> None:
    asked = [request(str(i), p, seed=i, **params) for i, p in enumerate(prompts(3, 6))]
    plain = EngineHarness(TABLE, NoDrafter(), num_draft_tokens=0, num_slots=1).run(asked)
    drafted = EngineHarness(TABLE, drafter_of(kind), num_draft_tokens=5, num_slots=3).run(asked)
    assert {k: a.tokens for k, a in drafted.items()} == {k: a.tokens for k, a in plain.items()}


@examples(150)
@given(data=st.data())
def test_cancels_and_reuse_change_nothing(data: st.DataObject) -> None:
    """Conversations that share prefixes, cancelled at random steps, in any slot: each text stays its own."""
    kind = data.draw(st.sampled_from(KINDS))
    harness = EngineHarness(
        TABLE, drafter_of(kind), num_draft_tokens=data.draw(st.integers(0, 6)), num_slots=data.draw(st.integers(1, 4))
    )
    stem = data.draw(st.lists(st.integers(1, 23), min_size=1, max_size=70))
    asked = []
    for i in range(data.draw(st.integers(1, 8))):
        cut = data.draw(st.integers(0, len(stem)))
        tail = data.draw(st.lists(st.integers(1, 23), min_size=1, max_size=8))
        room = data.draw(st.integers(1, 30))
        asked.append(request(str(i), (*stem[:cut], *tail), max_tokens=room))
    cancels = {str(i): data.draw(st.integers(0, 12)) for i in range(len(asked)) if data.draw(st.booleans())}
    answers = harness.run(asked, cancel_at=cancels)
    for one in asked:
        plain, got = plain_text(TABLE, one), answers[one.id]
        assert got.tokens == plain[: len(got.tokens)]
        if one.id not in cancels:
            assert got.tokens == plain


@pytest.mark.parametrize("kind", ["eagle3-right", "p-eagle-right", "medusa-right"])
def test_an_always_right_head_is_always_accepted(kind: str) -> None:
    harness = EngineHarness(TABLE, drafter_of(kind), num_draft_tokens=4)
    finished = harness.run([request("a", (5, 6, 7), max_tokens=21, ignore_eos=True)])["a"].finished
    assert finished is not None
    assert finished.speculation.accepted_tokens == finished.speculation.draft_tokens == 16
    assert finished.speculation.acceptance_length == 5.0
    assert finished.speculation.accepted_per_position == (4, 4, 4, 4)


@pytest.mark.parametrize("kind", ["eagle3-worst", "p-eagle-worst", "medusa-worst", "model-worst"])
def test_an_always_wrong_drafter_is_never_accepted(kind: str) -> None:
    harness = EngineHarness(TABLE, drafter_of(kind), num_draft_tokens=4)
    finished = harness.run([request("a", (5, 6, 7), max_tokens=21, ignore_eos=True)])["a"].finished
    assert finished is not None
    assert finished.speculation.accepted_tokens == 0
    assert finished.speculation.acceptance_length == 1.0


@pytest.mark.parametrize("num_slots", [1, 3])
def test_steps_without_states_are_steps_without_drafts(num_slots: int) -> None:
    """Where a decode has rows of a prompt, no row has a state; drafting goes on with the next decode."""
    harness = EngineHarness(TABLE, drafter_of("medusa-right"), num_slots=num_slots, context_kind=PromptlessContext)
    asked = [request(str(i), p, ignore_eos=True) for i, p in enumerate(prompts(4, 7))]
    answers = harness.run(asked)
    for one in asked:
        finished = answers[one.id].finished
        assert answers[one.id].tokens == plain_text(TABLE, one) and finished is not None
        assert finished.speculation.accepted_tokens == finished.speculation.draft_tokens > 0


def test_sampler_advances_once_a_token() -> None:
    harness = EngineHarness(TABLE, drafter_of("flaky"), num_draft_tokens=6)
    answer = harness.run([request("a", (9,), temperature=1.0, seed=4, max_tokens=30)])["a"]
    assert harness.context.samplers[0].draws == len(answer.tokens)
    assert harness.context.samplers[0].seen == [9, *answer.tokens]


def test_a_context_that_fills_up_ends_the_answer() -> None:
    harness = EngineHarness(TABLE, drafter_of("eagle3-right"), num_draft_tokens=8, n_ctx=32)
    answer = harness.run([request("a", (3, 4), max_tokens=None, ignore_eos=True)])["a"]
    assert len(answer.tokens) == 30
    assert answer.finished is not None and answer.finished.reason == "length"

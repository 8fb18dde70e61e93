"""What the target says of refused drafts reaches the drafters that read it, and n-grams of it are accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from doubles.drafters import FlakyDrafter
from doubles.engine_harness import EngineHarness, drive, plain_text
from doubles.random_models import write_target
from doubles.real_engine import TINY, real_engine, use_controller
from doubles.scripted_context import Table
from doubles.steady_costs import FreeController, FreeRows

from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Spec, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.drafter import Committed
from eaglelocal.speculation.policy.slot_policy import DrafterSet

TABLE = Table(seed=1)
PROMPT = (5, 6, 7, 8)


def ask(name: str, prompt: Sequence[int], **params: object) -> ChatRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True} | params
    return ChatRequest(id=name, tokens=tuple(prompt), params=SamplingParams(**fields))  # type: ignore[arg-type]


class Reader(FlakyDrafter):
    """Drafts random tokens, and keeps the text with everything that was refused after it."""

    def __init__(self, seed: int) -> None:
        super().__init__(TABLE.n_vocab, seed)
        self.traits = dataclasses.replace(self.traits, reads_refused=True)
        self.text: list[int] = []
        self.refused: list[tuple[list[int], Sequence[tuple[int, int]]]] = []

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            self.text += rows.tokens
            self.refused.append(([*self.text], rows.refused))


@pytest.mark.parametrize("seed", range(4))
def test_guesses_are_what_the_target_says_after_each_refused_token(seed: int) -> None:
    reader = Reader(seed)
    harness = EngineHarness(TABLE, reader, num_draft_tokens=5)
    answer = harness.run([ask("a", PROMPT)])["a"].tokens
    text = [*PROMPT, *answer]
    num_guesses = 0
    for before, refused in reader.refused:
        assert before == text[: len(before)]
        if refused and len(before) < len(text):
            assert refused[0][0] != text[len(before)]  # another token stands there
        for at in range(len(refused)):
            drafted = [token for token, _ in refused[: at + 1]]
            (said,) = plain_text(TABLE, ask("b", [*before, *drafted], max_tokens=1))
            assert refused[at][1] == said
            num_guesses += 1
    assert num_guesses > 30


@pytest.mark.parametrize("branches", [0, 3])
def test_no_more_is_refused_than_was_drafted(branches: int) -> None:
    """Siblings are no part of what is refused: a tree's trunk is."""
    reader = Reader(3)
    harness = EngineHarness(TABLE, reader, num_draft_tokens=4, branches=branches, n_batch=64)
    finished = harness.run([ask("a", PROMPT)])["a"].finished
    assert finished is not None
    num_refused = sum(len(refused) for _, refused in reader.refused)
    assert 0 < num_refused <= finished.speculation.draft_tokens - finished.speculation.accepted_tokens


def test_drafters_that_do_not_read_them_cost_no_reading() -> None:
    harness = EngineHarness(TABLE, FlakyDrafter(TABLE.n_vocab), num_draft_tokens=4)

    def propose(*_: object, **__: object) -> None:
        raise AssertionError("the target's guesses were read")

    harness.context.propose = propose  # type: ignore[assignment]
    assert harness.run([ask("a", PROMPT)])["a"].tokens == plain_text(TABLE, ask("a", PROMPT))


@pytest.mark.parametrize("spec", [fixed_spec(4), AUTO_SPEC])
def test_n_grams_of_an_owner_are_accepted_for_that_owner(tmp_path: Path, spec: Spec) -> None:
    target = write_target(tmp_path / "tiny.gguf", dataclasses.replace(TINY, layer_gain=0.2))
    engine = real_engine(target, "ngram", lookups=("lookahead",), spec=spec)
    names = tuple(drafter.traits.name for drafter in engine.drafters)
    use_controller(
        engine, FreeController(spec, DrafterSet(lookups=names), FreeRows())
    )  # rows of this model cost nothing
    texts, accepted = [], []
    for name, owner in (("first", "ann"), ("again", "ann"), ("other", "bob")):
        request = dataclasses.replace(ask(name, PROMPT, max_tokens=60), owner=owner)
        answer = drive(engine, [request])[name]
        assert answer.finished is not None
        texts.append(answer.tokens)
        accepted.append(answer.finished.speculation.accepted_tokens)
    engine.close()
    assert texts[0] == texts[1] == texts[2]
    assert accepted[1] > 2 * accepted[2] > 0

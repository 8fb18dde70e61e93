"""Draws of a real model at a temperature follow its own distribution, drafted or not: a chi-square test.

A vocabulary has too many outcomes to count, so the likeliest tokens count for themselves and all others as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from doubles.chi_square import p_value
from doubles.engine_harness import drive
from doubles.real_engine import RawLogits, real_engine
from doubles.real_prompts import render
from doubles.scripted_context import distribution

from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine

pytestmark = [pytest.mark.full, pytest.mark.real]

LEAST_P = 1e-4  # fixed seeds: a right sampler passes for good, a wrong one has p values far below
NUM_TOKENS, NUM_KEPT = 2, 8  # tokens of an outcome; tokens after each text that count for themselves
OTHER = -1
QUESTION = (Message("user", "Name any animal, in one word."),)
PARAMS = {
    "T 1.0": {"temperature": 1.0},
    "T 0.7, top-p": {"temperature": 0.7, "top_p": 0.9},
    "T 1.2, top-k and repeat penalty": {"temperature": 1.2, "top_k": 40, "repeat_penalty": 1.1},
}
Outcome = tuple[int, ...]


def exact(logits: RawLogits, prompt: Sequence[int], params: SamplingParams) -> dict[Outcome, float]:
    """Return outcome -> probability. An outcome ends after NUM_TOKENS tokens, or with the first that is OTHER."""
    chances: dict[Outcome, float] = {(): 1.0}
    for _ in range(NUM_TOKENS):
        grown = {said: chance for said, chance in chances.items() if said and said[-1] == OTHER}
        for said, chance in chances.items() - grown.items():
            seen = [*prompt, *said]
            following = distribution(logits.after(seen), params, seen)
            kept = [int(token) for token in np.argsort(-following)[:NUM_KEPT] if following[token] > 0]
            grown |= {(*said, token): chance * float(following[token]) for token in kept}
            grown[*said, OTHER] = chance * max(1.0 - float(following[kept].sum()), 0.0)
        chances = grown
    return chances


def outcome_of(tokens: Sequence[int], chances: dict[Outcome, float]) -> Outcome:
    known = {outcome[:n] for outcome in chances for n in range(1, NUM_TOKENS + 1)}
    said: Outcome = ()
    for token in tokens[:NUM_TOKENS]:
        if (*said, token) not in known:
            return (*said, OTHER)
        said = (*said, token)
    return said


def draw(engine: Engine, prompt: tuple[int, ...], params: dict[str, float], count: int) -> list[list[int]]:
    asked = [
        ChatRequest(
            id=str(seed),
            tokens=prompt,
            params=SamplingParams(seed=seed, max_tokens=NUM_TOKENS + 1, ignore_eos=True, **params),  # type: ignore[arg-type]
        )
        for seed in range(count)
    ]
    return [answer.tokens for answer in drive(engine, asked).values()]


def check(smollm2: Path, params: dict[str, float], length: int, count: int) -> None:
    drafting = {"kind": "draft_model", "draft": smollm2, "num_draft_tokens": length} if length else {}
    engine = real_engine(smollm2, num_slots=8, n_batch=256, **drafting)  # type: ignore[arg-type]
    prompt = render(engine, QUESTION)
    drawn = draw(engine, prompt, params, count)
    accepted = engine.snapshot().speculation.accepted_tokens
    engine.close()
    logits = RawLogits(smollm2)
    chances = exact(logits, prompt, SamplingParams(**params))  # type: ignore[arg-type]
    logits.close()
    seen = Counter(outcome_of(tokens, chances) for tokens in drawn)
    assert len(seen) > 5
    assert p_value(seen, chances) > LEAST_P
    assert length == 0 or accepted > count / 10  # else nothing was tested


@pytest.mark.slow
@pytest.mark.parametrize(("name", "length"), [("T 0.7, top-p", 2), ("T 1.0", 0)])
def test_draws_follow_the_exact_distribution(smollm2: Path, name: str, length: int) -> None:
    check(smollm2, PARAMS[name], length, 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("length", [0, 1, 2])
def test_more_draws_follow_it_too(smollm2: Path, name: str, length: int) -> None:
    check(smollm2, PARAMS[name], length, 3000)

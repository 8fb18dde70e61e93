"""Texts of real models, drafted by everything that needs no head: they are the plain ones, up to near-ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from doubles.engine_harness import drive
from doubles.margin import find_bound, margin_differences
from doubles.real_engine import ask, real_engine
from doubles.real_prompts import PASSAGE, ask_questions, read_text
from doubles.tiers import some_of

from eaglelocal.core.request import AUTO_SPEC, PID, ChatRequest, Spec, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.stats import SpeculationStats
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import IncompatibleError
from eaglelocal.preparation.decision import resolve

pytestmark = [pytest.mark.full, pytest.mark.real]

SIZES = {"n_ctx": 1024, "n_batch": 256}
MAX_TOKENS = 24
TEXTS = {
    "prose": PASSAGE * 3,  # repeats itself, so that a lookup has something to propose
    "code": "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\ndef multiply(a, b):\n",
    "list": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. In German: Montag, Dienstag,",
}
Record = Callable[[str, object], None]


def check(
    target: Path, engine: Engine, requests: Sequence[ChatRequest], record_property: Record
) -> tuple[SpeculationStats, int]:
    """Return what was drafted, and the number of near-ties at which texts differ. Closes the engine."""
    result = drive(engine, requests)
    speculation = engine.snapshot().speculation
    engine.close()
    plain = real_engine(target, **SIZES)
    bound = find_bound(target)
    flips = [flip for one in requests for flip in margin_differences(plain, one, result[one.id].tokens, bound)]
    plain.close()
    record_property("flips", len(flips))
    assert all(len(result[one.id].tokens) == one.params.max_tokens for one in requests)
    return speculation, len(flips)


# ---- SmolLM2
def check_smollm2(
    smollm2: Path, kind: str, spec: Spec, slots: int, record_property: Record, *, per_kind: int = 1
) -> SpeculationStats:
    draft = smollm2 if kind == "draft_model" else None
    engine = real_engine(smollm2, kind, draft, spec=spec, num_slots=slots, **SIZES)
    requests = ask_questions(engine, per_kind=per_kind, max_tokens=MAX_TOKENS)
    speculation, num_flips = check(smollm2, engine, requests, record_property)
    if kind == "draft_model":  # its own target: it is wrong only where rounding is, and behind ends
        wasted = speculation.draft_tokens - speculation.accepted_tokens
        assert wasted <= spec.max_draft * (len(requests) + num_flips)
    return speculation


@pytest.mark.parametrize(
    ("kind", "length", "slots"), some_of([("ngram", 8, 3), ("draft_model", 3, 1)], rest=pytest.mark.slow)
)
def test_drafts_change_no_text(smollm2: Path, kind: str, length: int, slots: int, record_property: Record) -> None:
    speculation = check_smollm2(smollm2, kind, fixed_spec(length), slots, record_property)
    assert speculation.accepted_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_drafts_change_no_text_at_any_length(
    smollm2: Path, kind: str, length: int, slots: int, record_property: Record
) -> None:
    speculation = check_smollm2(smollm2, kind, fixed_spec(length), slots, record_property, per_kind=3)
    assert speculation.accepted_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "slots"), [(AUTO_SPEC, 1), (AUTO_SPEC, 3), (PID, 1)])
@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
def test_lengths_that_are_learned_change_no_text(
    smollm2: Path, kind: str, spec: Spec, slots: int, record_property: Record
) -> None:
    check_smollm2(smollm2, kind, spec, slots, record_property)


# ---- Gemma
def check_gemma(gemma: Path, kind: str, length: int, slots: int, max_tokens: int, record_property: Record) -> None:
    draft = gemma if kind == "draft_model" else None
    engine = real_engine(gemma, kind, draft, num_draft_tokens=length, num_slots=slots, **SIZES)
    requests = [ask(name, read_text(engine, text), max_tokens=max_tokens) for name, text in TEXTS.items()]
    speculation, _ = check(gemma, engine, requests, record_property)
    assert speculation.accepted_tokens > 0


@pytest.mark.parametrize(
    ("kind", "length", "slots"), some_of([("draft_model", 3, 2), ("ngram", 4, 1)], rest=pytest.mark.slow)
)
def test_drafts_change_no_text_of_a_model_with_windows(
    gemma: Path, kind: str, length: int, slots: int, record_property: Record
) -> None:
    check_gemma(gemma, kind, length, slots, MAX_TOKENS, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
@pytest.mark.parametrize("length", [1, 4, 8])
@pytest.mark.parametrize("slots", [1, 3])
def test_drafts_change_no_text_beyond_the_window(
    gemma: Path, kind: str, length: int, slots: int, record_property: Record
) -> None:
    check_gemma(gemma, kind, length, slots, 640, record_property)


# ---- both
def test_a_draft_of_another_vocabulary_is_refused(smollm2: Path, gemma: Path) -> None:
    options = RunOptions(target=str(smollm2), draft=str(gemma))
    with pytest.raises(IncompatibleError, match="vocabular"):
        resolve(options, on_progress=lambda fraction, what: None)

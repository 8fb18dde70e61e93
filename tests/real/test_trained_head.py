"""Training a head of a real model: a few steps on its own answers, a file, and drafts that change no text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.eagle_files import head_source
from doubles.engine_harness import drive
from doubles.margin import margin_differences
from doubles.real_engine import real_engine
from doubles.real_prompts import ask_questions

from eaglelocal.bench.text_identity import COARSE
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import OFF
from eaglelocal.core.stats import SpeculationStats
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.training.conversations import TrainingConversation

torch = pytest.importorskip("torch")

from eaglelocal.training.batches import Unrolling  # noqa: E402
from eaglelocal.training.head_file import make_head_entries, make_head_tensors  # noqa: E402
from eaglelocal.training.loop import Recipe  # noqa: E402
from eaglelocal.training.trainer import HeadTraining, TrainedHead, train_head  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.real]

NUM_HELD_OUT, MAX_TOKENS = 4, 32
NUM_STEPS = 3  # draft steps that the training of every kind of head unrolls, or drafts in one pass
KINDS = {
    "eagle": {},
    "p-eagle": {"num_depths": NUM_STEPS},
    "medusa": {"num_depths": NUM_STEPS, "is_medusa": True},
}
HEAD = Path(__file__).parent / "smollm2-head-q4_0.gguf"


def collect_answers(smollm2: Path, per_kind: int) -> tuple[TrainingConversation, ...]:
    engine = real_engine(smollm2, spec=OFF, num_slots=4, n_ctx=512)
    asked = ask_questions(engine, per_kind=per_kind, max_tokens=MAX_TOKENS)
    result = drive(engine, asked)
    engine.close()
    return tuple(TrainingConversation(one.id, (*one.tokens, *result[one.id].tokens), len(one.tokens)) for one in asked)


def make_training(
    smollm2: Path, folder: Path, *, per_kind: int, epochs: int, start: Path | None = None, kind: str = "eagle"
) -> HeadTraining:
    answers = collect_answers(smollm2, per_kind)
    undrafted = {"draft_kind": "none", "draft_label": "none", "spec": OFF}
    return HeadTraining(
        plan=Plan(target=smollm2, target_label="SmolLM2", n_ctx=512, threads=1, **undrafted),  # type: ignore[arg-type]
        source=replace(head_source(smollm2, start), **KINDS[kind]),
        train_set=answers[NUM_HELD_OUT:],
        held_out=answers[:NUM_HELD_OUT],
        checkpoint=folder / "state",
        epochs=epochs,
        rows_per_step=4,
        recipe=Recipe(warmup_steps=2),
        device="cpu",
        unrolling=Unrolling(num_steps=NUM_STEPS, chains=32),
    )


def write_trained(training: HeadTraining, trained: TrainedHead, path: Path) -> None:
    entries = make_head_entries(trained.draft_head.head, training.source, name="head", kind="bf16")
    tensors = make_head_tensors(trained.draft_head, trained.vocabulary, "bf16")
    with write_head_file(path, entries, tensors, on_progress=lambda fraction: None):
        pass


def check_drafting(smollm2: Path, head: Path) -> SpeculationStats:
    """Return what was drafted and accepted, after a check that it changed no text."""
    engine = real_engine(smollm2, "eagle3", head, num_draft_tokens=3, n_ctx=512)
    asked = ask_questions(engine, max_tokens=24)
    result = drive(engine, asked)
    speculation = engine.snapshot().speculation
    engine.close()
    plain = real_engine(smollm2, n_ctx=512)
    for one in asked:
        margin_differences(plain, one, result[one.id].tokens, COARSE)
    plain.close()
    assert speculation.draft_tokens > 0
    return speculation


def test_the_head_of_these_tests_drafts_what_the_model_says(smollm2: Path) -> None:
    """The head of 1,029 steps (docs/measured.md): of three tokens drafted ahead a sixth is accepted."""
    speculation = check_drafting(smollm2, HEAD)
    assert speculation.accepted_tokens > 0.08 * speculation.draft_tokens


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        pytest.param("eagle", None, marks=pytest.mark.slow),
        pytest.param("p-eagle", HEAD, marks=pytest.mark.slow),
        pytest.param("medusa", None, marks=pytest.mark.slow),
        pytest.param("p-eagle", None, marks=pytest.mark.slow),
    ],
)
def test_a_few_steps_make_a_head_that_drafts(smollm2: Path, tmp_path: Path, kind: str, start: Path | None) -> None:
    training = make_training(smollm2, tmp_path, per_kind=2, epochs=1, start=start, kind=kind)
    trained = train_head(training)
    assert trained.before.drafts == trained.after.drafts > 0
    assert trained.before.length >= 1.0 and math.isfinite(trained.after.length)
    write_trained(training, trained, tmp_path / "head.gguf")
    check_drafting(smollm2, tmp_path / "head.gguf")


@pytest.mark.slow
def test_a_head_learns_the_answers_that_it_sees(smollm2: Path, tmp_path: Path) -> None:
    training = make_training(smollm2, tmp_path, per_kind=4, epochs=40)
    trained = train_head(training)
    write_trained(training, trained, tmp_path / "head.gguf")
    assert check_drafting(smollm2, tmp_path / "head.gguf").accepted_tokens > 0

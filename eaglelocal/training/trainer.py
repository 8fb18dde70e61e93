"""Training of a draft head on its target's own conversations: capture, steps, held-out evaluation, and the result.

It connects these; the arithmetic, the files' formats and the target are elsewhere. A run that was stopped continues
from its checkpoint.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from eaglelocal.core.plan import Plan
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.probe.thread_count import count_usable_threads
from eaglelocal.training.batches import Accepted, BatchSchedule, HeadBatch, Imitation, Reader, Unrolling
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.draft_head import (
    DraftHead,
    DraftVocabulary,
    HeadSource,
    choose_vocabulary,
    frequent_tokens,
    make_draft_head,
)
from eaglelocal.training.loop import Recipe, TrainingRun, train
from eaglelocal.training.precision import autocast
from eaglelocal.training.progress import TrainingProgress
from eaglelocal.training.target_capture import TargetCapture

HELD_OUT_ROWS = 4  # in a batch, if they fit
PART_NUMBERS = 2**22  # of a state, in a part trained on at once: with a wide target gradients keep gigabytes of it
LEFT_BYTES = 512 * 2**20  # of a card, for llama.cpp while torch trains on it
# torch's messages, for GPUs and other devices
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining:
    """Parameters of a training run: the head, the data, and the duration.

    plan        loads the target; conversations longer than its n_ctx lose their end
    checkpoint  where the state of training is kept
    """

    plan: Plan
    school: HeadSource
    taught: tuple[TrainingConversation, ...]
    held_out: tuple[TrainingConversation, ...]
    checkpoint: Path
    epochs: int
    rows_per_step: int
    recipe: Recipe
    device: str
    seed: int = 1
    unrolling: Unrolling = field(default_factory=Unrolling)


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The trained head, and its acceptance on the held-out conversations before and after."""

    pupil: DraftHead
    words: DraftVocabulary
    before: Accepted
    after: Accepted


def train_head(study: HeadTraining) -> TrainedHead:
    """Train a head. What torch holds on the device is freed afterwards.

    Raises UsageError where the context holds no answer, ResourceError where memory does not suffice, what loading
    the target raises, and KeyboardInterrupt, which leaves a checkpoint.
    """
    try:
        with _memory_suffices(study.device):
            return _learned(study)
    finally:
        gc.collect()
        if study.device == "cuda":
            torch.cuda.empty_cache()
        elif study.device == "mps":
            torch.mps.empty_cache()


def leave_room(device: str) -> None:
    """Limit torch's memory on the card: llama.cpp ends the process without memory, while torch raises or frees some."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(share_of_card(free, total, torch.cuda.memory_reserved()))


def share_of_card(free: int, total: int, held: int) -> float:
    """Return the share of the card for torch: what it holds, and what is free except for LEFT_BYTES."""
    return min(1.0, (held + max(free - LEFT_BYTES, 0)) / total)


@contextmanager
def _memory_suffices(device: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in NO_MEMORY):
            raise
        ways = "a smaller --ctx" if device == "cpu" else "a smaller --ctx or --gpu-layers, or `--torch-device cpu`"
        raise ResourceError(f"learning needs more memory than {device} has left", hint=ways) from error


def parts_of(together: Sequence[TrainingConversation], width: int) -> Iterator[Sequence[TrainingConversation]]:
    """Split a step into parts that are small enough to train on at once, each padded to its longest conversation."""
    part: list[TrainingConversation] = []
    for one in sorted(together, key=lambda each: len(each.tokens)):
        if part and (len(part) + 1) * len(one.tokens) * width > PART_NUMBERS:
            yield part
            part = []
        part.append(one)
    yield part


def _learned(study: HeadTraining) -> TrainedHead:
    study = within_context(study)
    torch.set_num_threads(study.plan.threads or count_usable_threads())
    torch.manual_seed(study.seed)
    new_tokens = frequent_tokens(_counts(study)) if study.school.start is None else None
    words = choose_vocabulary(study.school, new_tokens)
    pupil = make_draft_head(study.school, words, max_context=study.plan.n_ctx).to_learn_on(study.device)
    with (
        TargetCapture(study.plan, pupil.head.shape.taps, words.tokens) as capture,
        TrainingProgress("head") as progress,
    ):
        reader = Reader(capture.read, words, device=study.device)
        width = pupil.head.shape.width
        examined = Imitation(pupil, study.unrolling)
        course = BatchSchedule(study.taught, study.rows_per_step, study.epochs, study.seed)

        def examine() -> Accepted:
            total = Accepted(0, (0,) * study.unrolling.num_steps)
            for first in range(0, len(study.held_out), HELD_OUT_ROWS):
                for part in parts_of(study.held_out[first : first + HELD_OUT_ROWS], width):
                    lesson = reader.lesson(part, seed=first)
                    with autocast(study.device):
                        total += examined.accepted(lesson)
            return total

        def on_milestone(done: int) -> None:
            progress.note(f"held out at step {done}: {told(examine())}")

        def batches(stage: BatchSchedule, step: int) -> Iterator[HeadBatch]:
            together = stage.of_step(step)
            num_chains = [min(one.num_said, study.unrolling.chains) for one in together]
            for number, part in enumerate(parts_of(together, width)):
                chains = sum(min(one.num_said, study.unrolling.chains) for one in part)
                yield reader.lesson(part, step * stage.rows_per_step + number, share=chains / sum(num_chains))

        leave_room(study.device)
        before = examine()
        progress.note(f"held out before: {told(before)}")
        run = TrainingRun(examined, (course,), batches, study.checkpoint, study.recipe, on_milestone, study.device)
        train(run, progress)
        after = examine()
        progress.note(f"held out at the end: {told(after)}")
    return TrainedHead(pupil.cpu(), words, before, after)


def within_context(study: HeadTraining) -> HeadTraining:
    """Cut conversations to the context, which may be smaller than before, and drop those without enough of an answer.

    Also drops conversations with unknown tokens, which a damaged file may have. Raises UsageError if none is left.
    """
    known = range(study.school.info.n_vocab)
    taught, held_out = (
        tuple(
            cut
            for one in part
            if not (cut := one.cut(study.plan.n_ctx)).is_short and min(cut.tokens) in known and max(cut.tokens) in known
        )
        for part in (study.taught, study.held_out)
    )
    if not taught:
        raise UsageError(f"no answer begins within {study.plan.n_ctx} tokens", hint="a larger --ctx")
    return replace(study, taught=taught, held_out=held_out)


def told(accepted: Accepted) -> str:
    shares = " ".join(f"{count / max(accepted.drafts, 1):.2f}" for count in accepted.per_position)
    return f"{accepted.length:.2f} tokens a check ({shares})"


def _counts(study: HeadTraining) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a count per token, in which any token of an answer outranks those that are in questions only."""
    said = np.zeros(study.school.info.n_vocab, np.int64)
    for one in study.taught:
        tokens = np.asarray(one.tokens)
        said += np.bincount(tokens[one.num_prompt :], minlength=len(said)) * len(said)
        said += np.minimum(np.bincount(tokens[: one.num_prompt], minlength=len(said)), 1)
    return said

"""A head learns from a target's own conversations: capture, steps, what is held out, and the tensors at the end.

Knows the order of things; the arithmetic, the files' formats and the target are elsewhere. A study that was stopped
goes on from its checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from eaglelocal.core.plan import Plan
from eaglelocal.errors import UsageError
from eaglelocal.probe.threads import usable_threads
from eaglelocal.training.capture import Capture
from eaglelocal.training.conversations import Conversation
from eaglelocal.training.lessons import Accepted, Course, Imitation, Lesson, Reader, Unrolling
from eaglelocal.training.loop import Recipe, Run, train
from eaglelocal.training.progress import Progress
from eaglelocal.training.pupil import Pupil, School, Words, frequent_tokens, pupil_of, words_of

HELD_OUT_ROWS = 4  # of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is learned, from what, and how long.

    plan        loads the target; of a conversation longer than its n_ctx the end is left out
    checkpoint  where the state of learning lies
    """

    plan: Plan
    school: School
    taught: tuple[Conversation, ...]
    held_out: tuple[Conversation, ...]
    checkpoint: Path
    epochs: int
    rows_per_step: int
    recipe: Recipe
    device: str
    seed: int = 1
    unrolling: Unrolling = field(default_factory=Unrolling)


@dataclass(frozen=True, slots=True)
class Learned:
    """The head, and what of its drafts would have been accepted in the conversations held out, before and after."""

    pupil: Pupil
    words: Words
    before: Accepted
    after: Accepted


def learn(study: Study) -> Learned:
    """Raises UsageError where the context holds no answer, what loading the target raises, and KeyboardInterrupt,
    which leaves a checkpoint.
    """
    study = within_context(study)
    torch.set_num_threads(study.plan.threads or usable_threads())
    torch.manual_seed(study.seed)
    new_tokens = frequent_tokens(_counts(study)) if study.school.start is None else None
    words = words_of(study.school, new_tokens)
    pupil = pupil_of(study.school, words, max_context=study.plan.n_ctx).to(study.device)
    with Capture(study.plan, pupil.head.shape.taps, words.tokens) as capture, Progress("head") as progress:
        reader = Reader(capture.read, words, device=study.device)
        examined = Imitation(pupil, study.unrolling)
        course = Course(study.taught, study.rows_per_step, study.epochs, study.seed)

        def examine() -> Accepted:
            total = Accepted(0, (0,) * study.unrolling.num_steps)
            for first in range(0, len(study.held_out), HELD_OUT_ROWS):
                lesson = reader.lesson(study.held_out[first : first + HELD_OUT_ROWS], seed=first)
                with torch.autocast(study.device, torch.bfloat16):
                    total += examined.accepted(lesson)
            return total

        def on_milestone(done: int) -> None:
            progress.note(f"held out at step {done}: {told(examine())}")

        def batches(stage: Course, step: int) -> Lesson:
            return reader.lesson(stage.of_step(step), seed=step)

        before = examine()
        progress.note(f"held out before: {told(before)}")
        run = Run(examined, (course,), batches, study.checkpoint, study.recipe, on_milestone, study.device)
        train(run, progress)
        after = examine()
        progress.note(f"held out at the end: {told(after)}")
    return Learned(pupil.cpu(), words, before, after)


def within_context(study: Study) -> Study:
    """With the conversations of which the context holds enough to learn from: earlier ones may be longer.

    A file that is damaged may tell of tokens that there are not.
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


def _counts(study: Study) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How often each token was said; those of the questions come after all that were."""
    said = np.zeros(study.school.info.n_vocab, np.int64)
    for one in study.taught:
        tokens = np.asarray(one.tokens)
        said += np.bincount(tokens[one.num_prompt :], minlength=len(said)) * len(said)
        said += np.minimum(np.bincount(tokens[: one.num_prompt], minlength=len(said)), 1)
    return said

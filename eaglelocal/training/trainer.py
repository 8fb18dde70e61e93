"""Training of a draft head on its target's own conversations: capture, steps, held-out evaluation, and the result.

It connects these; the arithmetic, the files' formats and the target are elsewhere. A run that was stopped continues
from its checkpoint.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path

import numpy as np
import torch

from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import suggest_ctx, suggest_smaller_ctx
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.probe.cpuinfo import count_usable_threads
from eaglelocal.training.batches import Accepted, BatchBuilder, BatchSchedule, HeadBatch, Imitation, Unrolling
from eaglelocal.training.conversations import MIN_ANSWER_TOKENS, TrainingConversation
from eaglelocal.training.device import autocast
from eaglelocal.training.draft_head import (
    DraftHead,
    DraftVocabulary,
    HeadSource,
    Ints,
    choose_vocabulary,
    choose_vocabulary_size,
    make_draft_head,
    select_frequent_tokens,
    select_mask,
)
from eaglelocal.training.loop import Recipe, TrainingRun, train
from eaglelocal.training.progress import TrainingProgress
from eaglelocal.training.target_capture import TargetCapture

HELD_OUT_ROWS = 4  # in a batch, if they fit
MAX_PART_VALUES = 2**22  # values of states in one part of a step: with a wide target, gradients keep gigabytes of them
RESERVED_BYTES = 512 * 2**20  # of a card, for llama.cpp while torch trains on it
# torch's messages, for GPUs and other devices
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining:
    """Parameters of a training run: the head, the data, and the duration.

    plan              loads the target; conversations longer than its n_ctx lose their end
    checkpoint        where the state of training is kept
    draft_vocab       how many tokens a new head predicts; None: chosen by the texts
    num_policy_steps  after the epochs: steps that learn from the head's own drafts
    """

    plan: Plan
    source: HeadSource
    train_set: tuple[TrainingConversation, ...]
    held_out: tuple[TrainingConversation, ...]
    checkpoint: Path
    epochs: int
    rows_per_step: int
    recipe: Recipe
    device: str
    seed: int = 1
    unrolling: Unrolling = field(default_factory=Unrolling)
    draft_vocab: int | None = None
    num_policy_steps: int = 0

    def stages(self) -> tuple[BatchSchedule, ...]:
        """Return the epochs, and the steps on the head's own drafts."""
        epochs = BatchSchedule(self.train_set, self.rows_per_step, self.epochs, self.seed)
        policy = replace(epochs, seed=self.seed + 1, num_policy_steps=self.num_policy_steps)
        return (epochs, policy) if self.num_policy_steps else (epochs,)


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The trained head, and its acceptance on the held-out conversations before and after."""

    draft_head: DraftHead
    vocabulary: DraftVocabulary
    before: Accepted
    after: Accepted


def train_head(training: HeadTraining) -> TrainedHead:
    """Train a head. Torch's memory on the device is freed afterwards.

    Raises UsageError if no answer fits the context, ResourceError if memory does not suffice, the loading errors of
    the target, and KeyboardInterrupt, which leaves a checkpoint.
    """
    try:
        with _memory_errors(training.device, training.plan.n_ctx):
            return _train(training)
    finally:
        gc.collect()
        if training.device == "cuda":
            torch.cuda.empty_cache()
        elif training.device == "mps":
            torch.mps.empty_cache()


def limit_torch_memory(device: str) -> None:
    """Limit torch's memory on the card: without memory, llama.cpp ends the process, while torch raises."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(gpu_memory_share(free, total, torch.cuda.memory_reserved()))


def gpu_memory_share(free: int, total: int, reserved: int) -> float:
    """Return torch's share of the card: the memory that it has reserved, and all free memory but RESERVED_BYTES."""
    return min(1.0, (reserved + max(free - RESERVED_BYTES, 0)) / total)


@contextmanager
def _memory_errors(device: str, n_ctx: int) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in NO_MEMORY):
            raise
        hint = " or ".join([suggest_smaller_ctx(n_ctx), *([] if device == "cpu" else ["--torch-device cpu"])])
        raise ResourceError(f"training needs more memory than {device} has left", hint=hint) from error


def split_step(conversations: Sequence[TrainingConversation], width: int) -> Iterator[Sequence[TrainingConversation]]:
    """Split a step into parts that are small enough to train on at once, each padded to its longest conversation."""
    part: list[TrainingConversation] = []
    for one in sorted(conversations, key=lambda each: len(each.tokens)):
        if part and (len(part) + 1) * len(one.tokens) * width > MAX_PART_VALUES:
            yield part
            part = []
        part.append(one)
    yield part


def _train(training: HeadTraining) -> TrainedHead:
    training = fit_to_context(training)
    if training.source.is_parallel and not training.source.begins_alike:  # the mask comes from the head's own texts
        training = replace(training, source=replace(training.source, mask=select_mask(_count_tokens(training))))
    torch.set_num_threads(training.plan.threads or count_usable_threads())
    torch.manual_seed(training.seed)
    vocabulary = choose_vocabulary(training.source, _select_new_tokens(training))
    draft_head = make_draft_head(training.source, vocabulary, max_context=training.plan.n_ctx).move_to(training.device)
    with (
        TargetCapture(training.plan, draft_head.head.shape.taps, vocabulary.tokens) as capture,
        TrainingProgress("head") as progress,
    ):
        builder = BatchBuilder(capture.read, vocabulary, device=training.device)
        width = draft_head.head.shape.width
        objective = Imitation(draft_head, training.unrolling)

        def evaluate() -> Accepted:
            total = Accepted(0, (0,) * training.unrolling.num_steps)
            for first in range(0, len(training.held_out), HELD_OUT_ROWS):
                for part in split_step(training.held_out[first : first + HELD_OUT_ROWS], width):
                    batch = builder.build(part, seed=first)
                    with autocast(training.device):
                        total += objective.measure_acceptance(batch)
            return total

        def on_milestone(done: int) -> None:
            progress.note(f"held out at step {done}: {format_acceptance(evaluate())}")

        def batches(stage: BatchSchedule, step: int) -> Iterator[HeadBatch]:
            conversations = stage.conversations_of(step)
            num_chains = [min(one.num_answer_tokens, training.unrolling.chains) for one in conversations]
            for number, part in enumerate(split_step(conversations, width)):
                chains = sum(min(one.num_answer_tokens, training.unrolling.chains) for one in part)
                seed, share = step * stage.rows_per_step + number, chains / sum(num_chains)
                yield builder.build(part, seed, share=share, is_on_policy=stage.is_on_policy)

        limit_torch_memory(training.device)
        before = evaluate()
        progress.note(f"held out before: {format_acceptance(before)}")
        run = TrainingRun(
            objective, training.stages(), batches, training.checkpoint, training.recipe, on_milestone, training.device
        )
        train(run, progress)
        after = evaluate()
        progress.note(f"held out at the end: {format_acceptance(after)}")
    return TrainedHead(draft_head.cpu(), vocabulary, before, after)


def fit_to_context(training: HeadTraining) -> HeadTraining:
    """Cut conversations to the context, which may have become smaller, and drop those whose answer becomes too short.

    Also drops conversations with unknown tokens, which a damaged file may have. Raises UsageError if none is left.
    """
    known = range(training.source.target.n_vocab)
    train_set, held_out = (
        tuple(
            cut
            for one in part
            if not (cut := one.cut(training.plan.n_ctx)).is_short
            and min(cut.tokens) in known
            and max(cut.tokens) in known
        )
        for part in (training.train_set, training.held_out)
    )
    if not train_set:
        needed = min((one.num_prompt for one in training.train_set), default=0) + MIN_ANSWER_TOKENS
        hint = suggest_ctx(needed, answer_tokens=0)
        raise UsageError(f"no answer starts within {training.plan.n_ctx} tokens", hint=hint)
    return replace(training, train_set=train_set, held_out=held_out)


def format_acceptance(accepted: Accepted) -> str:
    shares = " ".join(f"{count / max(accepted.drafts, 1):.2f}" for count in accepted.per_position)
    return f"acceptance length {accepted.length:.2f} ({shares})"


def _select_new_tokens(training: HeadTraining) -> Ints | None:
    """Return the tokens that a new head predicts; None: all, or the same as the head that is trained further."""
    if training.source.start is not None:
        return None
    counts = _count_tokens(training)
    return select_frequent_tokens(counts, training.draft_vocab or choose_vocabulary_size(counts))


def _count_tokens(training: HeadTraining) -> Ints:
    """Count each token, so that any token of an answer outranks tokens that occur only in questions."""
    counts = np.zeros(training.source.target.n_vocab, np.int64)
    for one in training.train_set:
        tokens = np.asarray(one.tokens)
        counts += np.bincount(tokens[one.num_prompt :], minlength=len(counts)) * len(counts)
        counts += np.minimum(np.bincount(tokens[: one.num_prompt], minlength=len(counts)), 1)
    return counts

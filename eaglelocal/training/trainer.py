"""Training of a draft head on its target's own conversations: capture, steps, held-out evaluation, and the result.

It connects these; the arithmetic, the files' formats and the target are elsewhere. A run that was stopped continues
from its checkpoint.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
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
from eaglelocal.training.target_capture import KeptStates, TargetCapture

HELD_OUT_ROWS = 4  # in a batch, if they fit
ROUND_SEEDS = 1 << 32  # more than a round has batches
CHECKPOINTS = 3  # that have room on the disk beside kept states
MAX_PART_VALUES = 2**22  # values of states in one part of a step: with a wide target, gradients keep gigabytes of them
RESERVED_BYTES = 512 * 2**20  # of a card, for llama.cpp while torch trains on it
# torch's messages, for GPUs and other devices
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining:
    """Parameters of a training run: the head, the data, and the duration.

    plan           loads the target; conversations longer than its n_ctx lose their end
    checkpoint     where the state of training is kept
    draft_vocab    how many tokens a new head predicts; None: chosen by the texts
    round_ends     how many conversations of `train_set` each round so far has, with those before; (): one round has all
    planned_steps  of all rounds, also of those that are still to come; None: there are none
    states         a folder for the target's outputs, if they are to be kept on disk
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
    round_ends: tuple[int, ...] = ()
    planned_steps: int | None = None
    states: Path | None = None

    @property
    def first_round(self) -> tuple[TrainingConversation, ...]:
        return self.train_set[: self.round_ends[0]] if self.round_ends else self.train_set

    @property
    def num_steps(self) -> int:
        """The steps of the rounds so far."""
        return sum(stage.num_steps for stage in self.stages())

    def stages(self) -> tuple[BatchSchedule, ...]:
        """Return the rounds so far."""
        ends = self.round_ends or (len(self.train_set),)
        return tuple(
            BatchSchedule(self.train_set[:end], self.rows_per_step, self.epochs, self.seed, end - before, number)
            for number, (before, end) in enumerate(pairwise((0, *ends)))
            if end > before
        )


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
        TargetCapture(training.plan, draft_head.head.shape.taps) as capture,
        TrainingProgress("head") as progress,
    ):
        taps, width, read = draft_head.head.shape.taps, draft_head.head.shape.width, capture.read_conversation
        if training.states is not None:
            reserve_bytes = CHECKPOINTS * count_state_bytes(draft_head)
            kept = KeptStates(training.states, read, taps, reserve_bytes=reserve_bytes)
            kept.drop_others((*training.train_set, *training.held_out))
            read = kept.read
        builder = BatchBuilder(read, vocabulary, device=training.device)
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

        limit_torch_memory(training.device)
        before = evaluate()
        if not training.checkpoint.exists():
            note_beginning(progress, before, vocabulary, training.held_out)
        run = TrainingRun(
            objective,
            training.stages(),
            partial(make_batches, builder, width, training.unrolling.chains),
            training.checkpoint,
            training.recipe,
            on_milestone,
            training.device,
            training.planned_steps,
        )
        train(run, progress)
        after = evaluate()
        progress.note(f"held out at the end: {format_acceptance(after)}")
    return TrainedHead(draft_head.cpu(), vocabulary, before, after)


def count_state_bytes(draft_head: DraftHead) -> int:
    """Return the most bytes of a checkpoint: weights and two moments in float32."""
    return sum(3 * 4 * weight.numel() for weight in draft_head.parameters())


def make_batches(
    builder: BatchBuilder, width: int, max_chains: int, stage: BatchSchedule, step: int
) -> Iterator[HeadBatch]:
    """Yield the parts of a step."""
    conversations = stage.conversations_of(step)
    num_chains = sum(min(one.num_answer_tokens, max_chains) for one in conversations)
    for number, part in enumerate(split_step(conversations, width)):
        share = sum(min(one.num_answer_tokens, max_chains) for one in part) / num_chains
        seed = stage.number * ROUND_SEEDS + step * stage.rows_per_step + number
        yield builder.build(part, seed, share=share)


def fit_to_context(training: HeadTraining) -> HeadTraining:
    """Cut conversations to the context, which may have become smaller, and drop those whose answer becomes too short.

    Also drops conversations with unknown tokens, which a damaged file may have. Raises UsageError if none is left.
    """
    known = range(training.source.target.n_vocab)

    def fit(part: Sequence[TrainingConversation]) -> tuple[TrainingConversation, ...]:
        cuts = (one.cut(training.plan.n_ctx) for one in part)
        return tuple(cut for cut in cuts if not cut.is_short and min(cut.tokens) in known and max(cut.tokens) in known)

    train_set, held_out = fit(training.train_set), fit(training.held_out)
    round_ends = tuple(len(fit(training.train_set[:end])) for end in training.round_ends)
    if not train_set:
        needed = min((one.num_prompt for one in training.train_set), default=0) + MIN_ANSWER_TOKENS
        hint = suggest_ctx(needed, answer_tokens=0)
        raise UsageError(f"no answer starts within {training.plan.n_ctx} tokens", hint=hint)
    return replace(training, train_set=train_set, held_out=held_out, round_ends=round_ends)


def note_beginning(
    progress: TrainingProgress,
    before: Accepted,
    vocabulary: DraftVocabulary,
    held_out: Sequence[TrainingConversation],
) -> None:
    """Report the first acceptance, and which share of the held-out answers the head's vocabulary has, if it is a part
    of the target's.
    """
    progress.note(f"held out before: {format_acceptance(before)}")
    if vocabulary.tokens is None:
        return
    said = np.concatenate([np.asarray(one.tokens[one.num_prompt :], np.int64) for one in held_out])
    share = np.isin(said, vocabulary.tokens).mean()
    progress.note(f"the head predicts {len(vocabulary.tokens)} tokens: {share:.1%} of the held-out answers")


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
    """Count each token of the first round, so that any of an answer outranks those that occur only in questions."""
    counts = np.zeros(training.source.target.n_vocab, np.int64)
    for one in training.first_round:
        tokens = np.asarray(one.tokens)
        counts += np.bincount(tokens[one.num_prompt :], minlength=len(counts)) * len(counts)
        counts += np.minimum(np.bincount(tokens[: one.num_prompt], minlength=len(counts)), 1)
    return counts

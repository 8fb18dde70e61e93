"""Batches for a draft head, from conversations that the target has read, and the head's loss and acceptance on them.

The conversations of a step, and where its chains begin, depend on (seed, step) alone, so that a resumed run takes the
same steps as an unbroken one. The targets are llama.cpp's logits, from the weights that will verify the drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.draft_head import DraftHead, DraftVocabulary
from eaglelocal.training.target_capture import Captured
from eaglelocal.training.training_time_test import logit_loss

Ints = npt.NDArray[np.int64]
POOL = 8  # steps whose conversations are sorted by length, so that little is padded
NOT_SAID = -1  # a token outside the draft vocabulary

Read = Callable[[Sequence[int], int], Captured]


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """A batch. Index p of an answer is about the token after its p-th; its last token has none.

    embedded  [batch, length, width] of all tokens but the last
    taps      one [batch, length, width] for each tapped layer
    wanted    [batch, answer, draft vocabulary] the target's logits
    said      [batch, answer] the token that followed, in the draft vocabulary, or NOT_SAID
    known     [batch, answer] True if the target's best token is in that vocabulary
    starts    [batch] the last position of each prompt: where chains may begin
    lengths   [batch] number of indices of `wanted` that are not padding
    """

    embedded: Tensor
    taps: list[Tensor]
    wanted: Tensor
    said: Tensor
    known: Tensor
    starts: Ints
    lengths: Ints
    seed: int
    share: float = 1.0  # of the step's chains, when the step is split into several batches


@dataclass(frozen=True)
class BatchSchedule:
    """A schedule of all steps: every conversation once per epoch, `rows_per_step` in each step."""

    conversations: tuple[TrainingConversation, ...]
    rows_per_step: int
    epochs: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.conversations) // self.rows_per_step)

    @property
    def num_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @cached_property
    def step_tokens(self) -> int:
        """The average number of tokens in a step."""
        total = sum(len(one.tokens) for one in self.conversations)
        return max(1, total // self.steps_per_epoch)

    def of_step(self, step: int) -> list[TrainingConversation]:
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self._order(epoch)
        return [self.conversations[i] for i in self._orders[epoch][number]]

    @cached_property
    def _orders(self) -> dict[int, list[list[int]]]:
        return {}

    def _order(self, epoch: int) -> list[list[int]]:
        """Return an epoch's steps as lists of indices, each of conversations of similar length."""
        rng, size = np.random.default_rng([self.seed, epoch]), self.rows_per_step
        shuffled = rng.permutation(len(self.conversations)).tolist()
        steps = []
        for first in range(0, len(shuffled), size * POOL):
            pool = sorted(shuffled[first : first + size * POOL], key=lambda i: len(self.conversations[i].tokens))
            steps += [pool[i : i + size] for i in range(0, len(pool), size)]
        return [steps[i] for i in rng.permutation(len(steps))]


class Reader:
    """A builder of batches from conversations with at least two answer tokens. `read` is Capture.read."""

    def __init__(self, read: Read, words: DraftVocabulary, *, device: str) -> None:
        self._read, self._words, self._device = read, words, device

    def lesson(self, conversations: Sequence[TrainingConversation], seed: int, *, share: float = 1.0) -> HeadBatch:
        texts = [one.tokens[:-1] for one in conversations]
        captured = [self._read(text, one.num_prompt) for text, one in zip(texts, conversations, strict=True)]
        said = [self._places(np.array(one.tokens[one.num_prompt + 1 :], np.int64)) for one in conversations]
        known = [self._places(had.best) != NOT_SAID for had in captured]
        taps = self._padded([had.taps for had in captured])
        return HeadBatch(
            embedded=self._padded([self._words.embedded(text) for text in texts]),
            taps=list(taps.unbind(2)),
            wanted=self._padded([had.logits for had in captured]),
            said=self._padded(said),
            known=self._padded(known),
            starts=np.array([one.num_prompt - 1 for one in conversations]),
            lengths=np.array([len(had.best) for had in captured]),
            seed=seed,
            share=share,
        )

    def _places(self, tokens: Ints) -> Ints:
        """Return tokens as indices of the draft vocabulary, which is in any order; NOT_SAID for those not in it."""
        known = self._words.tokens
        if known is None:
            return tokens
        order = np.argsort(known)
        places = order[np.searchsorted(known, tokens, sorter=order).clip(max=len(known) - 1)]
        return np.where(known[places] == tokens, places, NOT_SAID)

    def _padded(self, rows: Sequence[npt.NDArray[np.generic]]) -> Tensor:
        """Stack rows to [batch, longest, ...], with zeros after the shorter ones."""
        return nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True).to(self._device)


@dataclass(frozen=True, slots=True)
class Unrolling:
    """Parameters of the training-time test."""

    num_steps: int = 5
    step_weight: float = 0.8
    argmax_share: float = 0.3
    chains: int = 96  # of a conversation, at most


@dataclass(frozen=True, slots=True)
class ChainStarts:
    """Positions where chains begin, [batch, chains]; `counts` [batch, chains, steps]: True for the steps that count."""

    firsts: Tensor  # indices in the answer
    anchors: Tensor  # positions in the text
    counts: Tensor


def draw_chains(lesson: HeadBatch, plan: Unrolling) -> ChainStarts:
    """Draw chains without replacement. A short answer repeats its first chain, which then does not count."""
    rng, num_rows = np.random.default_rng(lesson.seed), len(lesson.lengths)
    num_chains = int(min(plan.chains, lesson.lengths.max()))
    firsts, is_real = np.zeros((num_rows, num_chains), np.int64), np.zeros((num_rows, num_chains), bool)
    for row, length in enumerate(lesson.lengths):
        chosen = np.sort(rng.permutation(length)[:num_chains])
        firsts[row, : len(chosen)], is_real[row, : len(chosen)] = chosen, True
    steps = firsts[..., None] + np.arange(plan.num_steps)
    counts = is_real[..., None] & (steps < lesson.lengths[:, None, None])
    device = lesson.wanted.device
    anchors = firsts + lesson.starts[:, None]
    return ChainStarts(*(torch.from_numpy(array).to(device) for array in (firsts, anchors, counts)))


@dataclass(frozen=True, slots=True)
class Accepted:
    """Acceptance in chains that end within the answer: the number of chains, and of those that reached each depth."""

    drafts: int
    per_position: tuple[int, ...]

    @property
    def length(self) -> float:
        """The acceptance length: tokens per verification, the bonus token included."""
        return 1 + sum(self.per_position) / max(self.drafts, 1)

    def __add__(self, other: Accepted) -> Accepted:
        per_position = tuple(map(sum, zip(self.per_position, other.per_position, strict=True)))
        return Accepted(self.drafts + other.drafts, per_position)


class Imitation:
    """The draft head's objective. A draft equal to `said` counts as accepted, as it would be: the target sampled it."""

    def __init__(self, pupil: DraftHead, plan: Unrolling) -> None:
        self._pupil, self._plan = pupil, plan

    @property
    def trained(self) -> nn.Module:
        return self._pupil

    def loss(self, batch: HeadBatch) -> Tensor:
        total = torch.zeros((), device=batch.wanted.device)
        for step, (draft, wanted, counts, _) in enumerate(self._steps(batch)):
            losses, _drafted = logit_loss(draft, wanted, self._plan.argmax_share)
            total = total + self._plan.step_weight**step * (losses * counts).sum() / counts.sum().clamp(min=1.0)
        return total * batch.share

    @torch.no_grad()
    def accepted(self, batch: HeadBatch) -> Accepted:
        """Return the acceptance of the head's likeliest tokens, over chains that end within the answer."""
        alive, per_position, drafts = None, [], 0
        for draft, _, _, (said, whole) in self._steps(batch):
            alive = (whole if alive is None else alive) & (draft.argmax(-1) == said)
            drafts = int(whole.sum())
            per_position.append(int(alive.sum()))
        return Accepted(drafts, tuple(per_position))

    def _steps(self, lesson: HeadBatch) -> Iterator[tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]]:
        """Yield for each draft step, with the chains flattened: the head's and the target's logits, which chains count,
        and (tokens that followed, chains that end within the answer).
        """
        chains, last = draw_chains(lesson, self._plan), lesson.wanted.shape[1] - 1
        head, num_steps = self._pupil.head, self._plan.num_steps
        states = head(lesson.embedded, head.fuse(lesson.taps), chains.anchors, num_steps)
        whole = chains.counts.all(-1).flatten()
        rows = torch.arange(len(chains.firsts), device=chains.firsts.device).unsqueeze(-1)
        for step, state in enumerate(states):
            at = (chains.firsts + step).clamp(max=last)
            counts = chains.counts[..., step] & lesson.known[rows, at]
            draft = F.linear(state, self._pupil.output).flatten(0, 1)
            wanted = lesson.wanted[rows, at].flatten(0, 1)
            yield draft, wanted, counts.flatten().float(), (lesson.said[rows, at].flatten(), whole)

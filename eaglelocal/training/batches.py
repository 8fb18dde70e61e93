"""Batches for a draft head, from conversations that the target has prefilled, and the head's loss on them.

The conversations of a step, and where its chains begin, depend on (seed, round, step) alone, so that a resumed run
takes the same steps as an unbroken one. The targets are llama.cpp's logits, from the weights that verify the drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelocal.core.records import dataclass
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.draft_head import DraftHead, DraftVocabulary, HeadSource
from eaglelocal.training.target_capture import Captured, Read

Ints = npt.NDArray[np.int64]
POOL = 8  # steps whose conversations are sorted by length, so that little is padded
KEPT_SHARE = 0.7  # of a step's chains, that go on to the next step: deep steps are alike, and cost as much
ARGMAX_SHARE = 0.3  # of the loss, for the target's likeliest token: a draft is accepted if it is that
OUTSIDE = -1  # a token outside the draft vocabulary
TINY = 1e-30


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """A batch. Index p of an answer is about the token after its p-th; its last token has none.

    embeddings     [batch, length, width] of all tokens but the last
    taps           one [batch, length, width] for each tapped layer
    target_tokens  [batch, answer, top] the target's likeliest tokens there, in the draft vocabulary
    target_shares  [batch, answer, top] what the head's distribution should give each of them, 1 together
    next_tokens    [batch, answer] the token that followed, in the draft vocabulary, or OUTSIDE
    is_draftable   [batch, answer] True if the target's best token is in that vocabulary
    starts         [batch] the last position of each prompt: where chains may begin
    lengths        [batch] number of indices of the answer that are not padding
    """

    embeddings: Tensor
    taps: list[Tensor]
    target_tokens: Tensor
    target_shares: Tensor
    next_tokens: Tensor
    is_draftable: Tensor
    starts: Ints
    lengths: Ints
    seed: int
    share: float = 1.0  # of the step's chains, when the step is split into several batches


@dataclass(frozen=True)
class BatchSchedule:
    """A schedule of the steps of a round of `epochs` passes, `rows_per_step` conversations in each step.

    conversations  all so far
    num_new        the last ones of them, which the first pass is over; each further one is over as many of all
    """

    conversations: tuple[TrainingConversation, ...]
    rows_per_step: int
    epochs: int
    seed: int
    num_new: int
    number: int = 0  # of the round

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_new // self.rows_per_step)

    @property
    def num_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @cached_property
    def step_tokens(self) -> int:
        """The average number of tokens in a step."""
        total = sum(len(one.tokens) for one in self.conversations[-self.num_new :])
        return max(1, total // self.steps_per_epoch)

    def conversations_of(self, step: int) -> list[TrainingConversation]:
        epoch, number = divmod(step, self.steps_per_epoch)
        return [self.conversations[i] for i in self._order(epoch)[number]]

    def _order(self, epoch: int) -> list[list[int]]:
        """Return an epoch's steps as lists of indices, each of conversations of similar length."""
        rng, size = np.random.default_rng([self.seed, self.number, epoch]), self.rows_per_step
        first = len(self.conversations) - self.num_new if epoch == 0 else 0
        shuffled = (first + rng.permutation(len(self.conversations) - first))[: self.num_new].tolist()
        steps = []
        for first in range(0, len(shuffled), size * POOL):
            pool = sorted(shuffled[first : first + size * POOL], key=lambda i: len(self.conversations[i].tokens))
            steps += [pool[i : i + size] for i in range(0, len(pool), size)]
        return [steps[i] for i in rng.permutation(len(steps))]


class BatchBuilder:
    """A builder of batches from conversations with at least two answer tokens. `read` gives the target's outputs."""

    def __init__(self, read: Read, vocabulary: DraftVocabulary, *, device: str) -> None:
        self._read, self._vocabulary, self._device = read, vocabulary, device

    def build(self, conversations: Sequence[TrainingConversation], seed: int, *, share: float = 1.0) -> HeadBatch:
        captured = [self._read(one) for one in conversations]
        next_tokens = [
            self._to_draft_ids(np.array(one.tokens[one.num_prompt + 1 :], np.int64)) for one in conversations
        ]
        drafted = [self._to_draft_ids(output.tokens) for output in captured]
        taps = self._pad([output.taps for output in captured])
        return HeadBatch(
            embeddings=self._pad([self._vocabulary.read_embeddings(one.tokens[:-1]) for one in conversations]),
            taps=list(taps.unbind(2)),
            target_tokens=self._pad([tokens.clip(min=0) for tokens in drafted]),
            target_shares=self._pad([share_out(output, drafted[row]) for row, output in enumerate(captured)]),
            next_tokens=self._pad(next_tokens),
            is_draftable=self._pad([tokens[:, 0] != OUTSIDE for tokens in drafted]),
            starts=np.array([one.num_prompt - 1 for one in conversations]),
            lengths=np.array([len(output.tokens) for output in captured]),
            seed=seed,
            share=share,
        )

    def _to_draft_ids(self, tokens: npt.NDArray[np.integer]) -> Ints:
        """Convert tokens to indices of the draft vocabulary, which has any order; OUTSIDE for tokens that it lacks."""
        known = self._vocabulary.tokens
        if known is None:
            return tokens.astype(np.int64)
        order = np.argsort(known)
        places = order[np.searchsorted(known, tokens, sorter=order).clip(max=len(known) - 1)]
        return np.where(known[places] == tokens, places, OUTSIDE)

    def _pad(self, rows: Sequence[npt.NDArray[np.generic]]) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True).to(self._device)


def share_out(output: Captured, drafted: Ints) -> npt.NDArray[np.float32]:
    """Return what a head's distribution should give to the target's likeliest tokens [answer, top].

    That is the target's distribution over those in the draft vocabulary, and a share more for the likeliest of them.

    drafted  [answer, top] these tokens in the draft vocabulary, or OUTSIDE
    """
    logits = np.where(drafted == OUTSIDE, -np.inf, output.logits.astype(np.float32))
    best = logits.max(-1, keepdims=True)
    shares: npt.NDArray[np.float32] = np.exp(logits - np.where(np.isfinite(best), best, 0.0))
    shares *= (1 - ARGMAX_SHARE) / np.maximum(shares.sum(-1, keepdims=True), TINY)
    np.put_along_axis(
        shares,
        likeliest := logits.argmax(-1, keepdims=True),
        np.take_along_axis(shares, likeliest, -1) + ARGMAX_SHARE,
        -1,
    )
    return shares


@dataclass(frozen=True, slots=True)
class Unrolling:
    """Parameters of the training-time test. step_weight: factor of each step's weight over the previous one's."""

    num_steps: int = 5
    step_weight: float = 0.8
    chains: int = 96  # of a conversation, at most
    kept_share: float = KEPT_SHARE


def make_unrolling(source: HeadSource) -> Unrolling:
    """Return the parameters for this kind of head. A head that drafts in one pass has one step per drafted token."""
    return Unrolling(num_steps=source.num_depths) if source.num_depths > 1 else Unrolling()


@dataclass(frozen=True, slots=True)
class ChainStarts:
    """Positions where chains begin, [batch, chains]; `is_counted` [batch, chains, steps]: whether the step counts."""

    firsts: Tensor  # indices in the answer
    anchors: Tensor  # positions in the text
    is_counted: Tensor


def draw_chains(batch: HeadBatch, plan: Unrolling) -> ChainStarts:
    """Draw chains without replacement. A short answer repeats its first chain, which then does not count."""
    rng, num_rows = np.random.default_rng(batch.seed), len(batch.lengths)
    num_chains = int(min(plan.chains, batch.lengths.max()))
    firsts, is_real = np.zeros((num_rows, num_chains), np.int64), np.zeros((num_rows, num_chains), bool)
    for row, length in enumerate(batch.lengths):
        chosen = rng.permutation(length)[:num_chains]  # in any order: the first ones have more steps
        firsts[row, : len(chosen)], is_real[row, : len(chosen)] = chosen, True
    steps = firsts[..., None] + np.arange(plan.num_steps)
    is_counted = is_real[..., None] & (steps < batch.lengths[:, None, None])
    device = batch.target_tokens.device
    anchors = firsts + batch.starts[:, None]
    return ChainStarts(*(torch.from_numpy(array).to(device) for array in (firsts, anchors, is_counted)))


@dataclass(frozen=True, slots=True)
class Accepted:
    """Acceptance in chains that end within the answer: how many chains, and how many reached each depth."""

    drafts: int
    per_position: tuple[int, ...]

    @property
    def length(self) -> float:
        """The acceptance length: tokens per verification, the bonus token included."""
        return 1 + sum(self.per_position) / max(self.drafts, 1)

    def __add__(self, other: Accepted) -> Accepted:
        per_position = tuple(map(sum, zip(self.per_position, other.per_position, strict=True)))
        return Accepted(self.drafts + other.drafts, per_position)


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A draft step of n chains.

    state     [n, width] the head's, which its output multiplies
    tokens    [n, top] and shares [n, top]: what its distribution should be
    followed  [n] the token that the target sampled there; no draft equals a negative one
    counts    [n] True where the step counts
    is_whole  [n] True for a chain that ends within the answer
    """

    state: Tensor
    tokens: Tensor
    shares: Tensor
    followed: Tensor
    counts: Tensor
    is_whole: Tensor


class Imitation:
    """The draft head's objective. A draft equal to `next_tokens` counts as accepted, because the target sampled it."""

    def __init__(self, draft_head: DraftHead, plan: Unrolling) -> None:
        self._draft_head, self._plan = draft_head, plan

    @property
    def trained(self) -> nn.Module:
        return self._draft_head

    def loss(self, batch: HeadBatch) -> Tensor:
        total = torch.zeros((), device=batch.target_shares.device)
        for number, step in enumerate(self._steps(batch, self._plan.kept_share)):
            counted = step.counts.nonzero().squeeze(-1)
            tokens, shares = step.tokens[counted], step.shares[counted]
            losses = cross_entropy(step.state[counted], self._draft_head.output, tokens, shares)
            total = total + self._plan.step_weight**number * losses.sum() / max(len(counted), 1)
        return total * batch.share

    @torch.no_grad()
    def measure_acceptance(self, batch: HeadBatch) -> Accepted:
        """Return the acceptance of the head's likeliest tokens, over chains that end within the answer."""
        alive, per_position, drafts = None, [], 0
        for step in self._steps(batch, kept_share=1.0):
            alive = (step.is_whole if alive is None else alive) & (self._draft(step.state) == step.followed)
            drafts = int(step.is_whole.sum())
            per_position.append(int(alive.sum()))
        return Accepted(drafts, tuple(per_position))

    def _draft(self, state: Tensor) -> Tensor:
        return F.linear(state, self._draft_head.output).argmax(-1)

    def _steps(self, batch: HeadBatch, kept_share: float) -> Iterator[DraftStep]:
        """Yield each draft step, with the chains flattened."""
        chains, last = draw_chains(batch, self._plan), batch.target_tokens.shape[1] - 1
        head, num_steps = self._draft_head.head, self._plan.num_steps
        states = head(batch.embeddings, head.fuse(batch.taps), chains.anchors, num_steps, kept_share)
        whole = chains.is_counted.all(-1)
        rows = torch.arange(len(chains.firsts), device=chains.firsts.device).unsqueeze(-1)
        for step, state in enumerate(states):
            kept = slice(state.shape[1])  # chains that have this step
            at = (chains.firsts[:, kept] + step).clamp(max=last)
            yield DraftStep(
                state=state.flatten(0, 1),
                tokens=batch.target_tokens[rows, at].flatten(0, 1),
                shares=batch.target_shares[rows, at].flatten(0, 1),
                followed=batch.next_tokens[rows, at].flatten(),
                counts=(chains.is_counted[:, kept, step] & batch.is_draftable[rows, at]).flatten(),
                is_whole=whole[:, kept].flatten(),
            )


# ---- losses
def cross_entropy(states: Tensor, output: Tensor, tokens: Tensor, shares: Tensor) -> Tensor:
    """Return -sum shares log q [n], q being the softmax of `states` times `output`.

    states [n, width]; output [vocabulary, width]; tokens, shares [n, top]: the target's distribution, 1 in sum
    """
    return _CrossEntropy.apply(states, output, tokens, shares)  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """The logits are kept once, and become their own gradient: torch's own functions would make six copies of them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, output: Tensor, tokens: Tensor, shares: Tensor) -> Tensor:
        logits = F.linear(states, output)  # in the type of autocast
        total = torch.logsumexp(logits.float(), -1)
        ctx.save_for_backward(states, output, logits, total, tokens, shares)
        return total - (shares * logits.gather(-1, tokens)).sum(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, output, logits, total, tokens, shares = ctx.saved_tensors
        slopes = logits.sub_(total.unsqueeze(-1)).exp_()  # rounded once: a rounded total would not add up to 1
        slopes.scatter_add_(-1, tokens, -shares.to(slopes.dtype))
        slopes *= gradients[0].to(slopes.dtype).unsqueeze(-1)
        to_states = slopes @ output.to(slopes.dtype)
        to_output = (slopes.mT @ states.to(slopes.dtype)).float() if ctx.needs_input_grad[1] else None
        return to_states.float(), to_output, None, None

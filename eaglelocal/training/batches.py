"""Batches for a draft head, from conversations that the target has prefilled, and the head's loss on them.

The conversations of a step, and where its chains begin, depend on (seed, step) alone, so that a resumed run takes the
same steps as an unbroken one. The targets are llama.cpp's logits, from the weights that will verify the drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelocal.core.records import dataclass
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.draft_head import DraftHead, DraftVocabulary, HeadSource
from eaglelocal.training.losses import SOFT, DraftStep, policy_loss, step_loss
from eaglelocal.training.target_capture import Captured

Ints = npt.NDArray[np.int64]
POOL = 8  # steps whose conversations are sorted by length, so that little is padded
KEPT_SHARE = 0.7  # share of a P-EAGLE head's chains that go on to the next step: deep steps are alike
NUM_SAMPLES = 8  # of a chain, for the policy gradient
OUTSIDE = -1  # a token outside the draft vocabulary

Read = Callable[[Sequence[int], int], Captured]


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """A batch. Index p of an answer is about the token after its p-th; its last token has none.

    embeddings     [batch, length, width] of all tokens but the last
    taps           one [batch, length, width] for each tapped layer
    target_logits  [batch, answer, draft vocabulary]
    next_tokens    [batch, answer] the token that followed, in the draft vocabulary, or OUTSIDE
    is_draftable   [batch, answer] True if the target's best token is in that vocabulary
    starts         [batch] the last position of each prompt: where chains may begin
    lengths        [batch] number of indices of `target_logits` that are not padding
    """

    embeddings: Tensor
    taps: list[Tensor]
    target_logits: Tensor
    next_tokens: Tensor
    is_draftable: Tensor
    starts: Ints
    lengths: Ints
    seed: int
    share: float = 1.0  # of the step's chains, when the step is split into several batches
    is_on_policy: bool = False  # trained on drafts that are sampled from the head


@dataclass(frozen=True)
class BatchSchedule:
    """A schedule of all steps: every conversation once per epoch, `rows_per_step` in each step.

    num_policy_steps  that many steps on the head's own drafts, instead of the epochs
    """

    conversations: tuple[TrainingConversation, ...]
    rows_per_step: int
    epochs: int
    seed: int
    num_policy_steps: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.conversations) // self.rows_per_step)

    @property
    def num_steps(self) -> int:
        if self.num_policy_steps is not None:
            return self.num_policy_steps
        return self.epochs * self.steps_per_epoch

    @property
    def is_on_policy(self) -> bool:
        return self.num_policy_steps is not None

    @cached_property
    def step_tokens(self) -> int:
        """The average number of tokens in a step."""
        total = sum(len(one.tokens) for one in self.conversations)
        return max(1, total // self.steps_per_epoch)

    def conversations_of(self, step: int) -> list[TrainingConversation]:
        epoch, number = divmod(step, self.steps_per_epoch)
        return [self.conversations[i] for i in self._order(epoch)[number]]

    def _order(self, epoch: int) -> list[list[int]]:
        """Return an epoch's steps as lists of indices, each of conversations of similar length."""
        rng, size = np.random.default_rng([self.seed, epoch]), self.rows_per_step
        shuffled = rng.permutation(len(self.conversations)).tolist()
        steps = []
        for first in range(0, len(shuffled), size * POOL):
            pool = sorted(shuffled[first : first + size * POOL], key=lambda i: len(self.conversations[i].tokens))
            steps += [pool[i : i + size] for i in range(0, len(pool), size)]
        return [steps[i] for i in rng.permutation(len(steps))]


class BatchBuilder:
    """A builder of batches from conversations with at least two answer tokens. `read` is TargetCapture.read."""

    def __init__(self, read: Read, vocabulary: DraftVocabulary, *, device: str) -> None:
        self._read, self._vocabulary, self._device = read, vocabulary, device

    def build(
        self,
        conversations: Sequence[TrainingConversation],
        seed: int,
        *,
        share: float = 1.0,
        is_on_policy: bool = False,
    ) -> HeadBatch:
        texts = [one.tokens[:-1] for one in conversations]
        captured = [self._read(text, one.num_prompt) for text, one in zip(texts, conversations, strict=True)]
        next_tokens = [
            self._to_draft_ids(np.array(one.tokens[one.num_prompt + 1 :], np.int64)) for one in conversations
        ]
        is_draftable = [self._to_draft_ids(output.best) != OUTSIDE for output in captured]
        taps = self._pad([output.taps for output in captured])
        return HeadBatch(
            embeddings=self._pad([self._vocabulary.read_embeddings(text) for text in texts]),
            taps=list(taps.unbind(2)),
            target_logits=self._pad([output.logits for output in captured]),
            next_tokens=self._pad(next_tokens),
            is_draftable=self._pad(is_draftable),
            starts=np.array([one.num_prompt - 1 for one in conversations]),
            lengths=np.array([len(output.best) for output in captured]),
            seed=seed,
            share=share,
            is_on_policy=is_on_policy,
        )

    def _to_draft_ids(self, tokens: Ints) -> Ints:
        """Convert tokens to indices of the draft vocabulary, which has any order; OUTSIDE for tokens that it lacks."""
        known = self._vocabulary.tokens
        if known is None:
            return tokens
        order = np.argsort(known)
        places = order[np.searchsorted(known, tokens, sorter=order).clip(max=len(known) - 1)]
        return np.where(known[places] == tokens, places, OUTSIDE)

    def _pad(self, rows: Sequence[npt.NDArray[np.generic]]) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True).to(self._device)


@dataclass(frozen=True, slots=True)
class Unrolling:
    """Parameters of the training-time test.

    loss of a step (losses.py); step_weight: factor of each step's weight over the previous one's
    state_noise  added to the states that the head reads, as a share of their size
    """

    num_steps: int = 5
    step_weight: float = 0.8
    loss: str = SOFT
    state_noise: float = 0.0
    argmax_share: float = 0.3
    chains: int = 96  # of a conversation, at most
    kept_share: float = 1.0  # share of a step's chains that go on to the next step


def make_unrolling(source: HeadSource) -> Unrolling:
    """Return the parameters for this kind of head. A head that drafts in one pass has one step per drafted token."""
    if source.is_parallel:
        return Unrolling(num_steps=source.num_depths, kept_share=KEPT_SHARE)
    return Unrolling(num_steps=source.num_depths) if source.is_medusa else Unrolling()


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
    device = batch.target_logits.device
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


class Imitation:
    """The draft head's objective. A draft equal to `next_tokens` counts as accepted, because the target sampled it."""

    def __init__(self, draft_head: DraftHead, plan: Unrolling) -> None:
        self._draft_head, self._plan = draft_head, plan

    @property
    def trained(self) -> nn.Module:
        return self._draft_head

    def loss(self, batch: HeadBatch) -> Tensor:
        plan, device = self._plan, batch.target_logits.device
        generator = torch.Generator(device).manual_seed(batch.seed)
        if batch.is_on_policy:
            steps = list(self._steps(batch, kept_share=1.0))
            return policy_loss(steps, generator, num_samples=NUM_SAMPLES) * batch.share
        total = torch.zeros((), device=device)
        for number, step in enumerate(self._steps(batch, plan.kept_share, generator)):
            losses = step_loss(plan.loss, step.draft, step.target, plan.argmax_share)
            mean = (losses * step.counts).sum() / step.counts.sum().clamp(min=1.0)
            total = total + plan.step_weight**number * mean
        return total * batch.share

    @torch.no_grad()
    def measure_acceptance(self, batch: HeadBatch) -> Accepted:
        """Return the acceptance of the head's likeliest tokens, over chains that end within the answer."""
        alive, per_position, drafts = None, [], 0
        for step in self._steps(batch, kept_share=1.0):
            alive = (step.is_whole if alive is None else alive) & (step.draft.argmax(-1) == step.followed)
            drafts = int(step.is_whole.sum())
            per_position.append(int(alive.sum()))
        return Accepted(drafts, tuple(per_position))

    def _steps(self, batch: HeadBatch, kept_share: float, noise: torch.Generator | None = None) -> Iterator[DraftStep]:
        """Yield each draft step, with the chains flattened.

        noise  draws the noise on the states that the head reads; None: there is none
        """
        chains, last = draw_chains(batch, self._plan), batch.target_logits.shape[1] - 1
        head, num_steps = self._draft_head.head, self._plan.num_steps
        taps = batch.taps if noise is None else add_noise(batch.taps, self._plan.state_noise, noise)
        states = head(batch.embeddings, head.fuse(taps), chains.anchors, num_steps, kept_share)
        whole = chains.is_counted.all(-1)
        rows = torch.arange(len(chains.firsts), device=chains.firsts.device).unsqueeze(-1)
        for step, state in enumerate(states):
            kept = slice(state.shape[1])  # chains that have this step
            at = (chains.firsts[:, kept] + step).clamp(max=last)
            yield DraftStep(
                draft=F.linear(state, self._draft_head.output).flatten(0, 1),
                target=batch.target_logits[rows, at].flatten(0, 1),
                followed=batch.next_tokens[rows, at].flatten(),
                counts=(chains.is_counted[:, kept, step] & batch.is_draftable[rows, at]).flatten().float(),
                is_whole=whole[:, kept].flatten(),
            )


def add_noise(taps: Sequence[Tensor], share: float, generator: torch.Generator) -> list[Tensor]:
    """Return states [batch, length, width] with normal noise of `share` times the root mean square of each."""
    if share == 0.0:
        return list(taps)
    noisy = []
    for tap in taps:
        size = tap.float().square().mean(-1, keepdim=True).sqrt()
        noise = torch.randn(tap.shape, generator=generator, device=tap.device)
        noisy.append(tap + (share * size * noise).to(tap.dtype))
    return noisy

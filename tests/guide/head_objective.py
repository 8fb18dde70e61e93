"""Training-time test: the head is trained on its own unrolled states to predict what the frozen target would.

Chains are anchored at sampled assistant positions; tokens are teacher-forced, states are the head's own. The loss per
step is soft cross-entropy to the target's distribution plus a share of cross-entropy to its argmax (greedy acceptance
counts matches), weighted 0.8^step (EAGLE-3, arXiv 2503.01840). Optimizers and files are elsewhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelocal.core.records import dataclass
from eaglelocal.training.eagle_head import EagleHead, gather_rows
from guide.document_packing import PackedBatch
from guide.llama_target import LlamaTarget

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """Parameters of the training-time test."""

    num_steps: int = 5
    step_weight: float = 0.8
    argmax_share: float = 0.3
    chains_per_token: float = 0.25  # chains per row = this share of the row length


@dataclass(frozen=True, slots=True)
class UnrolledChains:
    """The anchors of a batch's chains, and which of their steps count."""

    anchors: Tensor  # [batch, chains]
    counts: Tensor  # [steps, batch, chains] 1.0 where the step's token is an assistant token of the anchor's answer


def draw_chains(batch: PackedBatch, plan: ChainPlan) -> UnrolledChains:
    """Draw anchors P whose token P+1 is the assistant's, without replacement. Rows with too few repeat, uncounted."""
    num_rows, length = batch.tokens.shape
    rng = np.random.default_rng(int(batch.scored.sum()) % 2**32)
    is_answer = np.zeros(num_rows * length, bool)
    is_answer[batch.scored[batch.is_assistant] + 1] = True
    is_answer = is_answer.reshape(num_rows, length)
    num_chains = max(1, int(length * plan.chains_per_token))
    anchors = np.zeros((num_rows, num_chains), np.int64)
    is_real = np.zeros((num_rows, num_chains), bool)
    for row in range(num_rows):
        candidates = np.flatnonzero(is_answer[row, 1:-1])  # P + 1 in 1 .. length - 2
        chosen = rng.permutation(candidates)[:num_chains]
        anchors[row, : len(chosen)], is_real[row, : len(chosen)] = chosen, True
    return UnrolledChains(
        torch.from_numpy(anchors), torch.from_numpy(_counts(anchors, is_real, is_answer, plan.num_steps))
    )


def _counts(anchors: Positions, is_real: Flags, is_answer: Flags, num_steps: int) -> npt.NDArray[np.float32]:
    """Return the steps that count: those where every token of the chain, even the predicted one, is the answer's."""
    padded = np.pad(is_answer, ((0, 0), (0, num_steps + 2)))
    alive, counts = is_real, []
    for step in range(num_steps):
        alive = alive & np.take_along_axis(padded, anchors + 2 + step, 1)
        counts.append(alive)
    return np.stack(counts).astype(np.float32)


def chain_loss(states: Tensor, wanted: Tensor, embedding: Tensor, argmax_share: float) -> tuple[Tensor, Tensor]:
    """Return loss [n] and argmax agreement [n] of states and wanted [n, width] (the head's and the target's)."""
    target_logits = F.linear(wanted, embedding)
    losses, said = logit_loss(F.linear(states, embedding), target_logits, argmax_share)
    return losses, (said == target_logits.argmax(-1)).float()


def logit_loss(draft: Tensor, target: Tensor, argmax_share: float) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy [n] to the target, and the head's argmax [n], from logits [n, vocabulary] of both."""
    target, log_draft = target.float(), F.log_softmax(draft.float(), -1)
    soft = -(F.softmax(target, -1) * log_draft).sum(-1)
    hard = -log_draft.gather(-1, target.argmax(-1, keepdim=True)).squeeze(-1)
    return (1 - argmax_share) * soft + argmax_share * hard, log_draft.argmax(-1)


class TrainingTimeTest:
    """The head's objective."""

    def __init__(self, head: EagleHead, target: LlamaTarget, plan: ChainPlan, *, compiled: bool) -> None:
        self._head, self._target, self._plan = head, target.requires_grad_(False), plan
        self._tapped = torch.compile(target.forward_with_taps) if compiled else target.forward_with_taps
        self._unroll = torch.compile(head) if compiled else head
        self._chain_loss = torch.compile(chain_loss) if compiled else chain_loss
        self._fuse = torch.compile(head.fuse) if compiled else head.fuse

    @property
    def trained(self) -> nn.Module:
        return self._head

    def loss(self, batch: PackedBatch) -> Tensor:
        loss, _ = self.loss_and_agreement(batch)
        return loss

    def loss_and_agreement(self, batch: PackedBatch) -> tuple[Tensor, list[float]]:
        """Return the weighted loss, and per step the share of scored tokens on which head and target agree."""
        tokens, chains = torch.from_numpy(batch.tokens), draw_chains(batch, self._plan)
        with torch.no_grad():
            final, taps = self._tapped(tokens, self._head.shape.taps)
            embedded = self._target.embedding(tokens)
        states = self._unroll(embedded, self._fuse(taps), chains.anchors, self._plan.num_steps)
        total, agreements = torch.zeros(()), []
        for step, state in enumerate(states):
            wanted = gather_rows(final, (chains.anchors + 1 + step).clamp(max=tokens.shape[1] - 1))
            losses, agrees = self._chain_loss(
                state.flatten(0, 1), wanted.flatten(0, 1), self._target.embedding.weight, self._plan.argmax_share
            )
            counts = chains.counts[step].flatten()
            num_counted = counts.sum().clamp(min=1.0)
            total = total + self._plan.step_weight**step * (losses * counts).sum() / num_counted
            agreements.append(float((agrees * counts).sum() / num_counted))
        return total, agreements

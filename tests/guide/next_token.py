"""The target's training objective: the next token, at scored positions only, so that the lm_head computes no others.

Cross-entropy on batches; optimizers, files and kinds of task are elsewhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guide.document_packing import PackedBatch
from guide.llama_target import LlamaTarget


def cross_entropy(state: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss in nats of state [n, width] with embedding [vocab, width] and labels [n]."""
    return F.cross_entropy(F.linear(state, embedding).float(), labels)


class NextToken:
    """The target's objective; `compiled` fuses the graph, which is faster."""

    def __init__(self, target: LlamaTarget, *, compiled: bool) -> None:
        self._target = target
        self._forward = torch.compile(target) if compiled else target
        self._cross_entropy = torch.compile(cross_entropy, dynamic=True) if compiled else cross_entropy

    @property
    def trained(self) -> nn.Module:
        return self._target

    def loss(self, batch: PackedBatch) -> Tensor:
        state = self._forward(torch.from_numpy(batch.tokens)).flatten(0, 1)
        scored = state[torch.from_numpy(batch.scored)]
        return self._cross_entropy(scored, self._target.embedding.weight, torch.from_numpy(batch.labels))


@torch.no_grad()
def answer_loss(target: LlamaTarget, batch: PackedBatch) -> tuple[float, float]:
    """Return the mean loss and argmax agreement over the batch's assistant tokens."""
    at = torch.from_numpy(batch.scored[batch.is_assistant])
    labels = torch.from_numpy(batch.labels[batch.is_assistant])
    with torch.autocast("cpu", torch.bfloat16):
        logits = target.logits(target(torch.from_numpy(batch.tokens)).flatten(0, 1)[at]).float()
    return float(F.cross_entropy(logits, labels)), float((logits.argmax(-1) == labels).float().mean())

"""The loss of a draft step: cross-entropy between the target's distribution, of which the likeliest tokens are known,
and the head's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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

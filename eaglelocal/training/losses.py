"""Losses of one draft step, from the logits of head and target: p is the target's distribution, q the head's.

soft  cross-entropy to p, and a share of cross-entropy to its argmax, as greedy acceptance counts matches
tv    total variation, 1 - sum min(p, q): the share of drafts sampled from q that speculative sampling rejects
nla   -log sum min(p, q), whose gradient does not vanish where p and q hardly overlap
lk    KL(p, q), which turns into tv the more they overlap (arXiv 2602.23881)

And a policy gradient: drafts are sampled from the head, and the reward is the number of tokens that verification
against the target's text accepts. batches.py decides which rows count, and their weights by depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglelocal.core.records import dataclass

SOFT = "soft"
LK_RATE = 3.0  # of exp(-rate * overlap), the weight of KL in lk
LEAST_OVERLAP = 1e-8  # keeps a logarithm finite


def logit_loss(draft: Tensor, target: Tensor, argmax_share: float) -> tuple[Tensor, Tensor]:
    """Return the soft loss [n] and the head's argmax [n], from logits [n, vocabulary] of head and target."""
    target, log_draft = target.float(), F.log_softmax(draft.float(), -1)
    soft = -(F.softmax(target, -1) * log_draft).sum(-1)
    hard = -log_draft.gather(-1, target.argmax(-1, keepdim=True)).squeeze(-1)
    return (1 - argmax_share) * soft + argmax_share * hard, log_draft.argmax(-1)


def overlap(draft: Tensor, target: Tensor) -> Tensor:
    """Return sum min(p, q) [n]: the probability that speculative sampling accepts a draft from q."""
    return torch.minimum(F.softmax(draft.float(), -1), F.softmax(target.float(), -1)).sum(-1)


def lk_loss(draft: Tensor, target: Tensor) -> Tensor:
    log_draft, log_target = F.log_softmax(draft.float(), -1), F.log_softmax(target.float(), -1)
    kl = F.kl_div(log_draft, log_target, reduction="none", log_target=True).sum(-1)
    accepted = overlap(draft, target)
    weight = (-LK_RATE * accepted.detach()).exp()
    return weight * kl + (1 - weight) * (1 - accepted)


OVERLAP_LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "lk": lk_loss,
        "tv": lambda draft, target: 1 - overlap(draft, target),
        "nla": lambda draft, target: -(overlap(draft, target) + LEAST_OVERLAP).log(),
    }
)
LOSSES = (SOFT, *OVERLAP_LOSSES)


def step_loss(loss: str, draft: Tensor, target: Tensor, argmax_share: float) -> Tensor:
    """Return the loss [n] of this name; `argmax_share` is of the soft loss only."""
    if loss == SOFT:
        return logit_loss(draft, target, argmax_share)[0]
    return OVERLAP_LOSSES[loss](draft, target)


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A draft step of n chains.

    draft, target  logits [n, vocabulary] of the head and of the target
    followed       the token [n] that the target sampled there; no draft equals a negative one
    counts         1.0 [n] where the step counts
    is_whole       [n] True for a chain that ends within the answer
    """

    draft: Tensor
    target: Tensor
    followed: Tensor
    counts: Tensor
    is_whole: Tensor


def policy_loss(
    steps: Sequence[DraftStep], generator: torch.Generator, *, num_samples: int, temperature: float = 1.0
) -> Tensor:
    """Return a loss whose gradient is, on average, minus the gradient of a chain's number of accepted tokens.

    num_samples  of each chain, drawn from the head at `temperature`

    Verification samples the target, and goes on while its sample is the drafted token. The target's text consists of
    such samples. So a drafted token x is accepted with the target's probability p(x), and the next step is reached if x
    is the token that followed. The reward of a reached step is p(x); its return is the sum of rewards from that step
    on. The baseline is the mean return of the other samples of the chain that reached the step; if there is none, it is
    the reward that is expected of the step.
    """
    log_drafts = [F.log_softmax(step.draft.float() / temperature, -1) for step in steps]
    drawn = [sample_tokens(log_draft, num_samples, generator) for log_draft in log_drafts]  # [n, samples] each
    alive = torch.ones_like(drawn[0], dtype=torch.float32)
    reached, rewards = [], []
    for step, tokens in zip(steps, drawn, strict=True):
        alive = alive * step.counts.unsqueeze(-1)
        reached.append(alive)
        rewards.append(alive * F.softmax(step.target.float(), -1).gather(-1, tokens))
        alive = alive * (tokens == step.followed.unsqueeze(-1))
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)  # [steps, n, samples]
    total = torch.zeros((), device=returns.device)
    for number, (step, log_draft, tokens) in enumerate(zip(steps, log_drafts, drawn, strict=True)):
        expected = (log_draft.detach().exp() * F.softmax(step.target.float(), -1)).sum(-1, keepdim=True)
        advantage = returns[number] - leave_one_out(returns[number], reached[number], alone=expected)
        total = total - (reached[number] * advantage * log_draft.gather(-1, tokens)).sum()
    return total / (num_samples * steps[0].counts.sum().clamp(min=1.0))


@torch.no_grad()
def sample_tokens(log_draft: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    """Return tokens [n, samples] of distributions [n, vocabulary]."""
    return torch.multinomial(log_draft.exp(), num_samples, replacement=True, generator=generator)


@torch.no_grad()
def leave_one_out(returns: Tensor, reached: Tensor, *, alone: Tensor) -> Tensor:
    """Return for each sample [n, samples] the mean return of the reached others; if there is none, `alone` [n, 1]."""
    others = reached.sum(-1, keepdim=True) - reached
    mean = ((returns * reached).sum(-1, keepdim=True) - returns * reached) / others.clamp(min=1.0)
    return torch.where(others > 0, mean, alone)

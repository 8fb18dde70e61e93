"""The losses against numpy, their gradients against differences, and the policy's against the exact expectation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from eaglelocal.training.losses import (  # noqa: E402
    LOSSES,
    SOFT,
    DraftStep,
    leave_one_out,
    overlap,
    policy_loss,
    step_loss,
)

pytestmark = pytest.mark.full

N, VOCABULARY, SHARE = 6, 7, 0.3


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_hand(loss: str, draft: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Each loss in float64, row by row."""
    rows = []
    for q, p in zip(softmax(draft), softmax(target), strict=True):
        accepted = sum(min(a, b) for a, b in zip(p, q, strict=True))
        kl = sum(a * (np.log(a) - np.log(b)) for a, b in zip(p, q, strict=True))
        soft = -sum(a * np.log(b) for a, b in zip(p, q, strict=True))
        weight = np.exp(-3.0 * accepted)
        rows.append(
            {
                "soft": (1 - SHARE) * soft - SHARE * np.log(q[p.argmax()]),
                "tv": 1 - accepted,
                "nla": -np.log(accepted),
                "lk": weight * kl + (1 - weight) * (1 - accepted),
            }[loss]
        )
    return np.array(rows)


def logits(seed: int, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N, VOCABULARY), scale=scale)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_what_its_formula_says(loss: str) -> None:
    draft, target = logits(1), logits(2)
    found = step_loss(loss, torch.from_numpy(draft), torch.from_numpy(target), SHARE)
    np.testing.assert_allclose(found.numpy(), by_hand(loss, draft, target), rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_gradient_is_that_of_the_formula(loss: str) -> None:
    """By central differences; the weight of lk is not differentiated."""
    draft, target = logits(3), logits(4)
    given = torch.from_numpy(draft).requires_grad_()
    step_loss(loss, given, torch.from_numpy(target), SHARE).sum().backward()
    fixed = np.exp(-3.0 * np.minimum(softmax(draft), softmax(target)).sum(-1))

    def value(at: np.ndarray) -> float:
        if loss != "lk":
            return float(by_hand(loss, at, target).sum())
        p, q = softmax(target), softmax(at)
        kl, accepted = (p * (np.log(p) - np.log(q))).sum(-1), np.minimum(p, q).sum(-1)
        return float((fixed * kl + (1 - fixed) * (1 - accepted)).sum())

    assert given.grad is not None
    np.testing.assert_allclose(given.grad.numpy(), differences(value, draft), atol=2e-4)


def differences(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    slopes = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        moved = np.zeros_like(at)
        moved[place] = step
        slopes[place] = (value(at + moved) - value(at - moved)) / (2 * step)
    return slopes


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != SOFT])
def test_a_loss_is_least_where_the_head_is_the_target(loss: str) -> None:
    target = torch.from_numpy(logits(5))
    at_target = step_loss(loss, target + 1.5, target, SHARE)  # a shift changes no distribution
    np.testing.assert_allclose(at_target.numpy(), 0, atol=1e-5)
    for seed in range(6, 12):
        assert (step_loss(loss, torch.from_numpy(logits(seed)), target, SHARE) > at_target + 0.01).all()


def test_where_nothing_overlaps_only_tv_has_no_gradient() -> None:
    """Head and target are sure of different tokens, as at the beginning of training."""
    draft, target = np.full((1, VOCABULARY), -60.0), np.full((1, VOCABULARY), -60.0)
    draft[0, 1], target[0, 2] = 0.0, 0.0
    sizes = {}
    for loss in LOSSES:
        given = torch.from_numpy(draft).requires_grad_()
        step_loss(loss, given, torch.from_numpy(target), SHARE).sum().backward()
        assert given.grad is not None and given.grad.isfinite().all()
        sizes[loss] = float(given.grad.abs().max())
    assert sizes["tv"] < 1e-6 and min(sizes["soft"], sizes["lk"]) > 0.5


def test_half_precision_is_read_exactly() -> None:
    draft, target = torch.from_numpy(logits(13)).half(), torch.from_numpy(logits(14)).half()
    expected = by_hand("tv", draft.double().numpy(), target.double().numpy())
    np.testing.assert_allclose(1 - overlap(draft, target).numpy(), expected, rtol=1e-5)


def exact_return(drafts: list, steps: list[DraftStep]):
    """The expected number of accepted tokens of one chain: E_d = sum q p + q(followed) E_{d+1}."""
    total = torch.zeros(())
    for draft, step in reversed(list(zip(drafts, steps, strict=True))):
        q, p = draft.softmax(-1), step.target.softmax(-1)
        reached = q.gather(-1, step.followed.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (step.followed >= 0)
        total = step.counts * ((q * p).sum(-1) + reached * total)
    return total


def test_the_policy_gradient_is_that_of_the_expected_accepted_length() -> None:
    """On average over many samples, also where a chain ends, and where what followed cannot be drafted."""
    torch.manual_seed(1)
    num_steps, n, vocabulary = 3, 4, 5
    followed = torch.tensor([1, 0, 2, -1])
    likely = 2 * torch.nn.functional.one_hot(followed.clamp(min=0), vocabulary)
    drafts = [(likely + torch.randn(n, vocabulary)).requires_grad_() for _ in range(num_steps)]
    counts = torch.ones(num_steps, n)
    counts[1:, 2] = 0.0
    steps = [
        DraftStep(draft, 2 * torch.randn(n, vocabulary), followed, counts[number], counts[number] > 0)
        for number, draft in enumerate(drafts)
    ]
    exact = torch.autograd.grad(-exact_return(drafts, steps).sum() / n, drafts)
    generator = torch.Generator().manual_seed(2)
    found = torch.autograd.grad(policy_loss(steps, generator, num_samples=200_000), drafts)
    for ours, theirs in zip(found, exact, strict=True):
        assert float(theirs.abs().max()) > 0.005
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=6e-4)


def test_few_samples_are_unbiased_too() -> None:
    """The baseline is of the chain's own other samples, of which often none reaches the second step."""
    torch.manual_seed(3)
    copies = 20_000  # of one chain, each with two samples
    drafts = [torch.tensor([row], requires_grad=True) for row in ([0.0, 0.0, 1.0, 0.0], [0.5, 0.0, 0.0, 0.2])]
    targets, followed = [3 * torch.randn(1, 4) for _ in drafts], (torch.tensor([2]), torch.tensor([0]))

    def steps(times: int) -> list[DraftStep]:
        return [
            DraftStep(
                draft.expand(times, 4),
                target.expand(times, 4),
                token.expand(times),
                torch.ones(times),
                torch.ones(times) > 0,
            )
            for draft, target, token in zip(drafts, targets, followed, strict=True)
        ]

    exact = torch.autograd.grad(-exact_return(drafts, steps(1)).sum(), drafts)
    generator = torch.Generator().manual_seed(4)
    found = torch.autograd.grad(policy_loss(steps(copies), generator, num_samples=2), drafts)
    for ours, theirs in zip(found, exact, strict=True):
        assert float(theirs.abs().max()) > 0.02
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=0.006)


def test_following_the_policy_gradient_raises_what_is_accepted() -> None:
    torch.manual_seed(5)
    drafts = [torch.zeros(3, 6, requires_grad=True) for _ in range(3)]
    targets, followed = [2 * torch.randn(3, 6) for _ in drafts], [torch.tensor([1, 2, 3])] * 3

    def steps() -> list[DraftStep]:
        alike = torch.ones(3), torch.ones(3) > 0
        return [DraftStep(draft, *rest, *alike) for draft, *rest in zip(drafts, targets, followed, strict=True)]

    before = exact_return(drafts, steps()).mean().item()
    optimizer, generator = torch.optim.Adam(drafts, lr=0.1), torch.Generator().manual_seed(6)
    for _ in range(60):
        optimizer.zero_grad()
        policy_loss(steps(), generator, num_samples=8).backward()
        optimizer.step()
    assert exact_return(drafts, steps()).mean().item() > before + 0.5


def test_the_baseline_leaves_out_the_sample_and_those_that_did_not_get_there() -> None:
    returns, reached = torch.tensor([[1.0, 2.0, 6.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    alone = torch.tensor([[0.25]])
    assert leave_one_out(returns, reached, alone=alone)[0, :3].tolist() == [4.0, 3.5, 1.5]
    assert leave_one_out(returns, torch.tensor([[0.0, 1.0, 0.0, 0.0]]), alone=alone)[0, 1] == 0.25

"""The loss of a draft step, against its formula in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from eaglelocal.training.batches import cross_entropy  # noqa: E402

pytestmark = pytest.mark.full

N, WIDTH, VOCABULARY, TOP = 6, 4, 9, 3


def made_up(seed: int) -> tuple[torch.Tensor, ...]:
    """States, an output, and the target's distribution over a few tokens."""
    generator = torch.Generator().manual_seed(seed)
    states, output = torch.randn(N, WIDTH, generator=generator), torch.randn(VOCABULARY, WIDTH, generator=generator)
    tokens = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:TOP] for _ in range(N)])
    shares = torch.rand(N, TOP, generator=generator).softmax(-1)
    return states.double(), output.double(), tokens, shares.double()


def by_hand(states: torch.Tensor, output: torch.Tensor, tokens: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    log_q = (states @ output.T).log_softmax(-1)
    return -(shares * log_q.gather(-1, tokens)).sum(-1)


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_what_its_formula_says(seed: int) -> None:
    found = cross_entropy(*(each.float() if each.is_floating_point() else each for each in made_up(seed)))
    np.testing.assert_allclose(found.numpy(), by_hand(*made_up(seed)).numpy(), rtol=1e-5)


@pytest.mark.parametrize("learns_output", [True, False])
def test_the_gradient_is_that_of_the_formula(learns_output: bool) -> None:
    weights = torch.linspace(0.5, 2.0, N).double()
    grads = []
    for loss in (cross_entropy, by_hand):
        states, output, tokens, shares = made_up(4)
        states.requires_grad_()
        output.requires_grad_(learns_output)
        (loss(states, output, tokens, shares) * weights).sum().backward()
        grads.append((states.grad, output.grad))
    (states_grad, output_grad), (expected_states, expected_output) = grads
    np.testing.assert_allclose(states_grad.numpy(), expected_states.numpy(), atol=1e-6)
    if learns_output:
        np.testing.assert_allclose(output_grad.numpy(), expected_output.numpy(), atol=1e-6)
    else:
        assert output_grad is None


def test_half_precision_is_close() -> None:
    states, output, tokens, shares = (each.float() if each.is_floating_point() else each for each in made_up(5))
    states.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = cross_entropy(states, output, tokens, shares)
    found.sum().backward()
    np.testing.assert_allclose(found.detach().numpy(), by_hand(*made_up(5)).numpy(), rtol=0.03)
    exact = made_up(5)
    exact[0].requires_grad_()
    by_hand(*exact).sum().backward()
    np.testing.assert_allclose(states.grad.numpy(), exact[0].grad.numpy(), atol=0.03)


def test_large_logits_in_half_precision_keep_the_gradient() -> None:
    """A logarithm of 40, rounded to eight bits, would make probabilities that do not add up to 1."""
    torch.manual_seed(6)
    states, output = torch.randn(64, 32), 2.0 * torch.randn(400, 32)
    output[:, 0], states[:, 0] = 4.0, 10.0
    exact = states.double().requires_grad_()
    wanted = (exact @ output.double().T).softmax(-1)
    tokens = wanted.topk(64).indices
    shares = wanted.gather(-1, tokens).detach()
    shares = (shares / shares.sum(-1, keepdim=True)).roll(1, -1)
    by_hand(exact, output.double(), tokens, shares).sum().backward()
    found = states.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(found, output, tokens, shares.float())
    loss.sum().backward()
    assert float((found.grad - exact.grad).norm() / exact.grad.norm()) < 0.05


def test_a_sure_target_is_learned() -> None:
    """Where head and target are sure of different tokens, as at the beginning of training, there is a gradient."""
    states, output = torch.tensor([[60.0, 0.0]], requires_grad=True), torch.eye(2)
    cross_entropy(states, output, torch.tensor([[1]]), torch.tensor([[1.0]])).sum().backward()
    np.testing.assert_allclose(states.grad.numpy(), [[1.0, -1.0]], atol=1e-5)

"""The Muon optimizer: momentum whose matrix updates are made near-orthogonal by a Newton-Schulz iteration.

Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. Matrices of one shape are updated in one batch,
in bfloat16 where that is fast. For matrices only; embeddings and norms belong to AdamW.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from eaglelocal.training.precision import fast_dtype

QUINTIC = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """An optimizer for matrices.

    `weight_decay` is decoupled: a matrix shrinks by lr * weight_decay per step, which bounds its spectral norm.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for matrices in by_shape.values():
                self._update(matrices, group["lr"], momentum=group["momentum"], decay=group["weight_decay"])

    def _update(self, matrices: list[nn.Parameter], lr: float, *, momentum: float, decay: float) -> None:
        pushed = []
        for matrix in matrices:
            assert matrix.grad is not None
            state = self.state[matrix]
            buffer = state.setdefault("momentum", torch.zeros_like(matrix))
            buffer.lerp_(matrix.grad, 1 - momentum)
            pushed.append(matrix.grad.lerp(buffer, momentum))
        updates = orthogonalize(torch.stack(pushed))
        rows, columns = matrices[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        for matrix, update in zip(matrices, updates, strict=True):
            matrix.mul_(1 - lr * decay).add_(update.to(matrix.dtype), alpha=-lr * scale)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Push the singular values of matrices [n, rows, columns] towards one."""
    x: Tensor = matrices.to(fast_dtype(matrices.device.type))
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x

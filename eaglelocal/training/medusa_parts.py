"""A Medusa head in torch (arXiv 2401.10774), without its lm_head: one residual layer for each token that it drafts.

It has the interface of EagleHead, so that data, losses and loop are the same. A chain anchored at P has one state, the
target's at P after the output norm, from which its step j predicts token[P+2+j].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelocal.hub.heads.medusa_head import MedusaShape
from eaglelocal.hub.heads.safetensors_files import Floats
from eaglelocal.training.eagle_head import MIN_KEPT_SHARE, HeadShape, gather_rows


def make_parts_shape(width: int, tap: int, *, num_parts: int, max_context: int) -> HeadShape:
    return HeadShape(
        width=width,
        tap_width=width,
        taps=(tap,),
        max_context=max_context,
        fc_norm=False,
        norm_output=False,
        num_depths=num_parts,
    )


class MedusaParts(nn.Module):
    """The layers of a Medusa head. They begin at zero, so each part first predicts the target's own next token."""

    mask_hidden = None

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(shape.num_depths))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def fuse(self, taps: Sequence[Tensor]) -> Tensor:
        return taps[0]

    def forward(
        self, embedded: Tensor, g: Tensor, anchors: Tensor, num_steps: int, kept_share: float = 1.0
    ) -> list[Tensor]:
        """Return for each step the lm_head's input [batch, chains, width]; the arguments are those of EagleHead.

        g [batch, length, width] the target's states after the output norm; `embedded` is not used
        """
        states, num_chains = gather_rows(g, anchors), anchors.shape[1]
        found = []
        for step, layer in zip(range(num_steps), self.layers, strict=False):
            kept = states[:, : math.ceil(num_chains * max(kept_share**step, MIN_KEPT_SHARE))]
            found.append(kept + F.silu(layer(kept)))
        return found

    @property
    def medusa_shape(self) -> MedusaShape:
        return MedusaShape(len(self.layers), 1, self.shape.width, has_own_outputs=False)

    @torch.no_grad()
    def read_matrices(self) -> list[Floats]:
        """Return W of each part."""
        return [layer.get_parameter("weight").float().cpu().numpy() for layer in self.layers]

    @torch.no_grad()
    def read_biases(self) -> Floats:
        """Return the biases [parts, 1, width]."""
        biases = torch.stack([layer.get_parameter("bias") for layer in self.layers]).unsqueeze(1)
        return biases.float().cpu().numpy()

"""An EAGLE-3, 3.1 or P-EAGLE head in torch: exactly the graph that llama.cpp runs for `eagle3`, and its chain.

`fc_norm`: each tapped layer input has its own RMSNorm before fc; `norm_before_fc`: all have one together.
`norm_output`: the state fed to the next draft step is the normalised one. `norm_before_residual`: the residual stream
starts from hidden_norm(g). Sources: EAGLE-3 (arXiv 2503.01840), attention drift / EAGLE-3.1 (arXiv 2605.09992). Losses,
data and files are elsewhere.

Positions, as in llama.cpp's draft cache: the cell at position P holds the pair (token[P+1], g[P]) and predicts
token[P+2]. A chain is anchored at P; its step j holds (token[P+1+j], own state of step j-1) at position P+j and sees
the cells up to P and its own steps 1..j. In a P-EAGLE head those steps hold (mask token, learned state) instead, and
need not wait for one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.tap_row import TapRow
from eaglelocal.hub.heads.medusa_head import MedusaShape
from eaglelocal.hub.heads.safetensors_files import Floats

HEAD_NAMES = {
    "token_norm.weight": "blk.0.attn_norm",
    "hidden_norm.weight": "blk.0.attn_norm_2",
    "q.weight": "blk.0.attn_q",
    "k.weight": "blk.0.attn_k",
    "v.weight": "blk.0.attn_v",
    "o.weight": "blk.0.attn_output",
    "ffn_norm.weight": "blk.0.ffn_norm",
    "ffn.gate.weight": "blk.0.ffn_gate",
    "ffn.up.weight": "blk.0.ffn_up",
    "ffn.down.weight": "blk.0.ffn_down",
    "norm.weight": "output_norm",
}
MAX_STEPS = 16  # rotary tables reach this far past the context
MIN_KEPT_SHARE = 0.2  # of chains, however many steps they have


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Sizes and flags of a head. Tap k is the residual stream that enters layer k, `tap_width` wide."""

    width: int
    tap_width: int
    taps: tuple[int, ...]
    max_context: int
    num_heads: int = 0  # zero in a Medusa head, like the following ones: it has no attention and no feed-forward
    num_kv_heads: int = 0
    head_size: int = 0
    ffn: int = 0
    norm_eps: float = 0.0
    fc_norm_eps: float | None = None  # None: as the others
    rope_theta: float = 10_000.0
    rope_scale: float = 1.0  # positions are divided by it
    rope_factors: tuple[float, ...] = ()  # [head_size / 2], of llama3's scaling; each frequency is divided by its own
    window: int | None = None  # tokens that attention sees, counted back from a chain's first step
    fc_norm: bool = True
    norm_before_fc: bool = False
    norm_before_residual: bool = True
    norm_output: bool = True
    mask: int | None = None  # of a P-EAGLE head: the token of rows whose own is not known yet
    num_depths: int = 1  # tokens that it drafts in one pass

    @property
    def tap_row(self) -> TapRow:
        return TapRow(self.taps, self.tap_width)


@dataclass(frozen=True, slots=True)
class KvTensors:
    """A tensor of keys and one of values, each [batch, heads, cells, head_size], keys rotated."""

    keys: Tensor
    values: Tensor


class RmsNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


def rope_tables(
    length: int, head_size: int, theta: float, *, scale: float = 1.0, factors: Sequence[float] = ()
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [length, head_size / 2]. `scale` divides positions, `factors` frequencies."""
    frequencies = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    if factors:
        frequencies = frequencies / torch.tensor(factors, dtype=torch.float64)
    angles = torch.outer(torch.arange(length, dtype=torch.float64) / scale, frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[2i], x[2i+1]) of x [batch, heads, length, head_size] by the angle of their position."""
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def split_heads(x: Tensor, head_size: int) -> Tensor:
    """Reshape [batch, length, heads * head_size] to [batch, heads, length, head_size]."""
    return x.reshape(x.shape[0], x.shape[1], -1, head_size).transpose(1, 2)


class SwiGlu(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, ffn, bias=False)
        self.up = nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class EagleHead(nn.Module):
    """An EAGLE-3 or 3.1 head without embeddings and lm_head."""

    cos: Tensor  # [max_context + MAX_STEPS, head_size / 2]
    sin: Tensor

    mask_embedding: Tensor  # [width] the target's or its own, of the mask token; zeros where there is none

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        width, eps, pair = shape.width, shape.norm_eps, 2 * shape.width
        tapped, kv_width = len(shape.taps) * shape.tap_width, shape.num_kv_heads * shape.head_size
        fc_eps = eps if shape.fc_norm_eps is None else shape.fc_norm_eps
        self.fc_norms = nn.ModuleList(RmsNorm(shape.tap_width, fc_eps) for _ in shape.taps if shape.fc_norm)
        self.taps_norm = RmsNorm(tapped, eps) if shape.norm_before_fc else None
        self.fc = nn.Linear(tapped, width, bias=False)
        self.token_norm = RmsNorm(width, eps)
        self.hidden_norm = RmsNorm(width, eps)
        self.q = nn.Linear(pair, shape.num_heads * shape.head_size, bias=False)
        self.k = nn.Linear(pair, kv_width, bias=False)
        self.v = nn.Linear(pair, kv_width, bias=False)
        self.o = nn.Linear(shape.num_heads * shape.head_size, width, bias=False)
        self.ffn_norm = RmsNorm(width, eps)
        self.ffn = SwiGlu(width, shape.ffn)
        self.norm = RmsNorm(width, eps)
        cos, sin = rope_tables(
            shape.max_context + MAX_STEPS,
            shape.head_size,
            shape.rope_theta,
            scale=shape.rope_scale,
            factors=shape.rope_factors,
        )
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.mask_hidden = None if shape.mask is None else nn.Parameter(torch.randn(tapped))
        self.register_buffer("mask_embedding", torch.zeros(width), persistent=False)

    def fuse(self, taps: Sequence[Tensor]) -> Tensor:
        """Fuse tapped layer inputs, each [batch, length, tap_width], into g [batch, length, width]."""
        normed = [norm(tap) for norm, tap in zip(self.fc_norms, taps, strict=True)] if self.fc_norms else list(taps)
        read = torch.cat(normed, -1)
        return self.fc(read if self.taps_norm is None else self.taps_norm(read))  # type: ignore[no-any-return]

    def forward(
        self, embedded: Tensor, g: Tensor, anchors: Tensor, num_steps: int, kept_share: float = 1.0
    ) -> list[Tensor]:
        """Unroll num_steps draft steps from each anchor over the given (teacher-forced) tokens.

        embedded [batch, length, width] token embeddings; g [batch, length, width]; anchors [batch, chains], each at
        most length - 2. Returns per step the normalised state [batch, chains, width], the lm_head's input. Steps past
        the row repeat its last token and are meaningless.

        kept_share  of the chains of a step, that have another one: the first of them (P-EAGLE's COD sampling)
        """
        prefix = self._prefix(embedded, g)
        positions = torch.arange(embedded.shape[1] - 1, device=g.device)
        is_seen = self._visible_cells(anchors, positions)  # [batch, chains, cells]
        state, num_chains = gather_rows(g, anchors), anchors.shape[1]
        mask_state = self._fuse_mask()
        own: list[KvTensors] = []
        states = []
        for step in range(num_steps):
            num_kept = math.ceil(num_chains * max(kept_share**step, MIN_KEPT_SHARE))
            anchors, is_seen, state = anchors[:, :num_kept], is_seen[:, :num_kept], state[:, :num_kept]
            own = [KvTensors(cells.keys[:, :, :num_kept], cells.values[:, :, :num_kept]) for cells in own]
            token = gather_rows(embedded, (anchors + 1 + step).clamp(max=embedded.shape[1] - 1))
            if mask_state is not None and step > 0:
                token, state = self.mask_embedding.expand_as(token), mask_state.expand_as(state)
            pair, residual = self._pair(token, state)
            if step > 0:  # the first step's cell is among the prefix
                own.append(self._cells(pair, anchors + step))
            query = self._rotate(self.q(pair), anchors + step)
            mixed = residual + self.o(attend(query, prefix, is_seen, own=own))
            out = mixed + self.ffn(self.ffn_norm(mixed))
            states.append(self.norm(out))
            state = states[-1] if self.shape.norm_output else out
        return states

    def _fuse_mask(self) -> Tensor | None:
        """Return the state [1, 1, width] of a P-EAGLE head's rows of masks; None for other heads."""
        if self.mask_hidden is None:
            return None
        return self.fuse(list(self.mask_hidden.view(len(self.shape.taps), 1, 1, self.shape.tap_width)))

    def _visible_cells(self, anchors: Tensor, cells: Tensor) -> Tensor:
        """Return the cells that each chain sees, [batch, chains, cells]. The window does not move during a draft: the
        drafter cuts its cache once per draft.
        """
        is_past = cells <= anchors.unsqueeze(-1)
        return is_past if self.shape.window is None else is_past & (cells > anchors.unsqueeze(-1) - self.shape.window)

    def _prefix(self, embedded: Tensor, g: Tensor) -> KvTensors:
        """Return the cells of all pairs (token[P+1], g[P]); they need no attention, only the layer's input."""
        pairs, _ = self._pair(embedded[:, 1:], g[:, :-1])
        return self._cells(pairs, torch.arange(pairs.shape[1], device=pairs.device).unsqueeze(0))

    def _pair(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention's input [batch, n, 2 * width] and the residual stream [batch, n, width]."""
        hidden = self.hidden_norm(state)
        return torch.cat((self.token_norm(token), hidden), -1), hidden if self.shape.norm_before_residual else state

    def _cells(self, pairs: Tensor, positions: Tensor) -> KvTensors:
        repeat = self.shape.num_heads // self.shape.num_kv_heads
        keys, values = self._rotate(self.k(pairs), positions), self._split(self.v(pairs))
        return KvTensors(keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1))

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(self._split(x), self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1))

    def _split(self, x: Tensor) -> Tensor:
        return split_heads(x, self.shape.head_size)


def fold_fc(head: EagleHead) -> Tensor:
    """Return fc [width, taps * target width] with each tap's norm gains multiplied into its columns."""
    gains = torch.cat([head.get_parameter(f"fc_norms.{index}.weight") for index in range(len(head.shape.taps))])
    return (head.fc.weight * gains).detach()


def attend(query: Tensor, prefix: KvTensors, is_seen: Tensor, *, own: list[KvTensors]) -> Tensor:
    """Attend to the seen prefix cells and the chain's own ones; returns [batch, chains, heads * head_size].

    query [batch, heads, chains, head_size]; is_seen [batch, chains, cells]; own: one cell per chain and earlier step.
    """
    num_cells = prefix.keys.shape[2]
    scores = (query @ prefix.keys.mT).float().masked_fill(~is_seen.unsqueeze(1), float("-inf"))
    own_scores = [(query.float() * cells.keys.float()).sum(-1, keepdim=True) for cells in own]
    weights = torch.softmax(torch.cat((scores, *own_scores), -1) * query.shape[-1] ** -0.5, -1).to(query.dtype)
    mixed = weights[..., :num_cells] @ prefix.values
    for index, cells in enumerate(own):
        mixed = mixed + weights[..., num_cells + index, None] * cells.values
    return mixed.transpose(1, 2).flatten(-2)


def gather_rows(x: Tensor, positions: Tensor) -> Tensor:
    """Gather rows of x [batch, length, width] at positions [batch, n] into [batch, n, width]."""
    return x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


# ---- medusa parts
class MedusaParts(nn.Module):
    """The layers of a Medusa head (arXiv 2401.10774), without its lm_head: one for each token that it drafts.

    Step j of a chain anchored at P predicts token[P+2+j] from the target's state at P, after the output norm.
    The layers begin at zero, so each first predicts the target's own next token. It has EagleHead's interface.
    """

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

"""Sizes of the inflated demo: `demo@SIZE[:TYPE]` parsed, and the shape of a model of that size.

Shapes follow real models of the same size (width, layers, feed-forward width, KV heads), with the feed-forward width
changed until the number of parameters is right. Pure arithmetic, no files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from eaglelocal.errors import ResourceError, UsageError

HEAD_DIM = 64  # 32 has no CUDA flash-attention kernel
HEAD_SHARE = 0.06  # real draft heads weigh 4 to 9 % of their targets
TYPES = ("f16", "bf16", "q8_0", "q4_0")
MIN_PARAMETERS, MAX_PARAMETERS = 100_000_000, 70_000_000_000

_REFERENCE = re.compile(r"demo(@(?P<number>\d{1,4}(\.\d{1,3})?)(?P<unit>[mb])(:(?P<type>\w+))?)?", re.IGNORECASE)
_UNITS = {"m": 1_000_000, "b": 1_000_000_000}
_STEP = 64  # widths are multiples of it, so that every quantized block is whole


@dataclass(frozen=True, slots=True)
class DemoSize:
    """A size of the embedded model: so many parameters, stored in this type."""

    num_parameters: int
    type: str

    @property
    def slug(self) -> str:
        """The size for file names: `1b-bf16`."""
        return f"{self._number}{self._unit.lower()}-{self.type}"

    @property
    def label(self) -> str:
        """The size for people: `1 B`."""
        return f"{self._number} {self._unit}"

    @property
    def _unit(self) -> str:
        return "B" if self.num_parameters >= _UNITS["b"] else "M"

    @property
    def _number(self) -> str:
        return f"{self.num_parameters / _UNITS[self._unit.lower()]:.4g}"


DEFAULT_SIZE = DemoSize(300_000_000, "bf16")


def parse_demo_reference(reference: str) -> DemoSize:
    """Parse `demo`, `demo@1b` or `demo@1.5B:q4_0`. Raises UsageError on anything else."""
    parsed = _REFERENCE.fullmatch(reference)
    if parsed is None:
        raise UsageError(f"cannot read the reference {reference!r}", hint="try `demo`, `demo@1b` or `demo@8b:q4_0`")
    if parsed["number"] is None:
        return DEFAULT_SIZE
    num_parameters = round(float(parsed["number"]) * _UNITS[parsed["unit"].lower()])
    kind = (parsed["type"] or DEFAULT_SIZE.type).lower()
    if kind not in TYPES:
        raise UsageError(f"cannot inflate to the type {kind!r}", hint=f"use one of {', '.join(TYPES)}")
    if not MIN_PARAMETERS <= num_parameters <= MAX_PARAMETERS:
        raise UsageError(f"cannot inflate to {reference[5:]}", hint="sizes go from demo@100m to demo@70b")
    return DemoSize(num_parameters, kind)


@dataclass(frozen=True, slots=True)
class DemoShape:
    """The shape of a llama-like model, or of a draft head, which is one such layer with more inputs."""

    width: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int

    @property
    def group(self) -> int:
        """The query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.width * HEAD_DIM * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.ffn

    @property
    def num_parameters(self) -> int:
        """The parameters in the matrices of a target with tied embeddings."""
        return self.layers * self.layer_parameters + self.vocab * self.width

    def holds(self, smaller: DemoShape) -> bool:
        """Return whether `smaller` fits inside, with its heads among these heads."""
        return (
            self.width >= smaller.width
            and self.layers >= smaller.layers
            and self.ffn >= smaller.ffn
            and self.kv_heads >= smaller.kv_heads
            and self.group >= smaller.group
        )


# (width, layers, feed-forward width, KV heads of 64), after models of that size
_REAL = (
    (384, 8, 1024, 2),
    (512, 10, 1408, 4),
    (768, 16, 2048, 4),
    (1024, 24, 2816, 8),
    (1536, 28, 4096, 8),
    (2048, 16, 8192, 8),
    (2048, 28, 6144, 8),
    (2560, 36, 9728, 8),
    (3072, 28, 8192, 16),
    (4096, 32, 14336, 16),
    (5120, 40, 17408, 16),
    (5120, 64, 25600, 16),
    (8192, 80, 28672, 16),
)


def choose_target(num_parameters: int, source: DemoShape) -> DemoShape:
    """Return the shape most like a real model of so many parameters that holds the source. Raises ResourceError."""
    candidates = list(_target_candidates(num_parameters, source))
    if not candidates:
        raise ResourceError(
            f"no shape of {num_parameters / 1e6:.0f} M parameters holds the {source.num_parameters / 1e6:.1f} M source",
            hint="ask for a larger size, such as `demo@100m`",
        )
    return min(candidates, key=lambda scored: scored[0])[1]


def _target_candidates(num_parameters: int, source: DemoShape) -> Iterator[tuple[float, DemoShape]]:
    """Yield (distance from a real model, shape). Layers count double: they set the number of kernels to start."""
    for width, layers, ffn, kv_heads in _REAL:
        for num_layers in range(max(source.layers, layers // 2), 2 * layers + 1):
            bare = DemoShape(width, num_layers, 0, width // HEAD_DIM, kv_heads, source.vocab)
            fitted = _round_to_step((num_parameters - bare.num_parameters) / (3 * width * num_layers))
            if fitted <= 0:
                continue
            shape = DemoShape(width, num_layers, fitted, bare.heads, kv_heads, source.vocab)
            if shape.holds(source):
                yield 2 * abs(math.log(num_layers / layers)) + abs(math.log(fitted / ffn)), shape


def count_head_parameters(shape: DemoShape, target_width: int, draft_vocab: int) -> int:
    """Return the parameters in the matrices of an EAGLE-3 head with its own embeddings and output.

    Its attention reads twice the width.
    """
    doubled = HEAD_DIM * shape.width * (shape.heads + 2 * shape.kv_heads)
    fusion = 3 * target_width * shape.width
    return fusion + shape.layer_parameters + doubled + (shape.vocab + draft_vocab) * shape.width


def choose_head(target: DemoShape, source: DemoShape, draft_vocab: int) -> DemoShape:
    """Return a plausible head of HEAD_SHARE of the target's parameters that holds the source head."""
    budget = HEAD_SHARE * target.num_parameters
    candidates = list(_head_candidates(budget, target, source, draft_vocab))
    # below about 80 M the source head already exceeds its share; only tests use such sizes
    return min(candidates, key=lambda scored: scored[0])[1] if candidates else source


def _head_candidates(
    budget: float, target: DemoShape, source: DemoShape, draft_vocab: int
) -> Iterator[tuple[float, DemoShape]]:
    for width in range(source.width, 4 * target.width + 1, _STEP):
        heads = width // HEAD_DIM
        kv_heads = _choose_kv_heads(heads, source)
        if kv_heads is None or (width > 1024 and heads % 4):  # large heads come in groups of four
            continue
        bare = DemoShape(width, 1, 0, heads, kv_heads, source.vocab)
        ffn = _round_to_step((budget - count_head_parameters(bare, target.width, draft_vocab)) / (3 * width))
        if ffn >= source.ffn:
            unlike = abs(math.log(ffn / (3.5 * width))) + abs(math.log(width / target.width))
            yield unlike, DemoShape(width, 1, ffn, heads, kv_heads, source.vocab)


def _choose_kv_heads(heads: int, source: DemoShape) -> int | None:
    """Return a number of KV heads that makes groups of about four and has room for the source's heads; None: none."""
    fitting = [
        count for count in range(source.kv_heads, heads + 1) if heads % count == 0 and heads // count >= source.group
    ]
    return min(fitting, key=lambda count: abs(heads / count - 4)) if fitting else None


def _round_to_step(value: float) -> int:
    return round(value / _STEP) * _STEP

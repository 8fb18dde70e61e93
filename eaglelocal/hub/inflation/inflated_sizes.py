"""Sizes of inflated models: `demo@SIZE[:TYPE]` parsed, and the shape of a model of that size.

Shapes follow real models of the same size (width, layers, feed-forward width, KV heads), with the feed-forward width
changed until the number of parameters is right. Pure arithmetic, no files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from eaglelocal.catalog.reference import DEMO
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError, UsageError

HEAD_DIM = 64  # of the embedded model; 32 has no CUDA flash-attention kernel
HEAD_SHARE = 0.06  # real draft heads weigh 4 to 9 % of their targets
TYPES = ("f16", "bf16", "q8_0", "q4_0")
MIN_PARAMETERS, MAX_PARAMETERS = 100_000_000, 70_000_000_000

_REFERENCE = re.compile(r"demo(@(?P<size>[\d.]+[mb])(:(?P<type>\w+))?)?", re.IGNORECASE)
_SIZE = re.compile(r"(?P<number>\d{1,4}(\.\d{1,3})?)(?P<unit>[mb])", re.IGNORECASE)
_UNITS = {"m": 1_000_000, "b": 1_000_000_000}
BLOCK_STEP, SUPERBLOCK_STEP = 64, 256  # widths are multiples of it, so that every quantized block is whole


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of an inflated model: its number of parameters, and the type that stores them."""

    num_parameters: int
    type: str

    @property
    def slug(self) -> str:
        """The size for file names: `1b-bf16`."""
        return f"{self._number}{self._unit.lower()}-{self.type}"

    @property
    def reference(self) -> str:
        """The reference of the embedded model in this size: `demo@1b:bf16`; `demo` for the default size."""
        return DEMO if self == DEFAULT_SIZE else f"{DEMO}@{self.slug.replace('-', ':')}"

    @property
    def label(self) -> str:
        """The size for people: `1 B`."""
        return f"{self._number} {self._unit}"

    @property
    def phrase(self) -> str:
        """The size with its article: `a 1 B model`, `an 8 B model`."""
        number = str(self._number)
        article = "an" if number.startswith("8") or number in ("11", "18") else "a"
        return f"{article} {self.label} model"

    @property
    def _unit(self) -> str:
        return "B" if self.num_parameters >= _UNITS["b"] else "M"

    @property
    def _number(self) -> str:
        return f"{self.num_parameters / _UNITS[self._unit.lower()]:.4g}"


DEFAULT_SIZE = ModelSize(300_000_000, "bf16")


def parse_demo_reference(reference: str) -> ModelSize:
    """Parse `demo`, `demo@1b` or `demo@1.5B:q4_0`. Raises UsageError on anything else."""
    parsed = _REFERENCE.fullmatch(reference)
    if parsed is None:
        raise UsageError(f"cannot read the reference {reference!r}", hint="try `demo`, `demo@1b` or `demo@8b:q4_0`")
    if parsed["size"] is None:
        return DEFAULT_SIZE
    num_parameters = parse_size(parsed["size"])
    kind = (parsed["type"] or DEFAULT_SIZE.type).lower()
    if kind not in TYPES:
        raise UsageError(f"cannot inflate to the type {kind!r}", hint=f"use one of {', '.join(TYPES)}")
    return ModelSize(num_parameters, kind)


def parse_size(text: str) -> int:
    """Return the number of parameters in `300m` or `1.5B`. Raises UsageError on other text and impossible sizes."""
    parsed = _SIZE.fullmatch(text)
    if parsed is None:
        raise UsageError(f"cannot read the size {text!r}", hint="try `@300m`, `@1b` or `@1.5b`")
    num_parameters = round(float(parsed["number"]) * _UNITS[parsed["unit"].lower()])
    if not MIN_PARAMETERS <= num_parameters <= MAX_PARAMETERS:
        raise UsageError(f"cannot inflate to {text}", hint="sizes go from 100m to 70b")
    return num_parameters


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The shape of a llama-like model, or of a draft head, which is one such layer with more inputs."""

    width: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = HEAD_DIM
    is_tied: bool = True  # the embeddings are the output too

    @property
    def group(self) -> int:
        """The query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.ffn

    @property
    def num_parameters(self) -> int:
        """The parameters in the matrices of a target."""
        return self.layers * self.layer_parameters + (1 if self.is_tied else 2) * self.vocab * self.width

    def holds(self, smaller: LlamaShape) -> bool:
        """Return whether `smaller` fits inside, with its heads among these heads."""
        return (
            self.width >= smaller.width
            and self.layers >= smaller.layers
            and self.ffn >= smaller.ffn
            and self.kv_heads >= smaller.kv_heads
            and self.group >= smaller.group
        )


# (width, layers, feed-forward width, KV heads of 64 channels), after models of that size
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


def choose_target(num_parameters: int, source: LlamaShape, *, step: int = BLOCK_STEP) -> LlamaShape:
    """Return the shape with num_parameters that is closest to a real model and holds the source.

    step  number that its widths are multiples of

    Raises ResourceError if there is none.
    """
    candidates = list(_target_candidates(num_parameters, source, step))
    if not candidates:
        millions = max(100, math.ceil(2 * source.num_parameters / 1e8) * 100)  # well above the source
        larger = f"{millions}m" if millions < 1000 else f"{math.ceil(millions / 1000)}b"
        raise ResourceError(
            f"no shape of {num_parameters / 1e6:.0f} M parameters holds the {source.num_parameters / 1e6:.1f} M source",
            hint=f"ask for a larger size, such as `@{larger}`",
        )
    return min(candidates, key=lambda scored: scored[0])[1]


def _target_candidates(num_parameters: int, source: LlamaShape, step: int) -> Iterator[tuple[float, LlamaShape]]:
    """Yield (distance from a real model, shape). Layers weigh double: they determine how many kernels are launched."""
    for width, layers, ffn, real_kv_heads in _REAL:
        heads = width // source.head_dim
        kv_heads = _fit_kv_heads(heads, source, real_kv_heads * HEAD_DIM / source.head_dim)
        if kv_heads is None or width % step or width % source.head_dim:
            continue
        for num_layers in range(max(source.layers, layers // 2), max(source.layers, 2 * layers) + 1):
            bare = replace(source, width=width, layers=num_layers, ffn=0, heads=heads, kv_heads=kv_heads)
            fitted = _round_to_step((num_parameters - bare.num_parameters) / (3 * width * num_layers), step)
            shape = replace(bare, ffn=fitted)
            if fitted > 0 and shape.holds(source):
                yield 2 * abs(math.log(num_layers / layers)) + abs(math.log(fitted / ffn)), shape


def count_head_parameters(shape: LlamaShape, target_width: int, draft_vocab: int) -> int:
    """Return the parameters in the matrices of an EAGLE-3 head with its own embeddings and output.

    Its attention reads twice the width.
    """
    doubled = shape.head_dim * shape.width * (shape.heads + 2 * shape.kv_heads)
    fusion = 3 * target_width * shape.width
    return fusion + shape.layer_parameters + doubled + (shape.vocab + draft_vocab) * shape.width


def choose_head(target: LlamaShape, source: LlamaShape, draft_vocab: int) -> LlamaShape:
    """Return a plausible head of HEAD_SHARE of the target's parameters that holds the source head."""
    budget = HEAD_SHARE * target.num_parameters
    candidates = list(_head_candidates(budget, target, source, draft_vocab))
    # a source head with a large vocabulary may exceed its share of a small target already
    return min(candidates, key=lambda scored: scored[0])[1] if candidates else source


def _head_candidates(
    budget: float, target: LlamaShape, source: LlamaShape, draft_vocab: int
) -> Iterator[tuple[float, LlamaShape]]:
    step = math.lcm(BLOCK_STEP, source.head_dim)
    for width in range(-(-source.width // step) * step, 4 * target.width + 1, step):
        heads = width // source.head_dim
        kv_heads = _fit_kv_heads(heads, source, heads / 4)  # groups of about four
        if kv_heads is None or (width > 1024 and heads % 4):  # large heads come in groups of four
            continue
        bare = replace(source, width=width, layers=1, ffn=0, heads=heads, kv_heads=kv_heads)
        ffn = _round_to_step((budget - count_head_parameters(bare, target.width, draft_vocab)) / (3 * width))
        if ffn >= source.ffn:
            unlike = abs(math.log(ffn / (3.5 * width))) + abs(math.log(width / target.width))
            yield unlike, replace(bare, ffn=ffn)


def _fit_kv_heads(heads: int, source: LlamaShape, usual: float) -> int | None:
    """Return the number of KV heads nearest to `usual` that has room for the source's heads; None if none has."""
    fitting = [
        count for count in range(source.kv_heads, heads + 1) if heads % count == 0 and heads // count >= source.group
    ]
    return min(fitting, key=lambda count: abs(heads / count - heads / usual)) if fitting else None


def _round_to_step(value: float, step: int = BLOCK_STEP) -> int:
    return round(value / step) * step

"""Parse the part after the `@` of a reference: the recipe for deriving a model from another one.

    1b, 1b:q4_k_m    inflated: the same texts, at the cost of a model of that size
    drop10[:q4_0]    without ten of its layers: a draft model of the same vocabulary
    q2_k             in another type, by llama.cpp's quantizer

Makes nothing.
"""

from __future__ import annotations

import re
from typing import ClassVar

from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError
from eaglelocal.hub.inflation.generated_files import QUANTIZABLE
from eaglelocal.hub.inflation.inflated_sizes import DEFAULT_SIZE, ModelSize, parse_size

RECIPE_FORMS = "`@1b:q4_k_m` (its size and type), `@drop10` (layers left out), or `@q2_k` (a type)"
WRITTEN_TYPES = ("f32", "f16", "bf16")  # types that an inflated model is written in; others are quantized from f16

_SIZE = re.compile(r"\d[\d.]*[mb]")
_DROP = re.compile(r"drop(?P<number>\d{1,3})")


@dataclass(frozen=True, slots=True)
class Inflation:
    """The same model, padded to the cost of a larger one."""

    size: ModelSize
    origin: ClassVar[str] = "inflated"  # the word for such models in lists

    @property
    def text(self) -> str:
        """The recipe as it is written in references, in full: `1b:bf16`."""
        return self.size.slug.replace("-", ":")

    @property
    def quantized_to(self) -> str | None:
        return None if self.size.type in WRITTEN_TYPES else self.size.type

    def describe(self, name: str, n_layer: int) -> str:
        return f"{name} at the cost of {self.size.phrase} ({self.size.type})"


@dataclass(frozen=True, slots=True)
class LayerDrop:
    """The same model without some of its layers."""

    num_layers: int
    quantized_to: str | None = None
    origin: ClassVar[str] = "fewer layers"

    @property
    def text(self) -> str:
        return f"drop{self.num_layers}" + (f":{self.quantized_to}" if self.quantized_to else "")

    def describe(self, name: str, n_layer: int) -> str:
        kind = f" ({self.quantized_to})" if self.quantized_to else ""
        return f"{name} without {self.num_layers} of its {n_layer} layers{kind}"


@dataclass(frozen=True, slots=True)
class Requantization:
    """The same model in another type."""

    quantized_to: str
    origin: ClassVar[str] = "requantized"

    @property
    def text(self) -> str:
        return self.quantized_to

    def describe(self, name: str, n_layer: int) -> str:
        return f"{name} requantized to {self.quantized_to}"


Recipe = Inflation | LayerDrop | Requantization


def parse_recipe(text: str) -> Recipe:
    """Parse the part after the `@`, ignoring case. Raises UsageError on anything else."""
    word, _, kind = text.lower().partition(":")
    if ":" in text and kind not in QUANTIZABLE:
        raise UsageError(f"cannot quantize to the type {kind!r}", hint=f"use one of {', '.join(QUANTIZABLE)}")
    if dropped := _DROP.fullmatch(word):
        if int(dropped["number"]) == 0:
            raise UsageError("`@drop0` leaves no layer out", hint="`@drop10`")
        return LayerDrop(int(dropped["number"]), kind or None)
    if _SIZE.fullmatch(word):
        return Inflation(ModelSize(parse_size(word), kind or DEFAULT_SIZE.type))
    if word in QUANTIZABLE and not kind:
        return Requantization(word)
    raise UsageError(f"cannot make `@{text}` of a model", hint=f"use {RECIPE_FORMS}")

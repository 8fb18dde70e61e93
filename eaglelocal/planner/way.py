"""The nouns of a search: a way to run an option, what was chosen, what was rejected and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eaglelocal.planner.goals import Term
from eaglelocal.planner.options import DraftWay, Option
from eaglelocal.planner.placement import Offload
from eaglelocal.planner.speed import Prediction
from eaglelocal.planner.weighing import Setup, Weighed


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An option with what drafts, as it would run."""

    option: Option
    draft: DraftWay
    setup: Setup
    offload: Offload
    prediction: Prediction
    terms: Mapping[Term, float]  # of the score

    @property
    def score(self) -> float:
        return sum(self.terms.values())

    @property
    def gpu_layers(self) -> int | None:
        """None: all."""
        return self.offload.gpu_layers

    @property
    def n_cpu_moe(self) -> int:
        return self.offload.n_cpu_moe

    @property
    def drafts_nothing(self) -> bool:
        """A model that would draft lies idle."""
        return self.draft.shape is not None and not self.prediction.num_draft_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    way: Way
    weighed: Weighed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """`way`, `weighed`: as far as it came. `draft`: only where it is the draft that is rejected."""

    option: Option
    draft: str
    reason: str
    way: Way | None = None
    weighed: Weighed | None = None

    @property
    def missing_bytes(self) -> int | None:
        """Of the room that lacks most; None where it was not weighed or fits."""
        return None if self.weighed is None or self.weighed.fits else self.weighed.worst.missing_bytes


def offload_text(way: Way) -> str:
    """What lies where, as far as not all is on the GPUs; empty: all is, or there is none."""
    layers = way.option.shape.n_layer
    on_gpu = [] if way.gpu_layers is None else [f"{way.gpu_layers} of {layers + 1} layers on the GPU"]
    experts = [f"experts of {way.n_cpu_moe} of {layers} layers in main memory"] if way.n_cpu_moe else []
    return " and ".join(on_gpu + experts)


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"

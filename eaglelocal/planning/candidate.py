"""Define the records of a search: a way to run an option, the chosen way, and rejected ways with reasons."""

from __future__ import annotations

from collections.abc import Mapping

from eaglelocal.core.records import dataclass
from eaglelocal.memory.placement import Offload
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateMemory
from eaglelocal.planning.goals import Term
from eaglelocal.planning.options import DraftOption, ModelOption
from eaglelocal.planning.speed import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A way to run an option: its draft, setup and offload, with the predicted speed and the terms of its score."""

    option: ModelOption
    draft: DraftOption
    setup: CacheSetup
    offload: Offload
    prediction: Prediction
    terms: Mapping[Term, float]  # whose sum is the score

    @property
    def score(self) -> float:
        return sum(self.terms.values())

    @property
    def gpu_layers(self) -> int | None:
        """Return the number of layers on GPUs; None: all."""
        return self.offload.gpu_layers

    @property
    def n_cpu_moe(self) -> int:
        return self.offload.n_cpu_moe

    @property
    def drafts_nothing(self) -> bool:
        """Return whether the draft model is predicted not to pay."""
        return self.draft.shape is not None and not self.prediction.num_draft_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The best way that fits, with its memory."""

    candidate: Candidate
    memory: CandidateMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """An option that was rejected, with the reason.

    draft              id of its draft; "": the option was rejected with any draft
    candidate, memory  None: it was rejected before that stage of the search
    """

    option: ModelOption
    draft: str
    reason: str
    candidate: Candidate | None = None
    memory: CandidateMemory | None = None

    @property
    def missing_bytes(self) -> int | None:
        """Return the bytes missing on the device that lacks most; None if it was not weighed, or fits."""
        return None if self.memory is None or self.memory.fits else self.memory.worst.missing_bytes


def offload_text(candidate: Candidate) -> str:
    """Return the layers on the GPU and the experts in RAM, in words; empty if nothing is split between them."""
    layers = candidate.option.shape.n_layer
    on_gpu = [] if candidate.gpu_layers is None else [f"{candidate.gpu_layers} of {layers + 1} layers on the GPU"]
    experts = [f"experts of {candidate.n_cpu_moe} of {layers} layers in main memory"] if candidate.n_cpu_moe else []
    return " and ".join(on_gpu + experts)

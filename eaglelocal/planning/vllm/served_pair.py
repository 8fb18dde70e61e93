"""Define a target and its draft as vLLM loads them: repositories with commits, and sizes in vLLM's types. Pure.

vLLM loads the original weights, in 16 bits or in the native type of the model, not a GGUF. So sizes here are those of a
plan's shapes, widened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.planning.predicted_acceptance import PredictedAcceptance
from eaglelocal.planning.speed import HALVES, SpeedModel, cache_bytes

KV_TYPE = "f16"  # as many bytes as vLLM's bfloat16
BYTES_PER_WEIGHT = 2
EAGLE3, PEAGLE, DRAFT_MODEL, MTP = "eagle3", "peagle", "draft_model", "mtp"
DFLASH, DSPARK, MEDUSA, NGRAM, SUFFIX = "dflash", "dspark", "medusa", "ngram", "suffix"
REPO_METHODS = (EAGLE3, PEAGLE, DRAFT_MODEL, DFLASH, DSPARK, MEDUSA, MTP)  # with weights in a repository
METHODS = (*REPO_METHODS, NGRAM, SUFFIX)
IN_ONE_PASS = (PEAGLE, DFLASH, DSPARK, MEDUSA)


def names_folder(repo: str) -> bool:
    """Return whether a text names a folder on disk; any other text is a repository."""
    return repo.startswith(("/", "./", "../", "~"))


@dataclass(frozen=True, slots=True)
class WeightsPin:
    """A repository at a commit. `revision`: empty for a folder on disk, which has none."""

    repo: str
    revision: str = ""

    @property
    def is_folder(self) -> bool:
        return not self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmTarget:
    """A target for vLLM. `id`: as the catalog or a person calls it."""

    id: str
    pin: WeightsPin
    model: SpeedModel
    max_context: int
    is_gated: bool = False

    @property
    def shape(self) -> ModelShape:
        return self.model.shape

    def cache_bytes(self, num_tokens: int) -> int:
        """Return the bytes of keys and values of a sequence of this many tokens, recurrent states included."""
        layers = range(self.shape.n_layer)
        return sum(cache_bytes(self.shape, layer, KV_TYPE, num_tokens) for layer in layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmDraft:
    """A draft for vLLM.

    pin         None: it has no weights, or those of the target
    most        tokens that a draft may have
    num_bytes   of its weights
    acceptance  None: it depends on the text
    head_file   a head of this machine, which must be exported into the folder of `pin`
    shares_vocab  False: its vocabulary has another size than the target's, or an unknown one
    """

    id: str
    method: str  # one of METHODS
    pin: WeightsPin | None = None
    most: int
    num_bytes: int = 0
    num_layers: int = 0
    kv_bytes_per_token: int = 0
    acceptance: PredictedAcceptance | None = None
    head_file: Path | None = None
    is_gated: bool = False
    shares_vocab: bool = True

    @property
    def drafts_in_one_pass(self) -> bool:
        return self.method in IN_ONE_PASS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPair:
    """A target with its draft. `draft`: None drafts nothing. `is_named`: a person named it, so that it must draft."""

    target: VllmTarget
    draft: VllmDraft | None
    is_named: bool = False
    notes: tuple[str, ...] = ()


def widen_model(model: SpeedModel, *, is_native: bool) -> SpeedModel:
    """Return the model with the bytes of its original weights. `is_native`: they are as small as in the GGUF."""
    shape = model.shape
    if is_native:
        return model
    factor = BYTES_PER_WEIGHT * model.parameters / max(shape.weights_bytes, 1)
    wide = replace(
        shape,
        weights_bytes=int(shape.weights_bytes * factor),
        embedding_bytes=int(shape.embedding_bytes * factor),
        tied_output_bytes=int(shape.tied_output_bytes * factor),
        output_bytes=int(shape.output_bytes * factor),
        active_bytes=int(shape.active_bytes * factor),
        layer_bytes=tuple(int(each * factor) for each in shape.layer_bytes),
        expert_bytes=tuple(int(each * factor) for each in shape.expert_bytes),
    )
    return replace(model, shape=wide, arithmetic=HALVES)

"""The layer of a model that predicts ahead (MTP, "nextn" in llama.cpp): a draft head that comes with its target.

It reads what an EAGLE head's decoder reads, the next token and the target's final state before it, and feeds its own
state to the next step. It lies in the target's file behind the layers that answer, or alone in a file of its own, and
borrows embeddings and output where it has none. Sources: src/models/qwen35.cpp, common/speculative.cpp (`draft-mtp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.architectures import MTP_ARCHITECTURES
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.keys import ArchitectureKeys
from eaglelocal.gguf.model_info import ModelInfo, architecture_of, vocabulary_size

FIRST_TENSOR = "blk.0.attn_norm.weight"  # where it is missing, the file holds no layer that answers
NEEDED = ("eh_proj", "enorm", "hnorm")  # llama.cpp aborts without them
HINT = "a draft made for this target, or `--draft none`"


@dataclass(frozen=True, slots=True)
class MtpInfo:
    """`block` is its number: as many layers answer."""

    name: str
    architecture: str
    block: int
    width: int
    n_vocab: int
    is_alone: bool  # in its file
    missing: tuple[str, ...]  # tensors

    @property
    def n_layer(self) -> int:
        return 1

    @property
    def target_layers(self) -> tuple[int, ...]:
        """It reads the state behind the last layer."""
        return (self.block,)

    @classmethod
    def from_header(cls, header: Header) -> MtpInfo:
        """Raises IncompatibleError where there is no such layer, or several, ModelFileError on senseless keys."""
        keys = ArchitectureKeys(header, architecture_of(header))
        ahead = num_ahead(keys)
        if ahead != 1:
            many = f"{ahead} MTP layers, where one can draft" if ahead else "no MTP layer"
            raise IncompatibleError(f"{header.path.name} has {many}", hint=HINT)
        block = keys.count("block_count") - 1
        return cls(
            name=keys.text("general.name") or header.path.stem,
            architecture=keys.prefix,
            block=block,
            width=keys.count("embedding_length"),
            n_vocab=vocabulary_size(keys),
            is_alone=FIRST_TENSOR not in header.tensors,
            missing=tuple(name for name in tensor_names(block) if name not in header.tensors),
        )


def num_ahead(keys: ArchitectureKeys) -> int:
    """Layers that the file claims to have for it; whether their tensors are there is another matter."""
    return keys.optional_count("nextn_predict_layers") or 0


def tensor_names(block: int) -> list[str]:
    return [f"blk.{block}.nextn.{name}.weight" for name in NEEDED]


def mtp_of(header: Header) -> MtpInfo | None:
    """The layer, where there is one that could draft. Conversions may leave its tensors out and keep the claim."""
    try:
        layer = MtpInfo.from_header(header)
    except (IncompatibleError, ModelFileError):
        return None
    return layer if layer.architecture in MTP_ARCHITECTURES and not layer.missing else None


def has_mtp(header: Header) -> bool:
    """Whether a model can draft for itself, or a file for a model."""
    return mtp_of(header) is not None


def is_mtp_alone(header: Header) -> bool:
    """Whether the file holds that layer and no model that could answer."""
    layer = mtp_of(header)
    return layer is not None and layer.is_alone


def check_mtp(layer: MtpInfo, target: ModelInfo) -> None:
    """Returns when it can draft for `target`; else raises IncompatibleError with the figures."""
    for problem in _problems(layer, target):
        raise IncompatibleError(f"the MTP layer of {layer.name} does not fit {target.name}: {problem}", hint=HINT)


def _problems(layer: MtpInfo, target: ModelInfo) -> Iterator[str]:
    if layer.architecture not in MTP_ARCHITECTURES:
        yield f"MTP layers of the architecture {layer.architecture} were never tried"
    if layer.architecture != target.architecture:
        yield f"it is of the architecture {layer.architecture}, the target of {target.architecture}"
    if layer.missing:
        yield f"its file lacks the tensor {layer.missing[0]}"
    if layer.width != target.n_embd:
        yield f"it was made for hidden size {layer.width}, the target has {target.n_embd}"
    if layer.block != target.n_layer:
        yield f"it was made for {layer.block} layers, the target has {target.n_layer}"
    if layer.n_vocab != target.n_vocab:
        yield f"its vocabulary has {layer.n_vocab} tokens, the target's {target.n_vocab}"

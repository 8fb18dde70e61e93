"""Read and check MTP layers ("nextn" in llama.cpp), which predict one token further: drafts that come with a target.

They take the same input as an EAGLE head's decoder, the next token and the target's final state before it, and feed
their own state to the next step. A single layer is in the target's file after the ordinary ones, or, with embeddings
and output, in its own file (Qwen3.5); Gemma 4 has a small stack in its own file, which reads the target's cache.
Sources: src/models/qwen35.cpp, gemma4-assistant.cpp, common/speculative.cpp (`draft-mtp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.arch_keys import ArchitectureKeys
from eaglelocal.gguf.architectures import ASSISTANTS, MTP_ARCHITECTURES
from eaglelocal.gguf.hazards import check_alignment
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo, num_mtp_layers, read_architecture, vocabulary_size
from eaglelocal.gguf.sliding_window import read_windows

FIRST_TENSOR = "blk.0.attn_norm.weight"  # missing: the file holds MTP layers only
REQUIRED_TENSORS = ("eh_proj", "enorm", "hnorm")
HINT = "--draft none"


@dataclass(frozen=True, slots=True)
class MtpInfo:
    """An MTP layer as its header describes it. `width` is that of the states that it reads and returns.

    architecture  of its target
    block         index of the layer: the number of ordinary layers; None: a stack that reads the target's cache
    cache_widths  for such a stack: values in one token's keys, in a layer with a window and in one without
    """

    name: str
    architecture: str
    block: int | None
    width: int
    n_vocab: int
    is_alone: bool  # the file has no ordinary layers
    missing: tuple[str, ...] = ()  # tensors
    abort_reason: str = ""  # why llama.cpp would load it and then abort
    cache_widths: tuple[int, int] = (0, 0)

    @property
    def reads_cache(self) -> bool:
        return self.block is None

    @classmethod
    def from_header(cls, header: Header) -> MtpInfo:
        """Read a header with an MTP layer.

        Raises IncompatibleError where there is no such layer, or several, ModelFileError on senseless keys.
        """
        keys = ArchitectureKeys(header, read_architecture(header))
        if keys.prefix in ASSISTANTS:
            return _assistant(keys)
        ahead = num_mtp_layers(keys)
        if ahead != 1:
            many = f"{ahead} MTP layers, where one can draft" if ahead else "no MTP layer"
            raise IncompatibleError(f"{header.path.name} has {many}", hint="--draft auto")
        block = keys.count("block_count") - 1
        return cls(
            name=keys.model_name,
            architecture=keys.prefix,
            block=block,
            width=keys.count("embedding_length"),
            n_vocab=vocabulary_size(keys),
            is_alone=FIRST_TENSOR not in header.tensors,
            missing=tuple(name for name in tensor_names(block) if name not in header.tensors),
            abort_reason=find_abort_reason(keys, block),
        )


def _assistant(keys: ArchitectureKeys) -> MtpInfo:
    check_alignment(keys)
    num_layers = keys.count("block_count")
    if num_mtp_layers(keys) != num_layers:
        raise keys.error(f"claims {num_mtp_layers(keys)} of {num_layers} layers for prediction, expected all of them")
    return MtpInfo(
        name=keys.model_name,
        architecture=ASSISTANTS[keys.prefix],
        block=None,
        width=keys.count("embedding_length_out"),
        n_vocab=vocabulary_size(keys),
        is_alone=True,
        cache_widths=cache_widths(keys, num_layers),
    )


def find_abort_reason(keys: ArchitectureKeys, block: int) -> str:
    """Return why llama.cpp would accept the layer at `block` and then abort; empty where it would not.

    Its graph uses the head counts of the first layer, and its rows are `embedding_length_out` apart.
    """
    width, rows_width = keys.count("embedding_length"), keys.optional_count("embedding_length_out")
    if rows_width not in (None, 0, width):
        return f"its states are {width} wide, its rows {rows_width}"
    for key in ("attention.head_count", "attention.head_count_kv"):
        counts = keys.counts(key) or (1,)
        first, own = counts[0], counts[min(block, len(counts) - 1)]
        if not first or first != own:
            return f"{key} is {own} in it and {first} in the first layer"
    return ""


def cache_widths(keys: ArchitectureKeys, n_layer: int) -> tuple[int, int]:
    """Return the values in one token's keys (with a window, without one), of the last layer of each kind; 0 if none."""
    heads = keys.counts("attention.head_count_kv") or keys.counts("attention.head_count") or (0,)
    key_dim = keys.optional_count("attention.key_length") or 0
    window_key_dim = keys.optional_count("attention.key_length_swa") or key_dim
    widths = {True: 0, False: 0}
    for layer, window in enumerate(read_windows(keys, n_layer)):
        has_window = window is not None
        widths[has_window] = heads[min(layer, len(heads) - 1)] * (window_key_dim if has_window else key_dim)
    return widths[True], widths[False]


def tensor_names(block: int) -> list[str]:
    return [f"blk.{block}.nextn.{name}.weight" for name in REQUIRED_TENSORS]


def find_mtp(header: Header) -> MtpInfo | None:
    """Return the file's MTP layer if it is complete and of a tested architecture, else None."""
    try:
        layer = MtpInfo.from_header(header)
    except (IncompatibleError, ModelFileError):
        return None
    is_usable = not (layer.missing or layer.abort_reason)
    return layer if layer.architecture in MTP_ARCHITECTURES and is_usable else None


def has_mtp(header: Header) -> bool:
    """Return whether the file has an MTP layer that can draft, for its own model or, alone, for another file's."""
    return find_mtp(header) is not None


def is_mtp_alone(header: Header) -> bool:
    """Return whether the file holds an MTP layer that can draft, and no model."""
    layer = find_mtp(header)
    return layer is not None and layer.is_alone


def check_mtp(layer: MtpInfo, target: ModelInfo, target_header: Header) -> None:
    """Check that the layer can draft for `target`.

    Raises IncompatibleError with the figures where it cannot.
    """
    for problem in _problems(layer, target, target_header):
        raise IncompatibleError(f"the MTP layer of {layer.name} does not fit {target.name}: {problem}", hint=HINT)


def _problems(layer: MtpInfo, target: ModelInfo, target_header: Header) -> Iterator[str]:
    if layer.architecture not in MTP_ARCHITECTURES:
        yield f"MTP layers of the architecture {layer.architecture} have not been tested"
    if layer.architecture != target.architecture:
        yield f"it was made for the architecture {layer.architecture}, the target is of {target.architecture}"
    if layer.missing:
        yield f"its file lacks the tensor {layer.missing[0]}"
    if layer.abort_reason:
        yield layer.abort_reason
    if layer.width != target.n_embd:
        yield f"it was made for hidden size {layer.width}, the target has {target.n_embd}"
    if layer.block not in (None, target.n_layer):
        yield f"it was made for {layer.block} layers, the target has {target.n_layer}"
    if layer.n_vocab != target.n_vocab:
        yield f"its vocabulary has {layer.n_vocab} tokens, the target's {target.n_vocab}"
    if layer.reads_cache:
        yield from _cache_problems(layer, target, target_header)


def _cache_problems(layer: MtpInfo, target: ModelInfo, target_header: Header) -> Iterator[str]:
    """Yield how the caches of the target's last two layers differ from what the stack expects.

    llama.cpp lets it read the last layer's, and for a window the one before, whatever their sizes.
    """
    keys = ArchitectureKeys(target_header, target.architecture)
    windows = read_windows(keys, target.n_layer)
    if target.n_layer < 2 or windows[-1] is not None or windows[-2] is None:
        yield "the target's last two layers are not one with a window and one without"
    theirs = cache_widths(keys, target.n_layer)
    for what, own, other in zip(("with a window", "without one"), layer.cache_widths, theirs, strict=True):
        if own not in (0, other):
            yield f"its layers {what} read {own} values of a token, the target's keep {other}"

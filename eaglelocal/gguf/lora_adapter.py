"""LoRA adapters in GGUF files: read a file's header and check that it fits a target, before llama.cpp reads it.

An adapter holds, for some of the target's weights W [columns, rows] (ggml's order), two tensors: NAME.lora_a
[columns, rank] and NAME.lora_b [rank, rows]. With it llama.cpp computes W x + scale * alpha / rank * B (A x). For
token_embd.weight both are stored transposed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.reader import read_header

A, B = ".lora_a", ".lora_b"
EMBEDDING = "token_embd.weight"
BLOCK_WEIGHT = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+)\.weight")
READ_STATES = frozenset({"attn_q", "attn_k", "attn_v", "attn_qkv", "ffn_up", "ffn_gate"})  # columns: the model's width
WRITE_STATES = frozenset({"attn_output", "ffn_down"})  # rows
IGNORED = "_norm.weight"  # llama.cpp skips such tensors
INVOCATION = "adapter.alora.invocation_tokens"


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter's file. pairs: its tensors A and B, by the name of the weight that they change."""

    architecture: str
    alpha: float
    pairs: Mapping[str, tuple[TensorInfo, TensorInfo]]

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return tuple(tensor for pair in self.pairs.values() for tensor in pair)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def max_rank(self) -> int:
        return max(find_rank(name, a) for name, (a, _) in self.pairs.items())


def is_adapter(header: Header) -> bool:
    return header.metadata.get("general.type") == "adapter"


def read_adapter(header: Header) -> AdapterInfo:
    """Read the header of an adapter. Raises ModelFileError for another kind of file."""
    name = header.path.name
    if not is_adapter(header):
        raise ModelFileError(
            f"{name} is no LoRA adapter: its general.type is not adapter",
            hint=f"eaglelocal show {quote_path(header.path)}",
        )
    kind = header.metadata.get("adapter.type")
    if kind != "lora":
        raise ModelFileError(f"{name} is an adapter of type {kind}: only lora is supported")
    if INVOCATION in header.metadata:
        raise ModelFileError(f"{name} is an activated LoRA (aLoRA), which is not supported")
    architecture, alpha = header.metadata.get("general.architecture"), header.metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(architecture, str) or isinstance(alpha, bool) or not isinstance(alpha, float):
        raise ModelFileError(f"{name} is malformed: its architecture or its alpha has the wrong type")
    return AdapterInfo(architecture, alpha, pair_tensors(header))


def read_adapter_tensors(paths: Iterable[Path]) -> tuple[TensorInfo, ...]:
    """Return the tensors of all these adapters. Raises ModelFileError if one cannot be read."""
    return tuple(tensor for path in paths for tensor in read_adapter(read_header(path)).tensors)


def pair_tensors(header: Header) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """Return the tensors A and B of each weight. Raises ModelFileError if one is missing, or for other tensors."""
    name, tensors, pairs = header.path.name, header.tensors, {}
    for tensor in tensors:
        weight, suffix = tensor[:-7], tensor[-7:]
        if suffix in (A, B):
            missing = [part for part in (A, B) if weight + part not in tensors]
            if missing:
                raise ModelFileError(f"{name} lacks {weight}{missing[0]}")
            pairs[weight] = tensors[weight + A], tensors[weight + B]
        elif not tensor.endswith(IGNORED):
            raise ModelFileError(f"{name} has a tensor that is not of a LoRA: {tensor}")
    if not pairs:
        raise ModelFileError(f"{name} has no tensors of a LoRA")
    return pairs


def find_rank(weight: str, a: TensorInfo) -> int:
    columns, rank = two_dimensions(a)
    return columns if weight == EMBEDDING else rank


def two_dimensions(tensor: TensorInfo) -> tuple[int, int]:
    columns, rows, *_ = (*tensor.shape, 1, 1)
    return columns, rows


def check_adapter(name: str, adapter: AdapterInfo, target: Header) -> None:
    """Raise IncompatibleError if the adapter was made for a model of another architecture or shape."""
    check_architecture(name, adapter, str(target.metadata.get("general.architecture")))
    for weight, pair in adapter.pairs.items():
        if weight not in target.tensors:
            raise IncompatibleError(f"{name} changes {weight}, which {target.path.name} does not have")
        if not fits(weight, pair, target.tensors[weight]):
            shape = " x ".join(map(str, target.tensors[weight].shape))
            raise IncompatibleError(f"{name} does not fit {weight} of {target.path.name}, which is {shape}")


def check_architecture(name: str, adapter: AdapterInfo, architecture: str) -> None:
    """Raise IncompatibleError if the adapter was made for a model of another architecture."""
    if adapter.architecture != architecture:
        raise IncompatibleError(f"{name} is for the architecture {adapter.architecture}, the target is {architecture}")


def check_shape(name: str, adapter: AdapterInfo, target: ModelShape) -> None:
    """Raise IncompatibleError if the adapter was made for a model of another architecture, width or depth.

    Used for a target without a file on disk: only the properties that all its files share are compared.
    """
    check_architecture(name, adapter, target.architecture)
    for weight, (a, b) in adapter.pairs.items():
        block = BLOCK_WEIGHT.match(weight)
        if block is None:
            continue
        if int(block["layer"]) >= target.n_layer:
            raise IncompatibleError(f"{name} changes layer {block['layer']}, the target has {target.n_layer}")
        width = find_width(block["part"], a, b)
        if width not in (None, target.n_embd):
            raise IncompatibleError(f"{name} is for a model of width {width}, the target has {target.n_embd}")


def find_width(part: str, a: TensorInfo, b: TensorInfo) -> int | None:
    """Return the width of the states that a layer's weight reads or writes; None for a weight that does neither."""
    if part in READ_STATES:
        return two_dimensions(a)[0]
    return two_dimensions(b)[1] if part in WRITE_STATES else None


def fits(weight: str, pair: tuple[TensorInfo, TensorInfo], changed: TensorInfo) -> bool:
    """Return whether A and B have the weight's columns and rows, and the same rank and number of experts."""
    (a_first, a_second), (b_first, b_second) = map(two_dimensions, pair)
    columns, rows = two_dimensions(changed)
    if weight == EMBEDDING:
        return b_second == columns and a_second == rows and a_first == b_first
    are_alike = pair[0].shape[2:] == pair[1].shape[2:] == changed.shape[2:]
    return are_alike and a_first == columns and b_second == rows and a_second == b_first

"""The file of a head of several layers: two GGUFs, one after the other, which are read and written as one.

llama.cpp's `eagle3` graph has one layer. So the first GGUF is a head with the first layer only; its own output has a
few rows, which are never read. The second one holds the upper layers, which are plain ones, as a model of the
architecture `llama` without a vocabulary: it takes the rows of the first layer and gives the tokens. llama.cpp loads it
from its place in the file.

    in the file                                 as this project names it
    eagle3  fc, token_embd, blk.0 ...           fc.weight, token_embd.weight, blk.0 ...
            output_norm, output [32], d2t [32]  left out
    llama   blk.0, blk.1 ...                    blk.1, blk.2 ...
            output_norm, token_embd             output_norm.weight, output.weight

The keys are those of the first GGUF. The second one repeats what it needs of them, which is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.header import Header, Scalar, TensorInfo
from eaglelocal.gguf.writer import GgufPart, KeyValue, StreamedTensor, list_entries

NUM_LAYERS_KEY = "eaglelocal.num_layers"  # of both GGUFs together; only in heads of several layers
DRAFT_TOKENS_KEY = "eaglelocal.draft_tokens"  # d2t of such a head: llama.cpp has no place for it
MAX_LAYERS = 64
ALIGNMENT = 4096  # of the second GGUF in the file, so that it can be mapped
NUM_UNREAD = 32  # rows of the first GGUF's own output
UNREAD = frozenset({"output.weight", "output_norm.weight", "d2t"})
ROPE_FACTORS = "rope_freqs.weight"  # in both
BLOCK = re.compile(r"blk\.(\d+)\.")
UPPER, NO_VOCABULARY = "llama", "no_vocab"
# keys with equal names in both architectures, besides all of rope.*
SHARED_KEYS = frozenset(
    {
        "context_length", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UpperLayers:
    """The second GGUF of a file.

    begin         the byte of the file at which it begins
    num_rows      of its output
    draft_tokens  [num_rows] the target's tokens that they stand for; empty: the same numbers
    """

    begin: int
    num_rows: int
    draft_tokens: tuple[int, ...]


def find_upper_layers(header: Header) -> UpperLayers | None:
    """Return the second GGUF of a head of several layers; None for every other file."""
    begin = next((shard.begin for shard in header.shards if shard.begin), 0)
    if not begin:
        return None
    tokens = tuple(token for token in header.array(DRAFT_TOKENS_KEY) or () if isinstance(token, int))
    return UpperLayers(begin, header.tensors["output.weight"].shape[-1], tokens)


def count_layers(metadata: Mapping[str, object]) -> int:
    """Return the layers of a head by its keys; 1 for every other file."""
    num_layers = metadata.get(NUM_LAYERS_KEY, 1)
    return num_layers if isinstance(num_layers, int) else 1


def merge_tensors(first: Mapping[str, TensorInfo], upper: Iterable[TensorInfo], *, shard: int) -> dict[str, TensorInfo]:
    """Return the tensors of both GGUFs under the names of one model; the second's lie in shard `shard`."""
    merged = {name: tensor for name, tensor in first.items() if name not in UNREAD}
    for tensor in upper:
        if tensor.name != ROPE_FACTORS:
            name = _rename_upper(tensor.name)
            merged[name] = replace(tensor, name=name, shard=shard)
    return merged


def _rename_upper(name: str) -> str:
    if name == "token_embd.weight":
        return "output.weight"
    return BLOCK.sub(lambda match: f"blk.{int(match[1]) + 1}.", name, count=1)


def check_upper_metadata(
    first: Mapping[str, object], upper: Mapping[str, object], tensors: Iterable[TensorInfo], *, file: str
) -> None:
    """Raise ModelFileError if the second GGUF's keys do not follow from the first's."""
    num_rows = next((tensor.shape[-1] for tensor in tensors if tensor.name == "token_embd.weight"), 0)
    if not num_rows:
        raise malformed_error(file, "its upper layers lack an output")
    expected = {"general.architecture": UPPER, **make_upper_metadata(first, num_rows)}
    for key in sorted(expected.keys() | upper.keys()):
        if upper.get(key) != expected.get(key):
            raise malformed_error(
                file, f"its upper layers are not of this head: {key} is {upper.get(key)}, expected {expected.get(key)}"
            )


def make_upper_metadata(first: Mapping[str, object], num_rows: int) -> dict[str, Scalar]:
    """Return the keys of the second GGUF, made from the first's and the rows of its output."""
    shared = {}
    for key, value in first.items():
        name = key.removeprefix(f"{EAGLE}.")
        if name != key and (name in SHARED_KEYS or name.startswith("rope.")) and isinstance(value, Scalar):
            shared[f"{UPPER}.{name}"] = value
    if f"{UPPER}.attention.key_length" in shared:  # llama.cpp would abort if another part of a head were rotated
        shared[f"{UPPER}.rope.dimension_count"] = shared[f"{UPPER}.attention.key_length"]
    return shared | {
        f"{UPPER}.block_count": count_layers(first) - 1,
        f"{UPPER}.vocab_size": num_rows,
        "tokenizer.ggml.model": NO_VOCABULARY,
    }


def split_head(entries: Sequence[KeyValue], tensors: Sequence[StreamedTensor]) -> list[GgufPart]:
    """Return the GGUFs that a head's file consists of: two if its keys say that it has several layers, else one."""
    metadata = {entry.key: entry.value for entry in entries}
    if count_layers(metadata) == 1:
        return [GgufPart(EAGLE, entries, tensors)]
    named = {tensor.name: tensor for tensor in tensors}
    output, norm = named["output.weight"], named["output_norm.weight"]
    upper = make_upper_metadata(metadata, output.shape[1])
    return [
        GgufPart(EAGLE, entries, [*_first_tensors(tensors), norm, *_make_unread(norm.shape[0])]),
        GgufPart(UPPER, list_entries(upper), list(_upper_tensors(tensors)), ALIGNMENT),
    ]


def _first_tensors(tensors: Iterable[StreamedTensor]) -> Iterator[StreamedTensor]:
    for tensor in tensors:
        block = BLOCK.match(tensor.name)
        if tensor.name not in UNREAD and (block is None or block[1] == "0"):
            yield tensor


def _upper_tensors(tensors: Iterable[StreamedTensor]) -> Iterator[StreamedTensor]:
    for tensor in tensors:
        block = BLOCK.match(tensor.name)
        if block and block[1] != "0":
            yield replace(tensor, name=BLOCK.sub(f"blk.{int(block[1]) - 1}.", tensor.name, count=1))
        elif tensor.name == "output.weight":
            yield replace(tensor, name="token_embd.weight")
        elif tensor.name in ("output_norm.weight", ROPE_FACTORS):
            yield tensor


def _make_unread(width: int) -> Iterator[StreamedTensor]:
    """Yield an output of few rows, and the tokens that they stand for: the graph computes it, or the target's."""
    import numpy as np

    rows = np.zeros((NUM_UNREAD, width), np.float32).reshape(-1).view(np.uint8)
    tokens = np.arange(NUM_UNREAD, dtype=np.int64).view(np.uint8)
    yield StreamedTensor("output.weight", (width, NUM_UNREAD), GGML_TYPES_BY_NAME["F32"], lambda: iter([rows]))
    yield StreamedTensor("d2t", (NUM_UNREAD,), GGML_TYPES_BY_NAME["I64"], lambda: iter([tokens]))


# ---- loaded tensors: the tensors of a file that llama.cpp loads, sorted by use: input embeddings, blocks, their
# experts, and the output
#
# Decides by names and sizes, without the weights. memory/placement.py decides the device of each layer.
BLOCK_TENSOR = re.compile(r"blk\.(\d{1,9})\.", re.ASCII)
FIRST_BLOCK_TENSORS = ("per_layer_model_proj.", "per_layer_proj_norm.")  # llama.cpp places them with the first block
TOKEN_EMBEDDING, LAYER_EMBEDDING = "token_embd.weight", "per_layer_token_embd.weight"
TABLE_ARCHITECTURES = frozenset({"gemma4", "qwen4exp"})  # whose LAYER_EMBEDDING is TENSOR_READ_LAZY
MAX_LOADED_TABLE_BYTES = 4 << 30  # auto_min_size of llama-model-loader.cpp
INPUT_TENSORS = ("token_embd.", "token_types.", "position_embd.", "per_layer_token_embd.")  # looked up, in RAM
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # of a block; the same pattern as llama.cpp's LLM_FFN_EXPS_REGEX
EXPERT_TENSOR = re.compile(EXPERTS)


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the tensors that llama.cpp loads, by use."""

    embedding_bytes: int
    output_bytes: int
    layer_bytes: tuple[int, ...]
    expert_bytes: tuple[int, ...]
    tied_output_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.embedding_bytes + self.output_bytes + sum(self.layer_bytes)


def find_table(header: Header) -> TensorInfo | None:
    """Return a table of embeddings that stays in the file; None if there is none.

    llama.cpp reads single rows of it (LLAMA_LAZY_MODE_AUTO), except beside a built-in GPU (memory/placement.py).
    """
    table = header.tensors.get(LAYER_EMBEDDING) if header.architecture in TABLE_ARCHITECTURES else None
    return table if table is not None and table.nbytes > MAX_LOADED_TABLE_BYTES else None


def list_loaded_tensors(header: Header, *, n_layer: int) -> Iterator[TensorInfo]:
    """Yield the tensors that llama.cpp loads: no table, and no block from `n_layer` on; those predict ahead."""
    table = find_table(header)
    for tensor in header.tensors.values():
        block = find_block(tensor.name)
        if tensor is not table and (block is None or block < n_layer):
            yield tensor


@lru_cache(maxsize=1 << 13)  # a search of plans asks for each tensor a thousand times
def find_block(name: str) -> int | None:
    """Return the number of the block that a tensor belongs to; None for other tensors."""
    if name.startswith(FIRST_BLOCK_TENSORS):
        return 0
    match = BLOCK_TENSOR.match(name)
    return int(match.group(1)) if match else None


def is_input(name: str) -> bool:
    return name.startswith(INPUT_TENSORS)


def is_expert(name: str) -> bool:
    """Return whether the tensor holds experts, of which a token uses only some."""
    return EXPERT_TENSOR.search(name) is not None


def sum_weights(header: Header, *, n_layer: int) -> Weights:
    embedding, output = 0, 0
    blocks, experts = [0] * n_layer, [0] * n_layer
    for tensor in list_loaded_tensors(header, n_layer=n_layer):
        block = find_block(tensor.name)
        if block is not None:
            blocks[block] += tensor.nbytes
            experts[block] += tensor.nbytes if is_expert(tensor.name) else 0
        elif is_input(tensor.name):
            embedding += tensor.nbytes
        else:
            output += tensor.nbytes
    tied = None if "output.weight" in header.tensors else header.tensors.get(TOKEN_EMBEDDING)
    return Weights(
        embedding_bytes=embedding,
        output_bytes=output,
        layer_bytes=tuple(blocks),
        expert_bytes=tuple(experts),
        tied_output_bytes=tied.nbytes if tied else 0,
    )


def active_bytes(weights: Weights, *, n_expert: int, n_expert_used: int) -> int:
    """Return the bytes read for one token.

    Embeddings that are also the output are read whole; of others one row is read, which counts as nothing.
    """
    idle_experts = sum(weights.expert_bytes) * (n_expert - n_expert_used) // n_expert if n_expert else 0
    looked_up = weights.embedding_bytes - weights.tied_output_bytes
    return weights.total_bytes - looked_up - idle_experts

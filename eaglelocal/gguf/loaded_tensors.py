"""The tensors of a file that llama.cpp loads, sorted by use: input embeddings, blocks, their experts, and the output.

Decides by names and sizes, without the weights. memory/placement.py decides the device of each layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.header import Header, TensorInfo

BLOCK_TENSOR = re.compile(r"blk\.(\d{1,9})\.", re.ASCII)
FIRST_BLOCK_TENSORS = ("per_layer_model_proj.", "per_layer_proj_norm.")  # llama.cpp places them with the first block
TOKEN_EMBEDDING = "token_embd.weight"
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


def list_loaded_tensors(header: Header, *, n_layer: int) -> Iterator[TensorInfo]:
    """Yield the tensors that llama.cpp loads: all but the blocks from `n_layer` on, which only predict ahead (MTP)."""
    for tensor in header.tensors.values():
        block = find_block(tensor.name)
        if block is None or block < n_layer:
            yield tensor


def find_block(name: str) -> int | None:
    """Return the number of the block that a tensor belongs to; None if to none."""
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
    return Weights(
        embedding_bytes=embedding,
        output_bytes=output,
        layer_bytes=tuple(blocks),
        expert_bytes=tuple(experts),
        tied_output_bytes=_tied_output_bytes(header),
    )


def _tied_output_bytes(header: Header) -> int:
    tensor = None if "output.weight" in header.tensors else header.tensors.get(TOKEN_EMBEDDING)
    return tensor.nbytes if tensor else 0


def active_bytes(weights: Weights, *, n_expert: int, n_expert_used: int) -> int:
    """Return the bytes read for one token.

    Embeddings that are also the output are read whole; of others one row is read, which counts as nothing.
    """
    idle_experts = sum(weights.expert_bytes) * (n_expert - n_expert_used) // n_expert if n_expert else 0
    looked_up = weights.embedding_bytes - weights.tied_output_bytes
    return weights.total_bytes - looked_up - idle_experts

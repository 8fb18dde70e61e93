"""P-EAGLE heads of several layers, made of heads of one: upper layers are added to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header, ValueType
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_raw_pieces, read_tensor, stream_vector
from eaglelocal.gguf.upper_layers import DRAFT_TOKENS_KEY, NUM_LAYERS_KEY
from eaglelocal.gguf.writer import KeyValue, StreamedTensor, copy_entries
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.hub.heads.tensor_names import convert_matrix


def add_upper_layers(
    head: Path, target: Path, path: Path, *, num_layers: int, gain: float = 1.0, draft_tokens: tuple[int, ...] = ()
) -> Path:
    """Write a head of one layer with random layers above it, and return the path.

    gain          what the layers add to the residual stream; with 0 the head drafts as it did
    draft_tokens  instead of the head's own, with an output of zeros
    """
    header = read_header(head)
    info = EagleInfo.from_header(header)
    entries = [*copy_entries(header, without=frozenset()), KeyValue(NUM_LAYERS_KEY, ValueType.UINT32, num_layers)]
    tensors = [_as_it_is(header, name) for name in header.tensors if name != "d2t"]
    if info.draft_vocab is not None:
        tokens = draft_tokens or tuple(read_indices(header, "d2t").tolist())
        entries.append(KeyValue(DRAFT_TOKENS_KEY, ValueType.ARRAY, tokens, ValueType.INT32))
    lender = read_header(target)
    for name in {"output.weight", "token_embd.weight"} - header.tensors.keys():
        lent = name if name in lender.tensors else "token_embd.weight"
        tensors.append(_matrix(name, read_tensor(lender, lent)))
    if draft_tokens:
        output = _matrix("output.weight", np.zeros((len(draft_tokens), info.width)))
        tensors = [output if tensor.name == output.name else tensor for tensor in tensors]
    rng = np.random.default_rng(num_layers)
    for layer in range(1, num_layers):
        tensors += _random_layer(f"blk.{layer}.", info, rng, gain)
    with write_head_file(path, entries, tensors, on_progress=lambda share: None):
        pass
    return path


def _random_layer(block: str, info: EagleInfo, rng: np.random.Generator, gain: float) -> list[StreamedTensor]:
    width, queries, keys = info.width, info.n_head * info.head_dim, info.n_kv_head * info.head_dim
    shapes = {
        "attn_q": (queries, width), "attn_k": (keys, width), "attn_v": (keys, width), "attn_output": (width, queries),
        "ffn_gate": (info.n_ff, width), "ffn_up": (info.n_ff, width), "ffn_down": (width, info.n_ff),
    }  # fmt: skip
    matrices = {name: rng.normal(size=shape, scale=shape[1] ** -0.5) for name, shape in shapes.items()}
    for name in ("attn_output", "ffn_down"):
        matrices[name] *= gain
    norms = [stream_vector(f"{block}{name}.weight", rng.uniform(0.5, 1.5, width)) for name in ("attn_norm", "ffn_norm")]
    return [*norms, *(_matrix(f"{block}{name}.weight", values) for name, values in matrices.items())]


def _matrix(name: str, values: np.ndarray) -> StreamedTensor:
    array = values.astype(np.float32)
    return convert_matrix(name, lambda first, end: array[first:end], array.shape, "f32")


def _as_it_is(header: Header, name: str) -> StreamedTensor:
    tensor = header.tensors[name]
    return StreamedTensor(name, tensor.shape, tensor.type, partial(read_raw_pieces, header, name, 1 << 20))

"""The layout of a Medusa head in a GGUF for llama.cpp's `eagle3` graph, whatever its weights come from.

fc.weight       all W side by side; with an lm_head for each part, the W of each part one below the other
output.weight   the lm_head; those of all parts side by side; or missing, where the target lends its own
the rest        zero matrices, and norms without effect; gguf/medusa_info.py says why
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY, NUM_TAPS, TARGET_NAME_KEY
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import BIASES_KEY, NUM_LAYERS_KEY, NUM_PARTS_KEY, STATE_WIDTH_KEY
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.values import ValueType
from eaglelocal.gguf.writer import KeyValue, StreamedTensor
from eaglelocal.hub.heads.convert import FILE_TYPES, copy_tokenizer
from eaglelocal.hub.heads.safetensors_files import Floats
from eaglelocal.hub.heads.weight_conversion import Rows, convert_matrix, convert_vector

HEAD_DIM = FFN_WIDTH = NUM_EMBEDDINGS = 64  # of the parts without effect
MULTIPLE = 32  # of a third of the encoder's rows, for quantized types
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """The sizes of a head: parts, matrices of each, and the target's hidden size."""

    num_parts: int
    num_layers: int
    state_width: int
    has_own_outputs: bool  # each part has an lm_head

    @property
    def width(self) -> int:
        """Numbers of a row in the graph's decoder."""
        return self.state_width * (self.num_parts if self.has_own_outputs else 1)

    @property
    def tap_width(self) -> int:
        """A third of the numbers of a row in the graph's encoder."""
        num_states = self.num_layers * (1 if self.has_own_outputs else self.num_parts)
        return -(-num_states * self.state_width // (NUM_TAPS * MULTIPLE)) * MULTIPLE


def make_medusa_entries(
    shape: MedusaShape, biases: Floats | None, beside: Header, target: ModelInfo, *, name: str, kind: str
) -> list[KeyValue]:
    """Return the file's keys; the tokenizer is the target's. biases: [parts, layers, state_width]."""
    counts = {
        "general.file_type": FILE_TYPES[kind],
        "eagle3.context_length": target.context_length,
        "eagle3.embedding_length": shape.width,
        "eagle3.block_count": 1,
        "eagle3.feed_forward_length": FFN_WIDTH,
        "eagle3.attention.head_count": 1,
        "eagle3.attention.head_count_kv": 1,
        "eagle3.attention.key_length": HEAD_DIM,
        "eagle3.attention.value_length": HEAD_DIM,
        "eagle3.rope.dimension_count": HEAD_DIM,
        "eagle3.vocab_size": target.n_vocab,
        "eagle3.target_hidden_size": shape.tap_width,
        NUM_PARTS_KEY: shape.num_parts,
        NUM_LAYERS_KEY: shape.num_layers,
        STATE_WIDTH_KEY: shape.state_width,
    }
    given = [] if biases is None else [KeyValue(BIASES_KEY, ValueType.ARRAY, flat(biases), ValueType.FLOAT32)]
    return [
        KeyValue("general.name", ValueType.STRING, name),
        KeyValue(TARGET_NAME_KEY, ValueType.STRING, target.name),
        *(KeyValue(key, ValueType.UINT32, count) for key, count in counts.items()),
        KeyValue("eagle3.target_layers", ValueType.ARRAY, (target.n_layer + 1,) * NUM_TAPS, ValueType.INT32),
        KeyValue("eagle3.attention.layer_norm_rms_epsilon", ValueType.FLOAT32, EPSILON),
        KeyValue(ACCEPTANCE_LENGTH_KEY, ValueType.FLOAT32, 0.0),  # until it was tried
        *given,
        *copy_tokenizer(beside),
    ]


def flat(values: Floats) -> tuple[float, ...]:
    return tuple(values.reshape(-1).tolist())


def make_graph_tensors(shape: MedusaShape, matrices: Sequence[Sequence[Rows]], kind: str) -> list[StreamedTensor]:
    """Return all tensors but the lm_head. matrices: readers of W [state_width, state_width] of each part and layer."""
    width = shape.width
    ones, pair = np.ones(width, np.float32), 2 * width
    norms = ("blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm")
    zeros = {
        "token_embd": (NUM_EMBEDDINGS, width),
        **{f"blk.0.attn_{part}": (HEAD_DIM, pair) for part in "qkv"},
        "blk.0.attn_output": (width, HEAD_DIM),
        "blk.0.ffn_gate": (FFN_WIDTH, width),
        "blk.0.ffn_up": (FFN_WIDTH, width),
        "blk.0.ffn_down": (width, FFN_WIDTH),
    }
    return [
        convert_matrix("fc.weight", join_matrices(shape, matrices), (width, NUM_TAPS * shape.tap_width), kind),
        *(convert_vector(f"{name}.weight", ones) for name in norms),
        *(convert_matrix(f"{name}.weight", zero_rows(size[1]), size, kind) for name, size in zeros.items()),
    ]


def zero_rows(columns: int) -> Rows:
    return lambda first, end: np.zeros((end - first, columns), np.float32)


def join_matrices(shape: MedusaShape, matrices: Sequence[Sequence[Rows]]) -> Rows:
    """Return a reader of fc, in which columns of zeros follow the matrices."""
    columns = NUM_TAPS * shape.tap_width
    everything = [matrix for part in matrices for matrix in part]
    stacked = matrices if shape.has_own_outputs else [everything]

    def rows(first: int, end: int) -> Floats:
        found = np.zeros((end - first, columns), np.float32)
        for number, beside in enumerate(stacked):
            start = number * shape.state_width
            low, high = max(first, start), min(end, start + shape.state_width)
            if low < high:
                joined = join_columns(beside)(low - start, high - start)
                found[low - first : high - first, : joined.shape[1]] = joined
        return found

    return rows


def join_columns(readers: Sequence[Callable[[int, int], Floats]]) -> Rows:
    """Return a reader of matrices side by side."""
    return lambda first, end: np.concatenate([read(first, end) for read in readers], 1)

"""A published Medusa head: its tensors in each dialect, and their conversion to a GGUF that llama.cpp runs.

FasterDecoding and TGI number parts and layers, `0.0.linear.weight`, and put a part's lm_head after its layers,
`0.1.weight`. vLLM has `blocks.0.layers.0.weight`, an lm_head for each part or one for all, and may map the rows of it
to fewer tokens. An unknown tensor is an error; it is never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY, TARGET_NAME_KEY
from eaglelocal.gguf.ggml_types import FILE_TYPE_IDS
from eaglelocal.gguf.header import Scalar
from eaglelocal.gguf.medusa_info import (
    BIASES_KEY,
    MAX_LAYERS,
    MAX_PARTS,
    NUM_LAYERS_KEY,
    NUM_PARTS_KEY,
    STATE_WIDTH_KEY,
)
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.tap_row import GRAPH_TAPS, find_third
from eaglelocal.gguf.tensors import stream_indices, stream_vector
from eaglelocal.gguf.writer import KeyValue, StreamedTensor, list_entries
from eaglelocal.hub.heads.convert import copy_tokenizer, is_same_matrix
from eaglelocal.hub.heads.head_config import FETCH_REST, OTHER_HEAD, ConfigKeys
from eaglelocal.hub.heads.head_folder import PublishedHead
from eaglelocal.hub.heads.safetensors_files import Floats, Ints, StoredTensor
from eaglelocal.hub.heads.tensor_names import Rows, convert_matrix

PREFIXES = ("medusa_heads.", "medusa_head.")
LAYER = re.compile(r"(?:(\d{1,3})\.(\d{1,3})\.linear|blocks\.(\d{1,3})\.layers\.(\d{1,3}))\.(weight|bias)", re.ASCII)
OUTPUT = re.compile(r"(?:(\d{1,3})\.(\d{1,3})|lm_heads\.(\d{1,3}))\.weight", re.ASCII)
SHARED_OUTPUT, TOKEN_MAP = "lm_head.weight", "token_map"
ALL, LAST = -1, -1  # stands for a part, and for the number of layers before an lm_head
MAX_SHOWN = 6


@dataclass(frozen=True, slots=True)
class MedusaTensors:
    """The tensors of a head, by their role."""

    weights: Mapping[tuple[int, int], StoredTensor]  # by part and layer
    biases: Mapping[tuple[int, int], StoredTensor]
    outputs: Mapping[tuple[int, int], StoredTensor]  # by part (or ALL), and number of layers before it
    token_map: StoredTensor | None
    dialect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaHead:
    """A Medusa head that was understood, and can be run beside its target.

    outputs        none: the target's lm_head; one for all parts; or one for each
    target_tokens  [draft vocabulary] that the rows of the lm_heads stand for; None: row i is token i
    """

    name: str
    shape: MedusaShape
    tensors: MedusaTensors
    outputs: tuple[StoredTensor, ...]
    target_tokens: Ints | None
    verifier: str
    notes: tuple[str, ...]


def is_medusa_head(published: PublishedHead) -> bool:
    """Return whether a folder holds a Medusa head, by its configuration or its tensors."""
    keys = ConfigKeys(published.config)
    is_stated = keys.text("model_type") == "medusa" or "medusa_num_heads" in published.config
    return is_stated or any(LAYER.fullmatch(normalize_name(name)) for name in published.tensors)


def normalize_name(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def read_medusa_head(published: PublishedHead, target: ModelInfo, *, name: str) -> MedusaHead:
    """Read a head for `target`. Raises ModelFileError or IncompatibleError with the reason."""
    keys, tensors = ConfigKeys(published.config), sort_tensors(published.tensors)
    num_parts, num_layers = _count(tensors)
    _check_layers(tensors, target)
    outputs = _find_outputs(tensors, num_parts, num_layers, is_shared=keys.flag("original_lm_head") or False)
    target_tokens = _read_token_map(tensors, outputs, target)
    notes = list(_list_notes(keys, num_parts, outputs, target))
    lent = "output.weight" if "output.weight" in target.header.tensors else "token_embd.weight"
    if len(outputs) == 1 and target_tokens is None and is_same_matrix(outputs[0], target, lent):
        outputs = ()
        notes.append("its lm_head is a copy of the target's, which is used")
    return MedusaHead(
        name=name,
        shape=MedusaShape(num_parts, num_layers, target.n_embd, has_own_outputs=len(outputs) > 1),
        tensors=tensors,
        outputs=outputs,
        target_tokens=target_tokens,
        verifier=keys.text("base_model_name_or_path"),
        notes=tuple(notes),
    )


def sort_tensors(stored: Mapping[str, StoredTensor]) -> MedusaTensors:
    """Sort tensors by their role. Raises ModelFileError on a repeated name, or one that no Medusa head has."""
    weights: dict[tuple[int, int], StoredTensor] = {}
    biases: dict[tuple[int, int], StoredTensor] = {}
    outputs: dict[tuple[int, int], StoredTensor] = {}
    token_map, unknown = None, []
    for full_name, tensor in stored.items():
        name = normalize_name(full_name)
        if found := LAYER.fullmatch(name):
            place = int(found[1] or found[3]), int(found[2] or found[4])
            _add(weights if found[5] == "weight" else biases, place, tensor)
        elif found := OUTPUT.fullmatch(name):
            _add(outputs, (int(found[1] or found[3]), LAST if found[2] is None else int(found[2])), tensor)
        elif name == SHARED_OUTPUT:
            _add(outputs, (ALL, LAST), tensor)
        elif name == TOKEN_MAP:
            token_map = tensor
        else:
            unknown.append(full_name)
    if unknown:
        raise ModelFileError(f"tensors that no Medusa head has: {', '.join(unknown[:MAX_SHOWN])}", hint=OTHER_HEAD)
    dialect = "vLLM" if any("blocks." in tensor.name for tensor in weights.values()) else "FasterDecoding"
    return MedusaTensors(weights, biases, outputs, token_map, dialect)


def _add(tensors: dict[tuple[int, int], StoredTensor], place: tuple[int, int], tensor: StoredTensor) -> None:
    if place in tensors:
        raise ModelFileError(f"tensors {tensors[place].name} and {tensor.name} are the same part of the head")
    tensors[place] = tensor


def _count(tensors: MedusaTensors) -> tuple[int, int]:
    """Return the numbers of parts and of layers in each. Raises ModelFileError if some are missing."""
    if not tensors.weights:
        raise ModelFileError("there is no layer of a Medusa head in it", hint=FETCH_REST)
    num_parts, num_layers = (1 + max(place[i] for place in tensors.weights) for i in range(2))
    if num_parts > MAX_PARTS or num_layers > MAX_LAYERS:
        raise IncompatibleError(
            f"it has {num_parts} heads of {num_layers} layers, run are up to {MAX_PARTS} of {MAX_LAYERS}",
            hint=OTHER_HEAD,
        )
    wanted = {(part, layer) for part in range(num_parts) for layer in range(num_layers)}
    for places, what in ((tensors.weights, "weights"), (tensors.biases, "biases")):
        missing = sorted(wanted - places.keys()) if places else []
        if missing:
            raise ModelFileError(
                f"the {what} of head {missing[0][0]}, layer {missing[0][1]} are missing", hint=FETCH_REST
            )
        for place in places.keys() - wanted:
            raise ModelFileError(f"tensor {places[place].name} belongs to no layer")
    return num_parts, num_layers


def _check_layers(tensors: MedusaTensors, target: ModelInfo) -> None:
    width = target.n_embd
    for tensor, shape in (
        *((tensor, (width, width)) for tensor in tensors.weights.values()),
        *((tensor, (width,)) for tensor in tensors.biases.values()),
    ):
        if tensor.shape != shape:
            raise IncompatibleError(
                f"tensor {tensor.name} is {list(tensor.shape)}, for {target.name} it would be {list(shape)}",
                hint=OTHER_HEAD,
            )


def _find_outputs(
    tensors: MedusaTensors, num_parts: int, num_layers: int, *, is_shared: bool
) -> tuple[StoredTensor, ...]:
    """Return the lm_heads: none, one for all parts, or one for each. Raises ModelFileError on any other number."""
    for (_, layer), tensor in tensors.outputs.items():
        if layer not in (LAST, num_layers):
            raise ModelFileError(f"tensor {tensor.name} comes after {layer} layers of {num_layers}")
    by_part = {part: tensor for (part, _), tensor in tensors.outputs.items()}
    if ALL in by_part:
        if len(by_part) > 1:
            raise ModelFileError(f"there is {SHARED_OUTPUT}, and an lm_head of single heads beside it")
        return (by_part[ALL],)
    if by_part.keys() == {0} and is_shared:  # as vLLM does
        return (by_part[0],)
    if by_part and by_part.keys() != set(range(num_parts)):
        raise ModelFileError(f"there are lm_heads of heads {sorted(by_part)}, of {num_parts}", hint=FETCH_REST)
    return tuple(by_part[part] for part in sorted(by_part))


def _read_token_map(tensors: MedusaTensors, outputs: tuple[StoredTensor, ...], target: ModelInfo) -> Ints | None:
    """Return the tokens of the lm_heads' rows, and check their shapes. Raises ModelFileError."""
    found = None if tensors.token_map is None else tensors.token_map.integers().reshape(-1)
    if found is not None and (found.min() < 0 or found.max() >= target.n_vocab or len(np.unique(found)) != len(found)):
        raise ModelFileError(
            f"{TOKEN_MAP} names tokens {found.min()} to {found.max()} of {target.n_vocab}, or one twice"
        )
    needed = target.n_vocab if found is None else len(found)
    for output in outputs:
        if len(output.shape) != 2 or output.shape[1] != target.n_embd or output.shape[0] < needed:
            raise IncompatibleError(
                f"tensor {output.name} is {list(output.shape)}, for {target.name} it would be "
                f"{[needed, target.n_embd]}",
                hint=OTHER_HEAD,
            )
    if found is not None and not outputs:
        raise ModelFileError(f"there is a {TOKEN_MAP}, but no lm_head whose rows it could name", hint=FETCH_REST)
    return found


def _list_notes(
    keys: ConfigKeys, num_parts: int, outputs: tuple[StoredTensor, ...], target: ModelInfo
) -> Iterator[str]:
    stated = keys.optional_count("num_heads") or keys.optional_count("medusa_num_heads")
    if stated not in (None, num_parts):
        yield f"config.json counts {stated} heads, there are {num_parts}"
    vocab = keys.optional_count("vocab_size")
    if vocab not in (None, target.n_vocab):
        yield f"config.json counts {vocab} tokens, the target's file {target.n_vocab}"
    if len(outputs) > 1:
        yield f"each of its heads has an lm_head: together they are {len(outputs)} times as large as the target's"


def make_entries(head: MedusaHead, target: ModelInfo, kind: str) -> list[KeyValue]:
    """Return the file's keys."""
    places = sorted(head.tensors.biases)
    biases = np.concatenate([head.tensors.biases[place].floats() for place in places]) if places else None
    return make_medusa_entries(head.shape, biases, target, name=head.name, kind=kind)


def make_tensors(head: MedusaHead, target: ModelInfo, kind: str) -> list[StreamedTensor]:
    """Return the file's tensors. Rows of lm_heads beyond the target's vocabulary are padding and left out."""
    shape, weights = head.shape, head.tensors.weights
    matrices = [[weights[part, layer].rows for layer in range(shape.num_layers)] for part in range(shape.num_parts)]
    written = make_graph_tensors(shape, matrices, kind)
    if head.outputs:
        num_rows = target.n_vocab if head.target_tokens is None else len(head.target_tokens)
        readers = [select_rows(output, head.target_tokens) for output in head.outputs]
        written.append(convert_matrix("output.weight", join_columns(readers), (num_rows, shape.width), kind))
    if head.target_tokens is not None:
        written.append(stream_indices("d2t", head.target_tokens))
    return written


def select_rows(output: StoredTensor, tokens: Ints | None) -> Rows:
    """Return a reader of an lm_head's rows; of `tokens` only if it has rows for the whole vocabulary."""
    if tokens is None or output.shape[0] == len(tokens):
        return output.rows

    def rows(first: int, end: int) -> Floats:
        return np.concatenate([output.rows(token, token + 1) for token in tokens[first:end].tolist()])

    return rows


# ---- medusa file: the layout of a Medusa head in a GGUF for llama.cpp's `eagle3` graph, independent of the source of
# its weights
#
# fc.weight all W side by side; with an lm_head for each part, the W of each part one below the other output.weight
# the lm_head; those of all parts side by side; or missing, where the target lends its own the rest zero matrices, and
# norms without effect; gguf/medusa_info.py says why
HEAD_DIM = FFN_WIDTH = NUM_EMBEDDINGS = 64  # of the parts without effect
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
        return find_third(num_states * self.state_width)


def make_medusa_entries(
    shape: MedusaShape, biases: Floats | None, target: ModelInfo, *, name: str, kind: str
) -> list[KeyValue]:
    """Return the file's keys; the tokenizer is the target's. biases: [parts, layers, state_width]."""
    keys: dict[str, Scalar | tuple[Scalar, ...]] = {
        "general.name": name,
        TARGET_NAME_KEY: target.name,
        "general.file_type": FILE_TYPE_IDS[kind],
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
        "eagle3.target_layers": (target.n_layer + 1,) * GRAPH_TAPS,
        "eagle3.attention.layer_norm_rms_epsilon": EPSILON,
        ACCEPTANCE_LENGTH_KEY: 0.0,  # until it was tried
    }
    if biases is not None:
        keys[BIASES_KEY] = tuple(biases.reshape(-1).tolist())
    return [*list_entries(keys), *copy_tokenizer(target)]


def make_graph_tensors(shape: MedusaShape, matrices: Sequence[Sequence[Rows]], kind: str) -> list[StreamedTensor]:
    """Return all tensors but the lm_head.

    matrices  readers of W [state_width, state_width] of each part and layer
    """
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
        convert_matrix("fc.weight", join_matrices(shape, matrices), (width, GRAPH_TAPS * shape.tap_width), kind),
        *(stream_vector(f"{name}.weight", ones) for name in norms),
        *(convert_matrix(f"{name}.weight", zero_rows(size[1]), size, kind) for name, size in zeros.items()),
    ]


def zero_rows(columns: int) -> Rows:
    return lambda first, end: np.zeros((end - first, columns), np.float32)


def join_matrices(shape: MedusaShape, matrices: Sequence[Sequence[Rows]]) -> Rows:
    """Return a reader of fc, in which columns of zeros follow the matrices."""
    columns = GRAPH_TAPS * shape.tap_width
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

"""Convert the tensors of a head's GGUF to a published head's tensors: the inverse of convert.py.

Names, the order of rows and columns, and the tables of tokens change; numbers do not. A matrix that is quantized in the
file is decoded, the others keep their type.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.eagle_info import MASK_HIDDEN_KEY, EagleInfo
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.tensors import read_indices, read_span, read_tensor
from eaglelocal.gguf.upper_layers import DRAFT_TOKENS_KEY
from eaglelocal.hub.heads.convert import LAYER_MATRICES, LAYER_VECTORS, VECTORS
from eaglelocal.hub.heads.head_config import TAPS_KEY
from eaglelocal.hub.heads.rope import read_rope_keys
from eaglelocal.hub.heads.safetensors_files import Floats, Ints, OutgoingTensor
from eaglelocal.hub.heads.tensor_names import (
    MASK_HIDDEN,
    TYPES,
    Rows,
    encode_pieces,
    name_upper_layer,
    separate_rows,
)

FLOAT_TYPES = ("F32", "F16", "BF16")  # tensors that both kinds of files have, under these names
KEEP = "keep"  # instead of a type: the file's own


@dataclass(frozen=True, slots=True)
class ExportHead:
    """A head in a GGUF, and how it is to be written.

    layer_name  what its first layer is called: midlayer or layers.0
    kind        f32, f16 or bf16; KEEP: as in the file, and BF16 for what is quantized there
    """

    info: EagleInfo
    layer_name: str
    kind: str = KEEP

    @property
    def header(self) -> Header:
        return self.info.header

    @property
    def quantized(self) -> tuple[str, ...]:
        """The names of the matrices that are decoded."""
        kept = (*FLOAT_TYPES, "I64", "I32")
        return tuple(name for name, tensor in self.header.tensors.items() if tensor.type.name not in kept)

    @property
    def tap_order(self) -> list[int]:
        """The taps by their layers, lowest first, as engines collect the states whatever the configuration says."""
        return sorted(range(len(self.info.target_layers)), key=self.info.target_layers.__getitem__)

    def dtype(self, name: str) -> str:
        """Return the type in which a matrix is written, as safetensors names it."""
        return choose_dtype(self.header, name, self.kind)


def choose_dtype(header: Header, name: str, kind: str) -> str:
    """Return the type in which a matrix is written; with KEEP the file's own, and BF16 for what is quantized there."""
    found = header.tensors[name].type.name
    if kind != KEEP:
        return TYPES[kind]
    return found if found in FLOAT_TYPES else TYPES["bf16"]


def read_target_tokens(info: EagleInfo) -> Ints | None:
    """Return the target's token of each row of the output [draft vocabulary]; None where row i is token i.

    Raises IncompatibleError where the rows are all tokens in another order, for which engines have no table.
    """
    if info.draft_vocab is None:
        return None
    header = info.header
    kept = header.array(DRAFT_TOKENS_KEY)
    tokens = read_indices(header, "d2t").reshape(-1) if kept is None else np.asarray(kept, np.int64)
    if len(tokens) < info.n_vocab:
        return tokens
    if not np.array_equal(tokens, np.arange(info.n_vocab)):
        raise IncompatibleError("the head cannot be exported: its output has all tokens in an order of its own")
    return None


def make_published_tensors(head: ExportHead) -> list[OutgoingTensor]:
    """Return the tensors of the published head. Raises as `read_target_tokens` does."""
    header, info, fc = head.header, head.info, _reader(head.header, "fc.weight")
    row = info.tap_row
    tensors = [
        _read_matrix(
            head,
            "fc.weight",
            "fc.weight",
            rows=lambda *span: _permute_taps(head, fc(*span)[:, : row.size]),
            num_columns=row.size,
        )
    ]
    tensors += [_read_vector(head, _name(head, source), name) for source, name in VECTORS.items()]
    if info.norm_before_fc:
        gains = row.cut_gains(read_tensor(header, "enc.output_norm.weight").reshape(-1))
        tensors.append(make_vector("input_norm.weight", _permute_taps(head, gains)))
    if info.fc_norm:  # its gains are in fc's columns already
        ones = np.ones(info.target_hidden_size, np.float32)
        tensors += [make_vector(f"fc_norm.{tap}.weight", ones) for tap in range(len(info.target_layers))]
    for layer in range(info.n_layer):
        tensors += _convert_layer(head, layer)
    for source, name in (("lm_head.weight", "output.weight"), ("embed_tokens.weight", "token_embd.weight")):
        if name in header.tensors:
            tensors.append(_read_matrix(head, source, name))
    return [*tensors, *_make_mask(head), *_make_tables(head)]


def _name(head: ExportHead, common: str) -> str:
    """Return the published name of a tensor of the first layer, by its common name (tensor_names.py)."""
    return f"{head.layer_name}.{common.removeprefix('layer.')}" if common.startswith("layer.") else common


def _convert_layer(head: ExportHead, layer: int) -> Iterator[OutgoingTensor]:
    before, block = name_upper_layer(layer) if layer else "layer.", f"blk.{layer}."
    for source, name in LAYER_VECTORS.items():
        yield _read_vector(head, _name(head, before + source), block + name)
    for part in "qk":
        name = f"{block}attn_{part}.weight"
        rows = separate_rows(_reader(head.header, name), head.info.head_dim)
        source = _name(head, f"{before}self_attn.{part}_proj.weight")
        yield _read_matrix(head, source, name, rows=rows, multiple_of=head.info.head_dim)
    for source, name in LAYER_MATRICES.items():
        yield _read_matrix(head, _name(head, before + source), block + name)


def _permute_taps(head: ExportHead, values: Floats) -> Floats:
    """Return values [..., taps x target hidden size] with the taps in the order of their layers."""
    parts = values.reshape(*values.shape[:-1], len(head.info.target_layers), -1)
    return parts[..., head.tap_order, :].reshape(values.shape)


def _make_mask(head: ExportHead) -> Iterator[OutgoingTensor]:
    hidden = head.header.array(MASK_HIDDEN_KEY)
    if head.info.mask is not None and hidden is not None:
        values = _permute_taps(head, np.asarray(hidden, np.float32))
        yield make_vector(MASK_HIDDEN, values, shape=(1, 1, len(values)))


def _make_tables(head: ExportHead) -> Iterator[OutgoingTensor]:
    """Yield `d2t` and `t2d` (tensor_names.py), which a head over all tokens must not have."""
    tokens = read_target_tokens(head.info)
    if tokens is None:
        return
    offsets, marked = tokens - np.arange(len(tokens)), np.zeros(head.info.n_vocab, np.uint8)
    marked[tokens] = 1
    yield OutgoingTensor("d2t", "I64", offsets.shape, lambda: iter([np.ascontiguousarray(offsets).view(np.uint8)]))
    yield OutgoingTensor("t2d", "BOOL", marked.shape, lambda: iter([marked]))


def make_vector(name: str, values: Floats, *, shape: tuple[int, ...] = ()) -> OutgoingTensor:
    """Return a norm or a state in F32.

    shape  if it is not a vector
    """
    flat = np.ascontiguousarray(values.reshape(-1), np.float32)
    return OutgoingTensor(name, "F32", shape or flat.shape, lambda: iter([flat.view(np.uint8)]))


def _read_vector(head: ExportHead, source: str, name: str) -> OutgoingTensor:
    return make_vector(source, read_tensor(head.header, name))


def _read_matrix(
    head: ExportHead,
    source: str,
    name: str,
    *,
    rows: Rows | None = None,
    num_columns: int | None = None,
    multiple_of: int = 1,
) -> OutgoingTensor:
    """Return a matrix, read in pieces of whole blocks of `multiple_of` rows.

    rows, num_columns  if they are not those of the file
    """
    read, dtype = rows or _reader(head.header, name), head.dtype(name)
    columns, num_rows = head.header.tensors[name].shape
    columns = num_columns or columns
    pieces = encode_pieces(source, read, (num_rows, columns), GGML_TYPES_BY_NAME[dtype], block=multiple_of)
    return OutgoingTensor(source, dtype, (num_rows, columns), pieces)


def _reader(header: Header, name: str) -> Rows:
    return lambda first, end: read_span(header, name, first, end)


# ---- export config: the configuration of an exported head: the inverse of head_config.py
#
# `specforge` writes flat keys, as SpecForge does and P-EAGLE's trainer too; SGLang and vLLM read them. `speculators`
# writes the layer's shape below `transformer_layer_config`, and names the target; vLLM and the package speculators
# read it. Both state every flag, because readers disagree about the meaning of a missing one.
SPECULATORS, SPECFORGE = "speculators", "specforge"
EXPORT_FORMATS = {SPECULATORS: "layers.0", SPECFORGE: "midlayer"}  # formats, with their name of the first layer
DRAFT_LENGTH = 3  # tokens that vLLM drafts by default
TORCH_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ROPE_FACTORS = "rope_freqs.weight"


def find_export_problem(info: EagleInfo, form: str) -> str:
    """Return why a head cannot be written in a format without changing what it computes; empty if it can."""
    if problem := next(info.find_own_problems(), ""):
        return problem
    if len(set(info.target_layers)) != len(info.target_layers):
        return f"it taps the layers {list(info.target_layers)}, one of them twice, and engines give each once"
    if form == SPECFORGE and 0 in info.target_layers:
        return "it taps the input of the first layer, and this format names the outputs of layers"
    if info.fc_norm_eps != info.rms_eps:
        return f"its fc_norm has the epsilon {info.fc_norm_eps:g}, its other norms {info.rms_eps:g}"
    if info.fc_norm and info.norm_before_fc:
        return "it has fc_norm and norm_before_fc, which exclude each other"
    if form == SPECULATORS and info.mask is not None and info.fc_norm:
        return "vLLM does not pass fc_norm on to P-EAGLE heads of the format speculators"
    return ""


def list_export_notes(info: EagleInfo, form: str) -> Iterator[str]:
    """Yield the differences between this head's needs and what engines do that read the format."""
    if form == SPECFORGE and info.norm_before_residual:
        yield "SGLang does not read norm_before_residual, and drafts worse with this head; vLLM does read it"
    if form == SPECFORGE and info.mask is not None:
        yield "SGLang runs no P-EAGLE heads; vLLM does"
    if form == SPECFORGE and info.window:
        yield f"SGLang takes the attention window from --speculative-draft-window-size {info.window}"
    if not info.has_own_output:
        yield "it has no output of its own: engines lend it their target's"


def make_config(head: ExportHead, form: str, target_repo: str) -> dict[str, object]:
    """Return the config.json. Raises IncompatibleError with the reason why the head cannot be written."""
    if problem := find_export_problem(head.info, form):
        hint = f"--format {SPECFORGE}" if "speculators" in problem else ""
        raise IncompatibleError(f"the head {head.info.name} cannot be exported: {problem}", hint=hint)
    layer, flags = _describe_layer(head), _describe_flags(head)
    if form == SPECULATORS:
        return _make_speculators_config(head.info, layer, flags, target_repo)
    return {"architectures": ["LlamaForCausalLMEagle3"], **layer, **flags, **_describe_flat(head)}


def _describe_layer(head: ExportHead) -> dict[str, object]:
    """Return the keys of a Llama layer."""
    header, info = head.header, head.info
    context = header.metadata.get("eagle3.context_length")
    factors = read_tensor(header, ROPE_FACTORS) if ROPE_FACTORS in header.tensors else None
    windows = {"sliding_window": info.window, "layer_types": ["sliding_attention"] * info.n_layer}
    return {
        "model_type": "llama",
        "hidden_size": info.width,
        "intermediate_size": info.n_ff,
        "num_attention_heads": info.n_head,
        "num_key_value_heads": info.n_kv_head,
        "head_dim": info.head_dim,
        "num_hidden_layers": info.n_layer,
        "hidden_act": "silu",
        "rms_norm_eps": float(str(np.float32(info.rms_eps))),
        **read_rope_keys(header.metadata, factors, head_dim=info.head_dim).config(),
        "max_position_embeddings": context if isinstance(context, int) else 2048,
        "vocab_size": info.n_vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": TORCH_TYPES[head.dtype("fc.weight")],
        **(windows if info.window else {}),
    }


def _describe_flags(head: ExportHead) -> dict[str, object]:
    info = head.info
    tokens = read_target_tokens(info)
    other_width = info.target_hidden_size != info.width
    return {
        "draft_vocab_size": info.n_vocab if tokens is None else len(tokens),
        **({"target_hidden_size": info.target_hidden_size} if other_width else {}),
        "fc_norm": info.fc_norm,
        "norm_before_fc": info.norm_before_fc,
        "norm_output": info.norm_output,
        "norm_before_residual": info.norm_before_residual,
        TAPS_KEY: _list_taps(head),
    }


def _list_taps(head: ExportHead) -> list[int]:
    """Return the tapped layers by their inputs, as vLLM and speculators count them."""
    return [head.info.target_layers[tap] for tap in head.tap_order]


def _describe_flat(head: ExportHead) -> dict[str, object]:
    info = head.info
    outputs = [layer - 1 for layer in _list_taps(head)]  # SGLang counts a layer's output, below eagle_config only
    below = {"use_aux_hidden_state": True, TAPS_KEY: outputs}
    parallel = {"ptd_token_id": info.mask, "num_depths": info.num_depths}
    lent = {} if info.has_own_output else {"draft_vocab_size": None}  # SGLang lends its target's output then
    return {**lent, **({} if info.mask is None else parallel), "eagle_config": below}


def _make_speculators_config(
    info: EagleInfo, layer: dict[str, object], flags: dict[str, object], target_repo: str
) -> dict[str, object]:
    is_parallel = info.mask is not None
    method = "peagle" if is_parallel else "eagle3"
    length = info.num_depths if is_parallel else DRAFT_LENGTH
    return {
        "architectures": ["PEagleSpeculator" if is_parallel else "Eagle3Speculator"],
        "speculators_model_type": method,
        "speculators_config": {
            "algorithm": method,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": length}],
            "verifier": {"name_or_path": target_repo, "architectures": []},
        },
        "transformer_layer_config": layer,
        **flags,
        **({"mask_token_id": info.mask} if is_parallel else {}),
        "tie_word_embeddings": False,
        "torch_dtype": layer["torch_dtype"],
    }

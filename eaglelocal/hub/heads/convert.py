"""Conversion of a published head, beside its target, to keys and tensors of the GGUF that llama.cpp runs.

llama.cpp's eagle3 graph lacks some features of heads. Those are folded into weights where that is exact, or stated in
keys of ours and computed by the engine around the graph (`backend/head_context.py`), or refused by name. Does not write
files.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.eagle_info import (
    ACCEPTANCE_LENGTH_KEY,
    FC_NORM_KEY,
    MASK_HIDDEN_KEY,
    MASK_TOKEN_KEY,
    NORM_OUTPUT_KEY,
    NUM_DEPTHS_KEY,
    TARGET_NAME_KEY,
    VERIFIER_KEY,
    WINDOW_KEY,
)
from eaglelocal.gguf.ggml_types import FILE_TYPE_IDS
from eaglelocal.gguf.header import Scalar
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.tap_row import MAX_TAPS, TapRow
from eaglelocal.gguf.tensors import read_rows, stream_indices, stream_vector
from eaglelocal.gguf.upper_layers import DRAFT_TOKENS_KEY, NUM_LAYERS_KEY
from eaglelocal.gguf.writer import KeyValue, StreamedTensor, copy_entries, list_entries
from eaglelocal.hub.heads.head_config import (
    FETCH_REST,
    NUM_DEPTHS,
    OTHER_HEAD,
    HeadConfig,
    HeadReading,
    list_readings,
    read_config,
)
from eaglelocal.hub.heads.head_folder import PublishedHead
from eaglelocal.hub.heads.safetensors_files import Floats, Ints, StoredTensor
from eaglelocal.hub.heads.tensor_names import (
    MASK_HIDDEN,
    HeadTensors,
    convert_matrix,
    interleave_rows,
    map_target_tokens,
    name_tensors,
    name_upper_layer,
    scale_columns,
)

VECTORS = {"norm.weight": "output_norm.weight", "layer.hidden_norm.weight": "blk.0.attn_norm_2.weight"}
LAYER_VECTORS = {"input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight"}
LAYER_MATRICES = {
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


SAMPLED_ROWS = 64
SAME_SHARE = 0.02  # share of an embedding's length: the most that rounding to six bits or more changes it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHead:
    """A head that was understood, and can be run beside its target."""

    name: str
    config: HeadConfig
    tensors: HeadTensors
    num_taps: int
    fc_norm: bool
    norm_before_fc: bool
    target_tokens: Ints | None  # [draft vocabulary]
    shares_embeddings: bool  # it has none of its own, or a copy of the target's
    readings: tuple[HeadReading, ...]  # the possible ones, the likeliest first
    notes: tuple[str, ...]

    @property
    def is_parallel(self) -> bool:
        """True for a P-EAGLE head."""
        return self.config.mask is not None

    @property
    def verifier(self) -> str:
        """The target that its authors name; empty if they name none."""
        return self.config.verifier

    @property
    def stated(self) -> HeadReading:
        """The interpretation that the configuration states, or else the most likely one."""
        return self.readings[0]

    def alternatives(self) -> tuple[HeadReading, ...]:
        """Return other readings of taps and residual: they differ in the acceptance of the first drafted token."""
        return self.readings[1:]


def read_head(published: PublishedHead, target: ModelInfo, *, name: str) -> ReadHead:
    """Read a head for `target`. Raises ModelFileError or IncompatibleError with the reason."""
    tensors = name_tensors(published.tensors)
    is_parallel = tensors.get(MASK_HIDDEN) is not None
    config = read_config(
        published.config, prefix=tensors.prefix, layer_name=tensors.layer_name, is_parallel=is_parallel
    )
    check_layers(tensors, config)
    num_taps = _count_taps(tensors["fc.weight"], config, target)
    fc_norm, norm_before_fc = _read_norms(tensors, config, num_taps)
    output = _find_output(tensors, config)
    num_rows = target.n_vocab if output is None else output.shape[0]
    last_tap = target.n_layer - (target.final_state is None)  # id n_layer is the state after the last layer
    return ReadHead(
        name=name,
        config=config,
        tensors=tensors,
        num_taps=num_taps,
        fc_norm=fc_norm,
        norm_before_fc=norm_before_fc,
        target_tokens=map_target_tokens(
            tensors.get("d2t"), tensors.get("t2d"), num_rows=num_rows, num_tokens=target.n_vocab
        ),
        shares_embeddings=_has_target_embeddings(tensors, target),
        readings=list_readings(config, num_taps=num_taps, n_layer=target.n_layer, last_tap=last_tap),
        notes=tuple(_list_notes(config, tensors, target, fc_norm=fc_norm)),
    )


def check_layers(tensors: HeadTensors, config: HeadConfig) -> None:
    """Raise if the number of layers differs from the stated one, or if a head with several layers cannot run."""
    if tensors.num_layers != config.num_layers:
        raise ModelFileError(
            f"config.json says {config.num_layers} layers, the head's tensors are of {tensors.num_layers}",
            hint=FETCH_REST,
        )
    if config.num_layers > 1 and config.mask is None:
        raise IncompatibleError(
            f"the head has {config.num_layers} layers, and only P-EAGLE heads of several layers are run",
            hint=OTHER_HEAD,
        )
    if config.num_layers > 1 and _find_output(tensors, config) is None:
        raise IncompatibleError(
            f"the head has {config.num_layers} layers and no lm_head, which such heads need", hint=OTHER_HEAD
        )


def _count_taps(fc: StoredTensor, config: HeadConfig, target: ModelInfo) -> int:
    hidden = config.target_hidden_size or target.n_embd
    if hidden != target.n_embd:
        raise IncompatibleError(
            f"the head was made for hidden size {hidden}, {target.name} has {target.n_embd}", hint=OTHER_HEAD
        )
    if len(fc.shape) != 2 or fc.shape[0] != config.width or fc.shape[1] % hidden:
        raise IncompatibleError(
            f"the head's fc is {list(fc.shape)}, which reads no states {hidden} wide into {config.width}",
            hint=OTHER_HEAD,
        )
    num_taps = fc.shape[1] // hidden
    if not 1 <= num_taps <= MAX_TAPS:
        raise IncompatibleError(
            f"the head taps {num_taps} layers, and heads of up to {MAX_TAPS} are run", hint=OTHER_HEAD
        )
    return num_taps


def _read_norms(tensors: HeadTensors, config: HeadConfig, num_taps: int) -> tuple[bool, bool]:
    """Return (fc_norm, norm_before_fc) from the tensors; raise if a stated norm is missing."""
    fc_norm, norm_before_fc = bool(tensors.fc_norms), tensors.get("input_norm.weight") is not None
    for flag, asked, there in (
        ("fc_norm", config.fc_norm, fc_norm),
        ("norm_before_fc", config.norm_before_fc, norm_before_fc),
    ):
        if asked and not there:
            raise ModelFileError(f"config.json says {flag}, but its weights are missing")
    if fc_norm and norm_before_fc:
        raise IncompatibleError("the head has fc_norm and norm_before_fc, which exclude each other", hint=OTHER_HEAD)
    if fc_norm and len(tensors.fc_norms) != num_taps:
        raise ModelFileError(f"there are {len(tensors.fc_norms)} norms for {num_taps} taps")
    return fc_norm, norm_before_fc


def _has_target_embeddings(tensors: HeadTensors, target: ModelInfo) -> bool:
    """Return whether the head can use the target's embeddings: it has none, or its own are a copy, judged by some rows.

    Many heads come with a copy, which is twice as large as the rest of the head. If the target's embeddings are rounded
    to fewer bits, the head keeps its own. So does a P-EAGLE head: its embeddings were trained, which a few rows, above
    all those of rare tokens, may not show.
    """
    own = tensors.get("embed_tokens.weight")
    if own is None:
        return True
    if tensors.get(MASK_HIDDEN) is not None:
        return False
    return is_same_matrix(own, target, "token_embd.weight")


def is_same_matrix(own: StoredTensor, target: ModelInfo, name: str) -> bool:
    """Return whether a head's matrix is a copy of the target's, judged by some rows."""
    lent = target.header.tensors.get(name)
    if lent is None or lent.shape != own.shape[::-1]:
        return False
    rows = np.linspace(0, own.shape[0] - 1, SAMPLED_ROWS).astype(int).tolist()
    theirs = read_rows(target.header, name, rows)
    ours = np.concatenate([own.rows(row, row + 1) for row in rows])
    return float(np.linalg.norm(ours - theirs)) <= SAME_SHARE * float(np.linalg.norm(ours))


def _find_output(tensors: HeadTensors, config: HeadConfig) -> StoredTensor | None:
    """Return the tensor that computes the logits; None if the head borrows the target's."""
    own = tensors.get("lm_head.weight")
    return tensors.get("embed_tokens.weight") if own is None and config.ties_embeddings else own


def _list_notes(config: HeadConfig, tensors: HeadTensors, target: ModelInfo, *, fc_norm: bool) -> Iterator[str]:
    if config.vocab_size is not None and config.vocab_size != target.n_vocab:
        yield f"config.json counts {config.vocab_size} tokens, the target's file {target.n_vocab}"
    if fc_norm and not config.fc_norm:
        yield "config.json does not say fc_norm, but its weights are there: used"
    if config.mask is not None and config.num_depths is None:
        yield f"config.json does not say how many tokens a pass drafts: {NUM_DEPTHS}, as is usual"
    if tensors.dropped:
        yield f"left out, because they change nothing: {len(tensors.dropped)} tensors ({tensors.dropped[0]} ...)"


def make_entries(head: ReadHead, reading: HeadReading, target: ModelInfo, kind: str) -> list[KeyValue]:
    """Return the file's keys; the tokenizer is the target's."""
    config = head.config
    texts = {"general.name": head.name, TARGET_NAME_KEY: target.name, VERIFIER_KEY: config.verifier}
    keys = {
        **{key: text for key, text in texts.items() if text},
        "general.file_type": FILE_TYPE_IDS[kind],
        "eagle3.context_length": config.max_context,
        "eagle3.embedding_length": config.width,
        "eagle3.block_count": 1,
        "eagle3.feed_forward_length": config.n_ff,
        "eagle3.attention.head_count": config.n_head,
        "eagle3.attention.head_count_kv": config.n_kv_head,
        "eagle3.attention.key_length": config.head_dim,
        "eagle3.attention.value_length": config.head_dim,
        "eagle3.rope.dimension_count": config.head_dim,
        "eagle3.vocab_size": target.n_vocab,
        **({WINDOW_KEY: config.window} if config.window else {}),
        "eagle3.norm_before_residual": reading.norm_before_residual,
        "eagle3.norm_before_fc": head.norm_before_fc,
        FC_NORM_KEY: head.fc_norm,
        NORM_OUTPUT_KEY: reading.norm_output,
        **TapRow(reading.taps, target.n_embd).keys(),
        "eagle3.attention.layer_norm_rms_epsilon": config.rms_eps,
        ACCEPTANCE_LENGTH_KEY: 0.0,  # until a trial
        **_describe_mask(head),
        **_describe_layers(head),
    }
    return [*list_entries(keys), *config.rope.keys(), *copy_tokenizer(target)]


def _describe_mask(head: ReadHead) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """Return the keys of a P-EAGLE head's mask. Raises ModelFileError where it is not as wide as what fc reads."""
    if head.config.mask is None:
        return {}
    hidden, fc = head.tensors[MASK_HIDDEN].floats().reshape(-1), head.tensors["fc.weight"]
    if hidden.size != fc.shape[1]:
        raise ModelFileError(f"{MASK_HIDDEN} has {hidden.size} numbers, fc reads {fc.shape[1]}")
    return {
        MASK_TOKEN_KEY: head.config.mask,
        NUM_DEPTHS_KEY: head.config.num_depths or NUM_DEPTHS,
        MASK_HIDDEN_KEY: tuple(hidden.tolist()),
    }


def _describe_layers(head: ReadHead) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """Return the keys of a head of several layers, whose file has no tensor d2t (gguf/upper_layers.py)."""
    if head.config.num_layers == 1:
        return {}
    tokens = {} if head.target_tokens is None else {DRAFT_TOKENS_KEY: tuple(head.target_tokens.tolist())}
    return {NUM_LAYERS_KEY: head.config.num_layers, **tokens}


def copy_tokenizer(target: ModelInfo) -> list[KeyValue]:
    """Return the target's tokenizer keys, which the head's file needs, too."""
    others = frozenset(key for key in target.header.metadata if not key.startswith("tokenizer."))
    return copy_entries(target.header, without=others)


def make_tensors(head: ReadHead, target: ModelInfo, kind: str) -> list[StreamedTensor]:
    """Return the file's tensors. Wrong shapes are found later, when the written file is checked against the target."""
    tensors, config = head.tensors, head.config
    row = TapRow(head.stated.taps, target.n_embd)
    written = [_convert_fc(head, row, kind)]
    if head.norm_before_fc:
        gains = row.pad_gains(tensors["input_norm.weight"].floats().reshape(-1))
        written.append(stream_vector("enc.output_norm.weight", gains))
    written += [stream_vector(name, tensors[source].floats()) for source, name in VECTORS.items()]
    for layer in range(config.num_layers):
        written += _convert_layer(head, layer, kind)
    factors = config.rope.factors(config.head_dim)
    if factors is not None:
        written.append(stream_vector("rope_freqs.weight", factors))
    return [*written, *_convert_vocabulary(head, target, kind)]


def _convert_layer(head: ReadHead, layer: int, kind: str) -> Iterator[StreamedTensor]:
    tensors, head_dim = head.tensors, head.config.head_dim
    before, block = name_upper_layer(layer) if layer else "layer.", f"blk.{layer}."
    for source, name in LAYER_VECTORS.items():
        yield stream_vector(block + name, tensors[before + source].floats())
    for part in "qk":
        matrix = tensors[f"{before}self_attn.{part}_proj.weight"]
        shape = _read_matrix_shape(matrix, multiple_of=head_dim)
        rows = interleave_rows(matrix.rows, head_dim)
        yield convert_matrix(f"{block}attn_{part}.weight", rows, shape, kind, block=head_dim)
    for source, name in LAYER_MATRICES.items():
        yield _convert_plain(block + name, tensors[before + source], kind)


def _convert_fc(head: ReadHead, row: TapRow, kind: str) -> StreamedTensor:
    norms = head.tensors.fc_norms
    gains: Floats | None = np.concatenate([norm.floats().reshape(-1) for norm in norms]) if norms else None
    fc, columns = head.tensors["fc.weight"], row.graph_size
    if gains is not None and gains.shape != (fc.shape[1],):
        raise ModelFileError(f"the gains of fc_norm are {len(gains)} numbers, fc reads {fc.shape[1]}")
    return convert_matrix("fc.weight", scale_columns(fc, gains, num_columns=columns), (fc.shape[0], columns), kind)


def _convert_vocabulary(head: ReadHead, target: ModelInfo, kind: str) -> Iterator[StreamedTensor]:
    """Yield embeddings, output and d2t. Rows beyond the target's vocabulary are padding and left out."""
    embeddings, output = head.tensors.get("embed_tokens.weight"), _find_output(head.tensors, head.config)
    if embeddings is not None and not head.shares_embeddings:
        yield _convert_plain("token_embd.weight", embeddings, kind, most_rows=target.n_vocab)
    if output is not None:
        yield _convert_plain("output.weight", output, kind, most_rows=target.n_vocab)
    if head.target_tokens is not None and head.config.num_layers == 1:
        yield stream_indices("d2t", head.target_tokens)


def _convert_plain(name: str, source: StoredTensor, kind: str, *, most_rows: int | None = None) -> StreamedTensor:
    num_rows, columns = _read_matrix_shape(source)
    return convert_matrix(name, source.rows, (min(num_rows, most_rows or num_rows), columns), kind)


def _read_matrix_shape(source: StoredTensor, *, multiple_of: int = 1) -> tuple[int, int]:
    if len(source.shape) != 2 or source.shape[0] % multiple_of:
        raise ModelFileError(
            f"tensor {source.name} is {list(source.shape)}, no matrix of heads {multiple_of} rows high"
        )
    return source.shape[0], source.shape[1]

"""Map the tensor names of every dialect to one set of names; refuse tensors of other kinds of heads with a reason.

SafeAILab and SpecForge call the first layer `midlayer`, speculators `layers.0`, NeMo and checkpoints saved from inside
another model put a prefix before everything. Upper layers are `layers.1` and so on everywhere. An unknown tensor is an
error; it is never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME, GgmlType
from eaglelocal.gguf.tensors import Bytes, encode_rows
from eaglelocal.gguf.writer import StreamedTensor
from eaglelocal.hub.heads.safetensors_files import Floats, Ints, StoredTensor

PREFIXES = ("module.", "model.", "eagle_module.", "draft_model.", "draft.")
RENAMED = (("midlayer.", "layers.0."), ("eagle_lm_head.", "lm_head."), ("layers.0.", "layer."))
LAYER = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)
REQUIRED = frozenset({"fc.weight", "norm.weight", "layer.hidden_norm.weight", *(f"layer.{part}" for part in LAYER)})
MASK_HIDDEN = "mask_hidden"  # of P-EAGLE heads
OPTIONAL = frozenset({"input_norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d", MASK_HIDDEN})
FC_NORM = re.compile(r"fc_norm\.(\d{1,2})\.weight")
# buffers that can be computed, and frozen copies of parts of the target
NEEDLESS = ("rotary_emb.inv_freq", "verifier_lm_head.weight", "verifier_norm.weight")
# parts of a tensor's name, and the feature of heads that have such tensors
FOREIGN = (
    ("q_norm", "normalises its queries and keys"),
    ("k_norm", "normalises its queries and keys"),
    ("kv_a_proj", "has latent attention (MLA)"),
    ("q_a_proj", "has latent attention (MLA)"),
    ("experts.", "is a mixture of experts"),
    ("sinks", "has attention sinks"),
    ("lora_", "is an adapter"),
)
UPPER_LAYER = re.compile(r"layers\.([1-9]\d?)\.")
MAX_SHOWN = 6


@dataclass(frozen=True, slots=True)
class HeadTensors:
    """A head's tensors under their common names."""

    named: Mapping[str, StoredTensor]
    fc_norms: tuple[StoredTensor, ...]  # one for each tap; or none
    prefix: str  # the prefix of the names, such as `model.`
    layer_name: str  # the name of the first layer: midlayer or layers.0
    num_layers: int
    dropped: tuple[str, ...]  # known and not needed

    def __getitem__(self, name: str) -> StoredTensor:
        return self.named[name]

    def get(self, name: str) -> StoredTensor | None:
        return self.named.get(name)


def name_tensors(stored: Mapping[str, StoredTensor]) -> HeadTensors:
    """Return the tensors under their common names.

    Raises IncompatibleError on another kind of head, ModelFileError on names that no head has.
    """
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        common = normalize_tensor_name(name)
        if common in named:
            raise ModelFileError(f"tensors {named[common].name} and {name} are both {common}")
        named[common] = tensor
    dropped = {name: tensor for name, tensor in named.items() if _is_needless(name, tensor)}
    kept = {name: tensor for name, tensor in named.items() if name not in dropped}
    num_layers = 1 + max((int(found[1]) for found in map(UPPER_LAYER.match, kept) if found), default=0)
    _check(kept, num_layers)
    fc_norms = {int(found[1]): kept.pop(found[0]) for found in filter(None, map(FC_NORM.fullmatch, list(kept)))}
    if sorted(fc_norms) != list(range(len(fc_norms))):
        raise ModelFileError(f"there are norms of taps {sorted(fc_norms)}, which leaves holes")
    layer = kept["layer.hidden_norm.weight"].name
    return HeadTensors(
        named=kept,
        fc_norms=tuple(fc_norms[tap] for tap in range(len(fc_norms))),
        prefix=_find_prefix(layer),
        layer_name="midlayer" if "midlayer." in layer else "layers.0",
        num_layers=num_layers,
        dropped=tuple(dropped),
    )


def normalize_tensor_name(name: str) -> str:
    """Return `layer.mlp.up_proj.weight` for `model.layers.0.mlp.up_proj.weight` and `midlayer.mlp.up_proj.weight`."""
    name = name.removeprefix(_find_prefix(name))
    for old, new in RENAMED:
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def _find_prefix(name: str) -> str:
    rest = name
    while prefix := next((prefix for prefix in PREFIXES if rest.startswith(prefix)), ""):
        rest = rest.removeprefix(prefix)
    return name.removesuffix(rest)


def _is_needless(name: str, tensor: StoredTensor) -> bool:
    """Return whether a tensor has no effect, such as a bias of zeros."""
    return name.endswith(NEEDLESS) or (name.endswith(".bias") and tensor.is_float and not tensor.floats().any())


def name_upper_layer(layer: int) -> str:
    """Return the name prefix of the tensors of an upper layer (1 or higher)."""
    return f"layers.{layer}."


def _check(named: Mapping[str, StoredTensor], num_layers: int) -> None:
    upper = {name_upper_layer(layer) + part for layer in range(1, num_layers) for part in LAYER}
    required = REQUIRED | upper
    unknown = [name for name in named if name not in required | OPTIONAL and not FC_NORM.fullmatch(name)]
    for name in unknown:
        reasons = ["has biases"] if name.endswith(".bias") else [reason for part, reason in FOREIGN if part in name]
        if reasons:
            raise IncompatibleError(
                f"the head {reasons[0]} (tensor {named[name].name}), which llama.cpp's eagle3 graph cannot",
                hint="choose another head of this target",
            )
    missing = sorted(required - named.keys())
    if "layer.hidden_norm.weight" in missing:
        what = "an EAGLE-1 or EAGLE-2 head" if "fc.weight" in named else "no EAGLE head"
        raise ModelFileError(
            f"this is {what}: {_join_names(missing)} are missing",
            hint="take an EAGLE-3, EAGLE-3.1 or P-EAGLE head: `eaglelocal plan MODEL` names a known one",
        )
    if unknown:
        raise ModelFileError(f"tensors that no EAGLE-3 head has: {_join_names([named[name].name for name in unknown])}")
    if missing:
        raise ModelFileError(f"the head lacks {_join_names(missing)}", hint="fetch the rest of the head")


def _join_names(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_SHOWN])
    return shown if len(names) <= MAX_SHOWN else f"{shown} and {len(names) - MAX_SHOWN} more"


# ---- vocabulary map: `d2t` and `t2d`, the tables that map each row of a head's output to a target token
#
# Published heads hold offsets (target = row + d2t[row]), llama.cpp needs the tokens themselves. `t2d` says for each
# target token whether it is drafted. It is redundant, so it serves as a check: tables that disagree are damaged.
def map_target_tokens(
    d2t: StoredTensor | None, t2d: StoredTensor | None, *, num_rows: int, num_tokens: int
) -> Ints | None:
    """Return the target token of each output row [num_rows]; None where row i is token i, for all of them.

    >>> map_target_tokens(None, None, num_rows=8, num_tokens=8) is None
    True

    Raises ModelFileError if the tables are damaged or belong to another head.
    """
    if d2t is None:
        if num_rows < num_tokens:
            raise ModelFileError(f"the head drafts {num_rows} of {num_tokens} tokens and has no d2t to say which")
        return None
    offsets = d2t.integers().reshape(-1)
    if len(offsets) != num_rows:
        raise ModelFileError(f"d2t has {len(offsets)} entries, the head drafts {num_rows} tokens")
    marked = None if t2d is None else np.flatnonzero(t2d.integers().reshape(-1))
    tokens = _decode_offsets(offsets, marked, num_tokens)
    if num_rows == num_tokens and (tokens == np.arange(num_rows)).all():
        return None
    return tokens


def _decode_offsets(offsets: Ints, marked: Ints | None, num_tokens: int) -> Ints:
    """Return the target tokens of offsets, the usual form; read absolute ids only if t2d proves that they are."""
    problems = []
    for tokens in (offsets + np.arange(len(offsets)), offsets):
        problem = _find_problem(tokens, marked, num_tokens)
        if not problem and (tokens is not offsets or marked is not None):
            return tokens
        problems.append(problem)
    raise ModelFileError(f"d2t is damaged or of another head: {problems[0]}", hint="fetch the head again")


def _find_problem(tokens: Ints, marked: Ints | None, num_tokens: int) -> str:
    if tokens.min() < 0 or tokens.max() >= num_tokens:
        return f"it names tokens {tokens.min()} to {tokens.max()} of {num_tokens}"
    ordered = np.sort(tokens)
    repeated = ordered[:-1][ordered[1:] == ordered[:-1]]
    if len(repeated):
        return f"it names token {repeated[0]} twice"
    if marked is not None and not np.array_equal(ordered, marked):
        return f"it names {len(ordered)} tokens, t2d {len(marked)}, and {len(np.setdiff1d(ordered, marked))} differ"
    return ""


# ---- weight conversion: conversion of a published head's tensors to those of a GGUF, a few rows at a time, so that
# any size fits in memory
#
# Rows of queries and keys are reordered (transformers rotate pairs i and i + d/2 of a head, llama.cpp's eagle3 graph
# pairs 2i and 2i + 1), columns of fc are multiplied by the gains of fc_norm, and the result is encoded.
PIECE_BYTES = 16 << 20  # of float32
TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
MAX_F16 = 65504.0

Rows = Callable[[int, int], Floats]  # first, end -> [end - first, columns]


def convert_matrix(name: str, rows: Rows, shape: tuple[int, int], kind: str, *, block: int = 1) -> StreamedTensor:
    """Return a matrix [rows, columns] of the type `kind`, read in pieces of whole blocks of rows.

    Where a row does not divide into the type's blocks, F16 stands in.
    """
    num_rows, columns = shape
    wanted = GGML_TYPES_BY_NAME[TYPES[kind]]
    encoded = wanted if columns % wanted.block_elements == 0 else GGML_TYPES_BY_NAME["F16"]
    return StreamedTensor(name, (columns, num_rows), encoded, encode_pieces(name, rows, shape, encoded, block=block))


def encode_pieces(
    name: str, rows: Rows, shape: tuple[int, int], kind: GgmlType, *, block: int = 1
) -> Callable[[], Iterator[Bytes]]:
    """Return the bytes of a matrix [rows, columns], in pieces of whole blocks of rows.

    Reading them raises ModelFileError where a number does not fit the type.
    """
    num_rows, columns = shape
    step = max(1, PIECE_BYTES // (4 * columns * block)) * block

    def pieces() -> Iterator[Bytes]:
        for first in range(0, num_rows, step):
            values = rows(first, min(first + step, num_rows))
            if kind.name == "F16" and float(np.abs(values).max(initial=0.0)) > MAX_F16:
                raise ModelFileError(f"{name} has numbers that f16 cannot hold", hint="`--type bf16`")
            yield encode_rows(values, kind).reshape(-1)

    return pieces


def interleave_rows(rows: Rows, head_dim: int) -> Rows:
    """Return a reader of rows of queries or keys in llama.cpp's order.

    Within each head, row i and row i + d/2 become 2i and 2i + 1.
    """
    return _reorder_rows(rows, np.arange(head_dim).reshape(2, -1).T.reshape(-1))


def separate_rows(rows: Rows, head_dim: int) -> Rows:
    """Return a reader of rows of queries or keys in transformers' order, the inverse of `interleave_rows`."""
    return _reorder_rows(rows, np.arange(head_dim).reshape(-1, 2).T.reshape(-1))


def _reorder_rows(rows: Rows, order: Ints) -> Rows:
    def read(first: int, end: int) -> Floats:
        heads = rows(first, end).reshape((end - first) // len(order), len(order), -1)
        return heads[:, order].reshape(end - first, -1)

    return read


def scale_columns(source: StoredTensor, gains: Floats | None, *, num_columns: int) -> Rows:
    """Return a reader of fc with each tap's gains in its columns, and columns of zeros up to `num_columns`."""

    def rows(first: int, end: int) -> Floats:
        values = source.rows(first, end)
        if gains is not None:
            values = values * gains
        return np.pad(values, ((0, 0), (0, num_columns - values.shape[1])))

    return rows

"""Convert the GGUF of a Medusa head to a published head's folder, in vLLM's form: the inverse of medusa_head.py.

Where the head borrows its target's lm_head, the target's own is written, as no engine lends it to such heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import BIASES_KEY, MedusaInfo
from eaglelocal.gguf.tensors import read_indices, read_span
from eaglelocal.hub.heads.export_tensors import choose_dtype, make_vector
from eaglelocal.hub.heads.medusa_head import SHARED_OUTPUT, TOKEN_MAP
from eaglelocal.hub.heads.safetensors_files import Floats, OutgoingTensor
from eaglelocal.hub.heads.tensor_names import Rows, encode_pieces

OUTPUT, EMBEDDINGS = "output.weight", "token_embd.weight"
MAX_PATHS = 64  # of a tree in vLLM; it drafts chains


def make_medusa_config(info: MedusaInfo) -> dict[str, object]:
    """Return the head's configuration."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": info.num_parts,
        "num_hidden_layers": info.num_layers,
        "hidden_size": info.state_width,
        "vocab_size": info.n_vocab,
        "truncated_vocab_size": info.draft_vocab or info.n_vocab,
        "medusa_fc_bias": info.num_biases > 0,
        "max_paths": MAX_PATHS,
        "original_lm_head": not info.has_own_outputs,
    }


def make_medusa_export(info: MedusaInfo, kind: str, target: Header | None) -> list[OutgoingTensor]:
    """Return the tensors of the published head.

    kind    f32, f16 or bf16; KEEP: as in the file, and BF16 for what is quantized there
    target  whose lm_head it borrows, if it has none of its own

    Raises IncompatibleError if that is missing or of another target.
    """
    tensors = [*_list_layers(info, kind), *_list_outputs(info, kind, target)]
    if info.draft_vocab is not None:
        tokens = read_indices(info.header, "d2t").reshape(-1).astype(np.int64)
        tensors.append(OutgoingTensor(TOKEN_MAP, "I64", tokens.shape, lambda: iter([tokens.view(np.uint8)])))
    return tensors


def _list_layers(info: MedusaInfo, kind: str) -> Iterator[OutgoingTensor]:
    """Yield W and b of each layer of each part, from where medusa_head.py joins them."""
    width = info.state_width
    values = np.asarray(info.header.array(BIASES_KEY) or (), np.float32)
    biases = values.reshape(info.num_parts, info.num_layers, width) if len(values) else None
    for part in range(info.num_parts):
        for layer in range(info.num_layers):
            stem = f"blocks.{part}.layers.{layer}"
            row, column = (part, layer) if info.has_own_outputs else (0, part * info.num_layers + layer)
            rows = _cut(info.header, "fc.weight", row * width, column * width, width)
            yield _make_matrix(f"{stem}.weight", rows, (width, width), choose_dtype(info.header, "fc.weight", kind))
            if biases is not None:
                yield make_vector(f"{stem}.bias", biases[part, layer])


def _list_outputs(info: MedusaInfo, kind: str, target: Header | None) -> Iterator[OutgoingTensor]:
    """Yield an lm_head for each part, or one for all."""
    header, width = info.header, info.state_width
    if not info.has_own_output:
        if target is None:
            raise IncompatibleError(
                f"{info.name} has no lm_head: its target lends its own", hint="name the target's file after the head's"
            )
        header = target
    name = OUTPUT if OUTPUT in header.tensors else EMBEDDINGS
    columns, num_rows = header.tensors[name].shape
    if columns != info.width or num_rows < (info.draft_vocab or info.n_vocab):
        raise IncompatibleError(
            f"{info.name} reads an lm_head of {info.draft_vocab or info.n_vocab} rows of {info.width}, "
            f"{header.path.name} has {num_rows} of {columns}",
            hint="name the file of the target that the head was made for",
        )
    for part in range(info.num_parts if info.has_own_outputs else 1):
        published = f"lm_heads.{part}.weight" if info.has_own_outputs else SHARED_OUTPUT
        rows = _cut(header, name, 0, part * width, width)
        yield _make_matrix(published, rows, (num_rows, width), choose_dtype(header, name, kind))


def _cut(header: Header, name: str, top: int, left: int, width: int) -> Rows:
    """Return a reader of so many columns of a matrix, whose first row is `top`."""

    def rows(first: int, end: int) -> Floats:
        return np.ascontiguousarray(read_span(header, name, top + first, top + end)[:, left : left + width])

    return rows


def _make_matrix(name: str, rows: Rows, shape: tuple[int, int], dtype: str) -> OutgoingTensor:
    return OutgoingTensor(name, dtype, shape, encode_pieces(name, rows, shape, GGML_TYPES_BY_NAME[dtype]))

"""Pad a Medusa head of a small model with zeros, so that it drafts for an inflated one, at that one's cost.

An inflated model has the states of the small one in its first columns, and zeros in the others. An lm_head that all
parts share is padded with them.

    python tests/measures/padded_medusa.py HEAD.gguf demo@1b:bf16 PADDED.gguf
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from eaglelocal.catalog.reference import parse_reference
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import BIASES_KEY, MedusaInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_tensor, stream_indices
from eaglelocal.gguf.writer import StreamedTensor
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.hub.heads.medusa_head import MedusaShape, make_graph_tensors, make_medusa_entries
from eaglelocal.hub.heads.tensor_names import Rows, convert_matrix
from eaglelocal.hub.target_resolver import find_target


def pad_head(path: Path, target: str, padded: Path) -> None:
    header = read_header(path)
    info, found = MedusaInfo.from_header(header), find_target(parse_reference(target), on_progress=None)
    if info.has_own_outputs or info.num_layers != 1:
        raise SystemExit("only heads of one layer whose parts share an lm_head are padded")
    small, width = info.state_width, found.info.n_embd
    fc = read_tensor(header, "fc.weight")[:, : info.num_parts * small]
    matrices = fc.reshape(small, info.num_parts, small).swapaxes(0, 1)
    biases = np.array(header.array(BIASES_KEY), np.float32).reshape(info.num_parts, 1, small)
    shape = MedusaShape(info.num_parts, 1, width, has_own_outputs=False)
    wide = np.pad(biases, ((0, 0), (0, 0), (0, width - small)))
    entries = make_medusa_entries(shape, wide, found.info, name=f"{info.name}, padded", kind="bf16")
    tensors = make_graph_tensors(shape, [[make_reader(matrix, width, width)] for matrix in matrices], "bf16")
    tensors += make_output_tensors(path, header, info, width)
    with write_head_file(padded, entries, tensors, on_progress=lambda _: None):
        pass


def make_output_tensors(path: Path, header: Header, info: MedusaInfo, width: int) -> list[StreamedTensor]:
    """Return the head's own lm_head, padded, and the tokens of its rows; nothing if it uses the target's."""
    if not info.has_own_output:
        return []
    output = read_tensor(header, "output.weight")
    tensors = [convert_matrix("output.weight", make_reader(output, len(output), width), (len(output), width), "bf16")]
    if info.draft_vocab is not None:
        tensors.append(stream_indices("d2t", read_indices(header, "d2t")))
    return tensors


def make_reader(matrix: np.ndarray, num_rows: int, width: int) -> Rows:
    """Return a reader of a matrix, padded with zeros to [num_rows, width]."""
    padded = np.pad(matrix, ((0, num_rows - len(matrix)), (0, width - matrix.shape[1])))
    return lambda first, end: padded[first:end]


if __name__ == "__main__":
    pad_head(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

"""LoRA adapters with random weights, and targets into whose weights one is merged by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gguf
import numpy as np

from eaglelocal.gguf.ggml_types import GgmlType
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.gguf.writer import GgufPart, StreamedTensor, copy_entries, write_streamed

RANK, ALPHA = 4, 8.0
F32 = GgmlType(0, "F32", 1, 4)
CHANGED = ("attn_q.weight", "attn_v.weight", "ffn_down.weight", "ffn_up.weight")


def changed_weights(target: Header) -> list[str]:
    return [name for name in target.tensors if name.endswith(CHANGED)]


def write_lora(
    path: Path,
    target: Path,
    *,
    seed: int,
    gain: float = 0.3,
    edit: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    architecture: str = "",
    columns: int | None = None,
    left_out: str = "",
) -> Path:
    """Write a random adapter. The other parameters make it a wrong one: `left_out` is the end of a tensor's name."""
    header, rng = read_header(target), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), architecture or str(header.metadata["general.architecture"]))
    writer.add_type("adapter")
    edit(writer)
    given = writer.kv_data[0]
    if "adapter.type" not in given:
        writer.add_string("adapter.type", "lora")
    if "adapter.lora.alpha" not in given:
        writer.add_float32("adapter.lora.alpha", ALPHA)
    for name in changed_weights(header):
        width, height = header.tensors[name].shape[:2]
        a = rng.normal(size=(RANK, columns or width)) / np.sqrt(width)
        b = rng.normal(size=(height, RANK)) * gain
        for part, values in ((".lora_a", a), (".lora_b", b)):
            if not (left_out and (name + part).endswith(left_out)):
                writer.add_tensor(name + part, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merge_loras(path: Path, target: Path, *adapters: tuple[Path, float]) -> Path:
    """Write the target with W + scale * alpha / rank * B A in place of its weights W, all in F32."""
    header = read_header(target)
    loras = [(read_header(adapter), scale) for adapter, scale in adapters]
    tensors = []
    for name, tensor in header.tensors.items():
        values = read_tensor(header, name)
        for lora, scale in loras:
            if name + ".lora_a" in lora.tensors:
                a, b = (read_tensor(lora, name + part) for part in (".lora_a", ".lora_b"))
                values = values + np.float32(scale * ALPHA / RANK) * (b @ a)
        tensors.append(StreamedTensor(name, tensor.shape, F32, partial(as_bytes, values)))
    entries = copy_entries(header, without=frozenset())
    architecture = str(header.metadata["general.architecture"])
    write_streamed(path, [GgufPart(architecture, entries, tensors)], lambda _: None)
    return path


def as_bytes(values: np.ndarray) -> Iterator[np.ndarray]:
    yield np.frombuffer(np.ascontiguousarray(values, np.float32).tobytes(), np.uint8)

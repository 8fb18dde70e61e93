"""Targets and EAGLE heads as files, of every form that training must understand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_raw_pieces
from eaglelocal.gguf.writer import KeyValue, StreamedTensor, copy_entries
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.training.draft_head import HeadSource

from .eagle_checkpoints import Kind, random_checkpoint, write_checkpoint
from .imported_heads import imported
from .random_models import finish, write_vocabulary
from .runnable_models import N_VOCAB, weights
from .weightless_models import SKETCHES, tensors_of, write_keys

WIDTH = 64


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a head's file: its kind, if it lacks an output of its own, further keys, and another d2t."""

    kind: Kind
    lends_output: bool = False
    entries: tuple[KeyValue, ...] = ()
    d2t: tuple[int, ...] | None = None  # in the place of its own


def small_kind(**fields: object) -> Kind:
    """Return a kind of head that is as wide as the small targets."""
    sizes = {"width": WIDTH, "target_width": WIDTH, "n_ff": 96, "n_head": 1, "n_vocab": N_VOCAB}
    return Kind(**sizes | fields)  # type: ignore[arg-type]


def write_small_target(path: Path, architecture: str, *, tied: bool, seed: int = 0) -> Path:
    """Write a random target of that architecture; `tied`: without an output of its own."""
    sketch = SKETCHES[architecture]
    sketch = replace(sketch, n_vocab=N_VOCAB, n_ctx=2048, n_embd=WIDTH, n_head=2, kv_heads=1, n_ff=96, tied=tied)
    writer = gguf.GGUFWriter(str(path), sketch.arch)
    rng = np.random.default_rng(seed)
    write_keys(writer, sketch)
    write_vocabulary(writer, N_VOCAB)
    for name, shape in tensors_of(sketch):
        writer.add_tensor(name, weights(rng, name, shape[::-1], sketch))
    finish(writer)
    return path


def write_form(folder: Path, form: Form, target: Path) -> Path:
    head = random_checkpoint(form.kind)
    if form.lends_output:
        head = replace(head, arrays={name: array for name, array in head.arrays.items() if name != "lm_head.weight"})
    path = imported(write_checkpoint(folder / "published", head, "speculators"), target, folder / "imported.gguf")
    return rewritten(path, folder / "head.gguf", form)


def rewritten(path: Path, to: Path, form: Form) -> Path:
    """Write a copy with the keys and the d2t of `form`."""
    header, replaced = read_header(path), frozenset(entry.key for entry in form.entries)
    tensors = [_as_it_is(header, name) for name in header.tensors]
    if form.d2t is not None:
        ids = np.array(form.d2t, np.int64).view(np.uint8)
        tensors = [replace(t, pieces=lambda: iter([ids])) if t.name == "d2t" else t for t in tensors]
    entries = [*copy_entries(header, without=replaced), *form.entries]
    with write_head_file(to, entries, tensors, on_progress=lambda fraction: None):
        pass
    return to


def _as_it_is(header: Header, name: str) -> StreamedTensor:
    tensor = header.tensors[name]
    return StreamedTensor(name, tensor.shape, tensor.type, lambda: read_raw_pieces(header, name, 1 << 20))


def head_source(target: Path, head: Path | None = None) -> HeadSource:
    header = read_header(target)
    source = HeadSource(ModelInfo.from_header(header))
    if head is None:
        return source
    return replace(source, start=EagleInfo.from_header(read_header(head)))

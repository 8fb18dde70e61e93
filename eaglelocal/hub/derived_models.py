"""Models derived from another model: recipes, the place and header of the file, and writing it when a run needs it.

    1b, 1b:q4_k_m    inflated: the same texts, at the cost of a model of that size
    drop10[:q4_0]    without ten of its layers: a draft model of the same vocabulary
    q2_k             in another type, by llama.cpp's quantizer

Until it is written, planning works with the header that the file will have. A file's name holds the source's name, the
recipe and a hash of the source's content; so another source never gets it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from eaglelocal import locations
from eaglelocal.backend.quantizer import quantize_file
from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.core.atomic_file import flush_and_rename
from eaglelocal.core.own_files import open_regular
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import make_printable
from eaglelocal.errors import IncompatibleError, ModelFileError, UsageError
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.ggml_types import FILE_TYPE_IDS, REFERENCE_KEY
from eaglelocal.gguf.header import ArrayValue, Header, Shard
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import StreamedTensor, count_share, list_entries
from eaglelocal.hub.inflation.generated_files import (
    QUANTIZABLE,
    FilePlan,
    Progress,
    check_disk,
    hold_folder,
    make_partial_path,
    remove_leftovers,
    write_plan,
)
from eaglelocal.hub.inflation.inflated_sizes import BLOCK_STEP, DEFAULT_SIZE, SUPERBLOCK_STEP, ModelSize, parse_size

METHOD = "1"  # part of every name: raise it when the same source would give another file
SOURCE_KEY = "eaglelocal.source"  # as a file: URL, because paths need not be text
SOURCE_HASH_KEY = "eaglelocal.source_sha256"
NAME_KEY = "general.name"
MAX_STEM = 60  # letters of a name: they may take four bytes each
_HASH_DIGITS = 12
_LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<rest>.+)")

RECIPE_FORMS = "`@1b:q4_k_m` (its size and type), `@drop10` (layers left out), or `@q2_k` (a type)"
WRITTEN_TYPES = ("f32", "f16", "bf16")  # types that an inflated model is written in; others are quantized from f16

_SIZE = re.compile(r"\d[\d.]*[mb]")
_DROP = re.compile(r"drop(?P<number>\d{1,3})")


@dataclass(frozen=True, slots=True)
class Inflation:
    """The same model, padded to the cost of a larger one."""

    size: ModelSize
    origin: ClassVar[str] = "inflated"  # the word for such models in lists

    @property
    def text(self) -> str:
        """The recipe as it is written in references, in full: `1b:bf16`."""
        return self.size.slug.replace("-", ":")

    @property
    def quantized_to(self) -> str | None:
        return None if self.size.type in WRITTEN_TYPES else self.size.type

    def describe(self, name: str, n_layer: int) -> str:
        return f"{name} at the cost of {self.size.phrase} ({self.size.type})"


@dataclass(frozen=True, slots=True)
class LayerDrop:
    """The same model without some of its layers."""

    num_layers: int
    quantized_to: str | None = None
    origin: ClassVar[str] = "fewer layers"

    @property
    def text(self) -> str:
        return f"drop{self.num_layers}" + (f":{self.quantized_to}" if self.quantized_to else "")

    def describe(self, name: str, n_layer: int) -> str:
        kind = f" ({self.quantized_to})" if self.quantized_to else ""
        return f"{name} without {self.num_layers} of its {n_layer} layers{kind}"


@dataclass(frozen=True, slots=True)
class Requantization:
    """The same model in another type."""

    quantized_to: str
    origin: ClassVar[str] = "requantized"

    @property
    def text(self) -> str:
        return self.quantized_to

    def describe(self, name: str, n_layer: int) -> str:
        return f"{name} requantized to {self.quantized_to}"


Recipe = Inflation | LayerDrop | Requantization


def parse_recipe(text: str) -> Recipe:
    """Parse the part after the `@`, ignoring case. Raises UsageError on anything else."""
    word, _, kind = text.lower().partition(":")
    if ":" in text and kind not in QUANTIZABLE:
        raise UsageError(f"cannot quantize to the type {kind!r}", hint=f"use one of {', '.join(QUANTIZABLE)}")
    if dropped := _DROP.fullmatch(word):
        if int(dropped["number"]) == 0:
            raise UsageError("`@drop0` leaves no layer out", hint="`@drop10`")
        return LayerDrop(int(dropped["number"]), kind or None)
    if _SIZE.fullmatch(word):
        return Inflation(ModelSize(parse_size(word), kind or DEFAULT_SIZE.type))
    if word in QUANTIZABLE and not kind:
        return Requantization(word)
    raise UsageError(f"cannot make `@{text}` of a model", hint=f"use {RECIPE_FORMS}")


# ---- derived files
@dataclass(frozen=True, slots=True)
class DerivedFile:
    """A file made of `source`. `header` is a sketch until the file is written; `plan` is None once it is."""

    path: Path
    label: str
    header: Header
    source: Header
    recipe: Recipe
    quantized_to: str | None = None
    plan: FilePlan | None = field(default=None, compare=False, repr=False)

    @property
    def disk_bytes(self) -> int:
        """The peak of disk space for writing it, including the file before quantization."""
        if self.plan is None:
            return 0
        return self.plan.disk_bytes + (self.header.file_bytes if self.quantized_to else 0)


def derive_target(model: ModelInfo, recipe: Recipe, reference: str) -> DerivedFile:
    """Return the model that a recipe makes of a source, written or not.

    reference  by which lists show it and `rm` finds it

    Raises ModelFileError, IncompatibleError, UsageError or ResourceError if it cannot be made.
    """
    source = model.header
    stem = source.path.name.removesuffix(GGUF_SUFFIX)
    source_name = make_printable(stem if source.path.name.endswith(GGUF_SUFFIX) else model.name)
    label = recipe.describe(source_name, model.n_layer)
    digest = hash_content(source)
    path = locations.generated_models_dir() / f"{stem[:MAX_STEM]}@{make_slug(recipe, digest)}.gguf"
    made = DerivedFile(path, label, source, source, recipe, recipe.quantized_to)
    if path.is_file():
        return replace(made, header=read_header(path))
    plan = _plan_target(model, recipe)
    names = {entry.key for entry in plan.changed}
    labels = {
        NAME_KEY: label,
        REFERENCE_KEY: make_printable(reference),
        SOURCE_KEY: source.path.absolute().as_uri(),
        SOURCE_HASH_KEY: digest,
    }
    added = list_entries({key: text for key, text in labels.items() if key not in names})
    plan = replace(plan, changed=[*plan.changed, *added])
    return replace(made, plan=plan, header=plan.sketch_header(recipe.quantized_to))


def derive_head(target: DerivedFile, eagle: EagleInfo) -> DerivedFile:
    """Adapt a head of an inflated target's source to the inflated target. Raises as derive_target."""
    from eaglelocal.hub.inflation.blueprint import grow_target, plan_head  # imports numpy

    assert isinstance(target.recipe, Inflation)
    size = target.recipe.size
    head = eagle.header
    path = target.path.with_name(f"{target.path.stem}-head-{_shorten(hash_content(head))}.gguf")
    label = f"inflated to {size.label}"
    if path.is_file():
        return DerivedFile(path, label, read_header(path), head, target.recipe)
    growth = grow_target(size, ModelInfo.from_header(target.source), step=_widths_step(size.type))
    # heads are published in 16 bits, whatever type their target has
    written_as = size if size.type in WRITTEN_TYPES else replace(size, type="f16")
    plan = plan_head(written_as, eagle, target.source, growth)
    return DerivedFile(path, label, plan.sketch_header(), head, target.recipe, plan=plan)


def write_derived(made: DerivedFile, *, on_progress: Progress) -> DerivedFile:
    """Return the file, written now if it is missing. Leaves nothing behind if that fails.

    Raises ResourceError if the disk is too small or llama.cpp cannot quantize it, ModelFileError if the source is gone.
    """
    folder = made.path.parent
    if made.path.is_file():
        remove_leftovers(folder)
    else:
        with hold_folder(folder):
            if not made.path.is_file():  # the process that held the lock may have written it
                check_room(made)
                _write(made, on_progress)
    return replace(made, header=read_header(made.path), plan=None)


def check_room(made: DerivedFile) -> None:
    """Raise ResourceError if the disk has no room for writing the file."""
    hint = "free some space, or take a smaller size, such as `@300m`"
    check_disk(made.label, made.disk_bytes, made.path.parent, hint=hint)


def make_slug(recipe: Recipe, digest: str) -> str:
    """Return the part of a file's name that follows the `@`, from the hash of the source's content."""
    return f"{recipe.text.replace(':', '-')}-{_shorten(digest)}"


def _shorten(digest: str) -> str:
    return hashlib.sha256(f"{METHOD} {digest}".encode()).hexdigest()[:_HASH_DIGITS]


def hash_content(source: Header) -> str:
    """Return the SHA-256 of the files of a model. Raises ModelFileError where one is missing."""
    digest = hashlib.sha256()
    for shard in source.shards:
        try:
            digest.update(_hash_file(shard, os.stat(shard.path).st_mtime_ns))
        except OSError as error:
            raise malformed_error(shard.path.name, f"cannot be read: {error.strerror}") from error
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _hash_file(shard: Shard, modified_at_ns: int) -> bytes:
    with open_regular(shard.path) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _plan_target(model: ModelInfo, recipe: Recipe) -> FilePlan:
    from eaglelocal.hub.inflation.blueprint import plan_target  # imports numpy

    match recipe:
        case Inflation(size):
            written_as = replace(size, type="f16") if recipe.quantized_to else size
            return plan_target(written_as, model, step=_widths_step(size.type))
        case LayerDrop(num_layers):
            return _plan_drop(model, num_layers)
        case _:
            return FilePlan(model.header, (), list(_copy_tensors(model.header)))


def _widths_step(type_name: str) -> int:
    """Return the number that must divide each width: else llama.cpp quantizes some matrices in another type."""
    return SUPERBLOCK_STEP if "_k" in type_name or type_name == "iq4_xs" else BLOCK_STEP


def _write(made: DerivedFile, on_progress: Progress) -> None:
    plan, partial = made.plan, make_partial_path(made.path)
    if plan is None:
        raise ModelFileError(f"{made.path.name} was removed just now", hint="run the command again")
    total_bytes = plan.data_bytes + (made.header.tensor_bytes if made.quantized_to else 0)

    def report(share: float) -> None:
        on_progress(min(share, 1.0), f"writing {made.label}")

    count = count_share(total_bytes, report)
    if made.quantized_to is None:
        write_plan(plan, partial, count)
    else:
        whole = make_partial_path(made.path.with_name(f"{made.path.stem}-whole.gguf"))
        write_plan(plan, whole, count)
        kind = FILE_TYPE_IDS[made.quantized_to]
        quantize_file(whole, partial, kind, on_bytes=lambda done: report((plan.data_bytes + done) / total_bytes))
        whole.unlink()
    read_header(partial)
    flush_and_rename(partial, made.path)


# ---- layers left out
def _plan_drop(model: ModelInfo, num_layers: int) -> FilePlan:
    """Plan a copy without num_layers layers.

    Raises IncompatibleError if layers differ, because leaving some out would change the meaning of others, and
    UsageError if too few would be left.
    """
    _check_alike(model)
    if num_layers > model.n_layer - 2:
        hint = f"`@drop{max(model.n_layer // 3, 1)}` leaves out a third"
        raise UsageError(f"cannot leave out {num_layers} layers of {model.name}: it has {model.n_layer}", hint=hint)
    dropped = choose_dropped(model.n_layer, num_layers)
    kept = [layer for layer in range(model.n_layer) if layer not in dropped]
    changed = list_entries({f"{model.architecture}.block_count": len(kept)})
    tensors = _copy_tensors(model.header, {layer: new for new, layer in enumerate(kept)})
    return FilePlan(model.header, changed, list(tensors))


def choose_dropped(n_layer: int, num_layers: int) -> Sequence[int]:
    """Return the layers to leave out: a block in the middle, so that the first and the last stay.

    choose_dropped(8, 2) == range(3, 5)

    Leaving out evenly spread single layers costs more acceptance, and so does leaving out the last ones
    (docs/measured.md).
    """
    first = (n_layer - num_layers) // 2
    return range(first, first + num_layers)


def _copy_tensors(source: Header, new_ids: Mapping[int, int] | None = None) -> Iterator[StreamedTensor]:
    """Yield the unchanged tensors of the layers in `new_ids`, under their new numbers; None: all, as they are."""
    from eaglelocal.gguf.tensors import stream_copy  # imports numpy

    for tensor in source.tensors.values():
        named = _LAYER.fullmatch(tensor.name)
        if named is None or new_ids is None:
            yield stream_copy(source, tensor, tensor.name)
        elif int(named["layer"]) in new_ids:
            yield stream_copy(source, tensor, f"blk.{new_ids[int(named['layer'])]}.{named['rest']}")


def _check_alike(model: ModelInfo) -> None:
    """Raise IncompatibleError unless all layers have the same tensors and no key has a value for each layer."""
    layers: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for tensor in model.header.tensors.values():
        if named := _LAYER.fullmatch(tensor.name):
            layers.setdefault(int(named["layer"]), set()).add((named["rest"], tensor.shape))
    keys = [
        key
        for key, value in model.header.metadata.items()
        if isinstance(value, ArrayValue) and key.startswith(f"{model.architecture}.") and value.count >= model.n_layer
    ]
    is_alike = layers.keys() == set(range(model.n_layer)) and all(one == layers[0] for one in layers.values())
    if not is_alike or keys or model.has_state or model.sliding_window is not None:
        raise IncompatibleError(
            f"cannot leave layers of {model.name} out: they differ", hint="use a model whose layers are all alike"
        )

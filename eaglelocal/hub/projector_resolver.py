"""Resolution of a projector reference for a target: the file that encodes its images, or why there is none.

`auto` searches the target's snapshot in the hub's cache, or its folder: it takes the best of several types, of several
models' projectors the one named after the target, and none that does not fit. A projector that was named and does not
fit is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import AUTO, NONE
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError, UsageError
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.projector import Projector, check_projector, is_audio_only
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.hub_cache import find_snapshot, list_gguf_files
from eaglelocal.hub.ollama_store import find_blob_projector
from eaglelocal.hub.projector_names import (
    NamedProjector,
    list_model_names,
    list_projectors,
    match_projectors,
    parse_projector,
)
from eaglelocal.hub.repo_builds import read_quantization
from eaglelocal.hub.target_resolver import FoundTarget
from eaglelocal.hub.typed_path import check_file, list_gguf_names

AUTO_HINT = "--mmproj auto"
NAMES = ("general.name", "general.base_model.0.name")


@dataclass(frozen=True, slots=True)
class FoundProjector:
    """The projector that was chosen. `note`: which one in the target's folder is not used, and why."""

    path: Path | None = None
    projector: Projector | None = None
    note: str = ""


def find_projector(reference: str, target: FoundTarget) -> FoundProjector:
    """Resolve a projector reference. Raises UsageError, ModelFileError, or IncompatibleError with the widths."""
    if reference == NONE:
        return FoundProjector()
    is_text = target.task is ModelTask.TEXT
    if reference == AUTO and is_text:
        return find_projector_beside(target.path, target.header, is_of_hub=bool(target.repo))
    if reference == AUTO:
        return FoundProjector()
    if not is_text:
        raise UsageError(f"--mmproj {reference}: {target.label} reads only text", hint="--mmproj none")
    path = expand_path(reference)
    return FoundProjector(path, read_projector_file(path, target.header))


def read_projector_file(path: Path, target: Header | None) -> Projector:
    """Read a projector that was named. Raises ModelFileError, or IncompatibleError if it does not fit the target.

    target  None: unknown, so nothing is compared
    """
    check_file(path, hint=AUTO_HINT)
    projector = Projector.from_header(read_header(path))
    if target is not None:
        check_projector(projector, target, name=path.name)
    return projector


def find_projector_beside(path: Path, target: Header, *, is_of_hub: bool) -> FoundProjector:
    """Find the projector of a target at `path`. Never raises: a projector that does not fit becomes a note."""
    if blob := find_blob_projector(path):
        return _read_blob_projector(blob, target)
    folder, names = (find_snapshot(path), list_gguf_files(find_snapshot(path))) if is_of_hub else (path.parent, [])
    names = names or list_gguf_names(folder)
    found, notes = [], []
    for name in list_projectors(names):
        try:
            header = read_header(folder / name)
            if is_audio_only(header):
                continue
            one, projector = _read_fitting(name, header, target)
            found.append((one.of_size(projector.weights_bytes), projector))
        except (ModelFileError, IncompatibleError) as problem:
            notes.append(f"no images: {problem.message}")
    model_names = [path.stem.partition("-00001-of-")[0], *_read_names(target)]
    left = match_projectors([each for each, _ in found], model_names, is_alone=len(list_model_names(names)) <= 1)
    if left:
        return FoundProjector(folder / left[0].name, dict(found)[left[0]])
    if found:
        notes = [f"no images: whether {found[0][0].name} is this model's is not clear; --mmproj FILE takes it"]
    return FoundProjector(note=notes[0] if notes else "")


def _read_blob_projector(path: Path, target: Header) -> FoundProjector:
    try:
        return FoundProjector(path, read_projector_file(path, target))
    except (ModelFileError, IncompatibleError) as problem:
        return FoundProjector(note=f"no images: {problem.message}")


def _read_fitting(name: str, header: Header, target: Header) -> tuple[NamedProjector, Projector]:
    projector = Projector.from_header(header)
    check_projector(projector, target, name=name)
    one = parse_projector(name, *_read_names(header))
    return NamedProjector(one.name, one.quant or read_quantization(header), one.model_names), projector


def _read_names(header: Header) -> Iterator[str]:
    yield from (value for key in NAMES if isinstance(value := header.metadata.get(key), str))


def find_cached_projector(path: Path) -> Path | None:
    """Return the projector of a model in a hub's cache; None if it has none, or it cannot be read."""
    if not list_projectors(list_gguf_files(find_snapshot(path))):
        return None
    with suppress(EagleLocalError):
        return find_projector_beside(path, read_header(path), is_of_hub=True).path
    return None

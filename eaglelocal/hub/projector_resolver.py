"""Resolution of a projector reference for a target: the file that encodes its images, or why there is none.

`auto` searches the target's snapshot in the hub's cache, or its folder: among several types it takes the best one,
among projectors of several models the one named after the target, and never one that does not fit. If the user named a
projector that does not fit, that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import AUTO, NONE
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError, UsageError
from eaglelocal.gguf.ggml_types import parse_quant, read_quantization, remove_quant
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.projector import Projector, check_projector, is_audio_only
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.hub_cache import check_file, find_snapshot, list_gguf_files, list_gguf_names
from eaglelocal.hub.model_library import find_blob_projector
from eaglelocal.hub.repo_builds import group_builds
from eaglelocal.hub.target_resolver import FoundTarget

AUTO_HINT = "--mmproj auto"
NAMES = ("general.name", "general.base_model.0.name")


@dataclass(frozen=True, slots=True)
class FoundProjector:
    """The chosen projector. `note` names a projector in the target's folder that is not used, and the reason."""

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
    """Read the projector that the user named. Raises ModelFileError, or IncompatibleError for another target's.

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
        try:
            return FoundProjector(blob, read_projector_file(blob, target))
        except (ModelFileError, IncompatibleError) as problem:
            return FoundProjector(note=f"no images: {problem.message}")
    folder, names = (find_snapshot(path), list_gguf_files(find_snapshot(path))) if is_of_hub else (path.parent, [])
    names = names or list_gguf_names(folder)
    found, notes = [], []
    for name in list_projectors(names):
        try:
            header = read_header(folder / name)
            if is_audio_only(header):
                continue
            projector = Projector.from_header(header)
            check_projector(projector, target, name=name)
            one = parse_projector(name, *_read_names(header), size_bytes=projector.weights_bytes)
            found.append((replace(one, quant=one.quant or read_quantization(header)), projector))
        except (ModelFileError, IncompatibleError) as problem:
            notes.append(f"no images: {problem.message}")
    model_names = [path.stem.partition("-00001-of-")[0], *_read_names(target)]
    left = match_projectors([each for each, _ in found], model_names, is_alone=len(list_model_names(names)) <= 1)
    if left:
        return FoundProjector(folder / left[0].name, dict(found)[left[0]])
    if found:
        notes = [f"no images: whether {found[0][0].name} is this model's is not clear; --mmproj FILE takes it"]
    return FoundProjector(note=notes[0] if notes else "")


def _read_names(header: Header) -> Iterator[str]:
    yield from (value for key in NAMES if isinstance(value := header.metadata.get(key), str))


def find_cached_projector(path: Path) -> Path | None:
    """Return the projector of a model in a hub's cache; None if it has none, or it cannot be read."""
    if not list_projectors(list_gguf_files(find_snapshot(path))):
        return None
    with suppress(EagleLocalError):
        return find_projector_beside(path, read_header(path), is_of_hub=True).path
    return None


# ---- projector names: image projectors by their names: which model each belongs to, and which of several is the best
#
# Publishers give one in several types, and name it after the model, or only after its type: `mmproj-F16.gguf`,
# `mmproj-gemma-3-4b-it-f16.gguf`. Names are compared without type, punctuation and case. Pure: on a hub or on disk
# alike.
# An image's embeddings differ from those of F32 by 0.06 % (F16), 0.5 % (BF16) and 1.5 % (Q8_0). On a CPU these types
# take about as long; every GPU reads F16.
PREFERRED = ("F16", "BF16", "Q8_0", "F32")
LARGE_BYTES = 2 << 30  # it stays in memory beside the model, in place of better weights or more context
_PROJECTOR = re.compile(r"(?<![a-z])mmproj(?![a-z])", re.IGNORECASE)
_WORDS_OF_NOBODY = re.compile(r"(?<![a-z])(mmproj|model|gguf|vision|projector)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedProjector:
    """A projector under its file's name; `model_names`: the models it is named after; `size_bytes`: 0, if not known."""

    name: str
    quant: str
    model_names: frozenset[str] = frozenset()
    size_bytes: int = 0

    @property
    def rank(self) -> tuple[bool, int, str]:
        """The sort key, the best first: small enough, as exact as images need, and of a type that every machine reads.

        Muse Glimmer's is 3.9 GB in BF16 and 2.1 in Q8_0: the latter.
        """
        place = PREFERRED.index(self.quant) if self.quant in PREFERRED else len(PREFERRED)
        return self.size_bytes > LARGE_BYTES, place, self.name


def list_projectors(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.lower().endswith(GGUF_SUFFIX) and _PROJECTOR.search(_find_stem(name)))


def parse_projector(name: str, *stated_names: str, size_bytes: int = 0) -> NamedProjector:
    """Return a projector by its file's name and by the names that its header states (`stated_names`)."""
    stem = _find_stem(name)
    model_names = frozenset(filter(None, map(normalize_name, (stem, *stated_names))))
    return NamedProjector(name, parse_quant(stem), model_names, size_bytes)


def normalize_name(text: str) -> str:
    """Return `gemma34bit` for `mmproj-gemma-3-4b-it-f16` and for `Gemma 3 4b It`; empty where no model is named."""
    return re.sub(r"[\W_]+", "", _WORDS_OF_NOBODY.sub(" ", remove_quant(text))).lower()


def list_model_names(names: Iterable[str]) -> set[str]:
    """Return the models among files, regardless of quantizations and without drafts."""
    return {normalize_name(build.stem.rpartition("/")[2]) for build in group_builds(names) if not build.is_draft}


def match_projectors(
    found: Sequence[NamedProjector], model_names: Iterable[str], *, is_alone: bool
) -> list[NamedProjector]:
    """Return the projectors that belong to a model, the best first; none where that is ambiguous.

    model_names  the model's names
    is_alone     True: no other model is beside them, so that projectors named after no model are this one's
    """
    wanted = {call for call in map(normalize_name, model_names) if call}
    left = (
        [each for each in found if each.model_names & wanted]
        or [each for each in found if any(one in other or other in one for one in each.model_names for other in wanted)]
        or (list(found) if is_alone else [])
    )
    is_clear = len({normalize_name(_find_stem(each.name)) for each in left}) == 1
    return sorted(left, key=lambda each: each.rank) if is_clear else []


def _find_stem(name: str) -> str:
    return name.rpartition("/")[2][: -len(GGUF_SUFFIX)]

"""The user's models elsewhere on this disk: in LM Studio, Ollama, and folders of their own.

Each has a short name, which `--target` takes. Lists names and files; headers are not read. The hub's cache has its own
references (hub_cache.py).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.catalog.reference import (
    GGUF_SUFFIX,
    File,
    Profile,
    Reference,
    Repo,
    make_derived,
    parse_reference,
    split_derived,
)
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import UsageError
from eaglelocal.hub.hub_cache import repo_folder
from eaglelocal.hub.repo_builds import group_builds

PLACES = LM_STUDIO, OLLAMA, OWN_FOLDER = "LM Studio", "Ollama", "own folder"
MAX_FILES, MAX_DEPTH = 5000, 6  # most files that are looked at below a folder


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A model outside the hub's cache.

    name     the shortest that means only this model
    aliases  further names that mean it
    """

    name: str
    place: str  # LM_STUDIO, OLLAMA or OWN_FOLDER
    paths: tuple[Path, ...]
    aliases: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Return the file that llama.cpp opens."""
        return self.paths[0]


def list_library(folders: Sequence[str] = ()) -> list[LibraryModel]:
    """Return the models of LM Studio and Ollama, and those in `folders`; each file once, sorted by name."""
    found: dict[object, LibraryModel] = {}
    for model in _list_all(folders):
        file = model.path.name if is_blob(model.path) else model.path.resolve()  # a blob's name is its digest
        first = found.setdefault(file, model)
        if first is not model:
            found[file] = replace(first, aliases=(*first.aliases, model.name, *model.aliases))
    return sorted(_make_unique(list(found.values())), key=lambda model: model.name.lower())


def list_folder(folder: Path, place: str = OWN_FOLDER) -> Iterator[LibraryModel]:
    """Yield the models in a folder and below it, by the names of their files."""
    for build in group_builds(_list_gguf_names(folder)):
        if build.is_complete and not build.is_draft:
            stem = build.stem
            repo = stem.rpartition("/")[0]
            in_folder = f"{folder.name}/{stem}"  # for a file with the same name as one elsewhere
            aliases = (stem, in_folder, f"{stem}{GGUF_SUFFIX}", *((repo, f"{repo}:{build.quant}") if repo else ()))
            yield LibraryModel(stem.rpartition("/")[2], place, tuple(folder / name for name in build.names), aliases)


def choose_named(text: str, models: Sequence[LibraryModel]) -> LibraryModel | None:
    """Return the model with this name; None if there is none. Raises UsageError if several have it."""
    found = [model for model in models if text.lower() in _list_names(model)]
    if len(found) > 1:
        raise UsageError(f"{text!r} means several models", hint=" or ".join(model.name for model in found))
    return found[0] if found else None


def locate_reference(text: str, folders: Sequence[str] = ()) -> Reference:
    """Return the meaning of a target's reference: the file of a model in the library, if only the library has the name.

    Raises UsageError if the text is not a valid reference and names no model.
    """
    if parts := split_derived(text):
        return make_derived(locate_reference(parts[0], folders), parts[1])
    try:
        parsed = parse_reference(text)
    except UsageError:
        model = choose_named(text, list_library(folders))
        if model is None:
            raise
        return File(model.path, text)
    if not isinstance(parsed, Profile | Repo):
        return parsed
    models = list_library(folders)
    if not models or _is_known(parsed):
        return parsed
    if model := choose_named(text, models):
        return File(model.path, text)
    near = difflib.get_close_matches(text, [model.name for model in models], n=1)
    if near and isinstance(parsed, Profile):
        raise UsageError(f"unknown target {text!r}", hint=f"did you mean `{near[0]}`?")
    return parsed


def _is_known(parsed: Profile | Repo) -> bool:
    """Return whether the catalog has the profile, or the hub's cache the repository."""
    if isinstance(parsed, Repo):
        return repo_folder(locations.hub_cache_dir(), parsed.name).is_dir()
    catalog = load_catalog()
    return catalog.find_target(parsed.id) is not None or parsed.id.lower() in catalog.drafts


def _list_all(folders: Sequence[str]) -> Iterator[LibraryModel]:
    for folder in folders:
        yield from list_folder(expand_path(folder))
    for place in locations.lm_studio_dirs():
        yield from list_folder(place, LM_STUDIO)
    for store in locations.ollama_dirs():
        for name, paths in list_ollama_models(store):
            bare, _, tag = name.rpartition(":")
            yield LibraryModel(name, OLLAMA, paths, (bare,) if tag == LATEST else ())


def _make_unique(models: Sequence[LibraryModel]) -> Iterator[LibraryModel]:
    """Yield the models; if several share a name, also with the catalog, their names include folders or whole paths."""
    catalog = load_catalog()
    taken = catalog.targets.keys() | catalog.drafts.keys()
    for model in models:
        own_names = (model.name, *model.aliases[:2])  # from the shortest to the longest
        names = [name for name in own_names if name.lower() not in taken] + [str(model.path)]
        name = next(name for name in names if sum(name.lower() in _list_names(other) for other in models) <= 1)
        yield LibraryModel(name, model.place, model.paths, model.aliases)


def _list_names(model: LibraryModel) -> tuple[str, ...]:
    return tuple(name.lower() for name in (model.name, *model.aliases))


def _list_gguf_names(folder: Path) -> list[str]:
    """Return the names of the GGUF files below a folder, relative to it; hidden folders are left out."""
    found: list[str] = []
    num_seen = 0
    for parent, folders, names in os.walk(folder):
        depth = len(Path(parent).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < MAX_DEPTH else []
        num_seen += len(names)
        if num_seen > MAX_FILES:
            break
        paths = (Path(parent, name) for name in names if name.lower().endswith(GGUF_SUFFIX) and name.isprintable())
        found += [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    return sorted(found)


# ---- ollama store: Ollama's models: each is a GGUF listed in a manifest, and its file is named by its digest
#
# manifests/registry.ollama.ai/library/llama3.2/3b JSON: the layers of llama3.2:3b blobs/sha256-DIGEST the GGUF of a
# layer
#
# Only reads, and skips unreadable files.
REGISTRY, LIBRARY, LATEST = "registry.ollama.ai", "library", "latest"
MODEL, PROJECTOR = "application/vnd.ollama.image.model", "application/vnd.ollama.image.projector"
BLOBS = "blobs"
BLOB = re.compile(r"sha256[-:][0-9a-f]{64}")
MAX_MANIFEST_BYTES, MAX_MANIFESTS = 2**20, 2000


def list_ollama_models(store: Path) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield name and files of each model of a store, by name: `llama3.2:3b`, `hf.co/user/repo:Q4_K_M`."""
    manifests = store / "manifests"
    paths = sorted(path for path, _ in zip(_iterate_files(manifests), range(MAX_MANIFESTS), strict=False))
    for path in paths:
        parts = path.relative_to(manifests).parts
        models = [store / BLOBS / name for name in read_layers(path, MODEL)]
        if len(parts) >= 3 and models and all(model.is_file() for model in models):
            yield make_name(parts), tuple(models)


def make_name(parts: tuple[str, ...]) -> str:
    """Return a model's name as Ollama shows it, of the parts of its manifest's path."""
    *place, model, tag = parts
    if place[:1] == [REGISTRY]:
        place = place[1:]
    if place == [LIBRARY]:
        place = []
    return f"{'/'.join([*place, model])}:{tag}"


def read_layers(manifest: Path, kind: str) -> list[str]:
    """Return the file names of a manifest's layers of a media type; none if it cannot be read."""
    try:
        if manifest.stat().st_size > MAX_MANIFEST_BYTES:
            return []
        content = read_json(read_regular(manifest))
    except (OSError, ValueError):
        return []
    layers = content.get("layers") if isinstance(content, dict) else None
    found = []
    for layer in layers if isinstance(layers, list) else []:
        digest = layer.get("digest") if isinstance(layer, dict) and layer.get("mediaType") == kind else None
        if isinstance(digest, str) and BLOB.fullmatch(digest):
            found.append(digest.replace(":", "-"))
    return found


def is_blob(path: Path) -> bool:
    """Return whether a file is named by its digest, so that its name is meaningless to users."""
    return BLOB.fullmatch(path.name) is not None


def find_blob_projector(path: Path) -> Path | None:
    """Return the image encoder of the model in a blob, from a manifest of its store; None if it has none."""
    if not is_blob(path) or path.parent.name != BLOBS:
        return None
    for manifest, _ in zip(_iterate_files(path.parent.parent / "manifests"), range(MAX_MANIFESTS), strict=False):
        if path.name in read_layers(manifest, MODEL):
            for name in read_layers(manifest, PROJECTOR):
                if (path.parent / name).is_file():
                    return path.parent / name
    return None


def _iterate_files(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in folder.rglob("*"):
            if path.is_file():
                yield path

"""The hub client's cache on disk: which models are complete, and which downloads are unfinished.

    models--USER--REPO/refs/main                   the commit of `main` at the last download
    models--USER--REPO/snapshots/COMMIT/NAME  ->      ../../blobs/SHA256
    models--USER--REPO/blobs/SHA256.incomplete        the bytes received so far

A model counts only if all its parts are in one snapshot. Reads names and sizes, never the models' content.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.draft_entries import DraftEntry
from eaglelocal.catalog.reference import (
    GGUF_SUFFIX,
    REPO_PREFIX,
    Profile,
    Reference,
    Repo,
    folder_name,
    parse_reference,
)
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.amounts import format_disk
from eaglelocal.core.own_files import open_regular, read_regular
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ModelFileError, ResourceError, UsageError
from eaglelocal.gguf.ggml_types import parse_quant
from eaglelocal.hub.repo_builds import RepoBuild, choose_build, group_builds, join_names

PARTIAL = ".incomplete"
MAIN = "main"
OTHER_DISK = "export HF_HUB_CACHE=/a/folder/on/another/disk"  # a hint


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model of a repository, in the snapshot of one commit."""

    repo: str
    commit: str
    is_main: bool
    build: RepoBuild
    paths: tuple[Path, ...]  # in the snapshot, in order
    blobs: tuple[Path, ...]  # the files with their bytes
    size_bytes: int
    modified_at: float  # seconds since 1970

    @property
    def reference(self) -> str:
        return f"{self.repo}:{self.build.tag}"

    @property
    def path(self) -> Path:
        """The file that llama.cpp opens; it finds the other parts beside it."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class Partial:
    """A file whose download is unfinished."""

    repo: str
    path: Path
    size_bytes: int
    modified_at: float


def make_write_error(problem: OSError, path: str, *, hint: str = OTHER_DISK) -> ResourceError:
    """Return the error for a file that could not be written or deleted, with the reason that the system gives."""
    if problem.errno == errno.ENOSPC:
        return ResourceError(f"the disk of {path} is full", hint=hint)
    return ResourceError(f"cannot write {path}: {problem.strerror or problem}", hint=hint)


def repo_folder(cache: Path, repo: str) -> Path:
    return cache / folder_name(repo)


def list_repos(cache: Path) -> list[str]:
    """Return the repositories of models with anything in the cache."""
    folders = _list_entries(cache, REPO_PREFIX, are_folders=True)
    return sorted(folder.name.removeprefix(REPO_PREFIX).replace("--", "/") for folder in folders)


def list_models(cache: Path) -> list[CachedModel]:
    """Return every model once, in the newest snapshot that has it complete; sorted by reference."""
    return [model for repo in list_repos(cache) for model in list_repo_models(cache, repo)]


def list_repo_models(cache: Path, repo: str) -> list[CachedModel]:
    """Return the models of one repository: those in the commit of `main`, or if it has none in the newest commit."""
    newest: dict[str, CachedModel] = {}
    for model in iterate_models(cache, repo):
        before = newest.get(model.build.stem)
        if before is None or (model.is_main, model.modified_at) > (before.is_main, before.modified_at):
            newest[model.build.stem] = model
    return sorted(newest.values(), key=lambda model: model.reference)


def iterate_models(cache: Path, repo: str) -> Iterator[CachedModel]:
    """Yield every complete model in every snapshot of a repository."""
    folder = repo_folder(cache, repo)
    main = read_main_commit(folder)
    for snapshot in _list_entries(folder / "snapshots", are_folders=True):
        for build in group_builds(list_gguf_files(snapshot)):
            if build.is_complete:
                yield _read_model(repo, snapshot, build, is_main=snapshot.name == main)


def list_gguf_files(snapshot: Path) -> list[str]:
    """Return the repository names of GGUF files that are complete in a snapshot."""
    found = (path for path in snapshot.rglob("*") if path.name.lower().endswith(GGUF_SUFFIX) and path.is_file())
    return sorted(path.relative_to(snapshot).as_posix() for path in found)


def find_snapshot(path: Path) -> Path:
    """Return the snapshot that holds a model's file; the file's folder if it is not in a hub's cache."""
    return next((folder for folder in path.parents if folder.parent.name == "snapshots"), path.parent)


def read_main_commit(folder: Path) -> str:
    """Return the commit of `main` at the last download; empty if there was none."""
    try:
        return read_regular(folder / "refs" / MAIN).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def find_partials(cache: Path) -> list[Partial]:
    return [partial for repo in list_repos(cache) for partial in find_repo_partials(cache, repo)]


def find_repo_partials(cache: Path, repo: str) -> list[Partial]:
    """Return the unfinished downloads with at least one byte."""
    found = []
    for path in _list_entries(repo_folder(cache, repo) / "blobs"):
        with suppress(OSError):  # its download ended just now
            if path.name.endswith(PARTIAL) and (status := path.stat()).st_size:
                found.append(Partial(repo, path, status.st_size, status.st_mtime))
    return found


def find_blob(path: Path) -> Path:
    """Return the blob that a snapshot's link names; the file itself if there are no links."""
    return Path(os.path.abspath(path.parent / os.readlink(path))) if path.is_symlink() else path


def _read_model(repo: str, snapshot: Path, build: RepoBuild, *, is_main: bool) -> CachedModel:
    paths = tuple(snapshot / name for name in build.names)
    statuses = [path.stat() for path in paths]
    return CachedModel(
        repo=repo,
        commit=snapshot.name,
        is_main=is_main,
        build=build,
        paths=paths,
        blobs=tuple(find_blob(path) for path in paths),
        size_bytes=sum(status.st_size for status in statuses),
        modified_at=max(status.st_mtime for status in statuses),
    )


def _list_entries(folder: Path, prefix: str = "", *, are_folders: bool = False) -> list[Path]:
    """Return the entries of a folder, sorted; none if it is missing or cannot be read."""
    try:
        found = sorted(entry for entry in folder.iterdir() if entry.name.startswith(prefix))
        return [entry for entry in found if entry.is_dir()] if are_folders else found
    except OSError:
        return []


# ---- cached files: lookup of a hub's model in the cache: its files, or an error with the command that fetches them
#
# Asks no hub. A reference names one repository, or a profile with several repositories that hold the same model.
@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of a hub as the user named it: in any of these repositories, with the named quantization."""

    text: str
    repos: tuple[str, ...]  # the preferred first
    quant: str | None = None
    size_bytes: int | None = None  # of the download, where the catalog knows it
    drafts: bool = False  # True: only a file named as a draft is wanted


def find_cached(cache: Path, reference: HubReference) -> CachedModel:
    """Return the model in the cache. Raises ModelFileError if it is not complete there, UsageError if ambiguous."""
    cached = [model for repo in reference.repos for model in list_repo_models(cache, repo)]
    if not cached:
        raise _make_missing_error(cache, reference)
    for repo in reference.repos:
        models = {model.build: model for model in cached if model.repo == repo}
        try:
            if models:
                return models[choose_build(list(models), reference.quant, repo=repo, drafts=reference.drafts)]
        except UsageError:
            if reference.quant is None:
                raise
    raise _make_missing_error(cache, reference, cached)


def _make_missing_error(cache: Path, reference: HubReference, cached: Sequence[CachedModel] = ()) -> ModelFileError:
    partial_bytes = sum(partial.size_bytes for repo in reference.repos for partial in find_repo_partials(cache, repo))
    size = format_disk(reference.size_bytes) if reference.size_bytes else ""
    if partial_bytes:
        of_size = f" of {size}" if size else ""
        state = f"is not on disk whole: {format_disk(partial_bytes)}{of_size} were downloaded"
    else:
        state = f"is not on disk{f' ({size} to download)' if size else ''}"
    if cached:
        there = join_names((model.reference for model in cached), like=reference.text, joint=" and ")
    else:
        near = difflib.get_close_matches(reference.repos[0], list_repos(cache), n=1, cutoff=0.8)
        there = near[0] if near and near[0] not in reference.repos else ""
    message = f"{reference.text} {state}{f'; on disk: {there}' if there else ''}"
    return ModelFileError(message, hint=f"eaglelocal pull {quote_path(reference.text)}")


# ---- verification: check that cached files have the hashes that the hub states
#
# A hub identifies large files by SHA-256 and small ones as git does, and its client names blobs by that hash. So files
# are compared with the hub's list, or with the blobs' own names if no hub answers.
SHA256_CHARS = 64
CHUNK_BYTES = 1 << 20
_HASH_NAME = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PromisedFile:
    """A file on disk, and the hash that its bytes should have."""

    name: str
    path: Path
    hash: str
    size_bytes: int


def make_hash(promised: str, size_bytes: int) -> hashlib._Hash:
    """Return a hash object of the promised kind: SHA-256, or for small files git's SHA-1, which includes the size."""
    if len(promised) == SHA256_CHARS:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size_bytes)


def list_promised_files(model: CachedModel) -> list[PromisedFile]:
    """Return a model's files with the hashes in their blobs' names; none on a disk without links."""
    files = []
    for path, size_bytes in ((path, path.stat().st_size) for path in model.paths):
        if _HASH_NAME.fullmatch(name := find_blob(path).name):
            files.append(PromisedFile(path.name, path, name, size_bytes))
    return files


def find_damaged(files: Sequence[PromisedFile], on_bytes: Callable[[int], None]) -> list[PromisedFile]:
    """Return the files whose bytes have another hash. Raises ResourceError if one cannot be read."""
    damaged = []
    for file in files:
        digest = make_hash(file.hash, file.size_bytes)
        try:
            with open_regular(file.path) as content:
                while chunk := content.read(CHUNK_BYTES):
                    digest.update(chunk)
                    on_bytes(len(chunk))
        except OSError as problem:
            what = f"{file.path} cannot be read: {problem.strerror or problem}"
            raise ResourceError(what, hint="check the disk; `eaglelocal rm` removes the model") from problem
        if digest.hexdigest() != file.hash:
            damaged.append(file)
    return damaged


# ---- typed path: check of a path that a user typed: an existing file, or an error that helps
#
# Searches folders for similar names only if something is wrong. Does not know what the file is for.
MAX_LISTED = 500  # names that are read from a folder


def check_file(path: Path, *, hint: str = "eaglelocal ls") -> None:
    """Raise ModelFileError on a folder or a missing file.

    hint  used if no name is similar
    """
    if os.path.isdir(path):
        names = list(filter(str.isprintable, list_gguf_names(path)))
        hint = f"give a file in it, such as {path / names[0]}" if names else "give the path of a .gguf file"
        raise ModelFileError(f"{path} is a folder", hint=hint)
    if not os.path.exists(path):  # unlike Path.exists, also false on a name that no file can have
        near = difflib.get_close_matches(path.name, filter(str.isprintable, list_gguf_names(path.parent)), n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else hint
        raise ModelFileError(f"{path} does not exist", hint=hint)


def list_gguf_names(folder: Path) -> list[str]:
    """Return the names of the GGUF files in a folder, sorted; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MAX_LISTED), strict=False)]
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(GGUF_SUFFIX))


# ---- hub references: resolve references to a hub's models: their repositories, and the catalog's facts. Asks no hub
DEFAULT_QUANT = "Q4_K_M"  # its size is shown if no quantization was named


def make_hub_reference(parsed: Profile | Repo, catalog: Catalog, *, drafts: bool = False) -> HubReference:
    """Return a hub reference to a profile or repository. Raises UsageError with the nearest name if unknown."""
    known = find_known_target(parsed, catalog)
    size = known.quantization(parsed.quant or DEFAULT_QUANT) if known else None
    size_bytes = size.num_bytes if size else None
    if isinstance(parsed, Profile):
        target = catalog.target(parsed.id, parsed.quant)
        name, repos = target.id, target.repos
    else:
        name, repos = parsed.name, (parsed.name,)
    return HubReference(f"{name}:{parsed.quant}" if parsed.quant else name, repos, parsed.quant, size_bytes, drafts)


def resolve_draft_reference(text: str, catalog: Catalog) -> HubReference:
    """Resolve `user/repo[:quant]`, a draft of the catalog, or a target of it that drafts for a larger one."""
    entry = catalog.drafts.get(text.lower())
    if entry is not None:
        return refer_to_entry(entry)
    parsed = parse_reference(text)
    if isinstance(parsed, Repo | Profile):
        return make_hub_reference(parsed, catalog, drafts=True)
    raise UsageError(f"{text!r} is not a draft of a hub", hint="--draft auto")


def find_known_target(parsed: Reference, catalog: Catalog) -> TargetEntry | None:
    """Return the catalog's entry for a profile, or for a repository that holds one; None if unknown."""
    if isinstance(parsed, Profile):
        return catalog.target(parsed.id, parsed.quant)
    if isinstance(parsed, Repo):
        name = parsed.name.lower()
        return next((t for t in catalog.targets.values() if name in (repo.lower() for repo in t.repos)), None)
    return None


def find_nearest_repo(name: str) -> str | None:
    """Return the repository of the catalog that a mistyped name probably meant; None if none is similar."""
    repos = [repo for target in load_catalog().targets.values() for repo in target.repos if repo != name]
    near = difflib.get_close_matches(name, repos, n=1, cutoff=0.8)
    return near[0] if near else None


def refer_to_entry(entry: DraftEntry) -> HubReference:
    """Return a draft's hub reference: to a GGUF if there is one, else to the head to import."""
    if entry.is_in_target:
        raise UsageError(
            f"{entry.id} is a layer in the files of {entry.gguf_repo}", hint=f"eaglelocal pull {entry.targets[0]}"
        )
    quant = parse_quant(entry.file.removesuffix(GGUF_SUFFIX)) if entry.file else None
    repo = entry.gguf_repo or entry.repo
    if repo is None:
        raise UsageError(f"the catalog has no repository for {entry.id}", hint="--draft user/repo")
    sizes = entry.sizes
    size = sizes.get("file") or sizes.get("bf16") or sizes.get("f16")
    return HubReference(f"{repo}:{quant}" if quant else repo, (repo,), quant or None, size, drafts=True)


def resolve_hub_reference(text: str) -> HubReference:
    """Resolve a model of a hub, target or draft. Raises UsageError on anything else."""
    catalog = load_catalog()
    if text.lower() in catalog.drafts:
        return resolve_draft_reference(text, catalog)
    parsed = parse_reference(text)
    if isinstance(parsed, Repo | Profile):
        return make_hub_reference(parsed, catalog)
    raise UsageError(f"{text!r} is not a model of a hub", hint="eaglelocal ls")

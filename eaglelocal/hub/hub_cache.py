"""The hub client's cache on disk: which models are complete, and which downloads are unfinished.

    models--USER--REPO/refs/main                      the commit that `main` was
    models--USER--REPO/snapshots/COMMIT/NAME  ->      ../../blobs/SHA256
    models--USER--REPO/blobs/SHA256.incomplete        the bytes received so far

A model counts only if all its parts are in one snapshot. Reads names and sizes, never the models' content.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError
from eaglelocal.hub.repo_builds import RepoBuild, group_builds

PREFIX = "models--"
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
    return cache / f"{PREFIX}{repo.replace('/', '--')}"


def list_repos(cache: Path) -> list[str]:
    """Return the repositories of models with anything in the cache."""
    return sorted(entry.name.removeprefix(PREFIX).replace("--", "/") for entry in _list_folders(cache, PREFIX))


def list_models(cache: Path) -> list[CachedModel]:
    """Return every model once, in the newest snapshot that has it complete; sorted by reference."""
    return [model for repo in list_repos(cache) for model in list_repo_models(cache, repo)]


def list_repo_models(cache: Path, repo: str) -> list[CachedModel]:
    """Return the models of one repository: those of `main` if it has them, else of the newest commit."""
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
    for snapshot in _list_folders(folder / "snapshots"):
        for build in group_builds(list_gguf_files(snapshot)):
            if build.is_complete:
                yield _read_model(repo, snapshot, build, is_main=snapshot.name == main)


def list_gguf_files(snapshot: Path) -> list[str]:
    """Return the names in the repository of the GGUF files that a snapshot has completely."""
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
    for path in _list_files(repo_folder(cache, repo) / "blobs", PARTIAL):
        try:
            status = path.stat()
        except OSError:  # its download ended just now
            continue
        if status.st_size:
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


def _list_files(folder: Path, suffix: str) -> list[Path]:
    """Return the folder's files with this suffix; none if it is missing or cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(suffix))
    except OSError:
        return []


def _list_folders(parent: Path, prefix: str = "") -> list[Path]:
    try:
        return sorted(entry for entry in parent.iterdir() if entry.name.startswith(prefix) and entry.is_dir())
    except OSError:
        return []

"""Removal of models from disk: first a plan, with the space it frees and other users of the bytes, then the deletion.

In the hub's cache a model is removed from every revision that has it. Its bytes are deleted too, unless another name in
the repository links to them. Empty snapshots are removed as the hub's client expects it.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from eaglelocal.core.own_files import read_regular
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_word
from eaglelocal.hub.hub_cache import (
    PARTIAL,
    CachedModel,
    Partial,
    find_blob,
    iterate_models,
    list_gguf_files,
    make_write_error,
    read_main_commit,
    repo_folder,
)
from eaglelocal.hub.projector_resolver import list_projectors


@dataclass(frozen=True, slots=True)
class Removal:
    """A plan of the files to delete. `kept` names, for each blob that stays, the other links to it."""

    what: str
    paths: tuple[Path, ...]  # files and links, in the order of deletion
    freed_bytes: int
    revisions: tuple[str, ...] = ()  # short commits that have the model; that of main is marked `(main)`
    kept: Mapping[Path, tuple[str, ...]] = field(default_factory=dict)
    repo_folder: Path | None = None  # its empty folders are removed


def plan_removal(cache: Path, models: Sequence[CachedModel], partials: Sequence[Partial] = ()) -> Removal:
    """Plan the removal of models and unfinished downloads of one repository, from all its revisions."""
    repo = models[0].repo if models else partials[0].repo
    folder = repo_folder(cache, repo)
    stems = {model.build.stem for model in models}
    gone = [model for model in iterate_models(cache, repo) if model.build.stem in stems]
    links = {path for model in gone for path in model.paths} | set(_list_unused_projectors(cache, repo, gone))
    users = _map_links(folder)
    own = Path(os.path.abspath(folder / "blobs"))  # files elsewhere that are only linked to stay
    blobs = {blob for blob in map(find_blob, links) if blob.parent == own} - links
    kept = {blob: _describe_links(users[blob] - links, folder) for blob in blobs if users[blob] - links}
    freed = [*sorted(blobs - kept.keys()), *(partial.path for partial in partials)]
    unfinished = [f"{len(partials)} unfinished of {repo}"] if partials else []
    return Removal(
        what=", ".join([*sorted({model.reference for model in models}), *unfinished]),
        paths=(*sorted(links), *freed),
        freed_bytes=_count_bytes([*freed, *(link for link in links if not link.is_symlink())]),
        revisions=_list_revisions(gone, folder),
        kept=kept,
        repo_folder=folder,
    )


def plan_file_removal(what: str, paths: Sequence[Path]) -> Removal:
    """Plan the removal of files that nothing else uses; a folder must come after its contents."""
    return Removal(what, tuple(paths), _count_bytes(paths))


def remove(removal: Removal) -> None:
    """Delete the planned files. Raises ResourceError if something cannot be deleted; some files may then be gone."""
    try:
        for path in removal.paths:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        if removal.repo_folder is not None:
            _tidy(removal.repo_folder)
    except OSError as problem:
        failed = str(problem.filename)
        raise make_write_error(problem, failed, hint=f"ls -ld {quote_word(failed)}") from problem


def _list_unused_projectors(cache: Path, repo: str, gone: Sequence[CachedModel]) -> Iterator[Path]:
    """Yield the projectors of snapshots that have no model left to use them."""
    left = {model.commit for model in iterate_models(cache, repo) if model not in gone and not model.build.is_draft}
    for commit in {model.commit for model in gone} - left:
        snapshot = repo_folder(cache, repo) / "snapshots" / commit
        yield from (snapshot / name for name in list_projectors(list_gguf_files(snapshot)))


def _map_links(folder: Path) -> Mapping[Path, set[Path]]:
    """Map each blob to the links of the repository that lead to it."""
    users: dict[Path, set[Path]] = defaultdict(set)
    for path in (folder / "snapshots").rglob("*"):
        if path.is_symlink():
            users[find_blob(path)].add(path)
    return users


def _describe_links(links: Iterable[Path], folder: Path) -> tuple[str, ...]:
    """Return the links as `model.gguf in 1a2b3c4`."""
    relative = sorted(link.relative_to(folder / "snapshots") for link in links)
    return tuple(f"{Path(*place.parts[1:]).as_posix()} in {place.parts[0][:7]}" for place in relative)


def _list_revisions(models: Sequence[CachedModel], folder: Path) -> tuple[str, ...]:
    main = read_main_commit(folder)
    commits = sorted({model.commit for model in models}, key=lambda commit: (commit != main, commit))
    return tuple(f"{commit[:7]} (main)" if commit == main else commit[:7] for commit in commits)


def _count_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes that deleting the files frees; a link frees none."""
    return sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink())


def _tidy(folder: Path) -> None:
    """Remove empty snapshots, refs to snapshots that are gone, and a repository that has nothing left.

    While a download is unfinished all of that stays, because its file will be linked there.
    """
    if any((folder / "blobs").glob(f"*{PARTIAL}")):
        return
    snapshots = folder / "snapshots"
    for snapshot in _list_children(snapshots):
        if not any(path.is_file() or path.is_symlink() for path in snapshot.rglob("*")):
            shutil.rmtree(snapshot)
    left = {snapshot.name for snapshot in _list_children(snapshots)}
    for ref in (path for path in (folder / "refs").rglob("*") if path.is_file()):
        if read_regular(ref).decode(errors="replace").strip() not in left:
            ref.unlink()
    if not left and not _list_children(folder / "blobs"):
        shutil.rmtree(folder)


def _list_children(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def parse_etag(partial: Partial) -> str:
    """Return the expected hash of an unfinished file; newer clients append a word to it."""
    return partial.path.name.removesuffix(PARTIAL).split(".")[0]

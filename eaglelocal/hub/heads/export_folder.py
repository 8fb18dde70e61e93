"""The folder of an exported head: found by name, written whole or not at all, and never over the user's own files.

It is written beside its place and renamed. Formats are in export_tensors.py.
"""

from __future__ import annotations

import difflib
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.core.atomic_file import SHARED, flush_file, make_folder, sync_folder
from eaglelocal.core.user_paths import expand_path, quote_path, quote_word
from eaglelocal.errors import IncompatibleError, ModelFileError, ResourceError, UsageError
from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.gguf.draft_pairing import detect_draft_kind, is_same_model
from eaglelocal.gguf.eagle_info import VERIFIER_KEY, EagleInfo
from eaglelocal.gguf.medusa_info import is_medusa
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import count_share
from eaglelocal.hub.heads.head_folder import CONFIG, REPOSITORY, WEIGHTS_SUFFIX
from eaglelocal.hub.heads.head_store import WRITER, check_disk, is_abandoned, name_writer
from eaglelocal.hub.heads.safetensors_files import SHARD_BYTES, OutgoingTensor, write_shards
from eaglelocal.hub.hub_cache import find_cached, resolve_draft_reference
from eaglelocal.hub.inventory import list_imported

PARTIAL, OLDER = ".partial", ".older"  # OLDER is the prefix of a folder that is being replaced
PARTIAL_NAME = re.compile(rf"\.{WRITER}{re.escape(PARTIAL)}$")
KINDS = {"dflash": "a block head", "mtp": "an MTP layer", "draft_model": "a model"}

Progress = Callable[[float], None]


def find_head_file(reference: str) -> Path:
    """Return the file of a head: a path, the name of a head that was imported or trained here, or a hub's reference.

    Raises UsageError or ModelFileError with valid ways to name one.
    """
    path = expand_path(reference)
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name the GGUF file of a head")
    if path.exists():
        return path
    heads = list_imported()
    named = [one.path for one in heads if reference in (one.description.name, one.path.stem)]
    if len(named) > 1:
        raise UsageError(f"{len(named)} heads are named {reference!r}", hint=f"name its file: {named[0]}")
    if named:
        return named[0]
    if path.suffix == ".gguf":
        raise ModelFileError(f"{path} does not exist", hint="eaglelocal ls")
    try:
        wanted = resolve_draft_reference(reference, load_catalog())
    except UsageError:
        near = difflib.get_close_matches(reference, [one.path.stem for one in heads], n=1)
        guess = f"did you mean `{near[0]}`? " if near else ""
        raise UsageError(f"no head is named {reference!r}", hint=f"{guess}eaglelocal ls") from None
    return find_cached(locations.hub_cache_dir(), wanted).path


def read_eagle_head(path: Path) -> EagleInfo:
    """Read the header of an EAGLE or P-EAGLE head. Raises IncompatibleError for others, ModelFileError on damage."""
    header = read_header(path)
    kind = detect_draft_kind(header)
    if kind != EAGLE or is_medusa(header):
        alone = f"eaglelocal export {quote_path(path)} --out FOLDER"
        raise IncompatibleError(
            f"{path.name} is {KINDS.get(kind, 'a Medusa head')}, which neither format knows",
            hint=alone if is_medusa(header) else "EAGLE-3, EAGLE-3.1, P-EAGLE and Medusa heads can be exported",
        )
    return EagleInfo.from_header(header)


def find_target_repo(info: EagleInfo) -> str:
    """Return the repository of a head's target's original weights, by its file or the catalog; else empty."""
    stated = info.header.metadata.get(VERIFIER_KEY)
    if isinstance(stated, str) and stated:
        return stated
    repos = {target.source_repo for target in load_catalog().targets.values() if target.source_repo}
    return next((repo for repo in sorted(repos) if is_same_model(info.target_name, repo)), "")


def check_target_repo(repo: str) -> str:
    """Return the name of a target. Raises UsageError where it is neither a repository nor a folder."""
    if not REPOSITORY.fullmatch(repo) and not os.path.isdir(repo):
        raise UsageError(f"{repo!r} is neither a repository nor a folder", hint="--target-repo USER/REPO")
    return repo


def check_folder(folder: Path, *, is_forced: bool) -> None:
    """Raise UsageError if the folder exists and must not be replaced.

    is_forced  a folder may be replaced if it holds an exported head and nothing else
    """
    if not os.path.lexists(folder):
        return
    another = f"--out {quote_word(f'{folder}-head')}"
    if folder.is_symlink() or not folder.is_dir():
        raise UsageError(f"{folder} exists and is not a folder", hint=another)
    found = sorted(path.name for path in folder.iterdir())
    if not found:
        return
    own = (WEIGHTS_SUFFIX, f"{WEIGHTS_SUFFIX}.index.json")
    if others := [name for name in found if name != CONFIG and not name.endswith(own)]:
        raise UsageError(f"{folder} holds {others[0]}, which is not of a head", hint=another)
    if not is_forced:
        raise UsageError(f"{folder} exists and is not empty", hint="`--force` replaces it")


def write_head_folder(
    folder: Path,
    config: dict[str, object],
    tensors: Sequence[OutgoingTensor],
    *,
    on_progress: Progress,
    shard_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Write a head's folder and return the names of its files with weights; an older one is replaced.

    Raises ResourceError if the disk is full or cannot be written, and then leaves nothing behind.
    """
    total = sum(tensor.nbytes for tensor in tensors)
    try:
        make_folder(folder.parent, SHARED)
        check_disk(folder.parent, total, remedy="choose a folder of another disk")
        with _partial_folder(folder) as partial:
            files = write_shards(partial, tensors, on_bytes=count_share(total, on_progress), shard_bytes=shard_bytes)
            (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            for file in partial.iterdir():
                flush_file(file)
            sync_folder(partial)
            _replace(partial, folder)
    except OSError as error:
        message = f"cannot write {folder}: {error.strerror}"
        raise ResourceError(message, hint=f"--out {locations.suggest_path('head')}") from error
    return [written.name for written in files]


@contextmanager
def _partial_folder(folder: Path) -> Iterator[Path]:
    """Make a folder beside `folder`, deleted afterwards unless it was renamed, and delete those of killed writers.

    A writer may have been killed after it had moved the older head away: that is moved back first.
    """
    name = glob.escape(folder.name)
    found = [left for prefix in (OLDER, "") for left in folder.parent.glob(f"{prefix}.{name}.*{PARTIAL}")]
    for left in (left for left in found if is_abandoned(left.name, PARTIAL_NAME)):
        if left.name.startswith(OLDER) and not folder.exists():
            left.rename(folder)
        else:
            shutil.rmtree(left, ignore_errors=True)
    partial = folder.parent / f".{folder.name}.{name_writer()}{PARTIAL}"
    partial.mkdir(SHARED)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, folder: Path) -> None:
    """Rename the partial folder; an older head is moved away first, and back if that fails."""
    older = partial.with_name(f"{OLDER}{partial.name}")
    if is_replaced := folder.exists():
        folder.rename(older)
    try:
        partial.rename(folder)
    except OSError:
        if is_replaced:
            with suppress(OSError):
                older.rename(folder)
        raise
    shutil.rmtree(older, ignore_errors=True)
    sync_folder(folder.parent)

"""The files of `demo@SIZE[:TYPE]`: written once, whole or not at all.

The result answers as the small embedded model does and costs what a large one costs (see `widen.py`). Names carry a
hash of the sources, so that a rebuilt demo never uses the inflation of its predecessor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from eaglelocal.core.atomic_file import flush_and_rename
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.own_files import open_regular
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.inflation.generated_files import (
    FilePlan,
    Progress,
    WriteProgress,
    check_disk,
    hold_folder,
    make_partial_path,
    no_progress,
    remove_leftovers,
    write_plan,
)
from eaglelocal.hub.inflation.inflated_sizes import ModelSize
from eaglelocal.probe.probe import free_bytes

METHOD = "1"  # part of every name: raise it when the same sources would give other files


@dataclass(frozen=True, slots=True)
class InflatedPaths:
    target: Path
    head: Path

    @property
    def complete(self) -> bool:
        return self.target.is_file() and self.head.is_file()


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The two files of an inflated demo."""

    target: FilePlan
    head: FilePlan

    @property
    def disk_bytes(self) -> int:
        return self.target.disk_bytes + self.head.disk_bytes


def inflate(
    reference: ModelSize,
    *,
    source_target: Path,
    source_head: Path,
    folder: Path,
    on_progress: Progress = no_progress,
    free_bytes: Callable[[Path], int] = free_bytes,
) -> InflatedPaths:
    """Return the inflated pair, written now if it is missing.

    Raises ResourceError when the disk is too small, ModelFileError or IncompatibleError when the sources cannot be
    inflated; then leaves nothing behind.
    """
    paths = locate_inflated(reference, source_target=source_target, source_head=source_head, folder=folder)
    if paths.complete:
        remove_leftovers(folder)
        return paths
    with hold_folder(folder):
        if not paths.complete:  # the process that held the lock may have written it
            blueprint = plan_inflation(reference, source_target, source_head)
            _check_room(blueprint, reference, free_bytes(folder))
            total_bytes = blueprint.target.data_bytes + blueprint.head.data_bytes
            size = format_disk(total_bytes)
            what = f"writing the embedded guide at the cost of {reference.phrase} ({size}, once)"
            _write_pair(blueprint, paths, WriteProgress(total_bytes, what, on_progress))
    return paths


def plan_inflation(reference: ModelSize, source_target: Path, source_head: Path) -> Blueprint:
    """Plan an inflated pair. Raises ModelFileError or IncompatibleError where the sources cannot be inflated."""
    from eaglelocal.hub.inflation.blueprint import grow_target, plan_head, plan_target  # imports numpy

    target, head = read_header(source_target), read_header(source_head)
    check_head(EagleInfo.from_header(head), ModelInfo.from_header(target))
    growth = grow_target(reference, target)
    return Blueprint(plan_target(reference, target), plan_head(reference, head, target, growth))


def sketch_pair(reference: ModelSize, source_target: Path, source_head: Path) -> tuple[Header, Header]:
    """Return the headers that target and head will have; nothing is written. Raises as plan_inflation."""
    blueprint = plan_inflation(reference, source_target, source_head)
    return blueprint.target.sketch_header(), blueprint.head.sketch_header()


def check_room(
    reference: ModelSize,
    *,
    source_target: Path,
    source_head: Path,
    folder: Path,
    free_bytes: Callable[[Path], int] = free_bytes,
) -> None:
    """Check that the disk has room for the pair; writes nothing. Raises as `inflate` does."""
    _check_room(plan_inflation(reference, source_target, source_head), reference, free_bytes(folder))


def locate_inflated(reference: ModelSize, *, source_target: Path, source_head: Path, folder: Path) -> InflatedPaths:
    """Return the paths of the pair, written or not."""
    digest = hashlib.sha256(METHOD.encode())
    for source in (source_target, source_head):
        digest.update(_hash_content(source))
    stem = f"demo-{reference.slug}-{digest.hexdigest()[:12]}"
    return InflatedPaths(folder / f"{stem}.gguf", folder / f"{stem}-head.gguf")


def _hash_content(path: Path) -> bytes:
    read_header(path, keys=())  # raises on a missing or damaged source
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _check_room(blueprint: Blueprint, reference: ModelSize, free_bytes: int) -> None:
    check_disk(
        f"a {reference.label} {reference.type} model",
        blueprint.disk_bytes,
        free_bytes,
        hint="free some space, or take a smaller size, such as `demo@300m` or a `:q4_0`",
    )


def _write_pair(blueprint: Blueprint, paths: InflatedPaths, tally: WriteProgress) -> None:
    partial = InflatedPaths(make_partial_path(paths.target), make_partial_path(paths.head))
    write_plan(blueprint.head, partial.head, tally.add)
    write_plan(blueprint.target, partial.target, tally.add)
    check_head(EagleInfo.from_header(read_header(partial.head)), ModelInfo.from_header(read_header(partial.target)))
    flush_and_rename(partial.head, paths.head)
    flush_and_rename(partial.target, paths.target)

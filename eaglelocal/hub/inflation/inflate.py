"""The files of `demo@SIZE[:TYPE]`: written once, whole or not at all.

The result answers as the small embedded model does and costs what a large one costs (see `widen.py`). Names carry a
hash of the sources, so that a rebuilt demo never uses the inflation of its predecessor.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from eaglelocal.core.amounts import format_disk
from eaglelocal.core.atomic_file import flush_and_rename
from eaglelocal.core.own_files import open_regular
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import count_share
from eaglelocal.hub.inflation.generated_files import (
    FilePlan,
    Progress,
    check_disk,
    hold_folder,
    make_partial_path,
    no_progress,
    remove_leftovers,
    write_plan,
)
from eaglelocal.hub.inflation.inflated_sizes import ModelSize

METHOD = "1"  # part of every name: raise it when the same sources would give other files


@dataclass(frozen=True, slots=True)
class InflatedPair:
    """An inflated demo and its head, written or not.

    Methods that read the sources raise ModelFileError or IncompatibleError if those cannot be inflated.
    """

    size: ModelSize
    sources: tuple[Path, Path]  # target and head
    target: Path
    head: Path

    @property
    def complete(self) -> bool:
        return self.target.is_file() and self.head.is_file()

    def sketch(self) -> tuple[Header, Header]:
        """Return the headers that target and head will have; nothing is written."""
        target, head = self._plan()
        return target.sketch_header(), head.sketch_header()

    def check_room(self) -> None:
        """Raise ResourceError if the disk has no room for the pair."""
        self._check_room(self._plan())

    def write(self, on_progress: Progress = no_progress) -> InflatedPair:
        """Write the pair if it is missing, and return it. If that fails, nothing is left behind.

        Raises ResourceError if the disk is too small.
        """
        folder = self.target.parent
        if self.complete:
            remove_leftovers(folder)
            return self
        with hold_folder(folder):
            if not self.complete:  # the process that held the lock may have written it
                plans = self._plan()
                self._check_room(plans)
                self._write(plans, on_progress)
        return self

    def _plan(self) -> tuple[FilePlan, FilePlan]:
        from eaglelocal.hub.inflation.blueprint import grow_target, plan_head, plan_target  # imports numpy

        target, head = self.sources
        model, eagle = ModelInfo.from_header(read_header(target)), EagleInfo.from_header(read_header(head))
        check_head(eagle, model)
        return plan_target(self.size, model), plan_head(self.size, eagle, model.header, grow_target(self.size, model))

    def _check_room(self, plans: tuple[FilePlan, FilePlan]) -> None:
        check_disk(
            f"a {self.size.label} {self.size.type} model",
            sum(plan.disk_bytes for plan in plans),
            self.target.parent,
            hint="free some space, or take a smaller size, such as `demo@300m` or a `:q4_0`",
        )

    def _write(self, plans: tuple[FilePlan, FilePlan], on_progress: Progress) -> None:
        total_bytes = sum(plan.data_bytes for plan in plans)
        what = f"writing {self.size.reference} at the cost of {self.size.phrase} ({format_disk(total_bytes)}, once)"
        count = count_share(total_bytes, lambda share: on_progress(share, what))
        target, head = make_partial_path(self.target), make_partial_path(self.head)
        write_plan(plans[1], head, count)
        write_plan(plans[0], target, count)
        check_head(EagleInfo.from_header(read_header(head)), ModelInfo.from_header(read_header(target)))
        flush_and_rename(head, self.head)
        flush_and_rename(target, self.target)


def locate_inflated(size: ModelSize, sources: tuple[Path, Path], folder: Path) -> InflatedPair:
    """Return the pair of a size. Raises ModelFileError where a source is missing or damaged."""
    digest = hashlib.sha256(METHOD.encode())
    for source in sources:
        read_header(source, keys=())  # raises
        with open_regular(source) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    stem = f"demo-{size.slug}-{digest.hexdigest()[:12]}"
    return InflatedPair(size, sources, folder / f"{stem}.gguf", folder / f"{stem}-head.gguf")

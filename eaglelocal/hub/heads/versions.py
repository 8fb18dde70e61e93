"""The versions of a learned head on disk: a folder for each pair of a target's file and the head it began with.

    learned/KEY/v0001.gguf  v0002.gguf ...   the newest few; version 0 is the base head, which stays where it is
    learned/KEY/versions.json                their records (version_records.py)

Every change is made under a lock, and the record is written last: a process that is killed leaves the state before the
change, and perhaps a file without a record, which the next change deletes. Records that cannot be read count as none.
Knows neither how a version was learned nor who loads it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.core.atomic_file import (
    flush_and_rename,
    flush_file,
    is_gone,
    make_absolute,
    write_atomically,
)
from eaglelocal.core.own_files import fingerprint, hold_lock, read_own
from eaglelocal.errors import UsageError
from eaglelocal.gguf.header import list_named_parts
from eaglelocal.gguf.model_info import fingerprint_model
from eaglelocal.hub.heads.head_store import WRITER, delete_leftovers, is_abandoned, name_writer
from eaglelocal.hub.heads.version_records import (
    BASE,
    HeadVersion,
    HeldBackFigures,
    LearnedFrom,
    VersionList,
    VersionState,
    read_versions,
    write_versions,
)

RECORDS, LOCK = "versions.json", ".lock"
MAX_VERSIONS = 3
MAX_RECORD_BYTES = 1 << 20
VERSION_NAME = re.compile(r"v\d{4,}\.gguf")
CANDIDATE_NAME = re.compile(rf"^candidate-{WRITER}\.gguf$")


def find_versions(target: Path, base: Path) -> HeadVersions:
    """Return the versions of a head (the original, not a quantized copy) for a target. Raises OSError."""
    return HeadVersions(locations.learned_dir() / _name_folder(fingerprint_model(target), base))


def list_learned_heads() -> list[HeadVersions]:
    """Return the versions of each pair of a target and a head that has any."""
    return [HeadVersions(records.parent) for records in sorted(locations.learned_dir().glob(f"*/{RECORDS}"))]


class HeadVersions:
    """The versions in one folder, which need not exist. Nothing is cached: other processes may change it too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ---- reading
    def read(self) -> tuple[VersionList, str]:
        """Return the versions, and a note if their record cannot be read; it counts as none then."""
        path = self.folder / RECORDS
        try:
            return read_versions(read_own(path, MAX_RECORD_BYTES)), ""
        except FileNotFoundError:
            return VersionList(), ""
        except (OSError, ValueError) as error:
            problem = error.strerror if isinstance(error, OSError) else error
            return VersionList(), f"the record of learned versions cannot be read ({problem}): {path}"

    def path(self, number: int) -> Path:
        """Return the file of a version other than the base head, whether or not it exists."""
        return self.folder / HeadVersion(number=number, made_at=0.0, learned_from=LearnedFrom()).file_name

    def scratch_path(self) -> Path:
        """Return a path in the folder, of this process alone, to write the next candidate to."""
        return self.folder / f"candidate-{name_writer()}.gguf"

    def find_orphan_reason(self, models: Collection[str] = ()) -> str:
        """Return why these versions cannot draft: a file is gone or has been replaced.

        models  fingerprints of models on this disk: a target among them was only moved, and its first head perhaps too

        "" means that they can draft, or that it is unknown; then `find_doubt` has the reason.
        """
        return self._find_loss(models)[0]

    def find_doubt(self) -> str:
        """Return why it is unknown whether versions can draft: a file is unreadable, or its path is not recorded."""
        return self._find_loss(())[1]

    def _find_loss(self, models: Collection[str]) -> tuple[str, str]:
        """Return why they cannot draft, and why that is unknown; both empty if they can."""
        known, note = self.read()
        target, base = Path(known.target_path), Path(known.base_path)
        if note:
            return "", note
        if not (target.is_absolute() and base.is_absolute()):
            return "", "where its files are was not kept, or only relative to a folder"
        try:
            lost, doubt = _find_target_loss(target, known.target_key)
            if lost or doubt:
                return "" if known.target_key in models else lost, doubt
            if _is_gone(base):
                return f"{base} is not there any more", ""
            has_changed = _name_folder(known.target_key, base) != self.folder.name
        except OSError as error:
            return "", f"{error.filename or target} cannot be read ({error.strerror})"
        return f"{base} has changed" if has_changed else "", ""

    # ---- changes; each raises OSError where the folder cannot be written
    def name(self, *, target: Path, target_label: str, base: Path, base_label: str) -> None:
        """Record the names of both models for display, and where their files are."""
        named = VersionList(
            target=target_label,
            base=base_label,
            target_key=fingerprint_model(target),
            target_path=str(make_absolute(target)),
            base_path=str(make_absolute(base)),
        )
        self._change(
            lambda known: replace(named, versions=known.versions, last_number=known.last_number, pinned=known.pinned)
        )

    def note_paths(self, target: Path, base: Path) -> None:
        """Record where both files are now, if they were moved."""
        known, _ = self.read()
        paths = str(make_absolute(target)), str(make_absolute(base))
        if known.target_path and (known.target_path, known.base_path) != paths:
            self._change(lambda known: replace(known, target_path=paths[0], base_path=paths[1]))

    def add_candidate(
        self, made: Path, *, made_at: float, learned_from: LearnedFrom, figures: HeldBackFigures | None = None
    ) -> HeadVersion:
        """Move a complete head (see `scratch_path`) into the folder, as the next version; it is not used yet."""
        flush_file(made)  # before taking the lock: it takes long, and a learning process may be frozen meanwhile
        with hold_lock(self.folder / LOCK):
            known, _ = self.read()
            # judged by files too: an engine may still use one whose record was lost
            files = [int(path.stem[1:]) for path in self.folder.glob("v*.gguf") if VERSION_NAME.fullmatch(path.name)]
            number = max([known.last_number, *files]) + 1
            version = HeadVersion(number=number, made_at=made_at, learned_from=learned_from, figures=figures)
            flush_and_rename(made, self.path(number))
            self._write(replace(known, versions=(*known.versions, version), last_number=number))
        return version

    def judge(self, number: int, figures: HeldBackFigures) -> None:
        """Record the figures of a version. Raises UsageError if there is none with this number."""
        self._change(lambda known: _replace_version(known, replace(_find(known, number), figures=figures)))

    def make_current(self, number: int, why: str) -> None:
        """Use a version, or the base head (0), from now on; the one before becomes old. Raises as `judge`."""
        self._change(lambda known: _make_current(known, number, why, VersionState.OLD))

    def roll_back(self, why: str) -> int:
        """Return to the version before the current one, or to the base head; return its number.

        The current one stays on disk as rolled back. Without a current version nothing changes.
        """

        def change(known: VersionList) -> VersionList:
            before = [each.number for each in known.versions if each.state is VersionState.OLD]
            before = [number for number in before if number < known.current and self.path(number).is_file()]
            return _make_current(known, max(before, default=BASE), why, VersionState.ROLLED_BACK)

        return self._change(change).current

    def refuse(self, number: int, why: str) -> None:
        """Reject a candidate that was judged worse. Raises UsageError as judge."""
        self._change(
            lambda known: _replace_version(
                known, replace(_find(known, number), state=VersionState.ROLLED_BACK, why=why)
            )
        )

    def pin(self, number: int | None) -> None:
        """Use this version, or the base head (0), regardless of what is learned; None: use the current one again.

        Raises UsageError if there is no version with this number on disk.
        """

        def change(known: VersionList) -> VersionList:
            if number and not (_find(known, number) and self.path(number).is_file()):
                raise UsageError(f"the file of version {number} is missing", hint="eaglelocal heads")
            return replace(known, pinned=number)

        self._change(change)

    def _change(self, change: Callable[[VersionList], VersionList]) -> VersionList:
        with hold_lock(self.folder / LOCK):
            return self._write(change(self.read()[0]))

    def _write(self, versions: VersionList) -> VersionList:
        """Write the records of the versions to keep, and return these; then delete the files without a record."""
        kept = prune(versions)
        write_atomically(self.folder / RECORDS, write_versions(kept))
        names = {version.file_name for version in kept.versions}
        for path in self.folder.glob("*.gguf"):
            if path.name not in names and (
                VERSION_NAME.fullmatch(path.name) or is_abandoned(path.name, CANDIDATE_NAME)
            ):
                with suppress(OSError):
                    path.unlink()
        delete_leftovers(self.folder)
        return kept


def prune(versions: VersionList) -> VersionList:
    """Return the versions to keep: the used and the current one, then the newest; rolled-back ones are kept last."""

    def rank(version: HeadVersion) -> tuple[bool, bool, int]:
        is_needed = version.number in (versions.pinned, versions.current)
        return is_needed, version.state is not VersionState.ROLLED_BACK, version.number

    kept = sorted(versions.versions, key=rank, reverse=True)[:MAX_VERSIONS]
    return replace(versions, versions=tuple(sorted(kept, key=lambda version: version.number)))


def _name_folder(target_key: str, base: Path) -> str:
    return hashlib.blake2b(f"{target_key} {fingerprint(base)}".encode(), digest_size=8).hexdigest()


def _find_target_loss(target: Path, key: str) -> tuple[str, str]:
    """Return what happened to the file of a target with this fingerprint, and why that is unknown. Raises OSError."""
    if _is_gone(target):
        return f"{target} is not there any more", ""
    missing = next((part for part in list_named_parts(target) if not part.is_file()), None)
    if missing is not None:  # the others cannot be identified then
        return "", f"{missing} is missing"
    return "" if fingerprint_model(target) == key else f"{target} has changed", ""


def _is_gone(path: Path) -> bool:
    """Return whether a file is certainly gone.

    One of the hub's cache is gone if the cache has other files; an empty one may not be mounted.
    """
    cache = locations.hub_cache_dir()
    try:
        return is_gone(path) or (path.is_relative_to(cache) and any(cache.iterdir()) and not os.path.lexists(path))
    except OSError:
        return False


def _make_current(known: VersionList, number: int, why: str, replaced: VersionState) -> VersionList:
    """Return the versions with another current one; the previous one gets the state `replaced`."""
    if number == known.current:
        return known
    before = known.find(known.current)
    if before is not None:
        reason = why if replaced is VersionState.ROLLED_BACK else before.why
        known = _replace_version(known, replace(before, state=replaced, why=reason))
    if number == BASE:
        return known
    return _replace_version(known, replace(_find(known, number), state=VersionState.CURRENT, why=why))


def _replace_version(known: VersionList, version: HeadVersion) -> VersionList:
    versions = tuple(version if each.number == version.number else each for each in known.versions)
    return replace(known, versions=versions)


def _find(known: VersionList, number: int) -> HeadVersion:
    version = known.find(number)
    if version is None:
        numbers = ", ".join(str(each.number) for each in known.versions) or "none"
        raise UsageError(f"there is no learned version {number}: {numbers} on disk", hint="eaglelocal heads")
    return version

"""The histories of acceptance on disk, one file for each target, and the watch that a server keeps over them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from eaglelocal import locations
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.own_files import list_own, read_own
from eaglelocal.learning.drift import DriftReport, TargetHistory

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 64


class DriftWatch:
    """The histories of a server's targets. Safe from any thread; files that cannot be read or written are none."""

    def __init__(self) -> None:
        self._targets: dict[str, TargetHistory] = {}
        self._changed: set[str] = set()
        self._lock = threading.Lock()

    def add(self, target: str, kind: str, drafts: int, accepted: int, conditions: Mapping[str, str]) -> None:
        """Add an answer: its drafts, and how many of their first tokens were accepted."""
        with self._lock:
            if target not in self._targets:
                self._targets[target] = read_history(find_file(target)) or TargetHistory(target)
            self._targets[target].add(kind, drafts, accepted, conditions)
            self._changed.add(target)

    def reports(self) -> list[DriftReport]:
        with self._lock:
            return [report for each in self._targets.values() for report in each.reports()]

    def shares(self) -> list[tuple[str, str, float]]:
        """Return (target, kind, recent acceptance / its history)."""
        with self._lock:
            return [(each.target, *pair) for each in self._targets.values() for pair in each.shares()]

    def save(self) -> None:
        """Write what has changed since the last call."""
        with self._lock:
            changed = [(find_file(name), json.dumps(self._targets[name].to_object())) for name in self._changed]
            self._changed.clear()
        for path, content in changed:
            with suppress(OSError):
                write_atomically(path, content)


def find_file(target: str) -> Path:
    name = hashlib.blake2b(target.encode(errors="surrogateescape"), digest_size=12).hexdigest()
    return locations.drift_dir() / f"{name}.json"


def read_history(path: Path) -> TargetHistory | None:
    """Return the history in a file; None if there is none, or it is damaged."""
    try:
        return TargetHistory.from_json(read_own(path, MAX_FILE_BYTES))
    except (OSError, ValueError):
        return None


def read_reports() -> Iterator[DriftReport]:
    """Yield what has drifted by the files of all targets."""
    for path in list_own(locations.drift_dir(), "*.json")[:MAX_FILES]:
        history = read_history(path)
        if history is not None:
            yield from history.reports()

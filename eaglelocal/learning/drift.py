"""Compare acceptance with its history, by kind of text, to notice drafts that no longer fit the users' texts.

    history   how often a draft's first token was accepted, over about the last ten thousand drafts
    recent    the same over the newest answers; older answers that newer ones displace become history

A kind has drifted if recent acceptance is under 70% of its history (a notice) or under 60% (an alarm) beyond chance.
With the counts the conditions are kept, so that what changed can be named: the file of the model, the draft, the
template, the system prompt. Pure: counts and names, no text.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, field
from enum import StrEnum
from pathlib import Path

from eaglelocal import locations
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_object, read_record
from eaglelocal.core.own_files import list_own, read_own
from eaglelocal.core.records import dataclass

FORMAT = 1
MIN_HISTORY, MAX_HISTORY = 400.0, 10_000.0  # drafts
MIN_RECENT, MAX_RECENT = 120.0, 400.0
ALIKE = 4.0  # drafts of one answer are alike: this many count as one independent draft
SURE = 2.0  # standard errors
MAX_KINDS, MAX_BATCHES = 64, 40


class Level(StrEnum):
    """The levels of a drift."""

    NONE = "none"
    NOTICE = "notice"
    ALARM = "alarm"


BOUNDS = ((0.6, Level.ALARM), (0.7, Level.NOTICE))  # share of the history


@dataclass(slots=True)
class Counts:
    """Drafts, and how many had their first token accepted. They decay, so they are not integers."""

    drafts: float = 0.0
    accepted: float = 0.0

    @property
    def share(self) -> float:
        return self.accepted / self.drafts if self.drafts else 0.0

    @property
    def is_sound(self) -> bool:
        return 0 <= self.accepted <= self.drafts + 1e-6 <= 2 * MAX_HISTORY

    def add(self, drafts: float, accepted: float, most: float) -> None:
        """Add counts; older counts decay if the sum exceeds `most` drafts."""
        kept = min(1.0, max(most - drafts, 0.0) / self.drafts) if self.drafts else 1.0
        self.drafts = self.drafts * kept + drafts
        self.accepted = self.accepted * kept + accepted


@dataclass(slots=True)
class AnswerRun:
    """The counts of consecutive answers under the same conditions."""

    counts: Counts
    conditions: dict[str, str]


@dataclass(slots=True)
class KindHistory:
    """The counts of one kind of text. recent: the oldest first; before: the conditions under which history was made."""

    history: Counts = field(default_factory=Counts)
    batches: list[AnswerRun] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)

    def add(self, drafts: int, accepted: int, conditions: Mapping[str, str]) -> None:
        """Add an answer; the oldest recent answers become history."""
        if not self.batches or self.batches[-1].conditions != conditions:
            self.batches.append(AnswerRun(Counts(), dict(conditions)))
        self.batches[-1].counts.add(drafts, accepted, math.inf)
        while (pushed := self.recent.drafts - MAX_RECENT) > 0 or len(self.batches) > MAX_BATCHES:
            self._push_out(pushed if len(self.batches) <= MAX_BATCHES else math.inf)

    def _push_out(self, drafts: float) -> None:
        """Move up to this many drafts of the oldest answers into the history."""
        oldest = self.batches[0]
        if self.level is Level.NONE:  # else they are what the history is compared with
            self.before = oldest.conditions
        share = min(drafts / oldest.counts.drafts, 1.0) if oldest.counts.drafts else 1.0
        self.history.add(oldest.counts.drafts * share, oldest.counts.accepted * share, MAX_HISTORY)
        if share == 1.0:
            del self.batches[0]
        else:
            oldest.counts = Counts(oldest.counts.drafts * (1 - share), oldest.counts.accepted * (1 - share))

    @property
    def recent(self) -> Counts:
        """The counts of all recent answers."""
        return Counts(sum(one.counts.drafts for one in self.batches), sum(one.counts.accepted for one in self.batches))

    @property
    def level(self) -> Level:
        if self.history.drafts < MIN_HISTORY or self.recent.drafts < MIN_RECENT:
            return Level.NONE
        share = self.recent.share
        error = math.sqrt(max(share * (1 - share), 0.01) * ALIKE / self.recent.drafts)
        highest = share + SURE * error
        return next((level for bound, level in BOUNDS if highest < bound * self.history.share), Level.NONE)

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the conditions that differ from the history's."""
        now = self.batches[-1].conditions if self.batches else self.before
        names = dict.fromkeys([*self.before, *now])
        return tuple(name for name in names if self.before.get(name) != now.get(name))


@dataclass(frozen=True, slots=True)
class DriftReport:
    """A kind of text whose drafts are accepted less often than before. Shares are from 0 to 1."""

    target: str
    kind: str
    level: Level
    recent: float
    history: float
    changed: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return one line for people.

        >>> DriftReport("m", "code", Level.ALARM, 0.31, 0.72, ("system prompt",)).text
        'm, code: 31% of first drafted tokens are accepted, 72% were before; changed: system prompt'
        """
        changed = f"; changed: {', '.join(self.changed)}" if self.changed else ""
        shares = f"{self.recent:.0%} of first drafted tokens are accepted, {self.history:.0%} were before"
        return f"{self.target}, {self.kind}: {shares}{changed}"

    @property
    def ratio(self) -> float:
        return self.recent / self.history if self.history else 1.0


@dataclass(slots=True)
class TargetHistory:
    """The histories of one target, by kind."""

    target: str
    kinds: dict[str, KindHistory] = field(default_factory=dict)

    def add(self, kind: str, drafts: int, accepted: int, conditions: Mapping[str, str]) -> None:
        if drafts > 0 and (kind in self.kinds or len(self.kinds) < MAX_KINDS):
            self.kinds.setdefault(kind, KindHistory()).add(drafts, min(accepted, drafts), conditions)

    def reports(self) -> Iterator[DriftReport]:
        """Yield the kinds that have drifted."""
        for kind, each in self.kinds.items():
            if each.level is not Level.NONE:
                shares = each.recent.share, each.history.share
                yield DriftReport(self.target, kind, each.level, *shares, each.changed)

    def shares(self) -> Iterator[tuple[str, float]]:
        """Yield recent acceptance divided by historical acceptance, for each kind with enough of both."""
        for kind, each in self.kinds.items():
            if each.recent.drafts >= MIN_RECENT and each.history.drafts >= MIN_HISTORY and each.history.accepted:
                yield kind, each.recent.share / each.history.share

    def to_object(self) -> dict[str, object]:
        """Return an object that `from_json` can read as JSON."""
        return {
            "format": FORMAT,
            "target": self.target,
            "kinds": {kind: asdict(one) for kind, one in self.kinds.items()},
        }

    @classmethod
    def from_json(cls, content: bytes) -> TargetHistory:
        """Read a history. Raises ValueError for anything else."""
        stored = read_object(content)
        history = read_record(cls, stored)
        counts = [
            one for kind in history.kinds.values() for one in (kind.history, *(batch.counts for batch in kind.batches))
        ]
        if stored.get("format") != FORMAT or not all(one.is_sound for one in counts):
            raise ValueError("it is no history of drafts")
        return history


# ---- drift files: the histories of acceptance on disk, one file for each target, and a server's watch over them
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
    """Yield the drifts recorded in the files of all targets."""
    for path in list_own(locations.drift_dir(), "*.json")[:MAX_FILES]:
        history = read_history(path)
        if history is not None:
            yield from history.reports()

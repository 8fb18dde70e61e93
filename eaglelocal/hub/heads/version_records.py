"""The records of a learned head's versions: plain data, and the JSON in which they are kept.

It knows nothing of files. A record holds figures and counts, never text.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from enum import StrEnum

from eaglelocal.core.json_text import read_object, read_record
from eaglelocal.core.records import dataclass

FORMAT = 1
BASE = 0  # number of the head from which learning began


class VersionState(StrEnum):
    CANDIDATE = "candidate"  # learned, not judged yet
    CURRENT = "current"
    OLD = "old"  # was current, and was replaced by a better one
    ROLLED_BACK = "rolled back"  # was judged worse than its predecessor


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedFrom:
    """The answers that a version learned from, its predecessors' not included."""

    num_answers: int = 0
    num_tokens: int = 0
    num_owners: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)  # tokens of each kind of text


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBackFigures:
    """Acceptance of the first drafted token on answers that were not learned from, each between 0 and 1."""

    acceptance: float
    predecessor: float  # of the version that was current
    num_tokens: int  # judged


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadVersion:
    """A version on disk. The base head has no record."""

    number: int  # 1 or more
    made_at: float  # seconds since 1970
    learned_from: LearnedFrom
    figures: HeldBackFigures | None = None  # None: not judged
    state: VersionState = VersionState.CANDIDATE
    why: str = ""  # of the state, for people

    @property
    def file_name(self) -> str:
        return f"v{self.number:04d}.gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionList:
    """Lists the versions of a head.

    target, base            names of both models, for people
    target_key              fingerprint of the target's file
    target_path, base_path  files at the time of the last writing
    last_number             of any version so far, deleted ones included
    pinned                  the number that the user chose; None: the current one is used
    """

    target: str = ""
    base: str = ""
    target_key: str = ""
    target_path: str = ""
    base_path: str = ""
    versions: tuple[HeadVersion, ...] = ()  # by number
    last_number: int = BASE
    pinned: int | None = None

    def find(self, number: int) -> HeadVersion | None:
        return next((version for version in self.versions if version.number == number), None)

    @property
    def current(self) -> int:
        """The number of the current version; BASE if there is none."""
        return next((each.number for each in self.versions if each.state is VersionState.CURRENT), BASE)

    @property
    def used(self) -> int:
        """The number of the version that drafts: the pinned one, else the current one."""
        return self.current if self.pinned is None else self.pinned


def write_versions(versions: VersionList) -> str:
    return json.dumps({"format": FORMAT, **asdict(versions)}, indent=1)


def read_versions(text: str | bytes) -> VersionList:
    """Parse the JSON text that write_versions wrote. Raises ValueError for anything else."""
    content = read_object(text)
    if content.get("format") != FORMAT:
        raise ValueError(f"its format is {content.get('format')!r}, not {FORMAT}")
    known = read_record(VersionList, content)
    numbers = sorted(version.number for version in known.versions)
    if len(set(numbers)) < len(numbers) or (numbers and numbers[0] <= BASE):
        raise ValueError(f"its versions are numbered {numbers}")
    if sum(version.state is VersionState.CURRENT for version in known.versions) > 1:
        raise ValueError("two of its versions are current")
    if known.pinned not in (None, BASE, *numbers):
        raise ValueError(f"the pinned version {known.pinned} is not listed")
    versions = tuple(sorted(known.versions, key=lambda version: version.number))
    return replace(known, versions=versions, last_number=max([known.last_number, *numbers]))


# ---- trial verdict: the verdict of a head's trial: which reading of its configuration is right, and whether it was
# trained for this target at all
#
# A head is tried beside its target with a fixed draft length, on the same prompts for each reading. Taps and
# residual decide what the first drafted token is worth, the recurrence (is the state fed back before or after the
# last norm?) what the later ones are. Pure: figures in, decisions out.
MIN_FIRST = 0.10  # trained heads reach 0.5 to 0.8; one trained on 5 000 samples for minutes 0.34
MIN_WEAK = 0.05  # of a weak head; one of random weights reaches 0.006 with its states, and nothing with shuffled ones
MIN_STANDARD_ERRORS = 2.0  # standard errors by which a reading must be better than the stated one


@dataclass(frozen=True, slots=True)
class TrialAcceptance:
    """Acceptance over all drafts of a trial."""

    drafts: int
    accepted_per_position: tuple[int, ...]  # [draft length], how often position i + 1 was accepted
    num_tokens: int
    commonest_share: float  # share of the most frequent token: the acceptance of always guessing it

    @property
    def first(self) -> float:
        """The share of drafts whose first token was accepted."""
        return self._share(0)

    @property
    def length(self) -> float:
        """The acceptance length: tokens per verification, bonus token included."""
        return 1 + sum(self.accepted_per_position) / self.drafts if self.drafts else 1.0

    @property
    def first_error(self) -> float:
        return math.sqrt(self.first * (1 - self.first) / max(self.drafts, 1))

    @property
    def length_error(self) -> float:
        """The standard error of `length`: E[a] is the sum of shares s_i, E[a^2] that of (2i - 1) s_i."""
        shares = [self._share(i) for i in range(len(self.accepted_per_position))]
        variance = sum((2 * i + 1) * share for i, share in enumerate(shares)) - sum(shares) ** 2
        return math.sqrt(max(variance, 0.0) / max(self.drafts, 1))

    @property
    def least(self) -> float:
        """The share `first` from which on a head is certainly of this target; below it, it may be a weak one."""
        return max(MIN_FIRST, self.commonest_share + MIN_STANDARD_ERRORS * self.first_error)

    @property
    def is_clear(self) -> bool:
        return self.first >= self.least

    def _share(self, position: int) -> float:
        there = self.accepted_per_position[position : position + 1]
        return there[0] / self.drafts if there and self.drafts else 0.0


def sum_acceptance(counts: Iterable[tuple[int, Sequence[int]]], tokens: Iterable[int]) -> TrialAcceptance:
    """Sum up answers: (drafts, accepted tokens per position) of each, and all tokens that were emitted."""
    drafts, accepted = 0, Counter[int]()
    for num_drafts, per_position in counts:
        drafts += num_drafts
        accepted.update(dict(enumerate(per_position)))
    said = Counter(tokens)
    most = max(said.values(), default=0)
    depth = max(accepted, default=-1) + 1
    return TrialAcceptance(drafts, tuple(accepted[i] for i in range(depth)), said.total(), most / max(said.total(), 1))


def has_better_first_token(other: TrialAcceptance, stated: TrialAcceptance) -> bool:
    """Return whether this reading's first drafted token is accepted significantly more often."""
    return other.first - stated.first > MIN_STANDARD_ERRORS * math.hypot(other.first_error, stated.first_error)


def reads_target(figures: TrialAcceptance, shuffled: TrialAcceptance) -> bool:
    """Return whether a head drafts from the target's states: worse where they are shuffled, and not by chance."""
    return figures.first >= MIN_WEAK and has_better_first_token(figures, shuffled)


def has_longer_acceptance(other: TrialAcceptance, stated: TrialAcceptance) -> bool:
    """Return whether this reading's acceptance length is significantly higher."""
    return other.length - stated.length > MIN_STANDARD_ERRORS * math.hypot(other.length_error, stated.length_error)

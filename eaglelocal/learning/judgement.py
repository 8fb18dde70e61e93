"""Judge whether a further trained head is better than the one before, by paired statistics over texts. Pure.

Both heads draft at the same positions of the same texts, which neither learned from; a text counts by its difference in
acceptance length. Every owner has the same weight, however many requests they send. The new head must not be worse for
any owner or any kind of text.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, variance
from typing import Any, TypeVar

from eaglelocal.core.atomic_file import PRIVATE, make_folder
from eaglelocal.core.json_text import read_json, read_record
from eaglelocal.core.own_files import append_own, read_own
from eaglelocal.core.records import dataclass

MIN_TEXTS = 8  # texts needed for any verdict
MIN_OWN_VARIANCE = 8  # texts of an owner, from which on its own variance is used instead of the common one
BETTER = 2.0  # standard errors
WORSE_GROUP = 2.5  # standard errors, of one owner or one kind among several

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class JudgedText:
    """A text, and the acceptance lengths of both heads on it.

    first_new, first_old  shares of first drafted tokens that were accepted
    """

    owner: str
    kind: int
    num_tokens: int
    new: float
    old: float
    first_new: float = 0.0
    first_old: float = 0.0

    @property
    def difference(self) -> float:
        return self.new - self.old


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """A mean difference in acceptance length, and its standard error."""

    mean: float
    error: float

    def exceeds(self, errors: float) -> bool:
        return self.mean > 0 and self.mean > errors * self.error

    def is_below(self, errors: float) -> bool:
        return self.mean < 0 and -self.mean > errors * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.error:.3f}"


@dataclass(frozen=True, slots=True)
class HeadVerdict:
    is_better: bool
    is_worse: bool
    why: str  # for people
    difference: MeanDifference


def judge(texts: Sequence[JudgedText], name_kind: Callable[[int], str] = str) -> HeadVerdict:
    """Compare two heads.

    Better: by more than two standard errors over all texts, and not worse, beyond noise, for any owner or kind of text.
    Worse: by more than two standard errors.
    """
    if len(texts) < MIN_TEXTS:
        return HeadVerdict(False, False, f"{len(texts)} texts decide nothing", MeanDifference(0.0, math.inf))
    by_owner = group_by(texts, lambda text: text.owner)
    common = common_variance(list(by_owner.values()))
    owners = [measure_group(group, common) for group in by_owner.values()]
    pool = average(owners)
    if pool.is_below(BETTER):
        return HeadVerdict(False, True, f"worse: acceptance length {pool}", pool)
    if not pool.exceeds(BETTER):
        return HeadVerdict(False, False, f"no better: acceptance length {pool}", pool)
    if any(owner.is_below(WORSE_GROUP) for owner in owners):
        worst = min(owners, key=lambda owner: owner.mean)
        return HeadVerdict(False, False, f"better ({pool}), but worse for one of {len(owners)} owners ({worst})", pool)
    for kind, group in sorted(group_by(texts, lambda text: text.kind).items()):
        own = measure_group(group, common)
        if own.is_below(WORSE_GROUP):
            return HeadVerdict(False, False, f"better ({pool}), but worse on {name_kind(kind)} ({own})", pool)
    return HeadVerdict(True, False, f"better: acceptance length {pool}", pool)


def group_by(texts: Sequence[JudgedText], key_of: Callable[[JudgedText], Key]) -> dict[Key, list[JudgedText]]:
    groups: dict[Key, list[JudgedText]] = defaultdict(list)
    for text in texts:
        groups[key_of(text)].append(text)
    return groups


def common_variance(groups: Sequence[Sequence[JudgedText]]) -> float:
    """Return the variance of differences within groups; over all texts if each group has only one."""
    degrees = sum(len(group) - 1 for group in groups)
    if not degrees:
        return variance([text.difference for group in groups for text in group])
    return sum(variance(differences(group)) * (len(group) - 1) for group in groups if len(group) > 1) / degrees


def measure_group(group: Sequence[JudgedText], common: float) -> MeanDifference:
    """Return the mean of a group, with its own variance if it has enough texts, else the common one."""
    spread = variance(differences(group)) if len(group) >= MIN_OWN_VARIANCE else common
    return MeanDifference(fmean(differences(group)), math.sqrt(spread / len(group)))


def differences(group: Sequence[JudgedText]) -> list[float]:
    return [text.difference for text in group]


def average(groups: Sequence[MeanDifference]) -> MeanDifference:
    """Return the mean over groups of equal weight."""
    return MeanDifference(
        fmean(group.mean for group in groups), math.sqrt(sum(group.error**2 for group in groups)) / len(groups)
    )


# ---- judged file: the texts that were judged so far, on disk: a comparison that is stopped goes on where it was
#
# A line of JSON for each text: the key of its answer, and its figures, or null if it has none.
SUFFIX = ".judged"


class JudgedFile:
    """The file of one comparison. texts: by the keys of the answers; None: nothing was drafted in it."""

    def __init__(self, folder: Path, old: int, new: int) -> None:
        self._path = folder / f"{old}-{new}{SUFFIX}"
        self.texts = read_judged(self._path)

    def add(self, key: str, text: JudgedText | None) -> None:
        """Add a text. Raises OSError."""
        self.texts[key] = text
        make_folder(self._path.parent, PRIVATE)
        line = json.dumps([key, None if text is None else asdict(text)]) + "\n"
        with append_own(self._path) as file:
            file.write(line.encode())


def read_judged(path: Path) -> dict[str, JudgedText | None]:
    """Return the texts of a file, without damaged lines; empty if the file does not exist."""
    found: dict[str, JudgedText | None] = {}
    try:
        lines = read_own(path).splitlines()
    except OSError:
        return found
    for line in lines:
        with suppress(ValueError, TypeError):  # of a write that was cut off, and the next one
            pair: Any = read_json(line)
            key, figures = pair
            found[str(key)] = None if figures is None else read_record(JudgedText, figures)
    return found

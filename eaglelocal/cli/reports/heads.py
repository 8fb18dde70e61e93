"""The output of `eaglelocal heads`, as lines and for JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli.output import age_text, path_text
from eaglelocal.core.byte_sizes import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.hub.heads.version_records import BASE

if TYPE_CHECKING:
    from eaglelocal.hub.heads.version_records import HeadVersion, HeldBackFigures, LearnedFrom, VersionList

UNNAMED = "an unknown model"


@dataclass(frozen=True, slots=True)
class KnownHead:
    """The versions of a head, and where they are.

    note    why their record cannot be read
    orphan  why they cannot draft
    doubt   why it is unknown whether they can draft
    """

    folder: Path
    versions: VersionList
    note: str = ""
    orphan: str = ""
    doubt: str = ""


def name_head(versions: VersionList) -> str:
    return f"{versions.target or UNNAMED}, {versions.base or 'a head'}"


def head_lines(head: KnownHead, now: float) -> Iterator[str]:
    """Yield the versions of a head, the newest first. A star marks the one that drafts, if that is known.

    now  seconds since 1970
    """
    folder, versions = head.folder, head.versions
    yield name_head(versions)
    if head.orphan:
        yield f"  drafts for nothing: {head.orphan}"
    elif doubt := head.note or head.doubt:
        yield f"  unknown whether it drafts: {doubt}"
    used = None if head.orphan or head.note or head.doubt else versions.used
    for version in reversed(versions.versions):
        yield from version_lines(version, now, mark=mark(version.number, used), pin=show_pin(version.number, versions))
    yield f"{mark(BASE, used)} version 0  the head from which learning began{show_pin(BASE, versions)}"
    yield f"  {path_text(folder)}"


def version_lines(version: HeadVersion, now: float, *, mark: str, pin: str) -> Iterator[str]:
    age = age_text(now - version.made_at)
    made = "made now" if age == "now" else f"made {age} ago"
    yield f"{mark} version {version.number}  {version.state}, {made}{pin}"
    if version.figures is not None:
        yield f"    {figures_text(version.figures)}"
    yield f"    {learned_text(version.learned_from)}"
    if version.why:
        yield f"    {version.why}"


def mark(number: int, used: int | None) -> str:
    return "*" if number == used else " "


def show_pin(number: int, versions: VersionList) -> str:
    return ", pinned" if number == versions.pinned else ""


def figures_text(figures: HeldBackFigures) -> str:
    return (
        f"{figures.acceptance:.1%} of its first tokens accepted, {figures.predecessor:.1%} before "
        f"({figures.num_tokens} tokens that it did not learn from)"
    )


def learned_text(learned: LearnedFrom) -> str:
    """Return the answers that a version learned from: numbers and kinds, never text."""
    total = sum(learned.kinds.values())
    kinds = sorted(learned.kinds.items(), key=lambda kind: -kind[1])
    shares = ", ".join(f"{kind} {count / total:.0%}" for kind, count in kinds if count)
    keys = f" of {learned.num_owners} keys" if learned.num_owners > 1 else ""
    answers = f"learned from {count_noun(learned.num_answers, 'answer')}{keys}"
    return f"{answers}, {learned.num_tokens} tokens" + (f": {shares}" if shares else "")


def head_object(head: KnownHead) -> dict[str, object]:
    folder, versions = head.folder, head.versions
    return {
        "target": versions.target,
        "base": versions.base,
        "target_path": versions.target_path,
        "base_path": versions.base_path,
        "folder": str(folder),
        "used": versions.used,
        "current": versions.current,
        "pinned": versions.pinned,
        "note": head.note,
        "orphan": head.orphan,
        "unknown": "" if head.orphan else head.note or head.doubt,
        "versions": [version_object(version, folder) for version in versions.versions],
    }


def version_object(version: HeadVersion, folder: Path) -> dict[str, object]:
    learned, figures = version.learned_from, version.figures
    return {
        "number": version.number,
        "path": str(folder / version.file_name),
        "state": str(version.state),
        "why": version.why,
        "made_at": version.made_at,
        "answers": learned.num_answers,
        "tokens": learned.num_tokens,
        "owners": learned.num_owners,
        "kinds": dict(learned.kinds),
        "acceptance": None if figures is None else figures.acceptance,
        "acceptance_before": None if figures is None else figures.predecessor,
        "judged_tokens": None if figures is None else figures.num_tokens,
    }

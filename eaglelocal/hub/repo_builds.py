"""The models among a repository's GGUF files, by name: the files of each, and its quantization.

A model is one file or the parts of a split one; image encoders and calibration data are left out. Works on names only,
on a hub or on disk.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError
from eaglelocal.gguf.ggml_types import normalize_quant, parse_quant

MAX_NAMES = 12  # in one sentence
MAX_COMPARED = 1000  # comparing names is slow
# if the user names none: the best with four bits, as the catalog's sizes assume
DEFAULTS = ("Q4_K_M", "UD-Q4_K_XL", "MXFP4", "MXFP4_MOE", "Q4_K_S", "IQ4_XS", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0")

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)
_NO_MODEL = re.compile(r"(?<![a-z])(mmproj|imatrix|vocab-only|vocab_only)(?![a-z])", re.IGNORECASE)
_DRAFT = re.compile(r"^mtp-|(?<![a-z])(draft|drafter|eagle|eagle3|dflash|dspark|medusa)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RepoBuild:
    """A model: the names of its files in order, inside the repository. `quant` is empty if the name has none."""

    stem: str  # the name without parts and suffix
    quant: str  # upper case
    names: tuple[str, ...]
    num_parts: int = 1

    @property
    def is_complete(self) -> bool:
        return len(self.names) == self.num_parts

    @property
    def is_draft(self) -> bool:
        """True if the name marks it as a draft for another model."""
        return _DRAFT.search(self.stem.rsplit("/", 1)[-1]) is not None

    @property
    def tag(self) -> str:
        """The part of its reference after the colon: the quantization, else the file's name."""
        return self.quant or f"{self.stem}{GGUF_SUFFIX}"


def group_builds(names: Iterable[str]) -> tuple[RepoBuild, ...]:
    """Return the models among files, by stem; parts are put together, other files are left out."""
    parts: dict[str, dict[int, str]] = defaultdict(dict)
    counts: dict[str, int] = {}
    for name in names:
        if not name.lower().endswith(GGUF_SUFFIX) or _NO_MODEL.search(name):
            continue
        stem = name[: -len(GGUF_SUFFIX)]
        part = _PART.fullmatch(stem)
        number, count = (int(part["number"]), int(part["count"])) if part else (1, 1)
        stem = part["stem"] if part else stem
        parts[stem][number] = name
        counts[stem] = max(count, counts.get(stem, 1))
    return tuple(
        RepoBuild(stem, parse_quant(stem), tuple(name for _, name in sorted(parts[stem].items())), counts[stem])
        for stem in sorted(parts)
    )


def choose_build(builds: Sequence[RepoBuild], wanted: str | None, *, repo: str, drafts: bool = False) -> RepoBuild:
    """Return the build of this quantization or file name; without one (None) the first of DEFAULTS, or the only build.

    drafts  True: only files that are named as drafts; otherwise they are left out

    Raises UsageError that lists the available builds.
    """
    whole = [build for build in builds if build.is_complete]
    named = [build for build in whole if wanted and _is_named(build, wanted)]
    found = named or _match_quant([build for build in whole if build.is_draft == drafts] or whole, wanted)
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        files = join_names((build.names[0] for build in found), like=wanted or "")
        which = f"that are {wanted}" if wanted else "to choose from"
        raise UsageError(f"{repo} has several models {which}: {files}", hint=f"{repo}:{found[0].names[0]}")
    if not whole:
        raise _make_missing_error(builds, repo)
    there = join_names(_order_tags(whole), like=wanted or "")
    if wanted is None:
        raise UsageError(
            f"{repo} has several models: {there}", hint=f"name one, such as {repo}:{_order_tags(whole)[0]}"
        )
    raise UsageError(f"{repo} has no {wanted}", hint=f"it has {there}")


def _order_tags(builds: Sequence[RepoBuild]) -> list[str]:
    """Return the builds' tags, usual quantizations first."""
    ranks = {quant: rank for rank, quant in enumerate(DEFAULTS)}
    return [build.tag for build in sorted(builds, key=lambda build: ranks.get(build.quant, len(ranks)))]


def _match_quant(builds: Sequence[RepoBuild], wanted: str | None) -> list[RepoBuild]:
    wanted_quants = DEFAULTS if wanted is None else (normalize_quant(wanted), f"UD-{normalize_quant(wanted)}")
    for quant in wanted_quants:
        if found := [build for build in builds if build.quant == quant]:
            return found
    return list(builds) if wanted is None and len(builds) == 1 else []


def _is_named(build: RepoBuild, wanted: str) -> bool:
    wanted = wanted.lower()
    return wanted.endswith(GGUF_SUFFIX) and any(
        name.lower() == wanted or name.lower().endswith(f"/{wanted}")
        for name in (*build.names, f"{build.stem}{GGUF_SUFFIX}")
    )


def _make_missing_error(builds: Sequence[RepoBuild], repo: str) -> UsageError:
    if builds:
        missing = f"{len(builds[0].names)} of {builds[0].num_parts} parts of {builds[0].stem}"
        return UsageError(f"{repo} has only {missing}", hint="choose another repository")
    return UsageError(f"{repo} has no GGUF files", hint=f"try {repo}-GGUF")


def join_names(names: Iterable[str], *, like: str = "", joint: str = ", ") -> str:
    """Return `Q4_K_M, Q8_0 and 2980 more`, in the given order; if there are too many, names similar to `like` first."""
    every = list(dict.fromkeys(names))
    if like and len(every) > MAX_NAMES:
        near = difflib.get_close_matches(like.lower(), [name.lower() for name in every[:MAX_COMPARED]], MAX_NAMES, 0.3)
        ranks = {name: rank for rank, name in enumerate(near)}
        every.sort(key=lambda name: ranks.get(name.lower(), len(ranks)))
    left = len(every) - MAX_NAMES
    shown = joint.join(every[:MAX_NAMES])
    return f"{shown} and {left} more" if left > 0 else shown

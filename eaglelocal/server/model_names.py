"""The names of a server's models. Pure.

A model may have several names: aliases for the first one (`--alias`), and for a file also parts of its path.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

DEFAULT_NAMES = frozenset({"", "default"})
ANY_NAME = "*"  # as an alias


def shown_names(references: Sequence[str]) -> dict[str, str]:
    """Return the public name of each reference: for a GGUF file its name without the folder, which is private, unless
    another has the same name.
    """
    files = {one: PurePosixPath(one).name if one.endswith(".gguf") and ":" not in one else one for one in references}
    count = Counter(files.values())
    return {one: name if count[name] == 1 else one for one, name in files.items()}


def meant_by(references: Mapping[str, str]) -> dict[str, str]:
    """Return a dict of everything that identifies one model (name, reference, unique part of a path) to its name."""
    others = [(other, name) for name, reference in references.items() for other in names_of_file(reference)]
    count = Counter(other for other, _ in others)
    clear = {other: name for other, name in others if count[other] == 1}
    exact = {one: name for name, reference in references.items() for one in (reference, name)}
    return clear | exact


def names_of_file(name: str) -> set[str]:
    """Return `x.gguf`, `x` and `models/x.gguf` for `./models/x.gguf`; the last as clients normalize it in URLs."""
    if not name.endswith(".gguf"):
        return set()
    path = PurePosixPath(name)
    return {path.name, path.stem, posixpath.normpath(name).lstrip("/")}

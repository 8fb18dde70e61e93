"""What the models of a server are called. Pure.

A model may have more names: those given to the first one (`--alias`), and of a file also what is left of its path.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

DEFAULT_NAMES = frozenset({"", "default"})
ANY_NAME = "*"  # as an alias


def shown_names(references: Sequence[str]) -> dict[str, str]:
    """By reference, what people are told: of a file here its name, for where it lies concerns nobody else, unless
    another one is called so too."""
    files = {one: PurePosixPath(one).name if one.endswith(".gguf") and ":" not in one else one for one in references}
    count = Counter(files.values())
    return {one: name if count[name] == 1 else one for one, name in files.items()}


def meant_by(references: Mapping[str, str]) -> dict[str, str]:
    """Each name, its reference, and what else means one of these models and no other, by what is meant."""
    others = [(other, name) for name, reference in references.items() for other in names_of_file(reference)]
    count = Counter(other for other, _ in others)
    clear = {other: name for other, name in others if count[other] == 1}
    exact = {one: name for name, reference in references.items() for one in (reference, name)}
    return clear | exact


def names_of_file(name: str) -> set[str]:
    """`./models/x.gguf` -> `x.gguf`, `x`, and `models/x.gguf`, as clients that tidy their URLs have it."""
    if not name.endswith(".gguf"):
        return set()
    path = PurePosixPath(name)
    return {path.name, path.stem, posixpath.normpath(name).lstrip("/")}

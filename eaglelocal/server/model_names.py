"""The names of a server's models. Pure.

A model may have several names: aliases for the first one (`--alias`), and for a file also parts of its path.
"""

from __future__ import annotations

import posixpath
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from eaglelocal.errors import UsageError
from eaglelocal.server.http_errors import NOT_FOUND, Problem

DEFAULT_NAMES = frozenset({"", "default"})
ANY_NAME = "*"  # as an alias
MAX_QUOTED_CHARS = 100


class ModelNames:
    """The public names of a server's models, and every name by which a request may mean one of them.

    shown   the public name of each model, the first model's first
    listed  the same, and the aliases of the first one
    """

    def __init__(self, references: Sequence[str], aliases: Sequence[str] = ()) -> None:
        """Name the models. `aliases` are further names of the first one; "*": any other name.

        Raises UsageError for an alias that is the name of another model.
        """
        self._references = {shown: name for name, shown in shown_names(references).items()}
        self.shown = tuple(self._references)
        if taken := set(aliases) & set(self.shown[1:]):
            raise UsageError(f"--alias {min(taken)}: that is another model of this server")
        self.listed = tuple(dict.fromkeys([*self.shown, *(name for name in aliases if name != ANY_NAME)]))
        self._names = unique_names(self._references) | dict.fromkeys(aliases, self.first)

    @property
    def first(self) -> str:
        return self.shown[0]

    def reference(self, name: str) -> str:
        """Return the reference by which a model is loaded."""
        return self._references[name]

    def resolve(self, requested: str) -> str:
        """Return the model that a name in a request means. Raises Problem (404)."""
        if requested in DEFAULT_NAMES:
            return self.first
        name = self._names.get(requested) or self._names.get(ANY_NAME)
        if name is None:
            requested = requested[:MAX_QUOTED_CHARS]
            message = f"there is no model {requested!r} here, only: {', '.join(self.listed)}"
            hint = f"--alias {shlex.quote(requested)} gives the first one this name, --alias '*' any"
            raise Problem(404, f"{message} ({hint})", NOT_FOUND, parameter="model", code="model_not_found")
        return name


def shown_names(references: Sequence[str]) -> dict[str, str]:
    """Return the public name of each reference: for a GGUF file its name, with as many folders as tell it from others:
    where files lie is private.
    """
    tails = {one: _list_tails(one) for one in references}
    count = Counter(tail for its_tails in tails.values() for tail in its_tails)
    return {one: next(tail for tail in [*its_tails, one] if count[tail] <= 1) for one, its_tails in tails.items()}


def _list_tails(reference: str) -> list[str]:
    """Return `x.gguf`, `b/x.gguf` and `/a/b/x.gguf` for the last; for what is no file, nor made of one, itself."""
    path, at, recipe = reference.rpartition("@") if ".gguf@" in reference else (reference, "", "")
    if not path.endswith(".gguf") or ":" in path:
        return [reference]
    parts = PurePosixPath(path).parts
    return [str(PurePosixPath(*parts[-n:])) + at + recipe for n in range(1, len(parts) + 1)]


def unique_names(references: Mapping[str, str]) -> dict[str, str]:
    """Return the model's name by everything that identifies it: name, reference, unique part of a path."""
    others = [(other, name) for name, reference in references.items() for other in file_names(reference)]
    count = Counter(other for other, _ in others)
    clear = {other: name for other, name in others if count[other] == 1}
    exact = {one: name for name, reference in references.items() for one in (reference, name)}
    return clear | exact


def file_names(name: str) -> set[str]:
    """Return `x.gguf`, `x` and `models/x.gguf` for `./models/x.gguf`; the last as clients normalize it in URLs."""
    if not name.endswith(".gguf"):
        return set()
    path = PurePosixPath(name)
    return {path.name, path.stem, posixpath.normpath(name).lstrip("/")}

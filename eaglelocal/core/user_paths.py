"""Paths as users write them, in flags, variables and the config file, and as hints show them in commands."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from eaglelocal.errors import UsageError

MAX_NAME_BYTES = 255  # the limit of file systems
MAX_SHOWN = 60  # characters of a wrong path
MAX_COMPLETIONS = 200


def expand_path(text: str | Path) -> Path:
    """Return the path with `~` and `~user` expanded; the file need not exist.

    Raises UsageError for a path that no file can have: of an unknown user, too long, or not encodable.
    """
    written = str(text)
    path = os.path.expanduser(written)
    shown = repr(written if len(written) <= MAX_SHOWN else f"{written[:MAX_SHOWN]}...")
    home = written.partition("/")[0]
    if home.startswith("~") and path == written and not os.path.lexists(home):
        whose = f"there is no user {home[1:]!r}" if len(home) > 1 else "your home folder is not known"
        raise UsageError(f"{shown}: {whose}", hint="write the whole path")
    try:
        os.lstat(path)
    except UnicodeEncodeError:
        raise UsageError(f"no file can be named {shown}: it is not Unicode") from None
    except ValueError:
        raise UsageError(f"no file can be named {shown}: it contains a NUL character") from None
    except OSError as problem:
        if problem.errno == errno.ENAMETOOLONG:
            raise UsageError(f"the path {shown} is too long: {_describe_length(path)}") from None
    return Path(path)


def complete_path(partial: str, suffixes: Collection[str] = ()) -> list[str]:
    """Return the folders, and the files with one of the suffixes, if any, that complete a partly typed path."""
    folder, slash, name = partial.rpartition("/")
    try:
        found = sorted(expand_path(folder + slash or ".").iterdir())
    except (OSError, UsageError):
        return []
    matches = (
        f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
        for path in found
        if path.name.startswith(name) and (name or not path.name.startswith("."))
        if not suffixes or path.suffix.lower() in suffixes or path.is_dir()
    )
    return list(islice(matches, MAX_COMPLETIONS))  # is_dir reads the disk


def quote_path(path: str | Path) -> str:
    """Quote a path for a shell command, so that no program takes it for a flag."""
    return quote_word(f"./{path}" if str(path).startswith("-") else str(path))


def quote_word(word: str) -> str:
    """Return a text as a word of a shell's command, on one line and without characters that a terminal obeys.

    >>> print(quote_word("a b"), quote_word("a\\nb"))
    'a b' $'a\\012b'
    """
    if word.isprintable():
        return shlex.quote(word)
    escaped = (char if char.isprintable() and char not in "\\'" else _escape(char) for char in word)
    return f"$'{''.join(escaped)}'"


def _escape(char: str) -> str:
    """Return the bytes of a character as bash and zsh read them between $' and '."""
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(char))


def _describe_length(path: str) -> str:
    longest = max(len(os.fsencode(part)) for part in path.split("/"))
    if longest > MAX_NAME_BYTES:
        return f"{longest} bytes, and the name of a file has at most {MAX_NAME_BYTES}"
    return f"{len(os.fsencode(path))} bytes"


# ---- installed packages, read without importing them: importing may load a library that crashes the process
_VERSION_LINE = re.compile(r"""^__version__ *= *["']([^"']+)["']""", re.MULTILINE)


def find_package_file(name: str) -> Path | None:
    """Return the first file of a top-level package; None if it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module without a spec was put in its place
        return None
    return Path(spec.origin) if spec and spec.origin else None


def read_package_version(name: str) -> str | None:
    """Return the version in the package's file, else in its metadata; None if it is not installed or states none.

    Reading metadata takes ten times as long, at every start.
    """
    file = find_package_file(name)
    try:
        text = file.read_text(encoding="utf-8") if file else ""
    except (OSError, UnicodeDecodeError):
        return None
    if found := _VERSION_LINE.search(text):
        return found[1]
    if file is None:
        return None
    from importlib import metadata

    distributions = metadata.packages_distributions().get(name, [])
    return metadata.version(distributions[0]) if distributions else None

"""The user's choices for all screens: theme, glyphs, colors and keys. Loads no Textual."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.tui.glyphs import ASCII, UNICODE, Glyphs


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayOptions:
    """The appearance and keys that the user chose.

    theme   dark, light, contrast or terminal (the terminal's own colors)
    keys    (action, comma-separated keys), in place of the default ones
    """

    theme: str = "dark"
    glyphs: Glyphs = UNICODE
    has_color: bool = True
    keys: tuple[tuple[str, str], ...] = ()


PYTHON_LC_CTYPES = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})  # values of LC_CTYPE that Python sets by itself (PEP 538)


def make_display_options(settings: Settings, environ: Mapping[str, str] = os.environ) -> DisplayOptions:
    is_unicode = settings.glyphs == "unicode" or (settings.glyphs == "auto" and is_utf8(environ))
    return DisplayOptions(
        theme=settings.theme,
        glyphs=UNICODE if is_unicode else ASCII,
        has_color=settings.colour != "never",
        keys=settings.keys,
    )


def is_utf8(environ: Mapping[str, str]) -> bool:
    """Return True if the locale is UTF-8, or none is set: most terminals show more than ASCII then."""
    ctype = environ.get("LC_CTYPE", "")
    locale = environ.get("LC_ALL") or (ctype not in PYTHON_LC_CTYPES and ctype) or environ.get("LANG")
    return not locale or "utf8" in locale.lower().replace("-", "")


def check_keys(keys: Iterable[tuple[str, str]], actions: Iterable[str]) -> None:
    """Raise UsageError for keys of an action that is not among `actions`."""
    known = sorted(set(actions))
    for action, _ in keys:
        if action not in known:
            near = difflib.get_close_matches(action, known, n=1)
            suggestion = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"keys: unknown action {action!r}", hint=f"{suggestion}actions: {', '.join(known)}")

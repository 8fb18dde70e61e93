"""How screens look and which keys they obey: themes, glyphs, colours, the user's own bindings. Loads no Textual."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.tui.glyphs import ASCII, UNICODE, Glyphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a person chose.

    theme   dark, light, contrast or terminal (the terminal's own colours)
    keys    (action, keys with commas between them), in the place of the default ones
    """

    theme: str = "dark"
    glyphs: Glyphs = UNICODE
    has_colour: bool = True
    keys: tuple[tuple[str, str], ...] = ()


def look_of(settings: Settings) -> Look:
    return Look(
        theme=settings.theme,
        glyphs=ASCII if settings.glyphs == "ascii" else UNICODE,
        has_colour=settings.colour != "never",
        keys=settings.keys,
    )


def check_keys(keys: Iterable[tuple[str, str]], actions: Iterable[str]) -> None:
    """Raises UsageError for an action that no screen knows."""
    known = sorted(set(actions))
    for action, _ in keys:
        if action not in known:
            near = difflib.get_close_matches(action, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"keys: there is no action {action!r}", hint=f"{guess}there are: {', '.join(known)}")

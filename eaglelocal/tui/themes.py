"""The themes of the screens: our own, some of Textual's, and the terminal's colors.

Of Textual's themes, those are offered whose texts are readable on each background that our screens have.
"""

from __future__ import annotations

from dataclasses import replace

from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from eaglelocal.settings import THEME_NAMES

OWN_THEMES = (
    Theme(
        name="dark",
        primary="#5FAFD7", secondary="#3A6E8F", accent="#87D7FF", warning="#FFAF5F", error="#FF6B6B", success="#7FD88F",
        foreground="#E4E4E4", background="#121417", surface="#1B1F24", panel="#262C33",
    ),
    Theme(
        name="light",
        primary="#005F87", secondary="#4F7A94", accent="#005FAF", warning="#8A4B00", error="#AF0000", success="#006B2D",
        foreground="#1C1C1C", background="#F7F7F4", surface="#ECECE8", panel="#DEDED8", dark=False,
    ),
    Theme(
        name="contrast",
        primary="#FFFFFF", secondary="#FFFFFF", accent="#00FFFF", warning="#FFFF00", error="#FF5555", success="#00FF00",
        foreground="#FFFFFF", background="#000000", surface="#000000", panel="#000000", text_alpha=1.0,
        variables={"text-muted": "#FFFFFF", "footer-background": "#000000", "footer-key-foreground": "#FFFF00"},
    ),
)  # fmt: skip
TERMINAL, ANSI = "terminal", "ansi-dark"  # our name and Textual's for one theme
SELECTION_SHARE = 0.28  # of the primary color in the background of what is selected


def list_themes() -> list[Theme]:
    """Return the themes of THEME_NAMES."""
    own = {theme.name: theme for theme in OWN_THEMES}
    adopted = [_adopt_theme(BUILTIN_THEMES[name]) for name in THEME_NAMES if name not in own and name != TERMINAL]
    ansi = BUILTIN_THEMES[ANSI]
    terminal = replace(ansi, name=TERMINAL, ansi=True, variables={**ansi.variables, **_hide_tracks("ansi_default")})
    return [*map(_add_quiet_colors, [*own.values(), *adopted]), terminal]


def _adopt_theme(theme: Theme) -> Theme:
    """Return a theme of Textual's with less contrast between its backgrounds, and more between them and the text."""
    return replace(theme, panel=theme.surface, variables={**theme.variables, "text-muted": "auto 75%"})


def _add_quiet_colors(theme: Theme) -> Theme:
    """Return the theme with one quiet color for whatever is selected, and scrollbars without a track of their own."""
    background = theme.background or ""
    selection = Color.parse(background).blend(Color.parse(theme.primary), SELECTION_SHARE).hex
    text = theme.foreground or ""
    cursor = {f"block-cursor{blurred}-background": selection for blurred in ("", "-blurred")}
    cursor |= {f"block-cursor{blurred}-foreground": text for blurred in ("", "-blurred")}
    return replace(theme, variables={**theme.variables, **_hide_tracks(background), **cursor})


def _hide_tracks(background: str) -> dict[str, str]:
    parts = ("background", "background-hover", "background-active", "corner-color")
    return {f"scrollbar-{part}": background for part in parts}

"""Themes: every text of every theme can be read on each background of the screens (WCAG 2 asks for 4.5)."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import Theme

from eaglelocal.settings import THEME_NAMES
from eaglelocal.tui.themes import TERMINAL, list_themes

THEMES = [theme for theme in list_themes() if theme.name != TERMINAL]
TEXTS = ("foreground", "text-muted", "text-success", "text-error", "text-warning", "text-accent")
BACKGROUNDS = ("background", "surface", "panel")


def luminance(color: Color) -> float:
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def contrast(color: str, background: str) -> float:
    behind = Color.parse(background)
    if color.startswith("auto"):
        shown = behind.blend(behind.get_contrast_text(1.0), int(color.split()[1].rstrip("%")) / 100, 1)
    else:
        above = Color.parse(color)
        shown = behind.blend(above.rgb and Color(*above.rgb), above.a, 1)
    low, high = sorted((luminance(shown), luminance(behind)))
    return (high + 0.05) / (low + 0.05)


def test_the_themes_are_those_of_the_settings() -> None:
    assert {theme.name for theme in list_themes()} == set(THEME_NAMES)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_texts_can_be_read(theme: Theme) -> None:
    colors = theme.to_color_system().generate()
    for text in TEXTS:
        for background in BACKGROUNDS:
            assert contrast(colors[text], colors[background]) >= 4.5, (text, background)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_a_selection_is_quiet_but_differs(theme: Theme) -> None:
    colors = theme.to_color_system().generate()
    selection = colors["block-cursor-background"]
    assert contrast(colors["block-cursor-foreground"], selection) >= 4.5
    assert contrast(selection, colors["background"]) >= 1.2
    assert colors["scrollbar-background"].lower() == colors["background"].lower()

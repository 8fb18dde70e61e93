"""The default look of screens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import pytest
from textual.app import ComposeResult
from textual.widgets import Label

from eaglelocal.settings import Settings
from eaglelocal.tui.base_app import EagleApp
from eaglelocal.tui.display_options import DisplayOptions, make_display_options
from eaglelocal.tui.glyphs import ASCII, UNICODE, Glyphs


@pytest.mark.parametrize(
    ("environ", "glyphs"),
    [
        ({}, UNICODE),
        ({"LC_CTYPE": "C.UTF-8"}, UNICODE),  # as Python says where nothing is said
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, ASCII),
        ({"LC_ALL": "", "LANG": "de_DE.UTF-8"}, UNICODE),
        ({"LANG": "de_DE.utf8@euro"}, UNICODE),
        ({"LANG": "de_DE.ISO-8859-1"}, ASCII),
        ({"LANG": "de_DE"}, ASCII),
        ({"LC_ALL": "POSIX", "LANG": "C.UTF-8"}, ASCII),
        ({"LC_ALL": "en_US.UTF-8", "LANG": "C"}, UNICODE),
        ({"LC_CTYPE": "de_DE.UTF-8", "LANG": "C"}, UNICODE),
    ],
)
def test_where_the_locale_knows_ascii_alone_screens_do_too(environ: Mapping[str, str], glyphs: Glyphs) -> None:
    assert make_display_options(Settings(), environ).glyphs is glyphs
    assert make_display_options(Settings(glyphs="unicode"), environ).glyphs is UNICODE
    assert make_display_options(Settings(glyphs="ascii"), environ).glyphs is ASCII


@pytest.mark.parametrize("said", [None, "", "1"])
@pytest.mark.parametrize("has_color", [True, False])
def test_a_screen_without_colour_leaves_other_screens_theirs(
    monkeypatch: pytest.MonkeyPatch, said: str | None, has_color: bool
) -> None:
    if said is None:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", said)
    app: EagleApp[None] = EagleApp(DisplayOptions(has_color=has_color))
    assert (app.no_color, os.environ.get("NO_COLOR")) == (said is not None or not has_color, said)


class RedApp(EagleApp[None]):
    def compose(self) -> ComposeResult:
        yield Label("[#ff0000]a word[/]")


@pytest.mark.parametrize("has_color", [True, False])
def test_without_colour_a_screen_is_drawn_in_greys(has_color: bool) -> None:
    """The filter that does it is inserted into a private list of Textual."""

    async def draw() -> str:
        app = RedApp(DisplayOptions(has_color=has_color))
        async with app.run_test() as pilot:
            await pilot.pause()
            return app.export_screenshot()

    picture = asyncio.run(draw())
    assert "word" in picture and ("#ff0000" in picture) == has_color

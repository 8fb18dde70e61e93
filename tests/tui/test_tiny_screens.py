"""Screens of any size, down to one column, while answers stream; and the pure renderers at every small size."""

from __future__ import annotations

import asyncio
import random
import sys
from itertools import product
from pathlib import Path

import pytest
from doubles import tmux
from doubles.chat_screen import ChatHarness, ChatObserver, play
from doubles.monitor_states import busy
from doubles.pages_server import llama_pages, serving
from doubles.scripted_client import Script
from hypothesis import given
from hypothesis import strategies as st
from textual.geometry import Size
from tui.monitor_app import monitor

from eaglelocal.tui.base_app import MIN_SIZE, enlarge_to_minimum, format_too_small
from eaglelocal.tui.glyphs import ASCII, UNICODE
from eaglelocal.tui.monitor.machine_text import MonitorSnapshot
from eaglelocal.tui.monitor.monitor_text import format_server, format_snapshot
from eaglelocal.tui.monitor.table_text import TableView, format_table
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.panel.panel_text import format_drafting, format_speed
from eaglelocal.tui.styled_lines import cell_width, cut_line
from eaglelocal.tui.transcript.entries import EntryKind, RenderOptions, TranscriptEntry, estimate_height, render_entry
from eaglelocal.tui.transcript.text_rows import Appearance

pytestmark = pytest.mark.full

TINY = list(product(range(1, 11), range(1, 6)))  # 1x1 to 10x5
SMALL = [(16, 4), (20, 6), (17, 5), (30, 4), (16, 30), (40, 10)]
MARKDOWN = [
    "# Head\n\n",
    "word ",
    "漢字 ",
    "🦅",
    "```python\nx = 1\n",
    "\n```\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
]
MARKDOWN += ["- ", "> ", "1. ", "    ", "`c` ", "$$x$$ ", "\n\n", "verylongword" * 3]


@given(
    st.lists(st.sampled_from(MARKDOWN), max_size=12),
    st.integers(-1, 12),
    st.sampled_from(list(EntryKind)),
    st.booleans(),
)
def test_entries_are_laid_out_at_any_width(parts: list[str], width: int, kind: EntryKind, flag: bool) -> None:
    text = "".join(parts)
    view = RenderOptions(Appearance(is_ascii=flag), marks_drafted=flag, shows_thoughts=not flag)
    entry = TranscriptEntry(kind, text, mask=b"\x01" * len(text))
    assert render_entry(entry, width, view)
    assert estimate_height(entry, width, view) >= 1


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_panels_and_tables_fit_any_size(glyphs: object) -> None:
    feed = Feed()
    feed.add_reading(busy(), 1.0)
    feed.add_reading(busy(), 2.0)
    frame = feed.make_frame(3.0)
    scene = MonitorSnapshot(url="http://127.0.0.1:1", frame=frame)
    for width, height in product(range(24), range(8)):
        speed = format_speed(frame, width, height, glyphs)  # type: ignore[arg-type]
        drafting = format_drafting(frame, width, height, glyphs)  # type: ignore[arg-type]
        table = format_table(busy(), TableView(), width, height, glyphs, selected_id="")  # type: ignore[arg-type]
        head = cut_line(format_server(scene, glyphs), width)  # type: ignore[arg-type]
        assert all(cell_width(line) <= width for line in (*speed, *drafting, *table, head)), (width, height)
        assert max(map(len, (speed, drafting, table))) <= height, (width, height)
        format_snapshot(scene, max(width, 1), glyphs)  # type: ignore[arg-type]


def test_what_a_tiny_terminal_is_sent_fits_it() -> None:
    for width, height in TINY:
        shown = format_too_small(Size(width, height)).split("\x1b[H")[1].split("\r\n")
        assert len(shown) <= height and all(0 < len(row) <= width for row in shown)
        enlarged = enlarge_to_minimum(Size(width, height))
        assert enlarged != Size(width, height) and enlarged == enlarge_to_minimum(enlarged)


def sizes(seed: int, number: int) -> list[tuple[int, int]]:
    chosen = random.Random(seed)
    return [chosen.choice(TINY if chosen.random() < 0.6 else SMALL) for _ in range(number)]


def test_the_chat_is_resized_while_it_answers(tmp_path: Path) -> None:
    words = tuple(random.Random(1).choice(MARKDOWN) for _ in range(400))
    stage = ChatHarness(tmp_path, scripts=(Script(words, delay_s=0.005, thought="hm, so"),))

    async def scenario(spectator: ChatObserver) -> None:
        pilot = spectator.pilot
        await spectator.ask("go on")
        for number, (width, height) in enumerate(sizes(7, 60)):
            await pilot.resize_terminal(width, height)
            await pilot.pause(0.01)
            assert spectator.app.size == enlarge_to_minimum(Size(width, height))
            match number % 12:
                case 2:
                    spectator.app.notify("a notice of several words, with [brackets]")
                case 4:
                    await pilot.press("f1")
                case 6:
                    await pilot.press("f4")
                case 8:
                    await pilot.press("escape", "ctrl+p")
                case 10:
                    await pilot.press("escape", "ctrl+o")
                case 11:
                    await pilot.press("escape", "f2", "a", "ctrl+r")
        await pilot.press("escape", "escape")
        await pilot.resize_terminal(80, 24)
        await spectator.ready()

    play(stage, scenario)


@pytest.mark.parametrize("size", [(16, 4), (80, 4), (80, 5), (80, 6)])
def test_what_is_typed_is_seen_on_a_low_screen(tmp_path: Path, size: tuple[int, int]) -> None:
    async def scenario(spectator: ChatObserver) -> None:
        await spectator.type("seen")
        for text in ("", "\nlater"):
            await spectator.type(text)
            *_, row, border = spectator.text.splitlines()
            assert (text.strip() or "seen") in row and border.startswith("╰")

    play(ChatHarness(tmp_path, size=size), scenario)


def test_the_monitor_is_resized_while_it_reads() -> None:
    async def run() -> None:
        app, watch = monitor(owns_server=True)
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            for number, (width, height) in enumerate(sizes(5, 60)):
                watch.on_reading(busy())
                await pilot.resize_terminal(width, height)
                await pilot.pause(0.01)
                await pilot.press(("l", "slash", "escape", "d", "escape", "q", "escape", "s", "f1")[number % 9])
                app.notify("a notice of several words")
            assert app.return_value is None
            await pilot.press("escape")
            await pilot.resize_terminal(80, 24)
            await pilot.pause(0.2)
            assert app.size == (80, 24)

    asyncio.run(run())


@pytest.mark.skipif(not tmux.IS_THERE, reason="tmux is not installed")
def test_a_real_terminal_says_that_it_is_too_small_and_is_drawn_again(tmp_path: Path) -> None:
    with serving(llama_pages()) as pages, tmux.TmuxScreen(tmp_path) as terminal:
        terminal.start([sys.executable, "-m", "eaglelocal", "top", pages.url], {"LC_ALL": "C.UTF-8"})
        terminal.sees("running", "q Quit")
        for width, height in [(2, 2), (1, 1), (3, 2), (10, 5), (15, 24), (80, 3)]:
            terminal.resize(width, height)
            terminal.until(lambda text: text.startswith("t"), f"a word at {width}x{height}")
        terminal.sees(f"too small: {MIN_SIZE.width}x{MIN_SIZE.height} is needed")
        terminal.resize(80, 24)
        terminal.sees("running", "q Quit")
        terminal.type("q")
        terminal.sees("ended with 0")

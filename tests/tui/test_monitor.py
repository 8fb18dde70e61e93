"""Every key of the monitor, the mouse, sizes that change while tokens come, themes and the user's own keys."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from doubles.monitor_states import EMPTY, GONE, RESTARTING, ManualWatch, busy, off
from doubles.tiers import some_of
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Input
from textual.widgets._toast import Toast
from tui.monitor_app import BUSY, fed, monitor

from eaglelocal.client.server_reading import DraftingState, ServerReading
from eaglelocal.core.request import OFF, fixed_spec
from eaglelocal.errors import RequestError, UsageError
from eaglelocal.settings import THEME_NAMES
from eaglelocal.tui.base_app import MIN_SIZE
from eaglelocal.tui.display_options import DisplayOptions, check_display_options
from eaglelocal.tui.glyphs import ASCII
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.modal_screens import HelpScreen, QuestionDialog
from eaglelocal.tui.monitor.log_tail import LogTail
from eaglelocal.tui.monitor.monitor_app import Monitor
from eaglelocal.tui.monitor.request_table import RequestTable

PATIENCE_S = 5.0


async def until(pilot: Pilot[object], holds: Callable[[], bool], what: str) -> None:
    for _ in range(int(PATIENCE_S / 0.05)):
        await pilot.pause(0.05)
        if holds():
            return
    raise AssertionError(f"not in time: {what}\n{text_of(pilot)}")


def text_of(pilot: Pilot[object]) -> str:
    """Everything that is painted."""
    shown = pilot.app.screen_stack[0].query(LinesWidget)
    return "\n".join(text for painted in shown for text in (*painted.titles, painted.text))


async def show(pilot: Pilot[object], watch: ManualWatch, reading: ServerReading, word: str) -> None:
    watch.on_reading(reading)
    await until(pilot, lambda: word in text_of(pilot), f"{word!r} is shown")


def is_within(app: Monitor, width: int) -> bool:
    return all(len(line) <= width for each in app.screen.query(LinesWidget) for line in each.text.split("\n"))


def table(app: Monitor) -> RequestTable:
    return app.query_one(RequestTable)


def ids(app: Monitor) -> list[str]:
    return [row.id for row in table(app).rows]


@pytest.mark.parametrize(
    ("reading", "word"),
    [
        (EMPTY, "no request is running"),
        (busy(), "2 of 4 running"),
        (off(), "drafting paused: it would be slower"),
        (RESTARTING, "restarting"),
        (GONE, "server gone, retrying"),
    ],
)
def test_every_state_is_shown(reading: ServerReading, word: str) -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, reading, word)
            await until(pilot, lambda: "GPU0 87 %" in text_of(pilot), "the machine is shown")
        assert not watch.is_open

    asyncio.run(run())


def test_sorting_and_reversing() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(100, 30)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            assert ids(app) == ["r1", "r2", "r3", "r0", "f0"]
            await pilot.press("s")
            assert (table(app).view.sort, ids(app)[:3]) == ("state", ["r2", "r1", "r3"])
            await pilot.press("r")
            assert ids(app)[:3] == ["r3", "r1", "r2"]
            begin = table(app).text.split("\n")[0].index("prompt")
            await pilot.click(RequestTable, offset=(2 + begin, 1))  # within border and padding
            assert (table(app).view.sort, ids(app)[:3]) == ("prompt", ["r2", "r1", "r3"])
            await pilot.click(RequestTable, offset=(2 + begin, 1))
            assert ids(app)[:3] == ["r1", "r2", "r3"]

    asyncio.run(run())


def test_choosing_a_row_by_key_mouse_and_wheel() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(100, 30)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")

            def chosen() -> str:
                row = table(app).selected
                return row.id if row is not None else ""

            seen = [chosen()]
            for key in ("down", "j", "up", "k", "end", "down", "home", "G", "g"):
                await pilot.press(key)
                seen.append(chosen())
            assert seen == ["r1", "r2", "r3", "r2", "r1", "f0", "f0", "r1", "f0", "r1"]
            await pilot.click(RequestTable, offset=(3, 4))
            assert chosen() == "r3"
            await pilot.click(RequestTable, offset=(3, 8))  # below the last row
            assert chosen() == "r3"
            await pilot.click(RequestTable, offset=(3, 0))  # the border
            assert (chosen(), table(app).view.sort) == ("r3", "")
            table(app).on_mouse_scroll_up()
            assert chosen() == "r2"

    asyncio.run(run())


def test_the_filter() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(100, 30)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.press("slash", "b", "e", "n")
            assert ids(app) == ["r2", "f0"] and "only: ben" in table(app).titles[1]
            await pilot.press("enter")
            assert app.focused is table(app)
            await until(pilot, lambda: "only: ben" in text_of(pilot), "the filter is said")
            await pilot.press("escape")
            assert (ids(app)[0], app.query_one("#filter", Input).value) == ("r1", "")

    asyncio.run(run())


@pytest.mark.parametrize("size", [(80, 24), (40, 8)])
def test_a_filter_is_said_without_a_row_of_its_own(size: tuple[int, int]) -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=size) as pilot:
            await show(pilot, watch, busy(), "running")
            await pilot.press("slash", "b", "e", "n", "enter")
            await until(pilot, lambda: "only: ben" in drawn(app), "the filter is said")
            assert "only" not in table(app).text and "failed" in table(app).text

    asyncio.run(run())


def test_a_pause_holds_what_is_shown() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(100, 30)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.press("space")
            watch.on_reading(EMPTY)
            await pilot.pause(1.2)
            assert "paused" in text_of(pilot) and "2 of 4 running" in text_of(pilot)
            await pilot.press("space")
            await until(pilot, lambda: "0 of 4 running" in text_of(pilot), "it goes on")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("keys", "cancelled"), [(("enter",), []), (("down", "enter"), ["r2"]), (("escape",), []), (("up", "enter"), ["r2"])]
)
def test_cancelling_asks_first(keys: tuple[str, ...], cancelled: list[str]) -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.press("down", "c")
            assert isinstance(app.screen, QuestionDialog)
            await pilot.press(*keys)
            await pilot.pause(0.3)
            assert watch.cancelled == cancelled
            assert not isinstance(app.screen, QuestionDialog)

    asyncio.run(run())


def test_what_a_server_refuses_is_said() -> None:
    async def run() -> None:
        app, watch = monitor()
        watch.error = RequestError("this request is another key's")
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.press("c", "down", "enter")
            await until(pilot, lambda: any("another key" in str(n.message) for n in app._notifications), "it is said")

    asyncio.run(run())


def test_a_question_about_a_request_closes_with_it() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.press("c")
            await until(pilot, lambda: len(app.screen_stack) == 2, "the question")
            await show(pilot, watch, EMPTY, "no request is running")
            await until(pilot, lambda: len(app.screen_stack) == 1, "its end")
            assert any("has ended" in str(each.message) for each in app._notifications)
            assert watch.cancelled == []

    asyncio.run(run())


def test_a_notice_stands_in_a_border_and_covers_no_figure() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            await show(pilot, watch, EMPTY, "no request is running")
            before = text_of(pilot)
            await pilot.press("c")
            await until(pilot, lambda: table(app).titles[1].startswith("select a running"), "a notice")
            assert not app.query(Toast)
            assert all(line in text_of(pilot) for line in before.splitlines())
            app.clear_notifications()
            await until(pilot, lambda: table(app).titles[1] == "", "its end")

    asyncio.run(run())


@pytest.mark.parametrize("size", [(80, 11), (80, 8), (40, 5), (80, 12), (50, 24)])
def test_a_notice_is_seen_in_a_small_terminal_too(size: tuple[int, int]) -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=size, notifications=True) as pilot:
            await show(pilot, watch, EMPTY, "no request is running")
            await pilot.press("c")
            await until(pilot, lambda: "select a running or waiting" in drawn(app), "a notice")
            app.clear_notifications()
            await until(pilot, lambda: "eaglelocal at http" in drawn(app), "the header again")
            assert "select a running" not in drawn(app)

    asyncio.run(run())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_the_frames_fill_the_screen(size: tuple[int, int]) -> None:
    """No band of empty rows lies between the parts; requests and log take what space there is."""

    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=size) as pilot:
            await fed(app, watch, BUSY)(pilot)
            frames = list(app.screen.query(".frame"))
            assert sum(each.region.area for each in frames) == size[0] * (size[1] - 2)  # a header and a footer
            named = {each.id: each for each in frames}
            assert named["table"].region.height + named["log"].region.height >= size[1] // 3
            for name in ("speed", "drafting", "machine"):
                lines = named[name].text.split("\n")
                assert len(lines) >= named[name].size.height // 2

    asyncio.run(run())


@pytest.mark.parametrize(("rows", "spec"), [(1, OFF), (5, fixed_spec(4))])
def test_drafting_is_switched(rows: int, spec: object) -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.press("d", *["down"] * rows, "enter")
            await until(pilot, lambda: watch.specs == [spec], "it is switched")

    asyncio.run(run())


@pytest.mark.parametrize("key", ["ctrl+c", "ctrl+q"])
def test_the_keys_that_leave_do_so_from_a_question_too(key: str) -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "qwen3-8b")
            await pilot.press("d", key)
            await pilot.pause(0.2)
        assert (app.return_value, watch.specs) == ("quit", [])

    asyncio.run(run())


def test_help_lists_the_keys_and_is_searched() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "qwen3-8b")
            await pilot.press("f1")
            assert isinstance(app.screen, HelpScreen)
            await until(pilot, lambda: "Pause: stop updating" in drawn(app), "the keys are listed")
            await pilot.press(*"revers")
            await until(pilot, lambda: "Pause" not in drawn(app), "the rest is hidden")
            assert "the order of the rows" in drawn(app)
            await pilot.press(*["backspace"] * len("revers"), *"by draft")
            await until(pilot, lambda: "share of an answer's tokens" in drawn(app), "a figure is explained")
            await pilot.press("enter", "escape")
            assert app.focused is table(app) and table(app).view.filter == ""

    asyncio.run(run())


def drawn(app: Monitor) -> str:
    """Return the text of the whole screen, dialogs included."""
    return "\n".join("".join(each.text for each in strip) for strip in app.screen._compositor.render_strips())


@pytest.mark.parametrize("key", ["c", "d"])
def test_a_server_that_cannot_be_configured_is_not(key: str) -> None:
    async def run() -> None:
        app, watch = monitor()
        row = busy().requests
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, ServerReading(kind="vLLM", state="ready", requests=row), "vLLM")
            await pilot.press(key)
            await pilot.pause(0.2)
            assert not isinstance(app.screen, QuestionDialog)
        assert (watch.cancelled, watch.specs) == ([], [])

    asyncio.run(run())


def test_a_short_log_leaves_its_space_to_the_requests() -> None:
    async def run() -> None:
        tail = LogTail()
        tail.add("10:00:00  eaglelocal is ready")
        app, watch = monitor(log=tail)
        async with app.run_test(size=(120, 40)) as pilot:
            await fed(app, watch, BUSY)(pilot)
            await pilot.pause()
            table, log = app.query_one("#table"), app.query_one("#log")
            rows = table.size.height
            assert log.size.height == 2
            for second in range(1, 9):
                tail.add(f"10:00:0{second}  the engine has restarted")
            app._draw()
            await pilot.pause()
            assert (log.size.height, table.size.height) == (6, rows - 4)

    asyncio.run(run())


def test_the_log_grows_and_shrinks_and_shows_changes() -> None:
    async def run() -> None:
        tail = LogTail()
        tail.add("a line of the server")
        app, watch = monitor(log=tail)
        async with app.run_test(size=(100, 30)) as pilot:
            await show(pilot, watch, EMPTY, "eaglelocal is ready")
            assert "a line of the server" in text_of(pilot)
            height = app.query_one("#log").size.height
            await pilot.press("l")
            assert app.query_one("#log").size.height > height
            await pilot.press("l")
            assert app.query_one("#log").size.height == height
            await show(pilot, watch, RESTARTING, "has restarted")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("owns", "keys", "outcome"),
    [
        (False, ("q",), "quit"),
        (False, ("ctrl+c",), "quit"),
        (True, ("q", "enter"), "stop"),
        (True, ("ctrl+c", "down", "enter"), "leave"),
        (True, ("q", "end", "enter", "q", "escape", "q", "enter"), "stop"),
        (True, ("ctrl+c", "ctrl+c"), "stop"),
        (True, ("q", "ctrl+q"), "stop"),
        (True, ("ctrl+q", "x", "z", "space", "ctrl+c"), "stop"),
        (True, ("f1", "ctrl+q", "down", "enter"), "leave"),
        (False, ("f1", "ctrl+q"), "quit"),
        (False, ("ctrl+p", "ctrl+q"), "quit"),
    ],
)
def test_leaving(owns: bool, keys: tuple[str, ...], outcome: str) -> None:
    async def run() -> None:
        app, watch = monitor(owns_server=owns)
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, EMPTY, "ready")
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.1)
        assert app.return_value == outcome

    asyncio.run(run())


@pytest.mark.parametrize("opener", some_of(["q", "c", "d"]))
def test_no_letter_answers_a_question(opener: str) -> None:
    """One stray key must not stop a server, end somebody's answer or change how it drafts."""

    async def run() -> None:
        app, watch = monitor(owns_server=True)
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.press(opener)
            question = app.screen
            assert isinstance(question, QuestionDialog)
            await pilot.press(*string.ascii_letters, *string.digits, "space", "tab")
            await pilot.pause(0.2)
            assert app.screen is question and app.return_value is None
            assert "enter chooses, esc goes back" in drawn(app)
        assert (watch.cancelled, watch.specs) == ([], [])

    asyncio.run(run())


def test_a_question_begins_at_what_is_set() -> None:
    async def run() -> None:
        app, watch = monitor()
        fixed = replace(busy(), drafting=DraftingState(state="on", setting="4"))
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, fixed, "drafting: 4 tokens")
            await pilot.press("d", "enter")
            await until(pilot, lambda: watch.specs == [fixed_spec(4)], "it stays what it was")

    asyncio.run(run())


def test_every_binding_has_an_id() -> None:
    """So that each can be given another key."""
    bindings = [each for each in (*Monitor.BINDINGS, *RequestTable.BINDINGS) if isinstance(each, Binding)]
    assert all(each.id for each in bindings)


def test_the_user_s_own_keys() -> None:
    async def run() -> None:
        app, watch = monitor(DisplayOptions(keys=(("pause", "p"), ("sort", "x,y"))))
        async with app.run_test(size=(100, 30)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.press("s")
            assert table(app).view.sort == ""
            await pilot.press("x", "y")
            assert table(app).view.sort == "model"
            await pilot.press("p")
            assert "paused" in text_of(pilot)

    asyncio.run(run())


def test_keys_of_actions_that_there_are_not_are_an_error() -> None:
    with pytest.raises(UsageError, match="unknown action 'paus'") as raised:
        check_display_options(DisplayOptions(keys=(("paus", "p"),)))
    assert "pause" in raised.value.hint


def test_the_palette_finds_what_keys_do() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(100, 30)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            titles = {command.title for command in app.get_system_commands(app.screen)}
            assert {"Theme: dark", "Pause", "Sort", "Reverse", "Filter", "Cancel", "Drafting", "Log"} <= titles
            assert {"Theme", "Quit", "Keys", "Maximize", "Screenshot"} & titles == {"Quit"}  # our own q
            await pilot.press("ctrl+p", *"revers")
            await pilot.pause(0.5)
            await pilot.press("enter", "enter")
            await until(pilot, lambda: table(app).view.is_reversed, "the command was run")

    asyncio.run(run())


@pytest.mark.parametrize("theme", THEME_NAMES)
def test_every_theme_shows_the_same_text(theme: str) -> None:
    async def run() -> None:
        app, watch = monitor(DisplayOptions(theme=theme))
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            assert app.theme == theme

    asyncio.run(run())


def test_ascii_screens_hold_nothing_else() -> None:
    async def run() -> None:
        app, watch = monitor(DisplayOptions(glyphs=ASCII))
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            for keys in ((), ("d",)):
                await pilot.press(*keys)
                await pilot.pause(0.3)
                shown = "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)
                assert shown.isascii(), [char for char in shown if not char.isascii()]

    asyncio.run(run())


def test_sizes_that_change_while_tokens_come() -> None:
    """Nothing is wider than the screen, and the newest figures are there at every size."""

    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24)) as pilot:
            sizes = ((200, 60), (40, 12), (80, 24), (10, 4), (120, 40), (1, 1), (100, 30))
            for i, size in enumerate(sizes * 2):
                watch.on_reading(busy(200 + 10 * i))
                await pilot.resize_terminal(*size)
                await until(pilot, partial(is_within, app, max(size[0], MIN_SIZE.width)), f"all is within {size}")
            await until(pilot, lambda: "of 990 accepted" in text_of(pilot), "the newest totals")

    asyncio.run(run())


def test_a_resize_under_a_question_is_not_lost() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            below = app.screen
            await pilot.press("d")
            assert isinstance(app.screen, QuestionDialog) and below.has_class("-low")
            await pilot.resize_terminal(120, 50)
            await until(pilot, lambda: below.has_class("-tall"), "the tall layout, under the question")
            assert not below.has_class("-low") and not app.screen.has_class("-tall")
            await pilot.press("escape")
            await until(
                pilot, lambda: is_within(app, 120) and table(app).outer_size.width == 120, "it is drawn as wide"
            )

    asyncio.run(run())


def test_only_lines_that_changed_are_drawn() -> None:
    async def run() -> None:
        app, watch = monitor()
        async with app.run_test(size=(80, 24)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            await pilot.pause(2.5)  # the rate settles
            before = sum(each.num_drawn for each in app.screen.query(LinesWidget))
            for _ in range(5):
                app._draw()
                await pilot.pause(0.02)
            assert sum(each.num_drawn for each in app.screen.query(LinesWidget)) - before <= 4  # history may move on

    asyncio.run(run())


def test_a_server_of_this_process_that_ends_is_not_unreachable() -> None:
    async def run() -> None:
        app, watch = monitor(owns_server=True)
        async with app.run_test(size=(100, 30)) as pilot:
            await show(pilot, watch, busy(), "2 of 4 running")
            watch.on_reading(GONE)
            await until(pilot, lambda: "draining" in text_of(pilot), "its state")
            assert "cannot reach" not in text_of(pilot) and "2 of 4 running" in text_of(pilot)

    asyncio.run(run())

"""Screens on a terminal that sends invalid bytes, closes, or reports a wrong size; screens with unexpected errors."""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.pages_server import Page, Pages, llama_pages, serving
from doubles.pty_program import PtyProgram
from doubles.timeouts import PATIENCE_S
from textual.messages import ExitApp

from eaglelocal.tui.terminal.terminal_driver import TerminalDriver

pytestmark = pytest.mark.full

CHAT = [sys.executable, str(Path(__file__).with_name("chat_program.py"))]
TOP = [sys.executable, "-m", "eaglelocal", "top"]
BROKEN_TOP = (
    "import sys; from eaglelocal.cli.main import main; from eaglelocal.tui.monitor.monitor_app import Monitor;"
    "Monitor.action_pause = lambda self: 1 // 0; sys.exit(main())"
)
CTRL_Q, F1 = b"\x11", b"\x1bOP"
ODD = (
    b"\xff",
    b"caf\xe9 ",
    b"\x9b\x80",
    b"\x1b[99999999999;1u",
    b"\x1b[97;1:3u",
    b"\x00",
    b"\x1b[200~na\xefve\x1b[201~",
)


@pytest.fixture
def url() -> Iterator[str]:
    with serving(llama_pages()) as pages:
        yield pages.url


def test_the_chat_stays_whatever_is_typed(tmp_path: Path) -> None:
    with PtyProgram([*CHAT, str(tmp_path)], {}) as chat:
        chat.expect("(0 %)")
        for odd in ODD:
            chat.type(odd)
        chat.expect("na\ufffdve")
        chat.type(b" and on \xc3")
        chat.type(b"\xa9")
        chat.expect("and on \u00e9")
        chat.type(CTRL_Q)
        assert chat.end() == 0, chat.new
        assert chat.is_mended
    assert "Traceback" not in chat.shown


def test_the_monitor_stays_whatever_is_typed(url: str) -> None:
    with PtyProgram([*TOP, url], {}) as top:
        top.expect("running")
        for odd in ODD:
            top.type(odd)
        top.type(b"\x1b[B/")
        top.expect("client, state, model or id")
        top.type(b"b\xe9r")
        top.expect("only: b\ufffdr")
        top.type(CTRL_Q)
        assert top.end() == 0, top.new
        assert top.is_mended
    assert "Traceback" not in top.shown


def test_a_bug_ends_the_chat_with_a_message_and_a_code(tmp_path: Path) -> None:
    with PtyProgram([*CHAT, str(tmp_path), "broken"], {}) as chat:
        chat.expect("(0 %)")
        chat.type(F1)
        assert chat.end() == 1
        assert chat.is_mended
        assert chat.raw.rindex(b"\x1b[?1049l") > chat.raw.rindex(b"\x1b[?1049h")
    assert "error: this is a bug: ZeroDivisionError" in chat.new
    assert "hint: EAGLELOCAL_TRACEBACK=1" in chat.new
    assert "Traceback" not in chat.new


def test_a_bug_ends_the_monitor_with_a_message_and_a_code(url: str) -> None:
    with PtyProgram([sys.executable, "-c", BROKEN_TOP, "top", url], {"EAGLELOCAL_TRACEBACK": "1"}) as top:
        top.expect("running")
        top.type(b" ")
        assert top.end() == 1
        assert top.is_mended
    assert "error: this is a bug: ZeroDivisionError" in top.new
    assert "in <lambda>" in top.new


EVIL = "a\x1b]52;c;aGk=\x07b\x9b2J\u202ec\x07\x08"
ROWS = [{"id": f"r{i}", "client": EVIL, "model": EVIL, "state": state} for i, state in enumerate(("running", EVIL))]
HOSTILE = {
    "/v1/models": Page({"data": [{"id": "m", "owned_by": "eaglelocal"}]}),
    "/v1/snapshot": Page(
        {
            "state": EVIL,
            "model": {"target": EVIL, "draft": EVIL},
            "engine": {"store_problem": EVIL, "spec": "\u00b2", "speculation": {"state": EVIL, "reason": EVIL}},
            "requests": ROWS,
            "learning": {"on": True, "state": EVIL, "note": EVIL},
            "drift": [{"text": EVIL}],
            "is_operator": True,
        }
    ),
}


def obeyed(raw: bytes) -> set[str]:
    """What a terminal would obey of EVIL; Textual itself sets the shape of the pointer."""
    written = re.sub("\x1b]22;\\w+\x07", "", raw.decode(errors="replace"))
    return {char for char in ("\x1b]", "\x07", "\x08", "\x9b", "\u202e") if char in written}


def test_a_hostile_server_neither_steers_the_terminal_nor_ends_the_monitor() -> None:
    with serving(Pages(HOSTILE)) as pages, PtyProgram([*TOP, pages.url], {}, size=(120, 40)) as top:
        top.expect("eaglelocal at")
        top.expect("\u00b2")
        top.type(b"c")  # whose request is it?
        top.expect("Cancel the request of")
        top.type(b"\x1b")
        top.type(CTRL_Q)
        assert top.end() == 0, top.new
    assert not obeyed(top.raw)


def test_a_pasted_escape_reaches_no_terminal(tmp_path: Path) -> None:
    with PtyProgram([*CHAT, str(tmp_path)], {}) as chat:
        chat.expect("(0 %)")
        chat.type(b"\x1b[200~" + EVIL.encode() + b" is pasted\x1b[201~")
        chat.expect("is pasted")
        chat.type(CTRL_Q)
        assert chat.end() == 0
    assert not obeyed(chat.raw)


@pytest.mark.parametrize("name", ["dumb", ""])
def test_a_terminal_that_shows_no_screen_gets_a_frame_in_lines(url: str, name: str) -> None:
    with PtyProgram([*TOP, url], {"TERM": name}) as top:
        top.expect("llama-server at")
        assert top.end() == 0
    assert b"\x1b" not in top.raw


@pytest.mark.parametrize("columns", ["0", "-3", "x", "999999999"])
def test_the_terminal_says_how_large_it_is_and_not_a_variable(url: str, columns: str) -> None:
    with PtyProgram([*TOP, url], {"COLUMNS": columns, "LINES": columns}, size=(70, 20)) as top:
        top.expect("running")
        top.type(b"q")
        assert top.end() == 0
    assert b"\x1b[20;1H" in top.raw and b"\x1b[21;1H" not in top.raw


def test_a_screen_is_on_the_terminal_while_errors_go_to_a_file(url: str) -> None:
    with PtyProgram(["sh", "-c", f"exec {shlex.join([*TOP, url])} 2>/dev/null"], {}) as top:
        top.expect("llama-server at")
        top.type(CTRL_Q)
        assert top.end() == 0, top.new


def test_a_screen_without_a_keyboard_goes_on_and_ctrl_c_ends_it(url: str) -> None:
    with PtyProgram(["sh", "-c", 'exec "$@" < /dev/null', "sh", *TOP, url], {}) as top:
        top.expect("running")
        top.type(b"\x03")
        assert top.end() == 130
    assert "Traceback" not in top.shown


class Posted:
    """An app that notes the messages that it gets."""

    def __init__(self) -> None:
        self.messages: list[object] = []

    def post_message(self, message: object) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_key_reader_stops_at_the_end_of_input(is_terminal: bool) -> None:
    """Else `top < /dev/null` takes a core. A terminal that is gone ends the app."""
    driver, app = object.__new__(TerminalDriver), Posted()
    driver.exit_event, driver.input_tty, driver._app = threading.Event(), is_terminal, app  # type: ignore[assignment]
    with open(os.devnull, "rb") as nothing:
        driver.fileno = nothing.fileno()
        reading = threading.Thread(target=driver.run_input_thread, daemon=True)
        reading.start()
        reading.join(PATIENCE_S)
        is_reading = reading.is_alive()
        driver.exit_event.set()
        reading.join()
    assert not is_reading and [type(each) for each in app.messages] == [ExitApp] * is_terminal

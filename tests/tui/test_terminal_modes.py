"""What a screen switches on in the terminal is off when it ends, however it ends; clicks mean the cell they are in."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from doubles.answering_terminal import ALTERNATE, PIXELS, RESIZE, SYNC, AnsweringTerminal
from doubles.pages_server import llama_pages, serving
from doubles.timeouts import wait_until

pytestmark = pytest.mark.full

CHAT = [sys.executable, str(Path(__file__).with_name("chat_program.py"))]
LINES = [sys.executable, str(Path(__file__).parents[1] / "cli" / "scripted_terminal.py")]
TOP = [sys.executable, "-m", "eaglelocal", "top"]
CTRL_Q, F1 = b"\x11", b"\x1bOP"
CLICKS = 3
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
QUIT_CELL, PROMPT_CELL = (2, 23), (10, 21)  # `q Quit` in the last row; where the chat's questions are typed


@pytest.fixture
def url() -> Iterator[str]:
    with serving(llama_pages()) as pages:
        yield pages.url


@pytest.mark.parametrize(
    "terminal",
    [
        {"knows": (SYNC, RESIZE, PIXELS)},
        {"knows": (SYNC, RESIZE)},
        {"on_before": (RESIZE,)},
        {"on_before": (RESIZE, PIXELS)},
        {"on_before": (PIXELS,), "knows": (PIXELS,)},
        {"cell": (0, 0)},
    ],
)
def test_a_click_lands_where_it_is(url: str, terminal: Mapping[str, tuple[int, int]]) -> None:
    with AnsweringTerminal([*TOP, url], {}, **terminal) as top:
        top.expect("running")
        for _ in range(CLICKS):  # the footer may be rebuilt just now
            while top.read(1.0):
                pass
            if top.program.poll() is None:
                top.click(*QUIT_CELL)
        assert top.end() == 0
        assert top.left_on == {}


def test_the_size_is_followed(url: str) -> None:
    with AnsweringTerminal([*TOP, url], {}, on_before=(RESIZE,)) as top:
        top.expect("running")
        top.resize(60, 12)
        while b"\x1b[12;1H" not in top.raw.rpartition(b"\x1b[24;1H")[2]:
            assert top.read(10), top.new
        top.type(b"q")
        assert top.end() == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_leaves_nothing_on(tmp_path: Path, number: signal.Signals) -> None:
    with AnsweringTerminal([*CHAT, str(tmp_path)], {}) as chat:
        chat.expect("(0 %)")
        chat.point(*PROMPT_CELL)
        while chat.pointer != "text":
            assert chat.read(30), chat.new
        chat.type(b"go on\r")
        chat.expect("word")
        assert chat.modes[ALTERNATE] and chat.num_keyboards == 1
        os.kill(chat.program.pid, number)
        assert chat.end() in (128 + number, -number)  # Python ends by SIGINT itself
        assert chat.left_on == {}
    assert "never retrieved" not in chat.shown


@pytest.mark.parametrize(("how", "code", "arguments"), [(CTRL_Q, 0, []), (F1, 1, ["broken"])])
def test_leaving_and_a_bug_leave_nothing_on(tmp_path: Path, how: bytes, code: int, arguments: list[str]) -> None:
    with AnsweringTerminal([*CHAT, str(tmp_path), *arguments], {}) as chat:
        chat.expect("(0 %)")
        chat.type(how)
        assert chat.end() == code
        assert chat.left_on == {}


def test_a_suspended_screen_leaves_nothing_on_and_comes_back(tmp_path: Path) -> None:
    with AnsweringTerminal([*CHAT, str(tmp_path)], {}) as chat:
        chat.expect("(0 %)")
        os.kill(chat.program.pid, signal.SIGTSTP)
        status = Path(f"/proc/{chat.program.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            chat.read(0.1)
        while chat.read(0.1):
            pass
        assert chat.left_on == {}
        os.kill(chat.program.pid, signal.SIGCONT)
        while not chat.modes[ALTERNATE] or chat.is_mended:  # before it is raw, it may take Ctrl+Q as XON
            assert chat.read(30), chat.new
        chat.type(CTRL_Q)
        assert chat.end() == 0
        assert chat.left_on == {}


def test_signals_to_continue_that_interrupt_each_other_leave_a_screen_that_obeys(tmp_path: Path) -> None:
    """Handled where they interrupted a write, they waited for its lock for good."""
    with AnsweringTerminal([*CHAT, str(tmp_path)], {}) as chat:
        chat.expect("(0 %)")
        for number in range(300):
            os.kill(chat.program.pid, signal.SIGCONT)
            chat.read(number % 7 * 0.005)
        while chat.read(0.5) or chat.is_mended:
            assert chat.program.poll() is None, chat.new
        chat.type(CTRL_Q)
        assert chat.end() == 0
        assert chat.is_mended


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminal_that_reads_nothing_does_not_keep_the_program(tmp_path: Path, number: signal.Signals) -> None:
    with AnsweringTerminal([*CHAT, str(tmp_path)], {}, size=(200, 60)) as chat:
        chat.expect("(0 %)")
        chat.type(b"go on\r")
        wait_until((tmp_path / "conversations" / "go on.json").exists, "the whole answer on disk")
        os.kill(chat.program.pid, number)
        chat.program.wait(30)
        assert chat.program.returncode in (128 + number, -number)
        while chat.read(0.5):
            pass
        assert chat.left_on == {}


def test_a_paste_whose_end_is_lost_leaves_the_keys(tmp_path: Path) -> None:
    with AnsweringTerminal([*CHAT, str(tmp_path)], {}) as chat:
        chat.expect("(0 %)")
        chat.type(b"\x1b[200~half a paste\x1b[20")
        chat.expect("half a paste")
        chat.type(CTRL_Q)
        assert chat.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("question", [b"", b"one\rtwo\r"])
def test_a_signal_in_line_mode_leaves_nothing_on(tmp_path: Path, question: bytes, number: signal.Signals) -> None:
    with AnsweringTerminal(LINES, {"XDG_STATE_HOME": str(tmp_path)}) as chat:
        chat.expect("> ")
        chat.type(question)
        chat.expect("half an" if question else "")
        os.kill(chat.program.pid, number)
        assert chat.end() == 128 + number
        assert chat.left_on == {}

"""Line mode on a real terminal (a pty): typing, history, colour, Ctrl-C, Ctrl-D."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("scripted_terminal.py")
PATIENCE_S = 20.0
CTRL_C, CTRL_D, UP, ENTER = b"\x03", b"\x04", b"\x1b[A", b"\r"
CONTROL = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


class Terminal:
    """A program on 80 columns and 24 lines that thinks a person is there."""

    def __init__(self, state: Path, environ: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        tests = str(PROGRAM.parent.parent)
        self.program = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that ctrl-c becomes a signal
            env={**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm", "PYTHONPATH": _path(tests), **environ},
        )
        os.close(theirs)
        self.raw = ""
        self._seen = 0

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def interrupt(self) -> None:
        """Ctrl-C once the program waits: Python misses a signal between showing a prompt and waiting for keys."""
        num_asleep = 0
        while num_asleep < 5:
            time.sleep(0.02)
            num_asleep = num_asleep + 1 if self._sleeps() else 0
        self.type(CTRL_C)

    def _sleeps(self) -> bool:
        status = Path(f"/proc/{self.program.pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "S"

    def ask(self, line: str) -> None:
        self.type(line.encode() + ENTER)

    def expect(self, text: str) -> str:
        """Wait until the text appears after what was expected before; gives what stood before it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self.shown[self._seen :]!r}"
            self._read()
        before = self.shown[self._seen : found]
        self._seen = found + len(text)
        return before

    def end(self) -> int:
        """The exit code, when the program has ended by itself."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline_s, f"still running after {self.shown[self._seen :]!r}"
        return self.program.wait(PATIENCE_S)

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._ours)

    @property
    def shown(self) -> str:
        return CONTROL.sub("", self.raw).replace("\r", "")

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 0.5)[0]:
            return self.program.poll() is None
        try:
            chunk = os.read(self._ours, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.raw += chunk.decode(errors="replace")
        return bool(chunk)


def _path(tests: str) -> str:
    return os.pathsep.join([tests, str(Path(tests).parent), os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, {"NO_COLOR": ""})
    opened.expect("> ")
    yield opened
    opened.close()


def test_the_model_is_named_before_the_first_question(tmp_path: Path) -> None:
    opened = Terminal(tmp_path, {})
    greeting = opened.expect("> ")
    opened.close()
    assert "target   scripted model" in greeting
    assert "draft    scripted head, automatic" in greeting
    assert "context  2048 tokens" in greeting
    assert max(len(line) for line in greeting.splitlines()) < 80


def test_a_talk_with_an_interrupt_and_a_crash(terminal: Terminal) -> None:
    terminal.ask("one")
    terminal.expect("the first answer\n")
    terminal.expect("41.2 tok/s")
    assert "\x1b[32m first\x1b[0m" in terminal.raw
    terminal.expect("> ")
    terminal.ask("two")
    terminal.expect("half an")
    terminal.interrupt()
    terminal.expect("stopped")
    terminal.expect("> ")
    terminal.ask("three")
    terminal.expect("broken\n")
    terminal.expect("error: the engine process ended with signal 9")
    terminal.expect("hint: ask again")
    terminal.expect("> ")
    terminal.ask("four")
    terminal.expect("the last")
    terminal.ask("/stats")  # typed ahead: not to be seen amid the answer, but at the prompt
    terminal.expect(" answer\n")
    terminal.expect("> /stats")
    terminal.expect("answers       3")
    terminal.expect("> ")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.raw


def test_ctrl_c_twice_during_an_answer_leaves(terminal: Terminal) -> None:
    terminal.ask("one")
    terminal.expect("> ")
    terminal.ask("two")
    terminal.expect("half an")
    terminal.interrupt()
    terminal.expect("> ")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.raw


def test_ctrl_c_discards_a_line_and_does_not_leave(terminal: Terminal) -> None:
    for _ in range(3):
        terminal.type(b"never asked")
        terminal.expect("never asked")
        terminal.interrupt()
        terminal.expect("> ")
    terminal.ask("one")
    terminal.expect("the first answer")


def test_ctrl_c_twice_at_an_empty_prompt_leaves(terminal: Terminal) -> None:
    terminal.interrupt()
    terminal.expect("ctrl-c again")
    terminal.expect("> ")
    terminal.interrupt()
    assert terminal.end() == 130


def test_a_block_and_a_line_that_goes_on_are_one_question(terminal: Terminal) -> None:
    terminal.ask('"""first')
    terminal.expect(". ")
    terminal.ask('second"""')
    terminal.expect("the first answer")
    terminal.expect("> ")
    terminal.ask("/retry")
    terminal.expect("first\nsecond")
    terminal.expect("half an")


def test_alt_enter_begins_a_line(terminal: Terminal) -> None:
    terminal.type(b"first\x1b\r")
    terminal.expect(". ")
    terminal.ask("second")
    terminal.expect("the first answer")
    terminal.expect("> ")
    terminal.ask("/retry")
    terminal.expect("first\nsecond")


def test_pasted_lines_are_one_question(terminal: Terminal) -> None:
    terminal.type(b"\x1b[200~first\rsecond\x1b[201~")
    terminal.expect("second")
    terminal.type(ENTER)
    terminal.expect("the first answer")
    terminal.expect("> ")
    terminal.ask("/retry")
    terminal.expect("first\nsecond")


def test_a_question_of_the_screen_is_recalled_with_all_its_lines(tmp_path: Path) -> None:
    (tmp_path / "eaglelocal").mkdir()
    (tmp_path / "eaglelocal" / "questions.jsonl").write_text('"/system one\\ntwo"\n')
    terminal = Terminal(tmp_path, {})
    terminal.expect("> ")
    terminal.type(UP)
    terminal.expect("two")
    terminal.type(ENTER)
    terminal.expect("system message: one\ntwo")
    terminal.close()


def test_history_is_there_the_next_time(tmp_path: Path) -> None:
    first = Terminal(tmp_path, {})
    first.expect("> ")
    first.ask("/system remembered")
    first.expect("system message")
    first.expect("> ")
    first.type(CTRL_D)
    assert first.end() == 0
    first.close()
    second = Terminal(tmp_path, {})
    second.expect("> ")
    second.type(UP)
    second.expect("/system remembered")
    second.close()
    assert (tmp_path / "eaglelocal" / "questions.jsonl").stat().st_mode & 0o077 == 0


def test_tab_completes_the_words_that_a_command_takes(terminal: Terminal) -> None:
    terminal.type(b"/think me\t")
    terminal.expect("/think medium")
    terminal.type(ENTER)
    terminal.expect("thinking: medium effort")


def test_tab_completes_commands(terminal: Terminal) -> None:
    terminal.type(b"/sta\t")
    terminal.expect("/stats ")
    terminal.type(ENTER)
    terminal.expect("no answers yet")


def test_no_color_means_no_escape_in_the_answer(tmp_path: Path) -> None:
    opened = Terminal(tmp_path, {"NO_COLOR": "1"})
    opened.expect("> ")
    opened.ask("one")
    opened.expect("the first answer")
    opened.expect("first token")
    opened.close()
    assert "\x1b[32m" not in opened.raw
    assert "\x1b[2m" not in opened.raw

"""What is typed before the screen is there is typed into the screen, and sent if Enter was pressed."""

from __future__ import annotations

import os
import pty
import sys
import tty
from pathlib import Path

import pytest
from doubles.pty_program import PtyProgram
from doubles.tiers import some_of
from doubles.timeouts import wait_until

from eaglelocal.conversation import conversation_file
from eaglelocal.tui.terminal.terminal_driver import count_waiting_bytes

PROGRAM = Path(__file__).with_name("chat_program.py")


@pytest.mark.parametrize("enter", some_of([b"\r", b"\n"]))
def test_an_enter_before_the_screen_sends_the_question(tmp_path: Path, enter: bytes) -> None:
    with PtyProgram([sys.executable, str(PROGRAM), str(tmp_path)], {}, size=(80, 24)) as program:
        program.type(b"go on" + enter)  # the program has not even imported Textual
        program.expect("word1999")
        program.type(b"\x11")
        assert program.end() == 0
    assert [turn.question for turn in conversation_file.load_last(tmp_path / "conversations").turns] == ["go on"]


def test_a_line_feed_on_the_screen_begins_a_line(tmp_path: Path) -> None:
    with PtyProgram([sys.executable, str(PROGRAM), str(tmp_path)], {}, size=(80, 24)) as program:
        program.expect("(0 %)")
        program.type(b"one\ntwo")
        program.expect("two")
        program.type(b"\r")
        program.expect("word1999")
        program.type(b"\x11")
        assert program.end() == 0
    assert [turn.question for turn in conversation_file.load_last(tmp_path / "conversations").turns] == ["one\ntwo"]


def test_bytes_that_wait_are_counted() -> None:
    ours, theirs = pty.openpty()
    reading, writing = os.pipe()
    try:
        tty.setraw(theirs)
        assert count_waiting_bytes(theirs) == 0
        os.write(ours, b"ab\r")
        wait_until(lambda: count_waiting_bytes(theirs) == 3, "the bytes at the other end")
        os.write(writing, b"ab")
        assert count_waiting_bytes(reading) == 0  # no terminal
    finally:
        for descriptor in (ours, theirs, reading, writing):
            os.close(descriptor)

"""A terminal that reads nothing delays the screen, never the answer."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from doubles.timeouts import wait_until
from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread

from eaglelocal.tui.terminal.terminal_driver import TerminalDriver

PROGRAM = Path(__file__).with_name("chat_program.py")
PATIENCE_S = 60.0


def read_until(terminal: int, wanted: bytes) -> None:
    shown, deadline_s = b"", time.monotonic() + PATIENCE_S
    while wanted not in shown:
        assert time.monotonic() < deadline_s, shown[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536)


class Redrawn:
    """An app that notes what it was asked to do later."""

    num_redrawn = 0

    def call_later(self, callback: Callable[..., object], **_: object) -> None:
        self.num_redrawn += callback == self.refresh

    def refresh(self) -> None:
        """Only named here."""


def test_a_terminal_that_reads_nothing_never_holds_up_the_loop() -> None:
    """In `serve`, the loop is the server's. This writer is not run, so it takes nothing."""
    driver, app = object.__new__(TerminalDriver), Redrawn()
    driver._app, driver._writer_thread = app, WriterThread(io.StringIO())  # type: ignore[assignment]
    for number in range(2 * MAX_QUEUED_WRITES):
        driver.write(str(number))
    driver._catch_up()
    assert driver.is_behind and not app.num_redrawn
    for _ in range(MAX_QUEUED_WRITES):
        driver._queue.get_nowait()
    driver._catch_up()
    assert (driver.is_behind, app.num_redrawn) == (False, 1)


def test_a_screen_that_stands_still_is_drawn_again_too() -> None:
    """Nothing is displayed there that would notice that the terminal reads again."""
    driver, app = object.__new__(TerminalDriver), Redrawn()
    driver._app, driver._writer_thread = app, WriterThread(io.StringIO())  # type: ignore[assignment]
    driver.fileno, keyboard = os.pipe()
    driver.exit_event, driver._is_behind = threading.Event(), True
    reading = threading.Thread(target=driver.run_input_thread, daemon=True)
    reading.start()
    wait_until(lambda: app.num_redrawn == 1, "a redraw")
    driver.exit_event.set()
    reading.join()
    os.close(keyboard)
    os.close(driver.fileno)


def test_an_answer_ends_while_the_terminal_is_not_read(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    paths = os.pathsep.join([str(PROGRAM.parents[1]), str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": paths}
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(tmp_path)], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    try:
        read_until(ours, b"(0 %)")
        os.write(ours, b"go on\r")
        file = tmp_path / "conversations" / "go on.json"
        wait_until(file.exists, "the question on disk")

        def read_answer() -> str:
            return json.loads(file.read_text())["turns"][0]["answer"].rstrip()  # type: ignore[no-any-return]

        wait_until(lambda: read_answer().endswith("word1999"), "the whole answer on disk")
        read_until(ours, b"word1999")
    finally:
        program.kill()
        program.wait()
        os.close(ours)

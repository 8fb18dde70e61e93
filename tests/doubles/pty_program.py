"""A program on a terminal of its own (a pty), byte by byte: type what no keyboard sends, read what it draws."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parent.parent
PATIENCE_S = 60.0
CONTROL = re.compile(r"\x1b\[[<>=?0-9;:]*[ -/]*[@-~]|\x1b[()][0-9A-B]|\x1b[=>]")


def search_path() -> str:
    """Where a program under test finds itself and the doubles."""
    return os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])


class PtyProgram:
    """Use as a context manager: leaving ends the program. `end` waits for it to end by itself."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], *, size: tuple[int, int] = (80, 24)) -> None:
        self._ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs  # stays open, so that what the program leaves behind can be read
        self._set_size(size)
        self.program = subprocess.Popen(
            list(command),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PYTHONPATH": search_path(), **environ},
        )
        self.raw = b""
        self._seen = 0

    def __enter__(self) -> PtyProgram:
        return self

    def __exit__(self, *exception: object) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, width: int, height: int) -> None:
        """The kernel tells the program."""
        self._set_size((width, height))

    @property
    def shown(self) -> str:
        """All that was written, without control sequences."""
        return CONTROL.sub("", self.raw.decode(errors="replace")).replace("\r", "")

    @property
    def new(self) -> str:
        """What was written behind what was expected last."""
        return self.shown[self._seen :]

    def expect(self, text: str) -> str:
        """Wait until it is written, behind what was expected before. Gives what stood before it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self.new[-3000:]!r}"
            assert self.read() or self.program.poll() is None, f"it has ended, without {text!r}: {self.new[-3000:]!r}"
        before = self.shown[self._seen : found]
        self._seen = found + len(text)
        return before

    def end(self) -> int:
        """The exit code, when it has ended by itself."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.program.poll() is None:
            assert time.monotonic() < deadline_s, f"still running behind {self.new[-3000:]!r}"
            self.read()
        while self.read(0.0):
            pass
        return self.program.returncode

    @property
    def is_mended(self) -> bool:
        """Does the terminal echo and break lines as before?"""
        return termios.tcgetattr(self._theirs)[:4] == self.before[:4]

    def read(self, wait_s: float = 0.2) -> bool:
        """What came meanwhile. Was there anything?"""
        if not select.select([self._ours], [], [], wait_s)[0]:
            return False
        chunk = os.read(self._ours, 65536)
        self.raw += chunk
        return bool(chunk)

    def _set_size(self, size: tuple[int, int]) -> None:
        width, height = size
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

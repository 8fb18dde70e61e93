"""A program on a terminal of its own (a pty), byte by byte: send what no keyboard sends, read what it draws."""

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
    """Return the PYTHONPATH with which a program under test finds the package and the doubles."""
    return os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])


class PtyProgram:
    """A program on a pty. A context manager that kills it; `end` waits for it to end by itself."""

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
        """Change the size of the terminal; the kernel signals that to the program."""
        self._set_size((width, height))

    @property
    def shown(self) -> str:
        """The whole output, without control sequences."""
        return CONTROL.sub("", self.raw.decode(errors="replace")).replace("\r", "")

    @property
    def new(self) -> str:
        """The output after the text that was expected last."""
        return self.shown[self._seen :]

    def expect(self, text: str) -> str:
        """Wait until the text is written, after what was expected before. Return the output between the two."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self.new[-3000:]!r}"
            assert self.read() or self.program.poll() is None, f"it has ended, without {text!r}: {self.new[-3000:]!r}"
        before = self.shown[self._seen : found]
        self._seen = found + len(text)
        return before

    def end(self) -> int:
        """Wait until the program ends by itself, and return its exit code."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.program.poll() is None:
            assert time.monotonic() < deadline_s, f"still running behind {self.new[-3000:]!r}"
            self.read()
        while self.read(0.0):
            pass
        return self.program.returncode

    @property
    def is_mended(self) -> bool:
        """True if the terminal has its original settings again, such as echo."""
        return termios.tcgetattr(self._theirs)[:4] == self.before[:4]

    def read(self, wait_s: float = 0.2) -> bool:
        """Read available output. Return True if there was any within `wait_s`."""
        if not select.select([self._ours], [], [], wait_s)[0]:
            return False
        chunk = os.read(self._ours, 65536)
        self.raw += chunk
        return bool(chunk)

    def _set_size(self, size: tuple[int, int]) -> None:
        width, height = size
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

"""A stderr stream that can be held: while a screen is shown its lines go to a log, of which the newest follow later."""

from __future__ import annotations

import re
import threading
from typing import TextIO

from eaglelocal.tui.monitor.log_tail import LogTail

MAX_REPEATED = 12  # most lines of the time under the screen that release() writes
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TailStream:
    """A stream for cli/output.py, with the methods that it uses. Safe from any thread."""

    def __init__(self, stream: TextIO, tail: LogTail) -> None:
        self._stream, self.tail = stream, tail
        self._lock = threading.Lock()
        self._is_held = False
        self._held_at = 0  # number of lines in the tail when hold() was called
        self._incomplete = ""  # the beginning of an incomplete line

    def hold(self) -> None:
        """Send lines to the tail instead of the terminal, until release()."""
        with self._lock:
            if self._stream.isatty():
                self._stream.write("\r\x1b[K")  # erase a progress bar
                self._stream.flush()
            self._is_held, self._held_at = True, self.tail.num_lines

    def release(self) -> None:
        with self._lock:
            if self._is_held:
                self._is_held = False
                missed = min(self.tail.num_lines - self._held_at, MAX_REPEATED)
                self._stream.write("".join(f"{line}\n" for line in self.tail.newest(missed)))
                self._stream.flush()

    def write(self, text: str) -> int:
        with self._lock:
            if not self._is_held:
                return self._stream.write(text)
            *whole, self._incomplete = (self._incomplete + _ESCAPES.sub("", text)).split("\n")
            for line in whole:
                self.tail.add(line.rpartition("\r")[2])  # keep only what the last carriage return left visible
            return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return not self._is_held and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

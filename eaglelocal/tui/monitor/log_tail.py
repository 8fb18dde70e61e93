"""The newest lines of a log, for a screen. Written from any thread; independent of loggers and widgets."""

from __future__ import annotations

import threading
from collections import deque

KEPT_LINES = 500


class LogTail:
    """A buffer of the newest KEPT_LINES lines of a log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._num_lines = 0

    @property
    def num_lines(self) -> int:
        """The number of lines so far; if it has changed, there is something new."""
        return self._num_lines

    def add(self, text: str) -> int:
        """Add one or several lines; empty ones are skipped. Return the number of the last line, for `replace`."""
        with self._lock:
            for each in text.splitlines():
                if each.strip():
                    self._lines.append(each)
                    self._num_lines += 1
            return self._num_lines

    def replace(self, number: int, text: str) -> bool:
        """Put a text in place of the line with this number. Return False if it is no longer kept."""
        with self._lock:
            index = number - self._num_lines - 1
            if not -len(self._lines) <= index < 0:
                return False
            self._lines[index] = text
            return True

    def newest(self, count: int) -> list[str]:
        with self._lock:
            return list(self._lines)[-count:] if count > 0 else []

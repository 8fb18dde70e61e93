"""The newest lines of a log, for a screen. Written from any thread; independent of loggers and widgets."""

from __future__ import annotations

import threading
from collections import deque

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.core.draft import describe_drafting

KEPT_LINES = 500


class LogTail:
    """A buffer of the newest KEPT_LINES lines of a log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._num_lines = 0

    @property
    def num_lines(self) -> int:
        """The number of lines so far, which changes with each new line."""
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


# ---- log changes: describe changes between two readings that deserve a log line: states, restarts, models, drafting
#
# The descriptions are pure; a `ChangeLog` writes them, and counts drafting that pauses and resumes in one line.
SAME_LINE_S = 10.0  # time after a change of drafting in which the next one is counted in the same line


class ChangeLog:
    """Writes the changes from reading to reading into the tail of a log."""

    def __init__(self, tail: LogTail) -> None:
        self._tail = tail
        self._last: ServerReading | None = None
        self._line, self._num_changes = 0, 0  # the last one on drafting, and the changes that it counts
        self._began, self._changed_at = "", float("-inf")

    def add(self, reading: ServerReading, now: float, clock: str) -> None:
        """Log what has changed since the last reading. `now` is in monotonic seconds; `clock` begins each line."""
        before, self._last = self._last, reading
        for sentence in describe_changes(before, reading):
            self._tail.add(f"{clock}  {sentence}")
        if sentence := describe_drafting_change(before, reading):
            self._add_drafting(sentence, now, clock)

    def _add_drafting(self, sentence: str, now: float, clock: str) -> None:
        """Log a change of drafting. A line that counts several keeps its first time, so that the log stays in order."""
        if now - self._changed_at < SAME_LINE_S:
            self._num_changes += 1
            counted = f"{self._began}  {sentence}; {self._num_changes} changes until {clock}"
            if self._tail.replace(self._line, counted):
                self._changed_at = now
                return
        self._line, self._num_changes = self._tail.add(f"{clock}  {sentence}"), 1
        self._began, self._changed_at = clock, now


def describe_changes(before: ServerReading | None, now: ServerReading) -> list[str]:
    """Return a sentence for each change, in the order to log them."""
    sentences = []
    if before is None or before.state != now.state:
        sentences.append(_describe_state(before, now))
    if before is not None and DISCONNECTED not in (before.state, now.state):
        if before.restarts is not None and now.restarts is not None and now.restarts > before.restarts:
            sentences.append(f"the engine has restarted ({now.restarts} so far)")
        sentences += _describe_models(before, now)
        setting, old_setting = now.drafting.setting, before.drafting.setting
        is_same = before.model == now.model  # with several loaded models, the reported one may change
        if is_same and old_setting and setting not in ("", old_setting):
            sentences.append(f"drafting was set to {setting}")
    if now.missing and (before is None or before.missing != now.missing):
        sentences.append(explain_missing(now))
    return sentences


def explain_missing(reading: ServerReading) -> str:
    """Name the server flags that would make it report more."""
    return f"{reading.kind} reports more when started with {' '.join(reading.missing)}"


def _describe_state(before: ServerReading | None, now: ServerReading) -> str:
    reason = f": {now.detail}" if now.detail else ""
    if now.state == DISCONNECTED:
        return now.detail or "no connection"
    begin = "connected: " if before is None else ""  # it may have been in that state for long
    again = " again" if before is not None and before.state == DISCONNECTED else ""
    return f"{begin}{now.kind} is {now.state}{again}{reason if now.state == 'failed' else ''}"


def _describe_models(before: ServerReading, now: ServerReading) -> list[str]:
    if not (before.models and now.models):
        return []
    loaded = [name for name in now.models if name not in before.models]
    unloaded = [name for name in before.models if name not in now.models]
    if loaded == list(now.models) and len(loaded) == 1:
        return [f"the model is now {now.model}"]
    return [f"{name} was unloaded" for name in unloaded] + [f"{name} was loaded" for name in loaded]


def describe_drafting_change(before: ServerReading | None, now: ServerReading) -> str:
    """Return `drafting paused: it would be slower (0.68x)` or `drafting resumed`; "" if nothing has changed."""
    if before is None or before.model != now.model or DISCONNECTED in (before.state, now.state):
        return ""
    old, new = before.drafting, now.drafting
    if old.state == new.state or not new.state or old.state in ("", "off"):
        return ""  # from off: a model was just loaded, or the person switched drafting on, which has its own line
    if new.state != "on":
        return describe_drafting(new.state, new.reason)
    return f"drafting resumed: {new.reason}" if new.reason else "drafting resumed"

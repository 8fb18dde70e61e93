"""Progress of a training run on stderr: a bar on a terminal, a line now and then in a log.

It shows counts and times, and does not know what is trained.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from eaglelocal.core.amounts import format_duration
from eaglelocal.core.terminal_text import can_move_cursor, clean_line

LOG_EVERY_S = 60.0
WINDOW = 20  # steps whose loss is averaged


def describe_loss(losses: Sequence[float]) -> str:
    """Return the mean loss of the last steps, and how it differs from that of as many steps before them.

    >>> describe_loss([4.0, 4.0, 3.0, 3.5])
    '3.62'
    >>> describe_loss([4.0] * WINDOW + [3.5] * WINDOW)
    '3.50 (-0.50)'
    """
    last, before = losses[-WINDOW:], losses[-2 * WINDOW : -WINDOW]
    mean = sum(last) / len(last)
    return f"{mean:.2f} ({mean - sum(before) / WINDOW:+.2f})" if len(before) == WINDOW else f"{mean:.2f}"


class TrainingProgress:
    """A display of steps done, loss and its trend, tokens per second and the time left."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._console = Console(stderr=True)
        self._has_bar = self._console.is_terminal and can_move_cursor(os.environ)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=10), TextColumn("{task.fields[state]}"))
        self._bar = Bar(*columns, console=self._console)
        self._task = self._bar.add_task(label, total=None, state="")
        self._losses = deque[float](maxlen=2 * WINDOW)
        self._total = 0
        self._tokens = self._tokens_at_mark = 0
        self._began_at = self._marked_at = 0.0
        self._done_at_begin = 0

    def __enter__(self) -> TrainingProgress:
        if self._has_bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, done: int, total: int) -> None:
        self._total = total
        self._began_at = self._marked_at = time.monotonic()
        self._done_at_begin = done
        if done:
            self.note(f"resumes at step {done} of {total}")
        self._bar.update(self._task, total=total, completed=done, state=f"step {done}/{total}")

    def advance(self, done: int, tokens: int, loss: float) -> None:
        is_first = not self._losses
        self._losses.append(loss)
        self._tokens += tokens
        elapsed_s = time.monotonic() - self._marked_at
        if is_first or elapsed_s >= (1.0 if self._has_bar else LOG_EVERY_S) or done == self._total:
            self._show(done, elapsed_s)

    def note(self, text: str) -> None:
        """Print a line; without the label if a bar already shows it."""
        line = clean_line(text if self._has_bar else f"{self._label}: {text}")
        self._console.print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False, soft_wrap=True, markup=False)

    def _show(self, done: int, elapsed_s: float) -> None:
        tok_s = (self._tokens - self._tokens_at_mark) / max(elapsed_s, 1e-9)
        spent_s = time.monotonic() - self._began_at  # averaged over the run, because steps differ
        left_s = (self._total - done) * spent_s / max(1, done - self._done_at_begin)
        left = f", {format_duration(left_s)} left" if done < self._total else ""
        state = f"step {done}/{self._total} loss {describe_loss([*self._losses])} {tok_s:.0f} tok/s{left}"
        if self._has_bar:
            self._bar.update(self._task, completed=done, state=state)
        else:
            self.note(state)
        self._marked_at, self._tokens_at_mark = time.monotonic(), self._tokens

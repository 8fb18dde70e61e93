"""Where what is said to a person goes, beside answers: a terminal's stderr in line mode, the transcript on the screen.

Only the seam: who loads, joins or acts on a command speaks through it and does not know which it is.
"""

from __future__ import annotations

from typing import Protocol

from eaglelocal.core.events import LoadProgress


class Progress(Protocol):
    """A bar for one thing that takes a while."""

    def __call__(self, progress: LoadProgress) -> None: ...

    def finish(self) -> None:
        """Take the bar away; what comes later is not shown."""


class Voice(Protocol):
    """`cli.output.Output` is one."""

    def message(self, text: str = "") -> None:
        """A line that was asked for."""

    def aside(self, text: str) -> None:
        """A line that stands back."""

    def progress(self) -> Progress: ...

"""The interface for messages to the user other than answers: stderr in line mode, the transcript on the screen.

Code that loads models, joins servers or runs commands writes to it, in both modes.
"""

from __future__ import annotations

from typing import Protocol

from eaglelocal.core.events import LoadProgress


class ProgressBar(Protocol):
    """A progress bar of one operation."""

    def __call__(self, progress: LoadProgress) -> None: ...

    def finish(self) -> None:
        """Remove the bar; later progress is not shown."""


class MessageOutput(Protocol):
    """An output for messages, such as `cli.output.Output`."""

    def message(self, text: str = "") -> None:
        """Show a line that the user asked for."""

    def note(self, text: str) -> None:
        """Show a dimmed line."""

    def progress(self) -> ProgressBar: ...

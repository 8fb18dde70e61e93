"""A `MessageOutput` that emits chat events, so that messages and progress of loading appear on the chat screen."""

from __future__ import annotations

from eaglelocal.core.events import LoadProgress
from eaglelocal.tui.chat.chat_events import Emit, LoadProgressed, NoteWritten


class EventProgressBar:
    """A progress bar that ignores updates once it is finished."""

    def __init__(self, emit: Emit) -> None:
        self._emit, self._is_finished = emit, False

    def __call__(self, progress: LoadProgress) -> None:
        if not self._is_finished:
            self._emit(LoadProgressed(progress))

    def finish(self) -> None:
        self._is_finished = True
        self._emit(LoadProgressed(None))


class EventOutput:
    """A `MessageOutput` whose messages become notes in the transcript."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def message(self, text: str = "") -> None:
        self._emit(NoteWritten(text))

    def note(self, text: str) -> None:
        self._emit(NoteWritten(text))

    def progress(self) -> EventProgressBar:
        return EventProgressBar(self._emit)

"""The download of a model while the chat goes on: a thread, its progress as events, and a way to stop it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.core.events import LoadProgress
from eaglelocal.errors import Cancelled, EagleLocalError, UsageError, bug_error
from eaglelocal.tui.chat.chat_events import DownloadProgressed, Emit, EventOutput, NoteWritten, TaskFailed

PullModel = Callable[[str, MessageOutput], None]  # fetches a model by its reference
_log = logging.getLogger(__name__)


class ModelDownload:
    """A download of a model, one at a time. `start` and `stop` are for the screen's thread, and return at once."""

    def __init__(self, pull: PullModel, emit: Emit) -> None:
        self._pull, self._emit = pull, emit
        self._reference = ""  # that is being fetched
        self._is_stopping = False

    def start(self, reference: str, on_done: Callable[[], None]) -> None:
        """Fetch a model, then call `on_done` on the thread. Raises UsageError during another download."""
        if self._reference:
            raise UsageError(f"{self._reference} is being downloaded; one model at a time")
        self._reference, self._is_stopping = reference, False
        threading.Thread(target=self._run, args=(reference, on_done), name="model-download", daemon=True).start()

    def stop(self) -> bool:
        """Stop the download, which ends at its next sign of life. Return True if there was one."""
        reference = self._reference
        if not reference or self._is_stopping:
            return False
        self._is_stopping = True
        self._emit(DownloadProgressed(reference, None))
        self._emit(NoteWritten(f"the download of {reference} was stopped; /model {reference} resumes it"))
        return True

    def _run(self, reference: str, on_done: Callable[[], None]) -> None:
        self._show(LoadProgress(0.0, "asking the hub"))
        try:
            self._pull(reference, EventOutput(self._emit, self._show))
            self._reference = ""
            if not self._is_stopping:
                on_done()
        except EagleLocalError as error:
            if not self._is_stopping:
                self._emit(TaskFailed(error))
        except Exception as problem:
            _log.exception("a download failed")
            self._emit(TaskFailed(bug_error(problem)))
        finally:
            self._reference = ""
            self._emit(DownloadProgressed(reference, None))

    def _show(self, progress: LoadProgress | None) -> None:
        """Show the progress, but not the end of a part: the download shows its own.

        Raises Cancelled if the user has stopped the download; its files stay, to be resumed.
        """
        if self._is_stopping:
            raise Cancelled("stopped")
        if progress is not None:
            self._emit(DownloadProgressed(self._reference, progress))

"""Run tasks that block (loading, answering, commands) one after another on a thread of their own.

`send` returns at once. Does not know the screen: failures go to a callback, on that thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, bug_error

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task in the queue."""

    run: Callable[[], None]
    question: str = ""  # what the user typed for it, to put it back into the prompt


class TaskQueue:
    """A queue of tasks and the thread that runs them."""

    def __init__(self, on_failure: Callable[[EagleLocalError], None]) -> None:
        self._on_failure = on_failure
        self._tasks: deque[QueuedTask] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._current: QueuedTask | None = None
        self._thread = threading.Thread(target=self._work, name="chat-tasks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, run: Callable[[], None], *, question: str = "") -> None:
        with self._changed:
            self._tasks.append(QueuedTask(run, question))
            self._changed.notify()

    @property
    def is_busy(self) -> bool:
        return self._current is not None

    @property
    def waiting(self) -> tuple[str, ...]:
        """The questions whose tasks have not started."""
        with self._changed:
            return tuple(task.question for task in self._tasks if task.question)

    def cancel_waiting(self) -> tuple[str, ...]:
        """Remove the questions whose tasks have not started, and return them."""
        with self._changed:
            questions = tuple(task.question for task in self._tasks if task.question)
            self._tasks = deque(task for task in self._tasks if not task.question)
        return questions

    def close(self, timeout_s: float) -> bool:
        """Start no further task and wait for the running one. Return True if it ended in time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                task.run()
            except EagleLocalError as error:
                self._on_failure(error)
            except Exception as problem:
                _log.exception("a chat task failed")
                self._on_failure(bug_error(problem))
            finally:
                self._current = None

    def _next(self) -> QueuedTask | None:
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._is_closed)
            if self._is_closed:
                return None
            self._current = self._tasks.popleft()
            return self._current

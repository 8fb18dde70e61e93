"""The controller of the chat screen: queues everything that blocks, and answers the screen's questions at once.

Does not know widgets. What happens comes back as events (chat_events.py), in order.
"""

from __future__ import annotations

from pathlib import Path

from eaglelocal.conversation.session import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.tui.chat.chat_events import Activity, Emit, TaskFailed
from eaglelocal.tui.chat.chat_tasks import ChatTasks, LastQuestion, OpenSession
from eaglelocal.tui.chat.current_answer import CurrentAnswer
from eaglelocal.tui.chat.engine_poller import EnginePoller
from eaglelocal.tui.chat.task_queue import TaskQueue
from eaglelocal.tui.panel.feed import Feed

CLOSE_S = 5.0


class ChatController:
    """The owner of a chat: its tasks, the thread that runs them, and the poller of its engine.

    Every method is for the screen's thread and returns at once, except `close`. `emit` is called from several threads.
    """

    def __init__(self, open_session: OpenSession, emit: Emit, feed: Feed, folder: Path, *, saves: bool = True) -> None:
        """folder: where conversations are saved. saves: save them automatically."""
        self._answer = CurrentAnswer(emit, feed)
        self._tasks = ChatTasks(open_session, emit, self._answer, feed, folder, saves=saves)
        self._queue = TaskQueue(lambda error: emit(TaskFailed(error)))
        self._poller = EnginePoller(lambda: self._tasks.model, self._answer, feed, emit)

    def start(self) -> None:
        """Load the model, and start both threads."""
        self._queue.send(lambda: self._tasks.open(ModelChoice()))
        self._queue.start()
        self._poller.start()

    # ---- tasks
    def ask(self, question: str) -> None:
        self._queue.send(lambda: self._tasks.ask(question), question=question)

    def ask_instead(self, question: str, last: LastQuestion) -> None:
        """Ask in place of the question `last`, if that is still the last one."""
        self._queue.send(lambda: self._tasks.ask_instead(question, last), question=question)

    def run_command(self, line: str) -> None:
        """Run a slash command."""
        self._queue.send(lambda: self._tasks.run_command(line), question=line)

    def change_model(self, choice: ModelChoice) -> None:
        """Load the model of a choice."""
        self._queue.send(lambda: self._tasks.change_model(choice))

    def change_settings(self, params: SamplingParams, system: str) -> None:
        self._queue.send(lambda: self._tasks.change_settings(params, system))

    def rename(self, old: str, new: str) -> None:
        self._queue.send(lambda: self._tasks.rename(old, new))

    def export_markdown(self, name: str) -> None:
        """Write a saved conversation as Markdown into the current folder."""
        self._queue.send(lambda: self._tasks.export_markdown(name))

    def cancel_waiting(self) -> tuple[str, ...]:
        """Remove the questions and commands that have not started, and return them."""
        return self._queue.cancel_waiting()

    def stop(self) -> bool:
        """Cancel the running answer. Return True if there was one."""
        return self._answer.cancel()

    # ---- state
    @property
    def activity(self) -> Activity:
        return Activity(
            is_answering=self._answer.is_running,
            is_stopping=self._answer.is_stopping,
            image_reading_s=self._answer.image_reading_s,
            is_busy=self.is_busy,
            waiting=self.waiting,
        )

    @property
    def is_busy(self) -> bool:
        return self._queue.is_busy

    @property
    def waiting(self) -> tuple[str, ...]:
        """The questions and commands that have not started."""
        return self._queue.waiting

    @property
    def last_answer(self) -> str:
        """The last answer as the model wrote it, or ""."""
        session = self._tasks.session
        turns = session.conversation.turns if session is not None else []
        return turns[-1].answer if turns else ""

    @property
    def last_question(self) -> LastQuestion | None:
        return self._tasks.last_question

    def close(self) -> None:
        """Stop the answer and all tasks, and close the engine."""
        self._poller.stop()
        self._queue.cancel_waiting()
        self._answer.close()
        session = self._tasks.session
        if session is not None:
            if not self._queue.close(CLOSE_S / 2):
                session.close()  # a task that waits for the engine ends with it
                self._queue.close(CLOSE_S / 2)
            session.close()

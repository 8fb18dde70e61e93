"""The controller of the chat screen: queues everything that blocks, and answers the screen's questions at once.

Does not know widgets. Results come back as events (chat_events.py), in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from eaglelocal.client.server_reading import ServerReading, ServerTotals, make_reading
from eaglelocal.conversation.command_arguments import describe_value, is_immediate
from eaglelocal.conversation.conversation import ContextUse
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.conversation.slash_commands import split_command
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.stats import describe_learning
from eaglelocal.tui.chat.chat_events import Activity, ChatEvent, CommandReplied, Emit, EngineStateChanged, TaskFailed
from eaglelocal.tui.chat.chat_tasks import AskedQuestion, ChatTasks, OpenSession, TaskQueue
from eaglelocal.tui.chat.current_answer import CurrentAnswer
from eaglelocal.tui.chat.model_download import ModelDownload, PullModel
from eaglelocal.tui.chat.text_marks import estimate_tokens
from eaglelocal.tui.panel.feed import Feed

CLOSE_S = 5.0


class ChatController:
    """The owner of a chat: its tasks, the thread that runs them, and the poller of its engine.

    Every method is for the screen's thread and returns at once, except `close`. `emit` is called from several threads.
    """

    def __init__(
        self,
        open_session: OpenSession,
        emit: Emit,
        feed: Feed,
        folder: Path,
        *,
        saves: bool = True,
        pull: PullModel = lambda reference, output: None,
    ) -> None:
        """folder: where conversations are saved. saves: save them automatically. pull: downloads a model."""
        self._download = ModelDownload(pull, emit)
        self._emit = emit
        self._answer = CurrentAnswer(emit, feed)
        self._tasks = ChatTasks(open_session, emit, self._answer, feed, folder, saves=saves)
        self._queue = TaskQueue(lambda error: emit(TaskFailed(error)), "chat-tasks")
        self._command_queue = TaskQueue(lambda error: emit(CommandReplied(error)), "chat-commands")  # during an answer
        self._poller = EnginePoller(lambda: self._tasks.model, self._answer, feed, self._emit_from_poller)

    def start(self) -> None:
        """Load the model, and start both threads."""
        self.send(lambda tasks: tasks.open(ModelChoice()))
        self._queue.start()
        self._command_queue.start()
        self._poller.start()

    def _emit_from_poller(self, event: ChatEvent) -> None:
        self._emit(event)
        if isinstance(event, EngineStateChanged) and event.state == "ready":
            self.send(lambda tasks: tasks.rejoin())

    # ---- tasks
    def send(self, task: Callable[[ChatTasks], None], *, question: str = "") -> None:
        """Run a task after those that were sent before. question: what comes back if it is taken back."""
        self._queue.send(lambda: task(self._tasks), question=question)

    def ask(self, question: str) -> None:
        self.send(lambda tasks: tasks.ask(question), question=question)

    def run_command(self, line: str) -> None:
        """Run a slash command: at once, unless it has to wait for the running answer."""
        is_answering = self._answer.is_running or bool(self._tasks.reviewer.work)
        if is_answering and is_immediate(split_command(line)):
            self._command_queue.send(lambda: self._tasks.run_during_answer(line))
        else:
            self.send(lambda tasks: tasks.run_command(line), question=line)

    def download(self, reference: str, choice: ModelChoice) -> None:
        """Download a model while the chat goes on, then load it as `choice` says. Raises UsageError."""
        self._download.start(reference, lambda: self.send(lambda tasks: tasks.change_model(choice)))

    def stop_download(self) -> bool:
        """Stop the download. Return True if there was one."""
        return self._download.stop()

    def cancel_waiting(self) -> tuple[str, ...]:
        """Remove the questions and commands that have not started, and return them."""
        return self._queue.cancel_waiting()

    def stop(self) -> bool:
        """Cancel the running answer, or the call of a tool in it. Return True if there was one."""
        return self._answer.cancel() or self._tasks.reviewer.cancel()

    # ---- state
    @property
    def activity(self) -> Activity:
        return Activity(
            answer=self._answer.work, tool_work=self._tasks.reviewer.work, is_busy=self.is_busy, waiting=self.waiting
        )

    @property
    def context_use(self) -> ContextUse:
        return ContextUse() if self._tasks.session is None else self._tasks.session.context_use

    @property
    def conversation_name(self) -> str:
        return "" if self._tasks.session is None else self._tasks.session.conversation.name

    def count_tokens(self, text: str) -> int:
        """Return the approximate tokens of a text."""
        session = self._tasks.session
        return estimate_tokens(text) if session is None else estimate_tokens(text, session.estimate.tokens_per_char)

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
        texts = session.conversation.texts if session is not None else []
        return texts[-1] if texts else ""

    def find_question(self, index: int | None = None) -> AskedQuestion | None:
        """Return the question at an index, None: the last one; None if there is none."""
        return self._tasks.find_question(index)

    def describe_value(self, name: str) -> str:
        """Return the present value of a slash command; "" until a model is loaded."""
        session = self._tasks.session
        return "" if session is None else describe_value(session, name)

    def close(self) -> None:
        """Stop the answer and all tasks, and close the engine."""
        self._poller.stop()
        self._queue.cancel_waiting()
        self._tasks.reviewer.close()
        self._answer.close()
        self._command_queue.close(0.0)
        session = self._tasks.session
        if session is not None:
            if not self._queue.close(CLOSE_S / 2):
                session.close()  # a task that waits for the engine ends with it
                self._queue.close(CLOSE_S / 2)
            session.close()


# ---- engine poller: poll the engine on a thread of its own: its totals for the feed, its state for the screen
POLL_S = 1.0  # between two polls
IDLE_READING_S = 5.0  # between two readings of a joined server that is not answering


class EnginePoller:
    """A thread that polls the engine: always its state; its totals for a new model and until after an answer."""

    def __init__(
        self, find_model: Callable[[], ActiveModel | None], answer: CurrentAnswer, feed: Feed, emit: Emit
    ) -> None:
        """find_model: returns the model that is loaded now, or None."""
        self._find_model, self._answer, self._feed, self._emit = find_model, answer, feed, emit
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="engine-poller", daemon=True)
        self._state = ("ready", 0)  # of a model that has just been loaded, with the number of restarts

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop polling. Returns at once; `CurrentAnswer.close` wakes the thread, so that it ends."""
        self._is_stopped = True

    def _run(self) -> None:
        is_due, read_at = True, time.monotonic()
        last_model: ActiveModel | None = None
        last_learning = ""
        while not self._is_stopped:
            is_due |= self._answer.wait_for_end(POLL_S)  # an answer has ended, however short it was
            model, is_answering = self._find_model(), self._answer.is_running
            if model is None or self._is_stopped:
                continue
            client, now = model.client, time.monotonic()
            learning = describe_learning(model.read_learning())
            is_due |= model is not last_model or learning != last_learning
            if is_answering or is_due or (is_joined_server(model) and now - read_at >= IDLE_READING_S):
                read_at = now
                reading = read_model(model)
                if self._find_model() is model:  # otherwise it was replaced meanwhile
                    self._feed.add_reading(reading, time.monotonic())
                    is_due, last_model, last_learning = False, model, learning
            state = (client.state, client.restarts)
            if state != self._state:
                self._state = state
                self._emit(EngineStateChanged(*state))


def read_model(model: ActiveModel) -> ServerReading:
    """Return the reading of the model's engine, without the totals and caches of a server that others use too."""
    reading = make_reading(model.client.snapshot(), state=model.client.state, n_ctx=model.info.n_ctx or None)
    reading = replace(reading, learning=describe_learning(model.read_learning()))
    if model.plan is not None:
        return reading
    return replace(reading, totals=ServerTotals(), cached_tokens=None, cache_cells=None)


def is_joined_server(model: ActiveModel) -> bool:
    """Return True for an eaglelocal server that was joined, which has to be polled for its state."""
    return model.plan is None and model.takes_spec

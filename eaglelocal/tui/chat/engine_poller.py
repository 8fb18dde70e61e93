"""Poll the engine on a thread of its own: its totals for the feed, its state for the screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from eaglelocal.client.server_reading import ServerReading, ServerTotals, make_reading
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.learning_status import describe_learning
from eaglelocal.tui.chat.chat_events import Emit, EngineStateChanged
from eaglelocal.tui.chat.current_answer import CurrentAnswer
from eaglelocal.tui.panel.feed import Feed

POLL_S = 1.0  # between two polls
IDLE_READING_S = 5.0  # between two readings of a joined server that is not answering


class EnginePoller:
    """A thread that reads the totals of a new model, while an answer runs and once after it, and the state always."""

    def __init__(
        self, find_model: Callable[[], ActiveModel | None], answer: CurrentAnswer, feed: Feed, emit: Emit
    ) -> None:
        """find_model: returns the model that is loaded now, or None."""
        self._find_model, self._answer, self._feed, self._emit = find_model, answer, feed, emit
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="engine-poller", daemon=True)
        self._state = ("loading", 0)  # with the number of restarts

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Poll no more. Returns at once; `CurrentAnswer.close` wakes the thread, so that it ends."""
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
                if self._find_model() is model:  # else it was replaced meanwhile
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

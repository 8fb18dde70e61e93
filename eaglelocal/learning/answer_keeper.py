"""Keeps finished answers to learn from: looks at the requests and events of one engine's client.

Decides which owners' answers are kept, and writes them on a thread of its own, because events must be passed on
quickly. Does not know when or how a head learns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from eaglelocal.client.client import OnEvent
from eaglelocal.client.engine_client import Submit
from eaglelocal.core.events import Failed, Finished, RequestEvent, Tokens
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.learning.kept_answers import MAX_CHARS, KeptAnswer, KeptAnswers, KeptSize, guess_kind, make_answer

MIN_TOKENS = 8  # of an answer
MIN_CANCELLED_TOKENS = 64  # of one that was cancelled
CLOSE_S = 2.0

_log = logging.getLogger(__name__)


class RequestActivity:
    """The requests of all engines of this process: learning stops when one begins, and waits until all is quiet."""

    def __init__(self, on_begin: Callable[[], None], now: Callable[[], float]) -> None:
        self._on_begin, self._now = on_begin, now
        self._lock = threading.Lock()
        self.num_running = 0
        self.ended_at = now()

    def submit(self, submit: Submit, request: AnyRequest, on_event: OnEvent) -> None:
        """Submit a request through `submit`, and count it until it ends. Raises the errors of `submit`."""
        end = self._begin()

        def listen(event: RequestEvent) -> None:
            if isinstance(event, Finished | Failed):
                end()
            try:
                on_event(event)
            except BaseException:  # then no further event of the request follows
                end()
                raise

        try:
            submit(request, listen)
        except BaseException:
            end()
            raise

    def _begin(self) -> Callable[[], None]:
        """Count a request. Return a function that counts its end once, also if engine and submitter call it."""
        with self._lock:
            self.num_running += 1
        self._on_begin()
        is_over = False

        def end() -> None:
            nonlocal is_over
            with self._lock:
                if not is_over:
                    is_over = True
                    self.num_running -= 1
                    self.ended_at = self._now()

        return end

    def idle_s(self) -> float:
        """Return how many seconds ago the last request ended."""
        with self._lock:
            return 0.0 if self.num_running else self._now() - self.ended_at


class AnswerKeeper:
    """Keeps the answers of one model for the owners who agreed. After an error nothing is kept any more."""

    def __init__(self, answers: KeptAnswers, owners: frozenset[str], activity: RequestActivity) -> None:
        self._answers, self.owners, self._activity = answers, owners, activity
        self._ended: SimpleQueue[tuple[str, KeptAnswer] | None] = SimpleQueue()
        self.trouble = ""  # why nothing is kept any more
        self.num_kept = 0  # since the start
        self.size = KeptSize()
        self._thread = threading.Thread(target=self._write, name="kept-answers", daemon=True)
        self._thread.start()

    def submit(self, submit: Submit, request: AnyRequest, on_event: OnEvent) -> None:
        """Submit a request through `submit`, and watch its events. Raises the errors of `submit`."""
        if isinstance(request, ChatRequest) and self._may_keep(request):
            on_event = _KeptListener(request.owner, on_event, self)
            request = replace(request, tells_tokens=True)
        self._activity.submit(submit, request, on_event)

    def _may_keep(self, request: ChatRequest) -> bool:
        has_images = any(message.images for message in request.messages)
        is_refused = request.is_private or request.is_counted or has_images or bool(self.trouble)
        return request.owner in self.owners and not is_refused

    def keep(self, owner: str, finished: Finished, *, kind: int) -> None:
        """Keep an answer, unless it is too short or has tokens that are not text."""
        tokens, num = finished.tokens, finished.completion_tokens
        least = MIN_CANCELLED_TOKENS if finished.reason == "cancelled" else MIN_TOKENS
        if num >= least and len(tokens) > num and min(tokens) >= 0:
            self._ended.put((owner, make_answer(tokens, len(tokens) - num, kind=kind)))

    def close(self) -> None:
        """Write the answers that have ended, and end the thread."""
        self._ended.put(None)
        self._thread.join(CLOSE_S)

    def prune(self) -> None:
        """Delete answers that are too old, and count the others."""
        with suppress(OSError):
            self._answers.prune(time.time())
        self._refresh()

    def _write(self) -> None:
        self.prune()
        while (ended := self._ended.get()) is not None:
            if self.trouble:
                continue
            try:
                self._answers.append(*ended)
            except OSError as error:
                self.trouble = f"no more answers are kept: {self._answers.folder}: {error.strerror}"
                _log.warning("%s", self.trouble)
            else:
                self.num_kept += 1
            self._refresh()

    def _refresh(self) -> None:
        try:
            self.size = self._answers.size()
        except OSError as error:
            _log.debug("the kept answers cannot be counted: %s", error.strerror)


class _KeptListener:
    """The listener of one request: passes its events on, and its answer to the keeper."""

    def __init__(self, owner: str, on_event: OnEvent, keeper: AnswerKeeper) -> None:
        self._owner, self._on_event, self._keeper = owner, on_event, keeper
        self._text, self._has_calls = "", False

    def __call__(self, event: RequestEvent) -> None:
        if isinstance(event, Tokens):
            if len(self._text) < MAX_CHARS:
                self._text += event.text
                self._has_calls = self._has_calls or any(piece.calls for piece in event.pieces)
        elif isinstance(event, Finished):
            self._keeper.keep(self._owner, event, kind=guess_kind(self._text, has_calls=self._has_calls))
            event = replace(event, tokens=())
        self._on_event(event)

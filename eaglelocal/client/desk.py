"""Who waits for which request, and which engine process serves it.

A request is either waiting (no process is ready) or sent; it leaves with exactly one Finished or
Failed. Events of sent requests arrive on the supervisor's thread; requests that were never sent may
be ended by the thread that asks for it. Callbacks run outside the lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Protocol

from eaglelocal.client.port import OnEvent
from eaglelocal.core.events import Cancel, Command, Failed, Finished, RequestEvent, SetSpec, Submit
from eaglelocal.core.request import AnyRequest, Spec
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EagleLocalError, RequestError

_log = logging.getLogger(__name__)


class Recipient(Protocol):
    """The engine process, as far as the desk needs it."""

    def send(self, command: Command) -> bool:
        """False: it is gone, and never saw the command."""


class Desk:
    """All requests of one client.

    Commands are sent under the lock: a Cancel must not overtake its Submit.
    """

    def __init__(self, refusal: EagleLocalError) -> None:
        self._lock = threading.Lock()
        self._recipient: Recipient | None = None
        self._refusal: EagleLocalError | None = refusal  # why a request is not even taken
        self._waiting: dict[str, tuple[AnyRequest, OnEvent]] = {}
        self._sent: dict[str, OnEvent] = {}
        self._spec: Spec | None = None  # for requests without a wish of their own; None: as planned

    @property
    def recipient(self) -> Recipient | None:
        return self._recipient

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def awaits_answers(self) -> bool:
        """Has a process been sent what it has not answered?"""
        return bool(self._sent)

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None:
        with self._lock:
            if request.id in self._sent or request.id in self._waiting:
                raise RequestError(f"a request with the id {request.id!r} is still running")
            refusal = self._refusal
            if self._recipient is not None:
                self._send(self._recipient, request, on_event)
            elif refusal is None:
                self._waiting[request.id] = (request, on_event)
        if refusal is not None:
            self._call(on_event, Failed(request.id, refusal))

    def cancel(self, request_id: str) -> None:
        with self._lock:
            waiting = self._waiting.pop(request_id, None)
            if request_id in self._sent and self._recipient is not None:
                self._recipient.send(Cancel(request_id))
        if waiting is not None:
            self._call(waiting[1], Finished(request_id, "cancelled", "", 0, 0, Timings(), SpeculationStats()))

    def set_spec(self, spec: Spec) -> None:
        """Of this process and of those to come."""
        with self._lock:
            self._spec = spec
            if self._recipient is not None:
                self._recipient.send(SetSpec(spec))

    def deliver(self, events: Iterable[RequestEvent]) -> None:
        """Hand events to those who wait for them."""
        for event in events:
            if isinstance(event, (Finished, Failed)):
                on_event = self._sent.pop(event.request_id, None)
            else:
                on_event = self._sent.get(event.request_id)
            if on_event is not None:
                self._call(on_event, event)

    def take_over(self, recipient: Recipient) -> None:
        """A process is ready: send it what waits."""
        with self._lock:
            self._recipient, self._refusal = recipient, None
            if self._spec is not None:
                recipient.send(SetSpec(self._spec))
            waiting, self._waiting = self._waiting, {}
            for request, on_event in waiting.values():
                self._send(recipient, request, on_event)

    def accept(self) -> None:
        """From now on requests wait for a process."""
        with self._lock:
            self._refusal = None

    def lose(self, error: EagleLocalError) -> None:
        """The process is gone: fail what it had. What waits goes on waiting."""
        with self._lock:
            self._recipient = None
            sent, self._sent = self._sent, {}
        for request_id, on_event in sent.items():
            self._call(on_event, Failed(request_id, error))

    def refuse(self, error: EagleLocalError) -> None:
        """Fail what waits and what comes, until a process is ready. One that is ready stays in charge."""
        with self._lock:
            if self._recipient is not None:
                return
            self._refusal = error
            waiting, self._waiting = self._waiting, {}
        for request_id, (_, on_event) in waiting.items():
            self._call(on_event, Failed(request_id, error))

    def _send(self, recipient: Recipient, request: AnyRequest, on_event: OnEvent) -> None:
        self._sent[request.id] = on_event  # first: the answer may come before send returns
        try:
            sent = recipient.send(Submit(request))
        except BaseException:  # too large, or not to be pickled: the caller's to know
            del self._sent[request.id]
            raise
        if not sent and self._sent.pop(request.id, None) is not None:
            self._waiting[request.id] = (request, on_event)  # the loss has not been noticed yet, but will be

    def _call(self, on_event: OnEvent, event: RequestEvent) -> None:
        try:
            on_event(event)
        except Exception:
            _log.exception("the listener of request %s failed; the request is cancelled", event.request_id)
            self._abandon(event.request_id)

    def _abandon(self, request_id: str) -> None:
        with self._lock:
            if self._sent.pop(request_id, None) is not None and self._recipient is not None:
                self._recipient.send(Cancel(request_id))

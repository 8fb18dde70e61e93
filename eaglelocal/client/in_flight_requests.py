"""The requests of one client: their listeners, and the engine process that gets them.

A request is either waiting (no process is ready, or a suspect of a crash runs alone) or sent; it ends with exactly
one Finished or Failed. When a process is lost, requests that it had not begun wait for the next one, before those that
came later. Events of sent requests arrive on the supervisor's thread; requests that were never sent may be ended by the
thread that cancels or refuses them, or by a timer. Callbacks run outside the lock.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from eaglelocal.client.client import OnEvent
from eaglelocal.client.crash_suspects import CrashSuspects, Digest, digest_request
from eaglelocal.core.events import (
    Begun,
    Cancel,
    Command,
    Embeddings,
    Failed,
    Finished,
    RequestEvent,
    SetAdapters,
    SetSpec,
    Submit,
    Tokens,
    WorkEvent,
)
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EagleLocalError, RequestError
from eaglelocal.worker.crash_report import InFlight

RECHECK_S = 1.0  # between checks on suspects that wait for another one

_log = logging.getLogger(__name__)
_suspects_log = logging.getLogger(f"{__name__}.suspects")  # for a server's log; clients get the error anyway
_suspects_log.addHandler(logging.NullHandler())


class EngineProcess(Protocol):
    """The part of an engine process that InFlightRequests uses."""

    def send(self, command: Command) -> bool:
        """Send a command; return False if the process is gone and never received it."""


class _ClientRequest:
    """A request and the listener for its events, from its submission to its last event."""

    def __init__(self, request: AnyRequest, on_event: OnEvent) -> None:
        self.request, self.on_event = request, on_event
        self.waits_since_s: float | None = None  # since suspects keep it waiting
        self.was_interrupted = False  # an engine was killed that had begun it, and it was sent again
        self.sent_at_s = 0.0
        self.has_slot = False  # the engine decodes for it
        self.has_output = self.is_cancelled = False

    @functools.cached_property
    def digest(self) -> Digest:
        """Return the request's digest, computed at first use: before any crash only for requests with images."""
        return digest_request(self.request)

    @property
    def has_images(self) -> bool:
        return isinstance(self.request, ChatRequest) and any(message.images for message in self.request.messages)

    def note_output(self) -> None:
        """Drop the images, perhaps tens of megabytes: it is not sent again. The digest is computed first."""
        self.has_output = True
        if isinstance(self.request, ChatRequest) and self.has_images:
            _ = self.digest
            self.request = replace(self.request, messages=())

    def describe(self, *, is_reading: bool) -> InFlight:
        """Return the text about it for a crash report."""
        request, kind = self.request, "chat"
        if isinstance(request, EmbedRequest):
            kind = "embedding" if request.ranking is None else "ranking"
        age_s, has_begun = time.monotonic() - self.sent_at_s, is_reading or self.has_slot
        return InFlight(id=request.id, kind=kind, age_s=age_s, has_begun=has_begun, owner=request.owner)

    def is_sent_again(self, *, has_begun: bool, is_crash: bool) -> bool:
        """Return whether it continues in the next process; record that it was interrupted."""
        if self.is_cancelled:
            return False
        if not has_begun:
            return True
        was_interrupted, self.was_interrupted = self.was_interrupted, True
        return not (is_crash or self.has_output or was_interrupted)


class InFlightRequests:
    """The requests of one client.

    Commands are sent under the lock: a Cancel must not overtake its Submit.
    """

    def __init__(self, refusal: EagleLocalError) -> None:
        self._lock = threading.Lock()
        self.process: EngineProcess | None = None
        self._refusal: EagleLocalError | None = refusal  # why new requests are failed at once; None: they wait
        self._waiting: dict[str, _ClientRequest] = {}
        self._sent: dict[str, _ClientRequest] = {}
        self._reading: dict[str, _ClientRequest] = {}  # being read now, perhaps though they were cancelled
        self._suspects = CrashSuspects()
        self._recheck_timer: threading.Timer | None = None  # set while suspects wait for another one
        self._defaults: dict[type, SetSpec | SetAdapters] = {}  # sent to each process; else the plan's hold

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def awaits_answers(self) -> bool:
        """Return whether the process has unanswered requests."""
        return bool(self._sent)

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        """Return the requests that the process has not answered yet, for the crash report."""
        with self._lock:
            return tuple(sent.describe(is_reading=name in self._reading) for name, sent in self._sent.items())

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None:
        """Send a request, or let it wait for a process. Raises RequestError if its id is in use."""
        submitted = _ClientRequest(request, on_event)
        if self._suspects or submitted.has_images:
            _ = submitted.digest  # hashed before the lock is taken
        with self._lock:
            if request.id in self._sent or request.id in self._waiting:
                raise RequestError(f"a request with the id {request.id!r} is still running")
            refusal = self._find_refusal(submitted) or (None if self.process is not None else self._refusal)
            if refusal is None:
                self._waiting[request.id] = submitted
        if refusal is not None:
            self._notify(on_event, Failed(request.id, refusal))
        else:
            self._send_waiting()

    def cancel(self, request_id: str) -> None:
        with self._lock:
            waiting, sent = self._waiting.pop(request_id, None), self._sent.get(request_id)
            if sent is not None:
                sent.is_cancelled = True
                if self.process is not None:
                    self.process.send(Cancel(request_id))
        if waiting is not None:
            self._notify(waiting.on_event, _make_cancelled(request_id))

    def set_default(self, command: SetSpec | SetAdapters) -> None:
        """Set the default for requests that choose nothing themselves, in this engine process and in later ones."""
        with self._lock:
            self._defaults[type(command)] = command
            if self.process is not None:
                self.process.send(command)

    def note_work(self, event: WorkEvent) -> None:
        """Note what the process works on, for the case that it crashes."""
        with self._lock:
            sent = self._sent.get(event.request_id)
            if not isinstance(event, Begun):
                self._reading.pop(event.request_id, None)
            elif event.is_reading:  # perhaps of one that was cancelled just then
                unknown = _ClientRequest(ChatRequest(id=event.request_id), lambda _: None)
                self._reading[event.request_id] = unknown if sent is None else sent
            elif sent is not None:
                sent.has_slot = True

    def deliver(self, events: Iterable[RequestEvent]) -> None:
        """Pass each event to the listener of its request."""
        for event in events:
            if isinstance(event, (Finished, Failed)):
                sent = self._sent.pop(event.request_id, None)
                is_cancelled = isinstance(event, Finished) and event.reason == "cancelled"
                if sent is not None and self._suspects and not is_cancelled:
                    with self._lock:
                        self._suspects.clear(sent.digest)
            else:
                sent = self._sent.get(event.request_id)
                if sent is not None and isinstance(event, (Tokens, Embeddings)):
                    sent.note_output()
            if sent is not None:
                self._notify(sent.on_event, event)
        if self._waiting:
            self._send_waiting()

    def connect(self, process: EngineProcess) -> None:
        """Send the waiting requests, and later ones, to a process that is ready."""
        with self._lock:
            self.process, self._refusal = process, None
            for command in self._defaults.values():
                process.send(command)
        self._send_waiting()

    def accept(self) -> None:
        """Let new requests wait for a process from now on, instead of refusing them."""
        with self._lock:
            self._refusal = None

    def disconnect(self, error: EagleLocalError, *, is_crash: bool = False) -> None:
        """Fail the requests that a process had begun which is gone; the others wait for the next one.

        A crash makes suspects of those that had begun. Without one, a request that has no output yet is sent again,
        once: it may be why the system killed the process for want of memory.
        """
        with self._lock:
            self.process = None
            sent, self._sent = self._sent, {}
            reading, self._reading = self._reading, {}
            begun = reading | {name: one for name, one in sent.items() if one.has_slot}
            again = {
                name: one for name, one in sent.items() if one.is_sent_again(has_begun=name in begun, is_crash=is_crash)
            }
            self._waiting = again | self._waiting
        if is_crash:
            self._record_crash(list(begun.values()), error)
        for request_id, one in sent.items():
            if request_id not in again:
                last = _make_cancelled(request_id) if one.is_cancelled else Failed(request_id, error)
                self._notify(one.on_event, last)

    def refuse(self, error: EagleLocalError) -> None:
        """Fail waiting and new requests until a process is ready. Does nothing if one is."""
        with self._lock:
            if self.process is not None:
                return
            self._refusal = error
            waiting, self._waiting = self._waiting, {}
        for request_id, one in waiting.items():
            self._notify(one.on_event, Failed(request_id, error))

    def _record_crash(self, submitted: list[_ClientRequest], error: EagleLocalError) -> None:
        digests = [one.digest for one in submitted]  # hashed before the lock is taken
        with self._lock:
            guilty = self._suspects.record_crash(digests, error)
        if guilty is not None:
            ids = ", ".join(one.request.id for one in submitted if one.digest == guilty)
            _suspects_log.warning(
                "request %s was in flight at several crashes; equal requests are refused from now on", ids
            )

    def _find_refusal(self, submitted: _ClientRequest) -> EagleLocalError | None:
        return self._suspects.find_refusal(submitted.digest) if self._suspects else None

    def _send_waiting(self) -> None:
        """Send the waiting requests in order, up to the first that must wait longer; fail those that are refused."""
        refused = []
        with self._lock:
            while self.process is not None and self._waiting:
                request_id, one = next(iter(self._waiting.items()))
                refusal = self._find_refusal(one)
                if refusal is None and self._must_wait(one):
                    self._schedule_recheck()
                    break
                try:
                    if refusal is None and not self._send(self.process, one):
                        break  # the process is lost, which will be reported soon
                except EagleLocalError as error:  # too large for the pipe
                    refusal = error
                del self._waiting[request_id]
                if refusal is not None:
                    refused.append((one.on_event, Failed(request_id, refusal)))
        for on_event, failed in refused:
            self._notify(on_event, failed)

    def _must_wait(self, submitted: _ClientRequest) -> bool:
        if not self._suspects:
            return False
        now = time.monotonic()
        waited_s = now - (submitted.waits_since_s or now)
        running = [(sent.digest, sent.sent_at_s) for sent in self._sent.values()]
        must_wait = self._suspects.must_wait(submitted.digest, waited_s, running)
        submitted.waits_since_s = now - waited_s if must_wait else None
        return must_wait

    def _schedule_recheck(self) -> None:
        """Check again in RECHECK_S: the wait for another suspect ends by time, perhaps without any event."""
        if self._recheck_timer is not None:
            return
        timer = threading.Timer(RECHECK_S, self._recheck_waiting)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # no new thread could be started: the next event triggers the check
            timer.start()
            self._recheck_timer = timer

    def _recheck_waiting(self) -> None:
        with self._lock:
            self._recheck_timer = None
        self._send_waiting()

    def _send(self, process: EngineProcess, submitted: _ClientRequest) -> bool:
        """Send a request; return False if the process is lost. Raises EagleLocalError if it is too large."""
        request_id = submitted.request.id
        submitted.sent_at_s, submitted.has_slot = time.monotonic(), False
        self._sent[request_id] = submitted  # the answer may come before send returns
        is_sent = False
        try:
            is_sent = process.send(Submit(submitted.request))
        finally:
            if not is_sent:
                self._sent.pop(request_id, None)
        return is_sent

    def _notify(self, on_event: OnEvent, event: RequestEvent) -> None:
        try:
            on_event(event)
        except Exception:
            _log.exception("the listener of request %s failed; the request is cancelled", event.request_id)
            with self._lock:
                if self._sent.pop(event.request_id, None) is not None and self.process is not None:
                    self.process.send(Cancel(event.request_id))


def _make_cancelled(request_id: str) -> Finished:
    return Finished(request_id, "cancelled", "", 0, 0, Timings(), SpeculationStats())

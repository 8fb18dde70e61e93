"""The engine's child process: `python -m eaglelocal.worker.process PACKAGE.MODULE:BUILDER`.

Messages come on stdin and leave on stdout (channel.py); the first one is the Plan, which may come late: the builder is
imported before (`SpareProcess`). One thread reads commands into a queue; only the main thread uses the engine. The
process ends when its pipe or its parent ends, even during a native call, so that a killed parent never leaves GPU
memory occupied.
Knows the engine only by its Protocol, and imports the builder by name.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol, cast

from eaglelocal.backend.parent_watch import end_with_parent
from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.events import (
    Cancel,
    EmitEvents,
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    HeadSwapped,
    LoadFailed,
    LoadProgress,
    Report,
    RequestEvent,
    SetAdapters,
    SetSpec,
    Shutdown,
    Submit,
    SwapHead,
    TakeSnapshot,
    Warned,
    WorkEvent,
)
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, Spec
from eaglelocal.errors import EagleLocalError, EngineError, LibraryError, ResourceError
from eaglelocal.processes.this_process import take_over_pipes
from eaglelocal.worker.channel import Channel
from eaglelocal.worker.exit_reason import GROUP_SIGNALS, Broken, make_engine_error
from eaglelocal.worker.watchdog import BEAT_S, Beat

_PROGRESS_INTERVAL_S = 0.05  # least time between two of them
_MIN_PROGRESS = 0.005  # least step of a load's fraction that is sent; llama.cpp reports every tensor


class EngineLoop(Protocol):
    """The engine as its process drives it; every method is called from one thread.

    emit  takes events of answers that start, before a step decodes their first rows, which may take seconds; None: the
          step returns them
    """

    emit: EmitEvents | None

    @property
    def info(self) -> EngineInfo: ...

    @property
    def has_work(self) -> bool:
        """Return whether step() would do something or return events."""

    def submit(self, request: AnyRequest) -> None:
        """Queue a request; errors in it come out of step() as Failed."""

    def cancel(self, request_id: str) -> None:
        """End a request; Finished(reason="cancelled") comes out of step()."""

    def set_spec(self, spec: Spec) -> None:
        """Set the spec of requests that have none of their own; without drafters it has no effect."""

    def set_adapters(self, mix: AdapterMix) -> None:
        """Set the LoRA adapters of later requests that choose none."""

    def prepare_head(self, path: Path, version: int) -> Exchange:
        """Open a head to replace the one in use. Safe in any thread while the engine steps; may take a second.

        Returns what exchanges it, to be called between two steps, again after each while it returns None, and not after
        `close`. At last it returns what closes the old head, in any thread.

        Raises EagleLocalError if it cannot replace the one in use, which then stays.
        """

    def step(self) -> list[RequestEvent]:
        """Schedule, draft, run, verify, commit. An exception is fatal for the requests in flight."""

    def work_ahead(self) -> bool:
        """Do a piece of work that can wait, of some milliseconds. Return False if there is none. Call it when idle."""

    def snapshot(self) -> EngineSnapshot: ...

    def close(self) -> None: ...


CloseHead = Callable[[], None]
Exchange = Callable[[], CloseHead | None]
Builder = Callable[[Plan, Report], EngineLoop]  # reports progress, then what it works on, from any thread
Commands = SimpleQueue[object]


@dataclass(frozen=True, slots=True)
class HeadReady:
    """A command of this process to itself: the head of a SwapHead is open."""

    number: int
    exchange: Exchange


class EngineService:
    """The main thread's loop: handle commands, step while there is work, send the events.

    A step that raises fails every request in flight. ResourceError leaves the engine usable (the
    requests are cancelled in it); any other error, or an engine that still does not step afterwards, ends the
    process, and the supervisor starts a new one.
    """

    def __init__(self, engine: EngineLoop, commands: Commands, channel: Channel) -> None:
        self._engine = engine
        engine.emit = self._emit
        self._commands = commands
        self._channel = channel
        self._in_flight: set[str] = set()
        self.num_iterations = 0  # of the loop; unchanged while the engine idles or hangs
        self._ready: deque[HeadReady] = deque()  # heads that wait for their exchange
        self._heads = ThreadPoolExecutor(1, thread_name_prefix="heads")  # opens and closes them, one after the other

    def run(self) -> int:
        """Serve until Shutdown or a fatal error; return the exit status."""
        while self._handle_queued():
            if self._engine.has_work and not self._step():
                return 1
            if not self._exchange_heads():
                return 1
            self.num_iterations += 1
        return 0

    def _handle_queued(self) -> bool:
        """Handle the queued commands; wait for one if there is nothing else to do. Return False for Shutdown."""
        if not self._engine.has_work:
            self._fail_all(EngineError("the engine lost the request"))
            while self._commands.empty() and self._engine.work_ahead():
                pass
            if not self._handle(self._commands.get()):
                return False
        while not self._commands.empty():
            if not self._handle(self._commands.get()):
                return False
        return True

    def _handle(self, command: object) -> bool:
        match command:
            case Submit(request):
                self._submit(request)
            case Cancel(request_id):
                if request_id in self._in_flight:
                    self._engine.cancel(request_id)
            case SetSpec(spec):
                self._engine.set_spec(spec)
            case SetAdapters(mix):
                self._engine.set_adapters(mix)
            case SwapHead():
                self._heads.submit(self._open_head, command)
            case HeadReady():
                self._ready.append(command)
            case TakeSnapshot():
                self._channel.send(self._engine.snapshot())
            case Shutdown():
                return False
            case _:
                raise EngineError(f"unknown command for the engine: {type(command).__name__}")
        return True

    def _open_head(self, command: SwapHead) -> None:
        """Open a head beside the steps, and let the main thread exchange it."""
        try:
            exchange = self._engine.prepare_head(command.path, command.version)
        except Exception as error:
            problem = make_engine_error(error, f"{command.path} cannot be opened")
            with contextlib.suppress(OSError):  # the parent is gone
                self._channel.send(HeadSwapped(command.number, problem))
        else:
            self._commands.put(HeadReady(command.number, exchange))

    def _exchange_heads(self) -> bool:
        """Exchange the heads that are ready for it, in order; the others are tried again after the next step.

        Return False if the engine cannot go on.
        """
        try:
            while self._ready and (close_old := self._ready[0].exchange()) is not None:
                self._heads.submit(close_old)
                self._channel.send(HeadSwapped(self._ready.popleft().number))
        except Exception as error:
            self._channel.send(Broken(make_engine_error(error, "the engine failed to exchange its head")))
            return False
        return True

    def close(self) -> None:
        """Wait until no head is being opened or closed. The engine can be closed then."""
        self._heads.shutdown(cancel_futures=True)

    def _submit(self, request: AnyRequest) -> None:
        try:
            self._engine.submit(request)
        except Exception as error:  # an error in one request must not fail the others
            self._channel.send([Failed(request.id, make_engine_error(error, "the engine failed on the request"))])
        else:
            self._in_flight.add(request.id)

    def _step(self) -> bool:
        """Run one step and send its events in one message. Return False if the engine cannot go on."""
        try:
            events = self._engine.step()
        except ResourceError as error:
            return self._abandon(error)
        except Exception as error:
            self._channel.send(Broken(make_engine_error(error, "the engine failed")))
            return False
        self._emit(events)
        return True

    def _abandon(self, error: ResourceError) -> bool:
        """Cancel the requests in flight in the engine, then fail them. Return False if the engine did not recover."""
        try:
            for request_id in self._in_flight:
                self._engine.cancel(request_id)
            while self._engine.has_work:
                self._engine.step()  # only cancellation events, dropped; the reason is sent below
        except Exception:
            traceback.print_exc()
            self._channel.send(Broken(error))
            return False
        self._fail_all(error)
        return True

    def _fail_all(self, error: EagleLocalError) -> None:
        if self._in_flight:
            self._emit([Failed(request_id, error) for request_id in self._in_flight])

    def _emit(self, events: list[RequestEvent]) -> None:
        own_events = [event for event in events if event.request_id in self._in_flight]
        for event in own_events:
            if isinstance(event, (Finished, Failed)):
                self._in_flight.discard(event.request_id)
        if own_events:
            self._channel.send(own_events)


def main(builder: str) -> int:
    """Take over the pipes, load, serve; return the exit status.

    A function `prepare` of the builder's module is called while the process may still wait for its plan.
    """
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent lets answers finish, and then ends this process
    channel = Channel(*take_over_pipes())
    logging.getLogger("eaglelocal").addHandler(_WarningSender(channel))
    with contextlib.suppress(LibraryError):  # if the C library is missing, loading reports it
        end_with_parent(channel.fileno())  # the thread below cannot act while the main thread holds the GIL
    commands: Commands = SimpleQueue()
    gc.disable()  # imports and vocabularies are kept: a collection would only walk them
    try:
        module_name, _, function = builder.partition(":")
        module = importlib.import_module(module_name)
        getattr(module, "prepare", lambda: None)()
        build = cast(Builder, getattr(module, function))
        try:
            plan = cast(Plan, channel.receive())
        except EOFError:  # the parent ended
            return 0
        threading.Thread(target=_read_commands, args=(channel, commands), name="commands", daemon=True).start()
        engine = build(plan, Reporter(channel).report)
        channel.send(engine.info)
    except Exception as error:
        channel.send(LoadFailed(make_engine_error(error, "the engine failed to load")))
        return 1
    gc.enable()
    gc.collect()
    gc.freeze()  # vocabularies are large and permanent; later collections must not walk them between steps
    service = EngineService(engine, commands, channel)
    threading.Thread(target=_send_beats, args=(service, channel), name="beat", daemon=True).start()
    status = service.run()
    if status == 0:
        service.close()
        engine.close()  # after a fatal error only the operating system can free it safely
    return status


def _read_commands(channel: Channel, commands: Commands) -> None:
    try:
        while True:
            commands.put(channel.receive())
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone: stop at once, even during a native call
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _send_beats(service: EngineService, channel: Channel) -> None:
    """Send a Beat each second in which the loop ran: the steps of a long prompt send no events."""
    num_reported = service.num_iterations
    with contextlib.suppress(OSError):  # the parent is gone
        while True:
            time.sleep(BEAT_S)
            if num_reported != service.num_iterations:
                num_reported = service.num_iterations
                channel.send(Beat())


class _WarningSender(logging.Handler):
    """Sends the warnings of this process, which would be lost, to the parent with its log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(logging.WARNING)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the parent is gone
            self._channel.send(Warned(record.getMessage()))


class Reporter:
    """Sends what the engine reports at once, but load progress only when it changed noticeably, and not too often.

    The first message about something and the one that completes it are always sent.
    """

    def __init__(self, channel: Channel, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel, self._clock = channel, clock
        self._last, self._sent_at = LoadProgress(-1.0, ""), 0.0

    def report(self, message: LoadProgress | WorkEvent) -> None:
        if isinstance(message, LoadProgress):
            self._report_progress(message)
        else:
            with contextlib.suppress(OSError):  # the parent is gone, and this process ends
                self._channel.send(message)

    def _report_progress(self, progress: LoadProgress) -> None:
        is_other = (progress.what, progress.detail) != (self._last.what, self._last.detail)
        is_complete = progress.fraction >= 1.0 > self._last.fraction
        if is_other or is_complete or self._has_moved(progress):
            self._last, self._sent_at = progress, self._clock()
            self._channel.send(progress)

    def _has_moved(self, progress: LoadProgress) -> bool:
        moved = progress.fraction - self._last.fraction
        return moved >= _MIN_PROGRESS and self._clock() - self._sent_at >= _PROGRESS_INTERVAL_S


def run_and_exit(builder: str) -> None:
    """Run `main` and exit without finalizing: the reader thread may hold a lock that finalizing needs."""
    status = 1
    try:
        status = main(builder)
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    run_and_exit(sys.argv[1])

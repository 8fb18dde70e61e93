"""Deliver signals that arrive just before the line editor waits for a key.

The editor checks for signals, then waits. Python's handler of a signal in between would run at the next key only, so
that a SIGTERM would not end the program.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
REPEAT_S = 0.1


@contextmanager
def deliver_signals() -> Iterator[None]:
    """Send each signal of ENDING again until its handler runs. For the main thread, around a wait for one line.

    The handlers must raise: after the first has run, no signal is sent again.
    """
    handlers = {number: handler for number in ENDING if callable(handler := signal.getsignal(number))}
    is_handled = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        is_handled.set()
        handlers[signal.Signals(number)](number, frame)

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    repeater = threading.Thread(target=_repeat, args=(reading, is_handled), name="signals", daemon=True)
    try:
        for number in handlers:
            signal.signal(number, handle)
        with suppress(RuntimeError):  # the system gives no thread
            repeater.start()
        yield
    finally:
        is_handled.set()
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(writing)
        if repeater.ident is not None:
            repeater.join()
        os.close(reading)


def _repeat(reading: int, is_handled: threading.Event) -> None:
    """Read the numbers of signals as they arrive, until the pipe is closed."""
    main = threading.main_thread().ident or 0
    while numbers := os.read(reading, 1):
        while numbers[0] in ENDING and not is_handled.wait(REPEAT_S):
            signal.pthread_kill(main, numbers[0])

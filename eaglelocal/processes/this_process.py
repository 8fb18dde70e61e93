"""Arrangements of a process for itself: its pipes, the priority of its threads, and its garbage collector."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from typing import BinaryIO


def take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes off fds 0 and 1, so that no called code can read or write them by accident; writing is unbuffered.

    What is written to stdout then goes to stderr.
    """
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return open(reading, "rb"), open(writing, "wb", buffering=0)


def lower_thread_priority(niceness: int = 19) -> None:
    """Set the niceness of this thread, which it keeps, where the system allows that: on Linux. 19 is the lowest."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


class BackgroundWork:
    """A thread, if there is one. A process that ends does not wait for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for its end, at most `timeout_s` seconds (None: no limit); return whether nothing runs."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


# ---- collector: a start creates objects that stay, so collections would be wasted
STARTING = 100_000  # new objects between two collections, while a program starts
_USUAL = gc.get_threshold()


def postpone_collections() -> None:
    """Make collections rare from here on, until `settle`; imports take a tenth less time."""
    gc.set_threshold(STARTING, *_USUAL[1:])


def settle() -> None:
    """Collect as usual from here on, but never scan the objects that exist now: modules and plans."""
    gc.freeze()
    gc.set_threshold(*_USUAL)

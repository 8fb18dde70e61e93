"""Work that may run on a thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable


class BackgroundWork:
    """A thread, if there is one. A process that ends does not wait for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait so many seconds (None: as long as it takes) for its end; return whether nothing runs."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


# ---- collector: the garbage collector of a starting program: a start creates objects that stay, so collections would
# be wasted
STARTING = 100_000  # new objects between two collections, while a program starts
_USUAL = gc.get_threshold()


def postpone_collections() -> None:
    """Make collections rare from here on, until `settle`; imports take a tenth less time."""
    gc.set_threshold(STARTING, *_USUAL[1:])


def settle() -> None:
    """Collect as usual from here on, but never scan the objects that exist now: modules and plans."""
    gc.freeze()
    gc.set_threshold(*_USUAL)

"""Work that may run on a thread."""

from __future__ import annotations

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

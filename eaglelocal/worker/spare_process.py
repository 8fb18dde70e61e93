"""An engine process that is started before there is a plan: its imports run while its parent plans.

Nothing depends on it: without one, or if it ended too early, the supervisor starts a process as usual.
"""

from __future__ import annotations

import threading
from types import TracebackType

from eaglelocal.worker.child import EngineChild


class SpareProcess:
    """A process that waits for its plan, until one engine takes it. Close it: one that was not taken is ended.

    with SpareProcess(builder) as spare:
        client = EngineClient(make_plan(), builder=builder, spare=spare)
    """

    def __init__(self, builder: str) -> None:
        self._builder = builder
        self._lock = threading.Lock()  # an engine may take it from another thread than the one that closes
        self._child: EngineChild | None = None
        try:
            self._child = EngineChild(builder)
        except OSError:
            return  # the supervisor tries again, and reports it

    @property
    def pid(self) -> int | None:
        """Return the process id; None if there is no process, or it was taken."""
        child = self._child
        return child.pid if child else None

    def take(self, builder: str) -> EngineChild | None:
        """Return the process, which the caller then owns; None if there is none for this builder. It can be taken once.

        A process that cannot be used is ended.
        """
        with self._lock:
            child = self._child
            if child is not None and builder == self._builder and child.is_running:
                self._child = None
                return child
        self.close()
        return None

    def close(self) -> None:
        """End the process unless it was taken. Safe from any thread, and more than once."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.stop(is_graceful=False)
            child.reap()

    def __enter__(self) -> SpareProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

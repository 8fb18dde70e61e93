"""Record which kinds of work have run in this process."""

from __future__ import annotations

from collections.abc import Hashable


class KernelWarmup:
    """The kinds of work that have run.

    On a GPU the first run of a kind compiles or loads its kernels, so its time does not predict the next ones.
    """

    def __init__(self, *, makes_kernels: bool) -> None:
        self._kinds: set[Hashable] | None = set() if makes_kernels else None

    def note(self, kind: Hashable) -> bool:
        """Record that a kind of work ran. Return True for its first time, where that counts."""
        if self._kinds is None or kind in self._kinds:
            return False
        self._kinds.add(kind)
        return True

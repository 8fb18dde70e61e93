"""Work that may be done before the first request, in short pieces, or not at all."""

from __future__ import annotations

from collections.abc import Iterator


class IdleWork:
    """The pieces of such work; at first there are none."""

    def __init__(self) -> None:
        self._pieces: Iterator[None] | None = None

    def begin(self, pieces: Iterator[None]) -> None:
        """Have work done; each item of the iterator is a piece of it."""
        self._pieces = pieces

    @property
    def is_left(self) -> bool:
        return self._pieces is not None

    def do_next(self) -> None:
        """Do one piece, if there is one."""
        if self._pieces is not None and next(self._pieces, self) is self:
            self._pieces = None

    def drop(self) -> None:
        """Leave the rest undone."""
        self._pieces = None

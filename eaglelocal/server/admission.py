"""Limit the requests in the server at once, in all and for each owner. Pure counting."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

from eaglelocal.server.http_errors import RATE_LIMIT, Problem

NUM_REMEMBERED = 32
MAX_RETRY_AFTER_S = 60


class AdmissionQueue:
    """A bounded queue. The engine decides the order in which requests run.

    is_shared  several keys: an owner may hold at most three quarters of what the others leave, so that each further
               owner still gets a place: of 68 places 51, then 12, then 4
    """

    def __init__(self, *, num_slots: int, max_waiting: int, is_shared: bool) -> None:
        self.num_slots, self.max_waiting = num_slots, max_waiting
        self._is_shared = is_shared
        self._inside: Counter[str] = Counter()
        self._durations: deque[float] = deque(maxlen=NUM_REMEMBERED)

    @property
    def num_inside(self) -> int:
        return self._inside.total()

    @property
    def capacity(self) -> int:
        return self.num_slots + self.max_waiting

    @property
    def share(self) -> int:
        """Return the share of an owner while there is no other."""
        return self._share_of(self.capacity)

    def _share_of(self, places: int) -> int:
        """Return how many of the places that others leave an owner may hold; a few (num_slots) are not divided."""
        return max(places * 3 // 4, min(self.num_slots, places)) if self._is_shared else places

    @contextmanager
    def place(self, owner: str, count: int = 1) -> Iterator[None]:
        """Hold places for `count` answers. Raises Problem: 429 if none are free, 400 if there never can be enough."""
        held = self._inside[owner]
        left = self.capacity - (self.num_inside - held)
        if held + count > self._share_of(left):
            raise self._full(count)
        self._inside[owner] += count
        try:
            yield
        finally:
            self._inside[owner] -= count
            if not self._inside[owner]:
                del self._inside[owner]

    def took(self, seconds: float) -> None:
        """Record how long an answer took, for Retry-After."""
        self._durations.append(seconds)

    def _full(self, count: int) -> Problem:
        if count > self.share:  # never possible, however long one waits
            what = f"{count} answers were asked for, and {self.share} may be running or waiting here"
            return Problem(400, what, parameter="n")
        ahead = self.num_inside / self.num_slots * (fmean(self._durations) if self._durations else 1.0)
        wait_s = min(max(math.ceil(ahead / 2), 1), MAX_RETRY_AFTER_S)
        return Problem(
            429,
            f"{self.num_inside} requests are running or waiting, and no more may wait; try again in {wait_s} s",
            RATE_LIMIT,
            code="queue_full",
            headers={"Retry-After": str(wait_s)},
        )

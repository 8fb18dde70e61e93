"""Limit the requests in the server at once, in total and for each owner. Pure counting."""

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
    """A bounded number of places for requests that run or wait. The engine decides their order.

    is_shared  several keys: an owner may hold at most three quarters of what the others leave, so that each further
               owner still gets a place: of 68 places 51, then 12, then 4
    """

    def __init__(self, *, num_slots: int, max_waiting: int, is_shared: bool) -> None:
        self.num_slots, self.max_waiting = num_slots, max_waiting
        self._is_shared = is_shared
        self._inside: Counter[str] = Counter()
        self._durations_s: deque[float] = deque(maxlen=NUM_REMEMBERED)

    @property
    def num_inside(self) -> int:
        return self._inside.total()

    @property
    def capacity(self) -> int:
        return self.num_slots + self.max_waiting

    @property
    def share(self) -> int:
        """Return the share of an owner while there is no other."""
        return self._max_share(self.capacity)

    def _max_share(self, places: int) -> int:
        """Return how many of the places that others leave an owner may hold; a few (num_slots) are not divided."""
        return max(places * 3 // 4, min(self.num_slots, places)) if self._is_shared else places

    @contextmanager
    def admit(self, owner: str, count: int = 1) -> Iterator[None]:
        """Hold places for `count` answers while the block runs.

        Raises Problem: 429 if too few are free, 400 if there never can be enough.
        """
        num_held = self._inside[owner]
        left = self.capacity - (self.num_inside - num_held)
        if num_held + count > self._max_share(left):
            raise self._refusal(count, num_held, left)
        self._inside[owner] += count
        try:
            yield
        finally:
            self._inside[owner] -= count
            if not self._inside[owner]:
                del self._inside[owner]

    def record_duration(self, duration_s: float) -> None:
        """Record how long an answer took, for Retry-After."""
        self._durations_s.append(duration_s)

    def _refusal(self, count: int, num_held: int, left: int) -> Problem:
        """Return the Problem for `count` answers more. An owner holds `num_held` of the `left` places."""
        if count > self.share:  # never possible, however long one waits
            whose = f" of one key, of {self.capacity} in all," * self._is_shared
            what = f"{count} answers were requested, but only {self.share}{whose} may run or wait at once"
            return Problem(400, what, parameter="n")
        ahead = self.num_inside / self.num_slots * (fmean(self._durations_s) if self._durations_s else 1.0)
        wait_s = min(max(math.ceil(ahead / 2), 1), MAX_RETRY_AFTER_S)
        what = f"the queue is full: {self.num_inside} requests are running or waiting"
        if self._is_shared and self.num_inside + count <= self.capacity:  # there is room, for others
            share = self._max_share(left)
            what = f"the share of this key is full: it has {num_held} requests running or waiting, and may have {share}"
            what += f" of the {left} places that other keys leave; {self.num_inside} of all {self.capacity} are taken"
        return Problem(
            429,
            f"{what}; try again in {wait_s} s",
            RATE_LIMIT,
            code="queue_full",
            headers={"Retry-After": str(wait_s)},
        )

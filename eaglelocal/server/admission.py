"""Limit the requests in the server at once, in total and for each owner. Pure counting."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import fmean

from eaglelocal.server.http_errors import RATE_LIMIT, Problem

NUM_REMEMBERED = 32
MAX_RETRY_AFTER_S = 60


class OwnerPlaces:
    """Places that owners hold.

    is_shared  several keys: an owner may hold at most three quarters of what the others leave, so that each further
               owner still gets a place: of 68 places 51, then 12, then 4
    undivided  so few places are not divided
    """

    def __init__(self, capacity: int, *, is_shared: bool, undivided: int = 1) -> None:
        self.capacity, self.is_shared, self._undivided = capacity, is_shared, undivided
        self._held: Counter[str] = Counter()

    @property
    def num_held(self) -> int:
        return self._held.total()

    def count_left(self, owner: str) -> int:
        """Return the places that the other owners leave."""
        return self.capacity - (self.num_held - self._held[owner])

    def max_share(self, left: int) -> int:
        """Return how many of the places that others leave an owner may hold."""
        return max(left * 3 // 4, min(self._undivided, left)) if self.is_shared else left

    @contextmanager
    def hold(self, owner: str, refuse: Callable[[int], Problem], count: int = 1) -> Iterator[None]:
        """Hold places while the block runs. If too few are free, raise what `refuse` makes of those the owner holds."""
        num_held = self._held[owner]
        if num_held + count > self.max_share(self.count_left(owner)):
            raise refuse(num_held)
        self._held[owner] += count
        try:
            yield
        finally:
            self._held[owner] -= count
            if not self._held[owner]:
                del self._held[owner]


class AdmissionQueue:
    """A bounded number of places for requests that run or wait. The engine decides their order."""

    def __init__(self, *, num_slots: int, max_waiting: int, is_shared: bool) -> None:
        self.num_slots, self.max_waiting = num_slots, max_waiting
        self._places = OwnerPlaces(num_slots + max_waiting, is_shared=is_shared, undivided=num_slots)
        self._durations_s: deque[float] = deque(maxlen=NUM_REMEMBERED)

    @property
    def num_inside(self) -> int:
        return self._places.num_held

    @property
    def capacity(self) -> int:
        return self._places.capacity

    @property
    def share(self) -> int:
        """Return the share of an owner while there is no other."""
        return self._places.max_share(self.capacity)

    def admit(self, owner: str, count: int = 1) -> AbstractContextManager[None]:
        """Hold places for `count` answers while the block runs.

        Raises Problem: 429 if too few are free, 400 if there never can be enough.
        """
        return self._places.hold(owner, partial(self._refusal, count), count)

    def record_duration(self, duration_s: float) -> None:
        """Record how long an answer took, for Retry-After."""
        self._durations_s.append(duration_s)

    def _refusal(self, count: int, num_held: int) -> Problem:
        """Return the Problem for `count` answers more of an owner who holds `num_held` places.

        It does not count the requests of others; the time to wait says how busy the server is.
        """
        if count > self.share:  # never possible, however long one waits
            whose = f" of one key, of {self.capacity} in all," * self._places.is_shared
            what = f"{count} answers were requested, but only {self.share}{whose} may run or wait at once"
            return Problem(400, what, parameter="n")
        ahead = self.num_inside / self.num_slots * (fmean(self._durations_s) if self._durations_s else 1.0)
        wait_s = min(max(math.ceil(ahead / 2), 1), MAX_RETRY_AFTER_S)
        is_share_full = self._places.is_shared and self.num_inside + count <= self.capacity  # there is room, for others
        what = f"{'the share of this key' if is_share_full else 'the queue'} is full: "
        what += f"{'this key' if self._places.is_shared else 'it'} has {num_held} requests running or waiting"
        return Problem(
            429,
            f"{what}; try again in {wait_s} s",
            RATE_LIMIT,
            code="queue_full",
            headers={"Retry-After": str(wait_s)},
        )

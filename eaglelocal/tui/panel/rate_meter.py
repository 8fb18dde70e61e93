"""Measure how fast something is counted: now, and by second over the last minutes. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque

WINDOW_S = 2.0  # over which "now" is measured
MERGE_S = 0.05  # marks that are closer than this are merged
GRACE_S = 1.0  # after a mark, before its age makes the rate fall
SILENCE_S, SILENCE_GAPS = 1.6, 3.0  # seconds or gaps between marks without growth, after which it has ended
KEPT_S = 240  # seconds of history
MIN_ACTIVE_S = 0.1  # of a second, to which its rate refers at least: a token or two say nothing


class Rate:
    """The rate of a growing count, from mark to mark, as tok/s is from first to last token."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()  # (moment, count)
        self._moved_at = float("-inf")
        self.last = 0.0  # the newest rate that was not zero
        self.count = 0.0

    def begin(self) -> None:
        """Forget the marks, so that the time before does not count."""
        self._marks.clear()

    def restart(self) -> None:
        """Start again at zero."""
        self._marks.clear()
        self.count, self._moved_at = 0.0, float("-inf")

    def mark(self, count: float, now: float) -> None:
        """Record the count as of now."""
        has_moved = count > self.count
        if has_moved:
            self._moved_at = now
        if len(self._marks) > 1 and now - self._marks[-2][0] < MERGE_S:
            self._marks.pop()
        self._marks.append((now, count))
        self.count = count
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()
        if has_moved:
            self.last = self.compute_rate(now) or self.last

    def is_moving(self, now: float) -> bool:
        gap = self._marks[-1][0] - self._marks[-2][0] if len(self._marks) > 1 else 0.0
        return now - self._moved_at < max(SILENCE_S, SILENCE_GAPS * gap)

    def compute_rate(self, now: float) -> float:
        """Return the rate per second; 0.0 if nothing was counted lately."""
        if len(self._marks) < 2 or not self.is_moving(now):
            return 0.0
        (began, low), (ended, high) = self._marks[0], self._marks[-1]
        seconds = max(ended, now - GRACE_S) - began
        return (high - low) / seconds if seconds > 0 else 0.0


class History:
    """The amounts of each second, for the newest KEPT_S seconds, and how long something was counted in each."""

    def __init__(self) -> None:
        self._amounts: dict[int, float] = {}
        self._timed: dict[int, tuple[float, float]] = {}  # second: (amount, seconds in which it was counted)
        self._first_second: int | None = None

    def add(self, amount: float, since: float, now: float) -> None:
        """Add an amount between two moments, spread evenly over the seconds that they span.

        Of an amount that came at one moment (`since` is `now`) nobody knows how long it took: it has no rate.
        """
        first, last = int(max(since, now - KEPT_S)), int(now)
        begin = max(since, float(first))
        span = now - begin
        for second in range(first, last + 1):
            part = min(now, second + 1.0) - max(begin, float(second))
            share = part / span if span > 0 else float(second == last)
            self._amounts[second] = self._amounts.get(second, 0.0) + amount * share
            if span > 0 and amount > 0:
                timed, active_s = self._timed.get(second, (0.0, 0.0))
                self._timed[second] = (timed + amount * share, active_s + max(part, 0.0))
        self._first_second = first if self._first_second is None else self._first_second
        if len(self._amounts) > 2 * KEPT_S:
            self._amounts = {second: value for second, value in self._amounts.items() if second > last - KEPT_S}
            self._timed = {second: pair for second, pair in self._timed.items() if second > last - KEPT_S}

    def amounts(self, now: float, num_seconds: int) -> tuple[float | None, ...]:
        """Return the amounts of the last `num_seconds` full seconds, the newest last; None before the first `add`."""
        end = int(now)
        first = self._first_second
        return tuple(
            self._amounts.get(second, 0.0) if first is not None and second >= first else None
            for second in range(end - num_seconds, end)
        )

    def rates(self, now: float, num_seconds: int) -> tuple[float | None, ...]:
        """Return the rate while something was counted, of each of the last `num_seconds` full seconds, the newest last.

        Pauses do not lower it, so that it means the same as the rate of a stretch without pauses. 0.0 in a second in
        which nothing was counted; None before the first `add`.
        """
        end = int(now)
        return tuple(self._rate(second) for second in range(end - num_seconds, end))

    def _rate(self, second: int) -> float | None:
        if self._first_second is None or second < self._first_second:
            return None
        amount, active_s = self._timed.get(second, (0.0, 0.0))
        return amount / max(active_s, MIN_ACTIVE_S)

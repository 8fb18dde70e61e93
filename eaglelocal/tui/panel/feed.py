"""Collect the events and readings of an engine, from any thread, and make a `PanelFrame` of them for the screen.

    feed = Feed(by_events=True)
    feed.add_event(event, now)                 # per event, on the engine's thread: a few additions
    feed.add_reading(make_reading(...), now)   # now and then
    frame = feed.make_frame(now)               # 5 to 10 times a second, on the screen's thread

A frame costs the same however much comes in, so a slow terminal sees fewer frames and delays nothing else. Pure: the
caller passes the time. Does not know widgets.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import field

from eaglelocal.client.server_reading import (
    DISCONNECTED,
    DraftingState,
    ServerReading,
    ServerTotals,
    add_totals,
    count_answer,
)
from eaglelocal.core.events import Failed, Finished, RequestEvent, SpeculationChanged, Started, Tokens
from eaglelocal.core.records import dataclass
from eaglelocal.tui.panel.snapshot_rates import SnapshotRates, compute_rates, has_restarted, subtract_totals

WINDOW_TOKENS = 256  # the figures of a server or of a long answer describe this many of the newest tokens
MAX_SAMPLES = 512
HISTORY_S = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelFrame:
    """The values that a panel shows at one moment. None: not reported."""

    connection: str = ""  # state of the server or the engine: ready, loading, restarting, disconnected ...
    drafting: DraftingState = field(default_factory=DraftingState)
    tok_s: float | None = None  # while tokens come; None: none came yet
    tok_s_window: str = ""  # measured over: the last 2 s, the last answer ...; "": not reported
    is_moving: bool = False
    figures: SnapshotRates = field(default_factory=SnapshotRates)  # of an answer, at most the newest WINDOW_TOKENS
    num_figure_tokens: float | None = None  # tokens that the figures are of
    drafted: float | None = None  # totals of the process
    accepted: float | None = None
    tok_s_history: tuple[float | None, ...] = ()  # while tokens came, one value per second, the newest last
    acceptance_history: tuple[float | None, ...] = ()  # likewise; None where nothing was drafted
    reading: ServerReading | None = None  # the newest one, for screens that show more


class Feed:
    """The rolling figures of an engine or a server. Events and readings may be added from any thread."""

    def __init__(self, *, by_events: bool = False) -> None:
        """by_events: the events of answers are added, and their tokens counted; else the totals of readings are."""
        self._by_events = by_events
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._rate, self._tokens = Rate(), History()
        self._drafted, self._accepted = History(), History()
        self._samples: deque[ServerTotals] = deque(maxlen=MAX_SAMPLES)  # one for each growth; the first is the baseline
        self._totals, self._read_at = ServerTotals(), 0.0
        self._answers: ServerTotals | None = None  # sums over answers, for engines that report no totals
        self._drafting = DraftingState()
        self._sampled_drafting = DraftingState()  # of all samples but the baseline
        self._last_answer: Finished | None = None  # until another answer begins
        self._reading: ServerReading | None = None
        self._has_rate = self._by_events
        self._running: set[str] = set()  # request ids

    # ---- in
    def forget(self) -> None:
        """Start over with another engine: the old figures do not apply to it."""
        with self._lock:
            self._begin()

    def add_event(self, event: RequestEvent, now: float) -> None:
        """Add an event of an answer."""
        with self._lock:
            match event:
                case Started(request_id):
                    self._start(request_id)
                case Tokens(_, pieces):
                    self._rate.mark(self._rate.count + len(pieces), now)
                case SpeculationChanged(_, state, reason):
                    self._drafting = DraftingState(state=state, reason=reason, setting=self._drafting.setting)
                case Finished():
                    self._finish(event)
                case Failed():
                    self._running.discard(event.request_id)

    def add_reading(self, reading: ServerReading, now: float) -> None:
        """Add a reading of an engine or a server."""
        with self._lock:
            self._reading = reading
            if reading.state == DISCONNECTED:
                return
            if reading.totals.generated_tokens is not None or reading.totals.drafts is not None:
                self._add_totals(reading, now)
            elif reading.totals.tok_s is not None:
                self._has_rate = True
            self._drafting = self._choose_drafting(reading)

    # ---- out
    @property
    def reading(self) -> ServerReading | None:
        """The newest reading."""
        return self._reading

    def make_frame(self, now: float, *, seconds: int = HISTORY_S) -> PanelFrame:
        """Return the current values, with `seconds` seconds of history."""
        with self._lock:
            work = self._choose_work()
            tok_s, window = self._measure_speed(now)
            return PanelFrame(
                connection=self._reading.state if self._reading is not None else "",
                drafting=self._drafting,
                tok_s=tok_s,
                tok_s_window=window,
                is_moving=bool(self._running) or self._rate.is_moving(now),
                figures=compute_rates(work),
                num_figure_tokens=work.generated_tokens,
                drafted=self._totals.draft_tokens,
                accepted=self._totals.accepted_tokens,
                tok_s_history=self._tokens.rates(now, seconds) if self._has_rate else (),
                acceptance_history=self._acceptance_history(now, seconds),
                reading=self._reading,
            )

    # ---- inside
    def _choose_work(self) -> ServerTotals:
        """Return the work to show: that of the last answer, beside its speed, else the newest."""
        if self._last_answer is not None:
            return count_answer(self._last_answer)
        return subtract_totals(self._totals, self._samples[0] if self._samples else self._totals)

    def _choose_drafting(self, reading: ServerReading) -> DraftingState:
        """Return the drafting state; at rest that of the last tokens, instead of the "on" of an idle engine."""
        drafting, last = reading.drafting, self._last_answer
        if drafting.state != "on":
            return drafting
        if last is not None:
            return DraftingState(state=last.speculation.state, reason=last.speculation.reason, setting=drafting.setting)
        sampled = self._sampled_drafting
        is_at_rest = not self._by_events and reading.running == 0
        return sampled if is_at_rest and sampled.state and sampled.setting == drafting.setting else drafting

    def _measure_speed(self, now: float) -> tuple[float | None, str]:
        """Return the speed while tokens come, and the tokens it was measured over; None before the first ones."""
        reading, last = self._reading, self._last_answer
        recent = reading.recent if reading is not None and not self._by_events else ()
        speeds = (
            (last.timings.decode_tok_s if last is not None else None, "last answer"),  # more exact than readings
            (self._rate.compute_rate(now), f"last {WINDOW_S:.0f} s"),
            (self._rate.last, "when busy"),
            (next((row.tok_s for row in recent if row.tok_s), None), "last answer"),
            (reading.totals.tok_s if reading is not None else None, "average"),
        )
        unknown = None, "waiting for tokens" if self._has_rate else ""
        return next(((speed, window) for speed, window in speeds if speed and self._has_rate), unknown)

    def _start(self, request_id: str) -> None:
        if not self._running:
            self._rate.restart()
        self._running.add(request_id)
        self._last_answer = None
        if self._by_events:
            self._samples = deque([self._totals], maxlen=MAX_SAMPLES)  # the figures are of this answer

    def _add_totals(self, reading: ServerReading, now: float) -> None:
        totals = reading.totals
        is_first = not self._samples or has_restarted(self._totals, totals)
        before, since = None if is_first else self._totals, self._read_at
        self._totals, self._read_at = totals, now
        if is_first:
            self._samples = deque([ServerTotals(process=totals.process)], maxlen=MAX_SAMPLES)
            self._sampled_drafting = reading.drafting
        if not self._by_events:
            if is_first:
                self._rate.restart()
            if totals.generated_tokens is not None:
                self._has_rate = True
                self._rate.mark(totals.generated_tokens, now)
                self._add_growth(self._tokens, "generated_tokens", before, since, now)
        self._add_growth(self._drafted, "draft_tokens", before, since, now)
        self._add_growth(self._accepted, "accepted_tokens", before, since, now)
        if before is None or totals.generated_tokens != before.generated_tokens or totals.drafts != before.drafts:
            if self._sampled_drafting.state != reading.drafting.state and before is not None and not self._by_events:
                self._samples = deque([before], maxlen=MAX_SAMPLES)  # so that state and figures are of the same tokens
            self._sampled_drafting = reading.drafting
            self._add_sample(totals)

    def _add_growth(self, history: History, name: str, before: ServerTotals | None, since: float, now: float) -> None:
        """Add the growth since `before` of the total with this name to its history."""
        count, old = getattr(self._totals, name), getattr(before, name, None)
        if count is not None and old is not None:
            history.add(count - old, since, now)

    def _add_sample(self, totals: ServerTotals) -> None:
        """Append a sample; drop old ones up to the newest that is WINDOW_TOKENS back, which is the baseline.

        The first baseline is the start of the process.
        """
        self._samples.append(totals)
        while len(self._samples) > 2 and _count_work(totals) - _count_work(self._samples[1]) >= WINDOW_TOKENS:
            self._samples.popleft()

    def _acceptance_history(self, now: float, seconds: int) -> tuple[float | None, ...]:
        if self._totals.draft_tokens is None:
            return ()
        pairs = zip(self._drafted.amounts(now, seconds), self._accepted.amounts(now, seconds), strict=True)
        return tuple(min(accepted / drafted, 1.0) if drafted else None for drafted, accepted in pairs)

    def _finish(self, finished: Finished) -> None:
        """End an answer. Its own figures count if no reading reports totals."""
        self._running.discard(finished.request_id)
        if finished.completion_tokens and not self._running:
            self._last_answer = finished
        if self._reading is None or self._reading.totals.drafts is None:
            stats, before = finished.speculation, self._answers
            self._drafting = DraftingState(state=stats.state, reason=stats.reason, setting=self._drafting.setting)
            self._totals = self._answers = add_totals([*([before] if before else []), count_answer(finished)])
            self._samples = deque([ServerTotals()], maxlen=MAX_SAMPLES)


def _count_work(totals: ServerTotals) -> float:
    """Return the work done so far: generated tokens, or drafted ones if those are not reported."""
    return totals.generated_tokens or totals.draft_tokens or 0.0


# ---- rate meter: measure how fast something is counted: now, and by second over the last minutes. Pure: the caller
# passes the time
WINDOW_S = 2.0  # over which "now" is measured
MERGE_S = 0.05  # marks that are closer than this are merged
GRACE_S = 1.0  # seconds after a mark before its age lowers the rate
SILENCE_S, SILENCE_GAPS = 1.6, 3.0  # seconds or gaps between marks without growth, after which it has ended
KEPT_S = 240  # seconds of history
MIN_ACTIVE_S = 0.1  # shortest part of a second that a rate is computed for: a token or two mean nothing


class Rate:
    """The rate of a growing count, from mark to mark, as tok/s is from first to last token."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()  # (moment, count)
        self._moved_at = float("-inf")
        self.last = 0.0  # the newest rate that was not zero
        self.count = 0.0

    def restart(self) -> None:
        """Start again at zero, so that the time before does not count."""
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
    """The amounts of each second, for the newest KEPT_S seconds, and the time in each second that they took."""

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[float, float]] = {}  # second: (amount, seconds in which it was counted)

    def add(self, amount: float, since: float, now: float) -> None:
        """Add an amount between two moments, spread evenly over the seconds that they span."""
        first, last = int(max(since, now - KEPT_S)), int(now)
        begin = max(since, float(first))
        if amount <= 0 or now <= begin:
            return
        for second in range(first, last + 1):
            part = min(now, second + 1.0) - max(begin, float(second))
            counted, active_s = self._seconds.get(second, (0.0, 0.0))
            self._seconds[second] = (counted + amount * part / (now - begin), active_s + max(part, 0.0))
        if len(self._seconds) > 2 * KEPT_S:
            self._seconds = {second: pair for second, pair in self._seconds.items() if second > last - KEPT_S}

    def amounts(self, now: float, num_seconds: int) -> tuple[float, ...]:
        """Return the amounts of the last `num_seconds` full seconds, the newest last."""
        return tuple(amount for amount, _ in self._read(now, num_seconds))

    def rates(self, now: float, num_seconds: int) -> tuple[float | None, ...]:
        """Return the rate while something was counted, of each of the last `num_seconds` full seconds, the newest last.

        Pauses do not lower it, so that it means the same as the rate of a stretch without pauses. None in a second in
        which nothing was counted.
        """
        seconds = self._read(now, num_seconds)
        return tuple(amount / max(active_s, MIN_ACTIVE_S) if amount else None for amount, active_s in seconds)

    def _read(self, now: float, num_seconds: int) -> list[tuple[float, float]]:
        return [self._seconds.get(second, (0.0, 0.0)) for second in range(int(now) - num_seconds, int(now))]

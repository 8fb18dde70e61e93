"""When drafting stops paying it sleeps, and short probes find out when it pays again. One slot, one drafter.

Asleep means no encode, no draft step, no drafted rows. Every switch has a reason that a person can read.

    awake --(slower than plain over the memory, or nothing worth drafting)--> asleep
    asleep --(gap tokens later)--> probing --(faster than plain)--> awake
                                     '--(slower)--> asleep, with a longer gap

Pure: told what steps brought and cost, in tokens; no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MEMORY = 24.0  # drafted steps after which two thirds are forgotten
MIN_STEPS = 10  # drafted steps before the first judgement: a slot begins with what other texts have taught
SLEEP_BELOW, WAKE_ABOVE = 0.98, 1.02  # speed relative to plain decoding
IDLE_STEPS = 8  # steps in a row in which nothing was worth drafting
FIRST_GAP, LAST_GAP = 16, 96  # tokens between probes; recovery within 128 tokens bounds the last
PROBE_STEPS, PROBE_SKIPPED = 4, 1  # drafted steps of a probe; the first underrates a head that has just woken
PROBE_LENGTH = 3  # tokens drafted in each


class State(Enum):
    AWAKE = "on"
    PROBING = "probing"
    ASLEEP = "asleep"


@dataclass(slots=True)
class Tally:
    """Decaying sums of drafted steps."""

    steps: float = 0.0
    extra: float = 0.0  # tokens beyond the one that a plain step gives
    price: float = 0.0  # what drafting them cost, in tokens of plain decoding
    drafted: float = 0.0
    accepted: float = 0.0

    def add(self, *, extra: float, price: float, drafted: int, accepted: int) -> None:
        keep = 1.0 - 1.0 / MEMORY
        self.steps = self.steps * keep + 1.0
        self.extra = self.extra * keep + extra
        self.price = self.price * keep + price
        self.drafted = self.drafted * keep + drafted
        self.accepted = self.accepted * keep + accepted

    @property
    def speed(self) -> float:
        """Relative to plain decoding."""
        return (self.steps + self.extra) / (self.steps + self.price) if self.steps else 1.0

    @property
    def tokens(self) -> float:
        return self.steps + self.extra

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0


class Watch:
    """Decides for one slot whether its drafter works."""

    def __init__(self, *, hopeful: bool = True) -> None:
        """hopeful: what is known of other texts speaks for drafting; else the slot starts asleep, with an early probe."""
        self.state = State.AWAKE if hopeful else State.ASLEEP
        self.reason = "" if hopeful else "drafting has not paid for other texts; a probe follows"
        self._tally = Tally()
        self._steps_awake = self._idle = self._tokens_asleep = 0
        self._gap = FIRST_GAP

    @property
    def is_awake(self) -> bool:
        return self.state is not State.ASLEEP

    @property
    def is_probing(self) -> bool:
        return self.state is State.PROBING

    @property
    def is_settling(self) -> bool:
        """The drafter has just woken: what it says now underrates it, and is not to be learned from."""
        return self.is_probing and self._steps_awake < PROBE_SKIPPED

    def saw_draft(self, *, extra: float, price: float, drafted: int, accepted: int) -> None:
        """A step verified a draft of this slot."""
        self._idle = 0
        self._steps_awake += 1
        if self.is_probing and self._steps_awake <= PROBE_SKIPPED:
            return
        self._tally.add(extra=extra, price=price, drafted=drafted, accepted=accepted)
        if self.is_probing:
            if self._steps_awake >= PROBE_SKIPPED + PROBE_STEPS:
                self._end_probe()
        elif self._steps_awake >= MIN_STEPS and self._tally.speed < SLEEP_BELOW:
            self._sleep(FIRST_GAP, self._judgement())

    def saw_nothing(self, num_tokens: int) -> None:
        """A step went by without a draft of this drafter: none was worth it, or it sleeps."""
        if self.state is State.ASLEEP:
            self._tokens_asleep += num_tokens
            if self._tokens_asleep >= self._gap:
                self._wake()
            return
        self._idle += 1
        if self._idle >= IDLE_STEPS:
            gap = FIRST_GAP if self.state is State.AWAKE else min(2 * self._gap, LAST_GAP)
            self._sleep(gap, f"nothing promised to pay in the last {IDLE_STEPS} steps")

    def _wake(self) -> None:
        self.state, self.reason = State.PROBING, "probing"
        self._tally = Tally()
        self._steps_awake = self._idle = 0

    def _end_probe(self) -> None:
        if self._tally.speed < WAKE_ABOVE:
            self._sleep(min(2 * self._gap, LAST_GAP), self._judgement())
            return
        self.state, self.reason = State.AWAKE, self._judgement()
        self._steps_awake = MIN_STEPS - PROBE_STEPS  # a probe is half a proof

    def _sleep(self, gap: int, reason: str) -> None:
        self.state, self.reason = State.ASLEEP, reason
        self._gap, self._tokens_asleep = gap, 0

    def _judgement(self) -> str:
        tally = self._tally
        return f"{tally.speed:.2f}x over the last {tally.tokens:.0f} tokens, acceptance {tally.acceptance_rate:.2f}"

    @property
    def tally(self) -> Tally:
        return self._tally

"""Put a slot's drafter to sleep when drafting stops paying off, and probe from time to time whether it pays again.

Asleep means no encode, no draft step, no drafted rows. A probe drafts and sends nothing: its tokens are compared with
the text that follows, so it costs only draft steps, and the prefill of the tokens that a draft model slept through. A
probe comes after a gap, and not before its price is a small share of what was decoded since the last one. Every switch
has a reason for the user to read.

    awake --(slower than plain over the memory, or nothing worth sending for long)--> asleep
    asleep --(when it is cheap)--> probing --(promises more than plain)--> awake
                                     '--(does not)--> asleep, with a longer gap

A drafter that fell asleep because its steps had become expensive was worth it before. A single draft step, a trial,
shows whether they still are expensive, and the drafter wakes if they are not. Probes are rarer then.

Pure: takes the gains and costs of steps, in tokens; no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from eaglelocal.core.draft import MEASURING
from eaglelocal.core.records import dataclass

MEMORY = 48.0  # steps after which two thirds are forgotten
MIN_STEPS = 12  # before the first judgement: a slot begins with what other texts have taught
SLEEP_BELOW, WAKE_ABOVE = 0.985, 1.05  # speed relative to plain decoding
SURE = 1.5  # standard deviations by which a loss must exceed chance
IDLE_STEPS = 32  # steps in a row in which hardly anything was worth sending
DEAR_IDLE_STEPS = 8  # the same where draft steps are expensive: trials while asleep show when they no longer are
FIRST_GAP, LAST_GAP = 16, 64  # tokens between probes, at least; recovery of a cheap head within 128 bounds the last
PROBE_STEPS, PROBE_SKIPPED = 8, 2  # steps of a probe; the first are skipped, they underrate a head that just woke
COSTS_KNOWN, TOO_DEAR = 4, 0.8  # steps of a probe that show what drafting costs, and the promise that ends it then
TRIAL_GAPS = 8, 64  # tokens between trials: at least, at most
TRIAL_SHARE = 0.15  # of the time, that trials may take
PROBE_SHARE = 0.03  # of the tokens decoded since the last one, that a probe may cost
MOST_IN_VAIN = 2  # probes in a row that count: the share is divided by one more than their number
LONGEST_GAP = 4096  # tokens after which a probe comes whatever it costs
TRIED_TOKENS = 256  # after which a probe takes the place of a trial
DEAR_GAP = 32  # tokens until the next one, at most: it was short
PROBE_WEIGHED = 5  # last steps of a probe, whose promise counts
PROBE_LENGTH = 3  # tokens drafted in each, at least
SLOWER_EARLIER = "it was slower for earlier answers"


class GateState(Enum):
    AWAKE = "on"
    PROBING = "probing"
    ASLEEP = "asleep"


@dataclass(slots=True)
class DecayingSums:
    """Decaying sums over steps."""

    steps: float = 0.0
    extra: float = 0.0  # tokens beyond the one that a plain step gives
    cost: float = 0.0  # of drafting them, in tokens of plain decoding
    drafted: float = 0.0
    squares: float = 0.0  # of extra - price, per step

    def add(self, step: DecayingSums, memory: float = MEMORY) -> None:
        """Add a step; two thirds are forgotten after `memory` steps."""
        keep = 1.0 - 1.0 / memory
        self.steps = self.steps * keep + step.steps
        self.extra = self.extra * keep + step.extra
        self.cost = self.cost * keep + step.cost
        self.squares = self.squares * keep + (step.extra - step.cost) ** 2
        self.drafted = self.drafted * keep + step.drafted

    @property
    def speed(self) -> float:
        """Speed relative to plain decoding."""
        return (self.steps + self.extra) / max(self.steps + self.cost, 1e-9) if self.steps else 1.0

    @property
    def is_loss(self) -> bool:
        """True if drafting is slower than plain, and by more than chance."""
        lost = self.cost - self.extra
        return self.speed < SLEEP_BELOW and lost > SURE * math.sqrt(self.squares)


class DraftGate:
    """The switch of one slot's drafter: awake, probing or asleep."""

    def __init__(
        self,
        *,
        starts_awake: bool = True,
        previous: DraftGate | None = None,
        is_dear: bool = False,
        num_unread: int = 0,
        reason: str = SLOWER_EARLIER,
    ) -> None:
        """Start the gate of a text.

        starts_awake  False where drafting did not pay for other texts, or cannot
        previous      of the slot's last text: if that slept too its gap goes on, or short answers would never be probed
        is_dear       draft steps cost far more than usual
        num_unread    tokens of the prompt that are not read yet; a drafter reads none while it sleeps
        reason        for a start asleep
        """
        self.state = GateState.AWAKE if starts_awake else GateState.ASLEEP
        self.reason = "" if starts_awake else reason
        self.num_unread = 0 if starts_awake else num_unread
        self._tally = DecayingSums()
        self._num_steps = self._num_idle = self._num_asleep = 0
        self._probe_speeds: list[float] = []
        self._gap, self._needs_trial = FIRST_GAP, is_dear and not starts_awake
        self._begins_with_trial = False  # of a probe
        self._num_tried = 0  # tokens decoded between trials since the last probe
        self._num_in_vain = 0  # probes in a row that did not wake it
        if not starts_awake and previous is not None and previous.state is not GateState.AWAKE:
            self._gap, self._num_asleep = previous._gap, previous._num_asleep
            self._num_in_vain = previous._num_in_vain

    @property
    def is_awake(self) -> bool:
        return self.state is not GateState.ASLEEP

    @property
    def is_probing(self) -> bool:
        return self.state is GateState.PROBING

    @property
    def is_trial(self) -> bool:
        """True if this step tests whether draft steps are still expensive."""
        return self.is_probing and self._begins_with_trial and not self._probe_speeds

    @property
    def probe_length(self) -> int:
        """Return how many tokens are drafted whatever they cost."""
        return (1 if self.is_trial else PROBE_LENGTH) if self.is_probing else 0

    @property
    def is_settling(self) -> bool:
        """True if the drafter has just woken: its first tokens underrate it, and are not learned from."""
        return self.is_probing and len(self._probe_speeds) < PROBE_SKIPPED

    def record_step(self, step: DecayingSums, promised_speed: float = WAKE_ABOVE, *, is_dear: bool = False) -> None:
        """Record a step of an awake slot: the tokens that this drafter gained, and the cost of keeping it awake.

        promised_speed  speed relative to plain decoding, as predicted for what was sent
        is_dear         draft steps cost far more than usual
        """
        self._num_steps += 1
        self._num_idle = 0 if step.drafted and promised_speed >= WAKE_ABOVE else self._num_idle + 1
        self._tally.add(step)
        if self._num_idle >= (DEAR_IDLE_STEPS if is_dear else IDLE_STEPS):
            self._sleep(FIRST_GAP, f"no promising draft in the last {self._num_idle} steps")
        elif self._num_steps >= MIN_STEPS and self._tally.is_loss:
            self._sleep(FIRST_GAP, describe_loss(self._tally.speed))
        if not self.is_awake and is_dear:
            self._needs_trial, self._gap = True, TRIAL_GAPS[0]

    def record_tokens(self, num_tokens: int, price: Callable[[bool], float] = lambda is_trial: 0.0) -> None:
        """Record tokens decoded while the drafter slept; start a probe when the gap is over and its price small enough.

        price  returns the price of a probe in tokens, or of a trial besides its draft step
        """
        self._num_asleep += num_tokens
        self.num_unread += num_tokens
        if self._num_asleep < self._gap:
            return
        is_trial = self._needs_trial and (
            self._num_tried < TRIED_TOKENS or not self._is_worth_it(price, is_trial=False)
        )
        if self._is_worth_it(price, is_trial=is_trial):
            self.state, self.reason = GateState.PROBING, MEASURING
            self._probe_speeds, self._begins_with_trial = [], is_trial

    def _is_worth_it(self, price: Callable[[bool], float], *, is_trial: bool) -> bool:
        share = TRIAL_SHARE if is_trial else PROBE_SHARE / (1 + self._num_in_vain)
        return self._num_asleep >= LONGEST_GAP or self._num_asleep * share >= price(is_trial)

    def record_probe(self, promised_speed: float) -> None:
        """Record a step of a probe; `promised_speed`: speed relative to plain, had its best draft been sent."""
        if self.is_trial and promised_speed < WAKE_ABOVE:
            least, most = TRIAL_GAPS
            cost = 2.0 / max(promised_speed, 1e-9) - 1.0  # in tokens, at most: a single token is promised
            self._num_tried += self._num_asleep
            self._sleep(min(max(math.ceil(cost / TRIAL_SHARE), least), most), describe_loss(promised_speed))
            return
        self._num_tried = 0
        self._probe_speeds.append(promised_speed)
        if len(self._probe_speeds) == COSTS_KNOWN and promised_speed < TOO_DEAR:
            self._sleep(min(2 * self._gap, DEAR_GAP), describe_loss(promised_speed), is_in_vain=True)
        if len(self._probe_speeds) < PROBE_STEPS:
            return
        speed = sum(self._probe_speeds[-PROBE_WEIGHED:]) / PROBE_WEIGHED
        if speed < WAKE_ABOVE:
            self._sleep(min(2 * self._gap, LAST_GAP), describe_loss(speed), is_in_vain=True)
            return
        self._wake(f"it pays again ({speed:.2f}x)")

    def end_trials(self) -> None:
        """Wake the drafter if it fell asleep because draft steps were expensive: they no longer are."""
        if self._needs_trial:
            self._wake("what made it slow is over")

    def _wake(self, reason: str) -> None:
        self.state, self.reason, self._tally, self._needs_trial = GateState.AWAKE, reason, DecayingSums(), False
        self._num_steps = self._num_idle = self._num_in_vain = self.num_unread = 0

    def _sleep(self, gap: int, reason: str, *, is_in_vain: bool = False) -> None:
        if is_in_vain:
            self._num_in_vain = min(self._num_in_vain + 1, MOST_IN_VAIN)
        self.state, self.reason = GateState.ASLEEP, reason
        self._gap, self._num_asleep, self.num_unread = gap, 0, 0


def describe_loss(speed: float) -> str:
    """Return why drafting at this speed, relative to plain decoding, is not worth it."""
    what = "be slower" if speed < SLEEP_BELOW else "gain too little"
    return f"it would {what} ({speed:.2f}x)"

"""Decide for which slots the primary drafter is awake: one decision for all slots that decode.

An awake drafter follows a slot's text, which costs time whether or not it drafts. So it is awake for the slots for
which it is expected to bring more tokens than it costs, judged by what was learned: the acceptance of each text, and
the costs of steps. Slots share the rows of a decode, hence the comparison of 1, 2, 4, .. slots, the likeliest first.

What an asleep drafter would bring becomes unknown with time. So a trial drafts a few steps for all asleep slots:
nothing is sent, and the acceptance of their texts shows. Trials may take EXPLORED_SHARE of the time. Costs become
unknown too; they return to the usual ones by themselves (costs/cost_filter.py).

    awake --(expected to lose)--> asleep --(the budget allows it, and it could gain)--> trial
      ^-------------------------------------(expected to gain)------------------------------'

Pure: plain numbers, no clock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from eaglelocal.core.records import dataclass
from eaglelocal.speculation.acceptance.acceptance_model import OPTIMISM, AcceptanceModel, Outlook
from eaglelocal.speculation.acceptance.acceptance_table import FAIR_HEAD
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.goodput import ChainValue, value_chains
from eaglelocal.speculation.policy.slot_policy import TRIAL_LENGTH, TRIAL_SKIPPED, TRIAL_STEPS, DrafterSet, SlotGate
from eaglelocal.speculation.policy.token_costs import TokenCosts

EXPLORED_SHARE = 0.01  # of the time, that trials may take in the long run
WORTH_KEEPING, WORTH_WAKING = 0.01, 0.03  # gain in tokens per slot and step, below which it sleeps, or does not wake
DECIDED_EVERY = 8  # steps, unless slots come or go
ASLEEP_DECIDED_EVERY = 32  # steps, while all drafters sleep and nothing has changed
SLOTS_PER_STEP = 8  # when slots come or go, a decision for so many waits a step: more slots make it dearer
AWAKE = 1, 2, 4, 8  # numbers of awake slots that are compared, besides all: each takes a tenth of a millisecond
BISECTIONS = 6  # of an expected speed
MAX_IDLE = 32  # steps without a draft, in which a text becomes unknown
HOPE = 1.5  # standard deviations of a text's acceptance that a trial may find it better by
FAIR_OUTLOOK = Outlook.of([(weight / sum(each for _, each in FAIR_HEAD), chance) for chance, weight in FAIR_HEAD])


class DecidedFor(NamedTuple):
    """The slots of a decision, how many others are ruled or reading, and whether draft steps have a price."""

    slots: tuple[int, ...]
    num_ruled: int
    num_reading: int
    has_price: bool


@dataclass(slots=True)
class DraftSwitch:
    """The decision for the slots on `auto`, and the budget of trials.

    max_draft  most tokens that a slot may send
    leveled    all slots send equally many rows
    find_rate  returns the tokens that a second is worth, by numbers of decoding slots and of cached positions
    """

    costs: StepCosts
    acceptance: AcceptanceModel
    drafters: DrafterSet
    max_draft: int
    leveled: bool
    find_rate: Callable[[int, int], float]
    credit: float = 0.0  # steps of plain decoding that a trial may take
    num_steps: int = 0  # since the last decision
    values: dict[int, ChainValue] = field(default_factory=dict)  # of the slots last asked for, until the next decision
    decided_for: DecidedFor | None = None
    num_reading: int = 0  # slots whose prompts are read, which will decode beside the others
    ruled: Sequence[int] = ()  # lengths of the drafts of other slots, which rules set

    def begin(self, slot: int, gate: SlotGate, num_unread: int, num_running: int) -> None:
        """Decide for a new text, of whose prompt so many tokens are to be read, beside others like it.

        num_running  answers at once, this one included
        """
        self.values = {}
        # in company, a prompt that is read in vain delays the others
        hope, least = (HOPE, 0.0) if num_running == 1 else (OPTIMISM, WORTH_KEEPING)
        outlooks = [self._outlook(slot, hope)] * num_running
        gain = self._find_largest_gain(outlooks, self._plain_costs(num_running, 0), num_running)
        if gain < least:
            gate.sleep(describe_gain(gain, num_running))
            gate.num_unread = num_unread

    def record(
        self,
        gates: Mapping[int, SlotGate],
        tokens: Mapping[int, int],
        drafted: Container[int],
        num_lost: float,
        num_cells: int,
        ruled: Sequence[int] = (),
    ) -> None:
        """Record a step in which these slots decoded, and decide anew when it is time.

        drafted   slots for which the primary drafter drafted
        num_lost  tokens that plain decoding would have made in its time, and it did not
        ruled     lengths of the drafts of other slots, which rules set
        """
        self.ruled = ruled
        self.num_steps += 1
        for slot, gate in gates.items():
            if not gate.is_awake:
                gate.num_unread += tokens[slot]
            gate.steps_idle = 0 if slot in drafted else gate.steps_idle + 1
        trying = [slot for slot, gate in gates.items() if gate.is_probing]
        for slot in trying:
            gates[slot].trial_steps += 1
        if trying:
            self.credit -= max(num_lost, 0.0) / len(gates)
        ended = [slot for slot in trying if self._has_ended(gates[slot], trying, len(gates), num_cells)]
        decided_for = DecidedFor(tuple(gates), len(ruled), self.num_reading, self._has_price)
        is_alike = self.decided_for == decided_for
        is_open = self.costs.is_raised or any([gate.is_awake or gate.missed for gate in gates.values()])
        every = DECIDED_EVERY if is_open else ASLEEP_DECIDED_EVERY
        is_due = self.num_steps >= every or (not is_alike and self.num_steps > len(gates) // SLOTS_PER_STEP)
        if ended or (not trying and is_due):
            num_alike, self.num_steps, self.decided_for = self.num_steps if is_alike else 1, 0, decided_for
            self._decide(gates, ended, num_cells, num_alike)
        asleep = [slot for slot, gate in gates.items() if not gate.is_awake]
        if asleep:
            self.credit += EXPLORED_SHARE
            if self.num_steps % DECIDED_EVERY == 0 and not any([gate.is_probing for gate in gates.values()]):
                self._try_out(gates, asleep, num_cells)

    @property
    def _has_price(self) -> bool:
        return self.costs.draft_seconds(self.drafters.primary or "", 1) > 0.0

    def _has_ended(self, gate: SlotGate, trying: Sequence[int], num_slots: int, num_cells: int) -> bool:
        """Return whether a trial is over: after its steps, or once it is known that drafting costs too much here."""
        if gate.trial_steps >= TRIAL_STEPS:
            return True
        return gate.trial_steps > TRIAL_SKIPPED and self._hope(trying, num_slots, num_cells) < 0.0

    def _decide(self, gates: Mapping[int, SlotGate], ended: Sequence[int], num_cells: int, num_alike: int) -> None:
        """Decide for all slots that are not tried out.

        ended      trials that have just ended
        num_alike  steps of the same slots since the last decision
        """
        slots = [slot for slot, gate in gates.items() if not gate.is_probing or slot in ended]
        hopes = {slot: OPTIMISM if gates[slot].is_awake and slot not in ended else 0.0 for slot in slots}
        costs = self._token_costs(len(gates), num_cells)
        gains, num_awake = self._choose(slots, hopes, costs, len(gates))
        for at, (slot, gain) in enumerate(gains):
            gate = gates[slot]
            is_awake = gate.is_awake and slot not in ended
            if is_awake and gate.steps_idle >= MAX_IDLE:
                gate.sleep(f"no promising draft in the last {gate.steps_idle} steps")
            elif at < num_awake and gain > (WORTH_KEEPING if is_awake else WORTH_WAKING):
                if not gate.is_awake:
                    gate.missed += gain * num_alike
                if gate.is_awake or gate.missed >= self._price_reading([gate.num_unread], costs):
                    gate.wake(f"it pays again ({1.0 + gain:.2f}x)")
            else:
                gate.missed = 0.0
                if gate.is_awake:
                    gate.sleep(describe_gain(gain, len(gates)))

    def _choose(
        self, slots: Sequence[int], hopes: Mapping[int, float], costs: TokenCosts, num_slots: int
    ) -> tuple[list[tuple[int, float]], int]:
        """Return the slots, the likeliest first, with the gain in tokens of each; and for how many to be awake."""
        self.values = {}
        if not slots:
            return [], 0
        outlooks = {slot: self._outlook(slot, hopes[slot]) for slot in slots}
        ranked = sorted(slots, key=lambda slot: -outlooks[slot].mean)
        most, found = -math.inf, [0.0]
        for number in [each for each in AWAKE if each < len(ranked)] + [len(ranked)]:
            values = self._value([outlooks[slot] for slot in ranked[:number]], costs, num_slots, self.ruled)
            gains = [value.gain - costs.drafted / number for value in values]
            if sum(gains) > most:
                most, found = sum(gains), gains
                is_usual = all([hopes[slot] == OPTIMISM for slot in ranked[:number]])
                self.values = dict(zip(ranked, values, strict=False)) if is_usual else {}
        beyond = [min(found)] * (len(ranked) - len(found))
        return list(zip(ranked, [*found, *beyond], strict=True)), len(found) if most > 0.0 else 0

    def _find_largest_gain(
        self, outlooks: Sequence[Outlook], costs: TokenCosts, num_slots: int, ruled: Sequence[int] = ()
    ) -> float:
        """Return the largest gain of a slot in tokens per step if the drafter were awake for these texts alone."""
        best = max([value.gain for value in self._value(outlooks, costs, num_slots, ruled)])
        return best - costs.drafted / len(outlooks)

    def expect_speed(self, num_slots: int) -> float:
        """Return the speed relative to plain decoding that is expected of usual texts; 1.0 before any is known."""
        drafter = self.drafters.primary
        if drafter is None or not self.acceptance.knows(drafter):
            return 1.0
        usual = [Outlook.of(self.acceptance.usual_kinds(drafter))] * num_slots

        def gain(speed: float) -> float:
            """Return the gain where a second is worth as many tokens as this speed gives."""
            return self._find_largest_gain(usual, self._plain_costs(num_slots, 0, speed), num_slots)

        low, high = 1.0, 1.0 + gain(1.0)
        for _ in range(BISECTIONS):  # a speed is right if the gain that it leaves is what it promises
            middle = (low + high) / 2
            low, high = (middle, high) if gain(middle) > middle - 1.0 else (low, middle)
        return low

    def find_values(
        self, slots: Sequence[int], num_slots: int, num_cells: int, num_prefill_rows: int = 0
    ) -> Mapping[int, ChainValue]:
        """Return what drafting is worth to these slots, for which the drafter is awake.

        Computed once a decision; but anew for each step beside a prompt, and while costs return from a slow time.
        """
        if self.values.keys() == set(slots) and not num_prefill_rows and not self.costs.is_raised:
            return self.values
        outlooks = [self._outlook(slot, OPTIMISM) for slot in slots]
        costs = self._token_costs(num_slots, num_cells, num_prefill_rows)
        found = self._value(outlooks, costs, num_slots, self.ruled) if slots else []
        values = dict(zip(slots, found, strict=True))
        if not num_prefill_rows:  # these steps are rare, and all differ
            self.values = values
        return values

    def _value(
        self, outlooks: Sequence[Outlook], costs: TokenCosts, num_slots: int, ruled: Sequence[int]
    ) -> list[ChainValue]:
        number, primary = len(outlooks), self.drafters.primary or ""
        most = min(self.max_draft, self.drafters.max_depth)
        width = num_slots + len(ruled) if self.leveled else number  # rows of a level
        rows = costs.rows(width * most, 0 if self.leveled else sum(ruled))
        free = min(max(ruled, default=0), most) if self.leveled else 0  # levels that padding fills anyway
        depths = [max(n, free) for n in range(most + 1)]
        levels = [(rows[width * n] - rows[width * before]) / number for before, n in itertools.pairwise(depths)]
        block = self.drafters.block_size
        levels = levels[:block] if block > 1 else levels
        beside = [sum([length > n for length in ruled]) for n in range(len(levels))]  # slots that draft anyway
        steps = [costs.draft_step(primary, number + num) - costs.draft_step(primary, num) for num in beside]
        prices = [0.0 if n % block else step / number for n, step in enumerate(steps)]
        unlike = {id(each): each for each in outlooks}
        found = dict(zip(unlike, value_chains(list(unlike.values()), levels, prices), strict=True))
        return [found[id(each)] for each in outlooks]

    def _outlook(self, slot: int, hope: float) -> Outlook:
        return self.acceptance.outlook(slot, self.drafters.primary or "", hope)

    def _token_costs(self, num_slots: int, num_cells: int, num_prefill_rows: int = 0) -> TokenCosts:
        num_slots += len(self.ruled)
        rate = self.find_rate(num_slots + self.num_reading, num_cells)
        return TokenCosts(
            self.costs,
            lambda: rate,
            num_base_rows=num_slots + num_prefill_rows,
            num_prefill_rows=num_prefill_rows,
            num_cells=num_cells,
        )

    def _plain_costs(self, num_slots: int, num_cells: int, speed: float = 1.0) -> TokenCosts:
        """Return the costs of a step in tokens of decoding that is `speed` times as fast as plain."""
        rate = speed * self.costs.plain_rate(num_slots, num_cells)
        return TokenCosts(self.costs, lambda: rate, num_base_rows=num_slots, num_cells=num_cells)

    # ---- trials
    def _try_out(self, gates: Mapping[int, SlotGate], asleep: Sequence[int], num_cells: int) -> None:
        """Begin a trial of the asleep slots, if the budget allows it and they could gain.

        All are tried together: a draft step for several costs hardly more than for one, and alone none might pay.
        """
        price = self._price([gates[slot].num_unread for slot in asleep], len(gates), num_cells)
        if price > self.credit:
            return
        self.credit = price
        if self._hope(asleep, len(gates), num_cells) > WORTH_WAKING:
            for slot in asleep:
                gates[slot].try_out()

    def _price(self, unread: Sequence[int], num_slots: int, num_cells: int) -> float:
        """Return the price of a trial, in steps of plain decoding: all that it takes, as if nothing were accepted.

        unread  tokens of each tried text that the drafter has not read
        """
        primary = self.drafters.primary or ""
        costs = self._plain_costs(num_slots, num_cells)
        num_steps = self.drafters.num_steps(primary, TRIAL_LENGTH)
        price = costs.draft_step(primary, len(unread)) * num_steps + costs.drafted
        reading = self._price_reading(unread, costs)
        return (TRIAL_STEPS * price + reading / 2) / num_slots  # later trials need not read it again

    def _price_reading(self, unread: Sequence[int], costs: TokenCosts) -> float:
        """Return what it costs, in tokens, to wake a drafter for texts of which it has not read so many tokens."""
        num_read = sum([min(num_tokens, self.drafters.max_unread) for num_tokens in unread])
        return costs.tokens(num_read * self.costs.reading_seconds(self.drafters.primary or ""))

    def _hope(self, slots: Sequence[int], num_slots: int, num_cells: int) -> float:
        """Return the gain of a slot in tokens that a trial may show: texts are as they were, or now suit the head."""
        costs, texts = self._token_costs(num_slots, num_cells), [self._outlook(slot, HOPE) for slot in slots]
        kinds = (texts, [FAIR_OUTLOOK] * len(slots))
        return max(self._find_largest_gain(each, costs, num_slots, self.ruled) for each in kinds)


def describe_gain(gain: float, num_slots: int) -> str:
    """Return why drafting with this gain, in tokens per slot and step, is not worth it."""
    if num_slots > 1:
        return f"{num_slots} answers at once leave no room for drafts ({1.0 + gain:.2f}x)"
    return f"it would {'be slower' if gain < 0.0 else 'gain too little'} ({1.0 + gain:.2f}x)"

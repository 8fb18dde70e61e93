"""Simulated speculation: a Controller drives drafters of known acceptance on a machine of known costs.

Goes through a step as the engine does, but every outcome is random. Scores are in true seconds, without the noise
that the controller sees, so that a difference of a per cent shows within a few thousand steps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.request import AUTO_SPEC, Spec
from eaglelocal.core.sampling import Sampled
from eaglelocal.drafters.draft_model import MAX_WAITING_TOKENS
from eaglelocal.speculation.acceptance.acceptance_model import SIBLING_LEVEL, SIBLING_SLOPE
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DraftCall, DrafterSet
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import Change, StepReport
from eaglelocal.speculation.verify import verify

from .simulated_machine import SimulatedMachine

MAX_DRAFT = 16
PRIMARY, LOOKUP = "head", "ngram"
CALIBRATED_ROWS = (1, 2, 4, 8, 17)
WRONG = -1  # a token that is never right


@dataclass(frozen=True)
class Profile:
    """The success of a drafter on one kind of text.

    rates     of acceptance of a typical token by depth, the last for all beyond
    spread    of the log-odds of acceptance from token to token
    reported  log-odds of the confidence = reported[0] * log-odds of acceptance + reported[1]; None: unrelated
    found     how often there is anything to propose
    second    how often the second choice is right where the first is wrong; 0: there is none
    third     how often the third choice is right where both are wrong; 0: there is none
    """

    rates: tuple[float, ...]
    spread: float = 1.2
    reported: tuple[float, float] | None = (1.0, 0.0)
    found: float = 1.0
    second: float = 0.0
    third: float = 0.0
    hard: tuple[float, float] = (
        0.0,
        0.0,
    )  # share of tokens at which text turns, and by how much less likely, in log-odds

    def draw(self, depth: int, chance: random.Random) -> tuple[float, float]:
        """Return a random (probability of acceptance, confidence)."""
        middle = odds(self.rates[min(depth, len(self.rates)) - 1])
        if self.reported is None:
            return chance_of(middle), chance.random()
        if self.hard[0] and chance.random() < self.hard[0]:
            middle -= self.hard[1]
        true = middle + self.spread * chance.gauss(0.0, 1.0)
        return chance_of(true), chance_of(self.reported[0] * true + self.reported[1])


@dataclass(frozen=True)
class Stretch:
    """A number of tokens of one kind of text."""

    num_tokens: int
    profiles: Mapping[str, Profile]  # by drafter


@dataclass(frozen=True)
class Text:
    """The stretches of an answer, which repeat until the answer ends."""

    stretches: Sequence[Stretch]

    def at(self, num_tokens: int) -> Mapping[str, Profile]:
        left = num_tokens % sum(stretch.num_tokens for stretch in self.stretches)
        for stretch in self.stretches:
            if left < stretch.num_tokens:
                return stretch.profiles
            left -= stretch.num_tokens
        raise AssertionError("not reached")


@dataclass(frozen=True)
class Answer:
    """A text and the number of tokens to generate of it."""

    num_tokens: int
    text: Text


def plain_text(profile: Profile) -> Text:
    return Text([Stretch(1, {PRIMARY: profile})])


@dataclass(frozen=True)
class DraftCosts:
    """The seconds of a step's work besides the target's decode."""

    step_s: float = 0.001
    row_s: float = 0.0001
    lookup_s: float = 0.00002
    reading_s: float = 0.0  # a token of a text
    plain_overhead_s: float = 0.0002
    drafted_overhead_s: float = 0.001

    def draft_s(self, drafter: str, num_rows: int) -> float:
        return self.lookup_s * num_rows if drafter == LOOKUP else self.step_s + self.row_s * num_rows

    def other_s(self, drafted: bool) -> float:
        return self.drafted_overhead_s if drafted else self.plain_overhead_s


@dataclass(frozen=True)
class Step:
    """The results of a step, and its true seconds on a machine that is not slow."""

    seconds: float
    plain_s: float  # of the same step without drafts
    tokens: Mapping[int, int]  # by slot
    drafted: Mapping[int, int]
    changes: Sequence[Change]

    @property
    def num_tokens(self) -> int:
        return sum(self.tokens.values())


@dataclass
class Simulation:
    machine: SimulatedMachine
    texts: dict[int, Text]  # by slot
    costs: DraftCosts = field(default_factory=DraftCosts)
    spec: Spec = AUTO_SPEC
    specs: Mapping[int, Spec] = field(default_factory=dict)  # of slots whose requests set one
    drafters: DrafterSet = field(default_factory=lambda: DrafterSet(PRIMARY, num_branches=MAX_DRAFT))
    answer_tokens: int = 256  # then the slot begins another
    answers: Sequence[Answer] = ()  # instead: what slots answer in turn, over and over
    leveled: bool = False
    max_siblings: int = 0
    seed: int = 0
    paired: bool = False  # a text's token is as hard in every run, whenever it is drafted: runs differ less by chance
    waking: float = 0.7  # share of its chances that a drafter has in the first step after a sleep
    kept: object | None = None  # what an earlier controller had learned of acceptance
    makes_kernels: bool = False  # as the costs believe of the machine
    num_prompt: int = (
        0  # tokens of a prompt; drafters that read texts themselves read it, and all that they slept through
    )
    timed: Sequence[int] = CALIBRATED_ROWS  # numbers of rows, at the start
    misread: Mapping[int, float] = field(default_factory=dict)  # kept of an earlier day, timed once: by what factor
    controller: Controller = field(init=False)
    positions: dict[int, int] = field(init=False)  # tokens of the present answer, by slot
    lengths: dict[int, int] = field(init=False)  # of the present answer, by slot
    num_begun: int = field(init=False)
    begun: dict[int, int] = field(init=False)  # number of the present answer, by slot
    unread: dict[int, int] = field(init=False, default_factory=dict)  # tokens that the primary drafter has not read
    awake: set[int] = field(init=False)  # slots whose drafter was awake in the step before
    steps: list[Step] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.controller = Controller(
            self.spec, self.drafters, self._calibrated(), leveled=self.leveled, max_siblings=self.max_siblings
        )
        if self.kept is not None:
            assert self.controller.acceptance.restore(self.kept)
        self.awake = set(self.texts)
        self.positions, self.texts, self.lengths, self.begun = {}, dict(self.texts), {}, {}
        self.num_begun = 0
        for slot in self.texts:
            self._begin(slot)

    def _calibrated(self) -> StepCosts:
        costs = StepCosts(makes_kernels=self.makes_kernels)
        if self.makes_kernels:
            for rows in self.timed:
                self.machine.decode(rows)
        timed = {rows: [self.machine.decode(rows) for _ in range(3)] for rows in self.timed}
        costs.calibrate(timed | {rows: [self.machine.true_seconds(rows) * by] for rows, by in self.misread.items()})
        if self.misread:
            assert costs.restore(costs.state())
        return costs

    def state(self) -> object:
        """Return the acceptance that the controller has learned."""
        return self.controller.acceptance.state()

    # ---- running
    def run(self, num_tokens: int) -> list[Step]:
        """Generate `num_tokens` tokens over all slots, and return these steps."""
        first, made = len(self.steps), 0
        while made < num_tokens:
            self.steps.append(self.step())
            made += self.steps[-1].num_tokens
        return self.steps[first:]

    def step(self) -> Step:
        was_awake = {slot: self.controller.is_awake(slot) for slot in self.texts}
        profiles = {slot: text.at(self.positions[slot]) for slot, text in self.texts.items()}
        choice = self.controller.begin_step(
            [DecodeSlot(slot, MAX_DRAFT) for slot in self.texts], num_prefill_rows=0, num_cells=0
        )
        growth = Growth(self, choice, profiles)
        reading = self._read([slot for slot in self.texts if was_awake[slot]])
        drafts = growth.grow()
        draft_calls = [*reading, *growth.draft_calls]
        num_drafted = sum(map(len, drafts.values()))
        num_padding = len(drafts) * max(map(len, drafts.values())) - num_drafted if self.leveled else 0
        num_rows = len(drafts) + num_drafted + num_padding
        true_s, plain_s = self.machine.true_seconds(num_rows), self.machine.true_seconds(len(drafts))
        is_plain = not any(was_awake.values()) and not draft_calls  # nor does the engine ask a policy then
        other_s = self.costs.other_s(not is_plain)
        slow_time, now_s = self.machine.slow_time, self.machine.clock_s
        verdicts = {slot: (draft, growth.verdict(slot, draft)) for slot, draft in drafts.items()}
        report = StepReport(
            policy=None if is_plain else choice,
            num_rows=num_rows,
            num_padding_rows=num_padding,
            num_prefill_rows=0,
            num_cells=0,
            decode_s=self.machine.decode(num_rows),
            draft_calls=[call._replace(seconds=call.seconds * slow_time.draft_factor(now_s)) for call in draft_calls],
            other_s=other_s * slow_time.other_factor(now_s),
            verdicts=verdicts,
        )
        self.machine.clock_s += report.seconds
        step = Step(
            seconds=true_s + other_s + sum(call.seconds for call in draft_calls),
            plain_s=plain_s + self.costs.other_s(False),
            tokens={slot: len(verdict.samples) for slot, (_, verdict) in verdicts.items()},
            drafted={slot: len(draft) for slot, draft in drafts.items()},
            changes=(self.controller.learn_plain if is_plain else self.controller.learn)(report),
        )
        self.awake = {slot for slot in self.texts if was_awake[slot] and self.controller.is_awake(slot)}
        self._go_on(step)
        return step

    def _read(self, slots: Sequence[int]) -> list[DraftCall]:
        """Return the reading of the long queues of these slots, as a call of no levels."""
        long = [slot for slot in slots if self.unread[slot] > MAX_WAITING_TOKENS]
        num_read = sum(min(self.unread[slot], self.drafters.max_unread) for slot in long)
        self.unread.update(dict.fromkeys(long, 0))
        return [DraftCall(PRIMARY, num_read, num_read * self.costs.reading_s, 0)] if num_read else []

    def token_chance(self, slot: int, position: int) -> random.Random:
        """Return what decides on a drafted token at this position of the slot's text."""
        if not self.paired:
            return self.chance
        return random.Random(((self.seed * 1009 + self.begun[slot]) * 8192 + position) * 64 + slot)

    def is_waking(self, slot: int, drafter: str) -> bool:
        return drafter == PRIMARY and slot not in self.awake

    def _go_on(self, step: Step) -> None:
        for slot, num_tokens in step.tokens.items():
            self.positions[slot] += num_tokens
            self.unread[slot] += num_tokens
            if self.positions[slot] >= self.lengths[slot]:
                self._begin(slot)

    def _begin(self, slot: int) -> None:
        self.positions[slot], self.lengths[slot] = 0, self.answer_tokens
        if self.answers:
            answer = self.answers[self.num_begun % len(self.answers)]
            self.texts[slot], self.lengths[slot] = answer.text, answer.num_tokens
        self.begun[slot] = self.num_begun
        self.num_begun += 1
        self.unread[slot] = self.num_prompt
        self.controller.begin(slot, self.specs.get(slot), num_prompt=self.num_prompt)


class Growth:
    """The drafts of one step. The text's token at position n is n, so a drafted token is right if it equals n."""

    def __init__(
        self, simulation: Simulation, choice: StepPolicy, profiles: Mapping[int, Mapping[str, Profile]]
    ) -> None:
        self.simulation, self.choice, self.profiles = simulation, choice, profiles
        self.draft_calls: list[DraftCall] = []
        self.call_ends: dict[tuple[int, str, int], set[int]] = {}

    def grow(self) -> dict[int, Draft]:
        """Return the drafts by slot, as engine.drafting.grow does."""
        for drafter in self.simulation.drafters.names:
            while tips := self.choice.select_tips(drafter):
                chains = [(tip.slot, tip.chain) for tip in tips]
                depth, further = self.choice.select_levels(drafter, [tip.slot for tip in tips])
                sure = [self._said(slot, drafter, chain, depth) >= further.confidence for slot, chain in chains]
                for _ in range(further.num_levels):
                    if not all(sure):
                        break
                    depth += 1
                    sure = [self._said(slot, drafter, chain, 1) >= further.confidence for slot, chain in chains]
                for slot, chain in chains:
                    self._mark_call(slot, drafter, chain)
                num_steps = self.simulation.drafters.num_steps(drafter, depth)
                seconds = num_steps * self.simulation.costs.draft_s(drafter, len(tips))
                first_s = self.simulation.machine.first_run_s((drafter, len(tips)))
                self.draft_calls.append(DraftCall(drafter, len(tips), seconds + first_s, depth))
                if num_steps < depth:
                    for slot, chain in chains:
                        self.choice.drafts.end(slot, drafter, chain)
        return self.choice.select_drafts()

    def _mark_call(self, slot: int, drafter: str, number: int) -> None:
        """Note that the tokens drafted so far came in one call: branches may leave at the last of them."""
        chain = self.choice.drafts.chain(slot, drafter, number)
        if chain is not None and chain.tokens:
            done = self.call_ends.setdefault((slot, drafter, number), set())
            done.add(len(chain.tokens) - 1)
            chain.ends = [end for end in chain.ends if end in done]

    def _said(self, slot: int, drafter: str, chain: int, depth: int) -> float:
        """How sure the drafter is of the least sure token of so many levels; 0.0: it has no more to say."""
        least = 1.0
        for _ in range(depth):
            least = min(least, self._expand(slot, drafter, chain))
            if not least:
                break
        return least

    def _expand(self, slot: int, drafter: str, number: int) -> float:
        """How sure the drafter is of its next token; 0.0: it has no more to say."""
        chain = self.choice.drafts.chain(slot, drafter, number)
        tokens = chain.tokens if chain is not None else []
        length = (chain.depth if chain is not None else 0) + len(tokens)
        right = self.simulation.positions[slot] + length + 1
        is_on_text = not tokens or tokens[-1] == right - 1
        profile, chance = self.profiles[slot].get(drafter), self._chance(slot, right, is_on_text)
        if profile is None or (length == 0 and chance.random() >= profile.found):
            self.choice.drafts.end(slot, drafter, number)
            return 0.0
        true, confidence = profile.draw(length + 1, chance)
        if self.simulation.is_waking(slot, drafter):
            true *= self.simulation.waking
        is_right = chance.random() < true
        siblings = self._siblings(profile, chance, right, is_open=is_on_text and not is_right)
        token = right if is_right and is_on_text else WRONG
        self.choice.drafts.add(slot, drafter, [token], [confidence], siblings, branch=number)
        return confidence

    def _chance(self, slot: int, position: int, is_on_text: bool) -> random.Random:
        """What decides on a token; where the answer cannot get to, it must not move what decides elsewhere."""
        simulation = self.simulation
        return simulation.token_chance(slot, position) if is_on_text or simulation.paired else simulation.chance

    def _siblings(
        self, profile: Profile, chance: random.Random, right: int, *, is_open: bool
    ) -> list[list[tuple[int, float]]]:
        """The other choices, if the drafter has any; is_open: the first is wrong, and everything before it right."""
        siblings = []
        for share in (profile.second, profile.third):
            if share:
                hope = share + (2.0 * chance.random() - 1.0) * 0.8 * min(share, 1.0 - share)
                saved = chance.random() < hope and is_open
                siblings.append((right if saved else WRONG, second_confidence(hope)))
                is_open = is_open and not saved
        return [siblings] if siblings else []

    def verdict(self, slot: int, draft: Draft) -> Verdict:
        root = self.simulation.positions[slot]
        return verify(
            draft,
            [*range(1 + len(draft))],
            sample=lambda row, depths=(0, *draft.depths): Sampled(root + depths[row] + 1, 0.0),
            is_end=lambda token: False,
            limit=1 + len(draft),
        )


def second_confidence(hope: float) -> float:
    """Return the confidence of a sibling, of a head like the embedded one: at least 0.5, as against the third."""
    odds = (math.log(hope / (1.0 - hope)) - SIBLING_LEVEL) / SIBLING_SLOPE
    return max(1.0 / (1.0 + math.exp(-odds)), 0.5)


# ---- what a run gave
def rate(steps: Sequence[Step]) -> float:
    """Return the tokens per second."""
    return sum(step.num_tokens for step in steps) / sum(step.seconds for step in steps)


def speed(steps: Sequence[Step]) -> float:
    """Return the speed relative to plain decoding of the same tokens."""
    return sum(s.plain_s * s.num_tokens / len(s.tokens) for s in steps) / sum(step.seconds for step in steps)


def beyond(steps: Sequence[Step], num_tokens: int) -> list[Step]:
    """Return the steps after the first `num_tokens` tokens."""
    made = 0
    for at, step in enumerate(steps):
        if made >= num_tokens:
            return list(steps[at:])
        made += step.num_tokens
    return []


def curve(ratios: Sequence[float], num_rows: int = 160) -> list[float]:
    """Return a measured curve, continued to `num_rows` in proportion to the number of rows."""
    last = len(ratios)
    return [*ratios, *(ratios[-1] * rows / last for rows in range(last + 1, num_rows + 1))]


def odds(probability: float) -> float:
    probability = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(probability / (1.0 - probability))


def chance_of(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))

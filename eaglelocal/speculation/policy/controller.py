"""The drafting policy of the engine: who drafts, what, and how much of it is verified. One for all slots.

It keeps what was learned (acceptance, costs, the rate of tokens, one Mind per slot), and only `learn` teaches it. Each
step gets a StepPolicy (step_policy.py) that decides on plain numbers. Drafters are known by name only. Pure: no clock,
no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.request import MAX_DRAFT_TOKENS, OFF, DraftPolicy, Spec, fixed_spec
from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.costs.ubatch_split import fillers
from eaglelocal.speculation.policy.baseline_probe import BaselineProbe
from eaglelocal.speculation.policy.draft_gate import DecayingSums, DraftGate, GateState
from eaglelocal.speculation.policy.pending_drafts import PendingDrafts
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet, SlotPolicy
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.token_costs import TokenCosts

AT_ONCE, LATER_AT_ONCE, MOST_AT_ONCE = 2, 8, 16  # steps learned together: early, later, if no draft depends on costs
EARLY_STEPS = 64  # by number of decoding slots; costs move most in them, as sizes run for the first time
ALIKE_CELLS = 128  # cached positions within which decodes are learned together
RATE_MEMORY = 32.0  # steps that the speed is averaged over
RATE_PROOF = 8.0
PRICE_SHARE = 0.85
MIN_PROOF, HOPELESS = 24.0, 0.95  # steps of other texts, and the speed below which a new text starts asleep


class DraftCall(NamedTuple):
    """A call of a drafter: num_levels levels, num_rows slots."""

    drafter: str
    num_rows: int
    seconds: float
    num_levels: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A report of what a step did and how long it took. Seconds are wall time."""

    num_rows: int  # of the target's decode
    num_filler_rows: int = 0  # of them, padding rows that nobody asked for
    num_passes: int = 1  # over the target's weights
    num_prefill_rows: int
    num_cells: int  # cached positions that a decoding row attends to
    decode_s: float
    draft_calls: Sequence[DraftCall]
    other_s: float  # everything else: sampling, encoding, emitting tokens
    shown_s: float = 0.0  # of that: drafters' models reading the target's rows
    verdicts: Mapping[int, tuple[Draft, Verdict]]  # of decoding slots

    @property
    def num_drafted(self) -> int:
        return sum(len(draft) for draft, _ in self.verdicts.values())

    @property
    def num_tokens(self) -> int:
        return sum(len(verdict.samples) for _, verdict in self.verdicts.values())

    @property
    def draft_s(self) -> float:
        return sum([call.seconds for call in self.draft_calls])

    @property
    def seconds(self) -> float:
        return self.decode_s + self.other_s + self.draft_s


@dataclass(frozen=True, slots=True)
class Change:
    """A report that a slot's drafting fell asleep or woke. Probes are too short to be reported."""

    slot: int
    state: GateState
    reason: str


@dataclass(slots=True)
class ThroughputEstimate:
    """The speed of recent steps relative to plain ones, so that neither drift nor a longer context makes it stale."""

    tokens: float = RATE_PROOF  # a few plain steps, or one lucky step would make the next look expensive
    plain_tokens: float = RATE_PROOF  # of plain decoding in the same seconds

    def add(self, tokens: float, plain_tokens: float) -> None:
        keep = 1.0 - 1.0 / RATE_MEMORY
        self.tokens = self.tokens * keep + tokens
        self.plain_tokens = self.plain_tokens * keep + plain_tokens

    @property
    def speed(self) -> float:
        return self.tokens / self.plain_tokens

    @property
    def price(self) -> float:
        """Worth of a second relative to plain decoding: one, and PRICE_SHARE of the gain.

        With all of the gain a few easy tokens would make drafting look too expensive just where it begins to pay.
        """
        return 1.0 + PRICE_SHARE * max(self.speed - 1.0, 0.0)


class Controller:
    """The drafting policy, and everything it has learned.

    spec         for requests that set none
    leveled      slots have caches of their own, so that a step costs least when all draft equally far
    max_seconds  siblings that a slot may send beside its chain; 0: drafts are chains
    max_draft    most tokens that a slot may send, whatever its request sets; None: no such limit
    """

    def __init__(
        self,
        spec: Spec,
        drafters: DrafterSet,
        costs: StepCosts,
        *,
        leveled: bool = False,
        max_siblings: int = 0,
        max_draft: int | None = None,
    ) -> None:
        self.costs, self.acceptance = costs, AcceptanceModel()
        self._spec, self._drafters, self._leveled, self._max_siblings = spec, drafters, leveled, max_siblings
        self._max_draft = max_draft
        self._minds: dict[int, SlotPolicy] = {}
        self._wishless: set[int] = set()  # slots whose requests set no spec
        self._flows: dict[int, ThroughputEstimate] = {}  # by number of decoding slots
        self._proofs: dict[int, BaselineProbe] = {}  # by number of decoding slots
        self._experience = DecayingSums()  # of the primary drafter, over all texts
        self._guesses = PendingDrafts()
        self._untaught: list[tuple[StepReport, bool]] = []  # steps whose costs are not learned yet; drafters awake?
        self._num_priced: Counter[int] = Counter()  # steps whose drafts depend on costs, by number of decoding slots
        self._choice: StepPolicy | None = None  # of the current step

    # ---- slots
    @property
    def spec(self) -> Spec:
        """The spec of requests that set none."""
        return self._spec

    def begin(self, slot: int, spec: Spec | None) -> None:
        """Start the policy of a request in the slot; `spec` None: the default one."""
        (self._wishless.discard if spec else self._wishless.add)(slot)
        spec = self._bounded(spec or self._spec)
        proven_bad = self._experience.steps >= MIN_PROOF and self._experience.speed < HOPELESS
        last = self._minds[slot].watch if slot in self._minds else None
        watch = DraftGate(hopeful=not proven_bad, before=last) if spec.drafting is DraftPolicy.AUTO else None
        self._minds[slot] = SlotPolicy(spec, watch)
        self.acceptance.begin(slot)
        self._guesses.forget(slot)

    def _bounded(self, spec: Spec) -> Spec:
        """Return what of the spec can be had here; OFF without drafters, so that nothing is learned or reserved."""
        if not self._drafters.names:
            return OFF
        most = self._max_draft
        return spec if most is None or spec.num_draft_tokens <= most else fixed_spec(most)

    def respec(self, spec: Spec) -> None:
        """Set the spec of requests that set none; those that run start over, with what others taught."""
        self._spec = spec
        for slot in tuple(self._wishless):
            self.begin(slot, None)

    def is_awake(self, slot: int) -> bool:
        """Return whether drafters should keep up with this slot, to draft for it next."""
        mind = self._minds[slot]
        return mind.spec.max_draft > 0 and (mind.watch is None or mind.watch.is_awake)

    def max_draft(self, slot: int) -> int:
        return self._minds[slot].spec.max_draft

    def state(self, slot: int) -> tuple[GateState | None, str]:
        """Return state and reason to show; the state is None where drafting is off."""
        mind = self._minds[slot]
        if mind.spec.max_draft == 0:
            return None, "switched off"
        if mind.watch is None:
            return GateState.AWAKE, "a PID rule" if mind.pid is not None else f"{mind.length} tokens"
        return mind.watch.state, mind.watch.reason

    # ---- steps
    def choice(self, seats: Sequence[DecodeSlot], *, num_prefill_rows: int, num_cells: int) -> StepPolicy:
        """Return the StepPolicy that decides in a step; `seats` are the slots that decode."""
        is_ruled = self._is_ruled([seat.slot for seat in seats])
        if not num_prefill_rows and self._can_be_plain(seats) and self._proof(len(seats)).is_due:
            seats = [DecodeSlot(seat.slot, 0) for seat in seats]
        prices = TokenCosts(
            self.costs,
            rate=0.0 if is_ruled else self._rate(len(seats), num_cells),
            num_base_rows=len(seats) + num_prefill_rows,
            num_cells=num_cells,
        )
        self._choice = StepPolicy(
            seats,
            self._minds,
            self._drafters,
            self.acceptance,
            prices,
            leveled=self._leveled,
            max_siblings=self._max_siblings,
        )
        return self._choice

    def _is_ruled(self, slots: Iterable[int]) -> bool:
        """Return whether all these slots have lengths set by a rule (fixed, PID, off), whatever they cost."""
        return all([self._minds[slot].watch is None for slot in slots])

    def _rate(self, num_seats: int, num_cells: int) -> float:
        """Return the tokens that a second is worth: those made in it lately, never less than by plain decoding."""
        plain_s = self.costs.seconds(num_seats, num_cells) + self.costs.overhead(drafted=False)
        if plain_s <= 0.0:
            return 0.0
        flow = self._flows.get(num_seats)
        if flow is None:
            flow = self._flows[num_seats] = ThroughputEstimate()
            flow.tokens *= self._expected_speed(num_seats, num_cells, plain_s)
        return num_seats / plain_s * flow.price

    def _expected_speed(self, num_seats: int, num_cells: int, plain_s: float) -> float:
        """Return the best fixed length's speed relative to plain, as learned by an earlier engine; else 1.0."""
        drafter = self._drafters.primary
        if drafter is None or not self.acceptance.knows(drafter):
            return 1.0
        hope, costs = self.acceptance.mean(drafter), self.costs
        overhead_s, step_s = costs.overhead(drafted=True), costs.draft_seconds(drafter, num_seats)
        speed, reach, tokens = 1.0, 1.0, 1.0
        most = MAX_DRAFT_TOKENS if self._max_draft is None else min(self._max_draft, MAX_DRAFT_TOKENS)
        if self._drafters.block_size > 1:
            most = min(most, self._drafters.block_size)
        for length in range(1, most + 1):
            reach *= hope
            tokens += reach
            num_steps = self._drafters.num_steps(drafter, length)
            seconds = costs.seconds(num_seats * (1 + length), num_cells) + num_steps * step_s + overhead_s
            speed = max(speed, tokens * plain_s / seconds)
        return speed

    def fillers(self, decoding: Mapping[int, int], idle: Sequence[int], undivided: int = 0) -> dict[int, int]:
        """Return padding rows by slot that make the step of the decoding slots cheaper; see ubatch_split.py."""
        return fillers(decoding, idle, self.costs.seconds, undivided) if self._leveled else {}

    def learn(self, report: StepReport) -> list[Change]:
        """Learn from a finished step. Return the slots whose drafting fell asleep or woke."""
        is_ruled, is_awake = self._is_ruled(report.verdicts), self._num_awake(report) > 0
        if not (is_ruled or report.num_prefill_rows):
            self._learn_proof(report)
        self._untaught.append((report, is_awake))
        if len(self._untaught) >= self._num_at_once(len(report.verdicts), is_priced=is_awake and not is_ruled):
            self.learn_costs()
        self._show_rules(report)
        if is_ruled:
            return []
        before = {slot: self._minds[slot].state is GateState.AWAKE for slot in report.verdicts}
        charge = self._charge(report)
        self._learn_rate(report, charge)
        for slot, (draft, verdict) in report.verdicts.items():
            mind = self._minds[slot]
            self._learn_acceptance(slot, mind, verdict)
            if mind.watch is not None and self._drafters.primary is not None:
                self._show_watch(slot, mind.watch, charge, draft, verdict)
        self._choice = None
        return [
            Change(slot, *self.state(slot))  # type: ignore[arg-type]
            for slot, was_on in before.items()
            if was_on is not (self._minds[slot].state is GateState.AWAKE)
        ]

    def _num_at_once(self, num_slots: int, *, is_priced: bool) -> int:
        """Return for how many steps, this one included, costs are learned together."""
        if not is_priced:
            return MOST_AT_ONCE
        self._num_priced[num_slots] += 1
        return AT_ONCE if self._num_priced[num_slots] <= EARLY_STEPS else LATER_AT_ONCE

    def _proof(self, num_seats: int) -> BaselineProbe:
        return self._proofs.setdefault(num_seats, BaselineProbe())

    def _can_be_plain(self, seats: Sequence[DecodeSlot]) -> bool:
        """Return whether every slot is on `auto`, and none is probing."""
        minds = [self._minds[seat.slot] for seat in seats]
        return bool(minds) and all([mind.watch is not None and not mind.is_probing for mind in minds])

    def _learn_proof(self, report: StepReport) -> None:
        """Compare a plain step with its expected cost, unless it took several passes.

        Padding rows belong to a plain step as they do to others.
        """
        proof = self._proof(len(report.verdicts))
        if report.num_drafted:
            proof.saw_drafted()
        elif report.num_passes > 1:
            proof.saw_nothing()
        elif error := proof.saw_plain(report.decode_s, self.costs.seconds(report.num_rows, report.num_cells)):
            self.learn_costs()
            self.costs.correct(report.num_rows, error)

    def _show_rules(self, report: StepReport) -> None:
        """Update the lengths that follow the acceptance by a PID rule."""
        for slot, (draft, verdict) in report.verdicts.items():
            pid = self._minds[slot].pid
            if pid is not None and len(draft):
                pid.saw(drafted=len(draft), accepted=verdict.num_accepted)

    def measured_costs(self) -> MeasuredCosts:
        """Return the costs of what really ran, to be shown."""
        return replace(self.costs.measured(), block_size=self._drafters.block_size)

    def learn_costs(self) -> None:
        """Learn the costs of the last steps, all at once.

        Right after a decode the processor's caches are cold, and the first update is the most expensive.
        """
        untaught, self._untaught = self._untaught, []
        self._learn_decodes([report for report, _ in untaught])
        for report, was_awake in untaught:
            for drafter, num_rows, seconds, num_levels in report.draft_calls:
                self.costs.learn_draft(drafter, num_rows, seconds / self._drafters.num_steps(drafter, num_levels))
            if not report.num_prefill_rows:
                self.costs.learn_overhead(was_awake, report.other_s, shown_s=report.shown_s)

    def _learn_decodes(self, reports: Sequence[StepReport]) -> None:
        alike: dict[tuple[int, int], list[StepReport]] = {}  # by rows and context
        for report in reports:
            if report.num_passes == 1 and not report.num_prefill_rows:  # prompt rows have no logits
                alike.setdefault((report.num_rows, report.num_cells // ALIKE_CELLS), []).append(report)
        for (num_rows, _), same in alike.items():
            self.costs.learn_many(num_rows, [report.decode_s for report in same], num_cells=same[-1].num_cells)

    def _num_awake(self, report: StepReport) -> int:
        return sum(self.is_awake(slot) for slot in report.verdicts)

    def _charge(self, report: StepReport) -> Charge:
        """Return how the seconds of the step divide into plain decoding, drafted rows and drafting."""
        num_plain_rows = report.num_rows - report.num_drafted - report.num_filler_rows
        plain_s = self.costs.plain_seconds(report.decode_s, num_rows=report.num_rows, num_plain_rows=num_plain_rows)
        overhead_s = self.costs.overhead(drafted=False)
        awake_s = sum([call.seconds for call in report.draft_calls if call.drafter == self._drafters.primary])
        awake_s += max(report.other_s - overhead_s, 0.0)
        num_awake = self._num_awake(report)
        return Charge(
            a_token_s=(plain_s + overhead_s) / max(len(report.verdicts), 1),
            a_row_s=(report.decode_s - plain_s) / max(report.num_drafted, 1),
            awake_s=awake_s / max(num_awake, 1),
        )

    def _learn_rate(self, report: StepReport, charge: Charge) -> None:
        """Update the rate of tokens, except by steps with prompt rows or with a length set by a rule."""
        minds = [self._minds[slot] for slot in report.verdicts]
        if minds and not report.num_prefill_rows and all(mind.watch is not None for mind in minds):
            flow = self._flows.setdefault(len(minds), ThroughputEstimate())
            flow.add(report.num_tokens, report.seconds / charge.a_token_s)

    def _learn_acceptance(self, slot: int, mind: SlotPolicy, verdict: Verdict) -> None:
        if mind.watch is None or self._choice is None:
            return
        text = [sample.token for sample in verdict.samples]
        self.acceptance.go_on(slot, len(text))
        new = [] if mind.watch.is_settling else self._choice.guesses(slot)
        for seen in self._guesses.judge(slot, new, text):
            self.acceptance.learn(
                slot, seen.drafter, seen.depth, seen.confidence, accepted=seen.accepted, is_again=seen.is_again
            )

    def _show_watch(self, slot: int, watch: DraftGate, charge: Charge, draft: Draft, verdict: Verdict) -> None:
        if not watch.is_awake:
            watch.saw_sleep(len(verdict.samples))
            return
        promised = self._choice.promised(slot) if self._choice is not None else 1.0
        if watch.is_probing:
            watch.saw_probe(promised)
        elif not len(draft) or draft.drafter == self._drafters.primary:
            seen = DecayingSums(
                steps=1.0,
                extra=verdict.num_accepted,
                price=(charge.awake_s + len(draft) * charge.a_row_s) / charge.a_token_s,
                drafted=len(draft),
                accepted=verdict.num_accepted,
            )
            self._experience.add(seen)
            watch.saw_step(seen, promised)


@dataclass(frozen=True, slots=True)
class Charge:
    """Seconds of a step, by what they were spent on."""

    a_token_s: float  # per token of plain decoding
    a_row_s: float  # added by each drafted row
    awake_s: float  # drafting and encoding, per slot that was awake

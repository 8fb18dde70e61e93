"""The brain: what is drafted, by whom, and how much of it is verified. One for the engine, all slots.

Remembers (acceptance, costs, the rate of tokens, one Mind a slot) and is taught by `learn` alone; each step gets a
StepChoice (choice.py) that decides on plain numbers. Knows drafters by name only. Pure: no clock, no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.request import Drafting, Spec
from eaglelocal.speculation.acceptance import Acceptance
from eaglelocal.speculation.choice import Drafters, Mind, Prices, Seat, StepChoice
from eaglelocal.speculation.costs import StepCosts
from eaglelocal.speculation.watch import State, Tally, Watch

RATE_MEMORY = 32.0  # steps
MIN_PROOF, HOPELESS = 24.0, 0.95  # steps of other texts, and the speed under which a new text starts asleep


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did and took. Seconds are wall time."""

    num_rows: int  # of the target's decode
    num_prefill_rows: int
    num_cells: int  # cached positions of all decoding slots
    decode_s: float
    draft_steps: Sequence[tuple[str, int, float]]  # drafter, rows, seconds of each draft step
    other_s: float  # everything else: sampling, encoding, telling
    verdicts: Mapping[int, tuple[Draft, Verdict]]  # of decoding slots

    @property
    def num_drafted(self) -> int:
        return sum(len(draft) for draft, _ in self.verdicts.values())

    @property
    def num_tokens(self) -> int:
        return sum(len(verdict.samples) for _, verdict in self.verdicts.values())

    @property
    def seconds(self) -> float:
        return self.decode_s + self.other_s + sum(seconds for _, _, seconds in self.draft_steps)


@dataclass(frozen=True, slots=True)
class Change:
    """A slot's drafting fell asleep or woke."""

    slot: int
    state: State
    reason: str


@dataclass(slots=True)
class Flow:
    """Tokens per second of recent steps."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        keep = 1.0 - 1.0 / RATE_MEMORY
        self.tokens = self.tokens * keep + tokens
        self.seconds = self.seconds * keep + seconds

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Controller:
    """Holds what was learned.

    spec      what a request without a wish of its own gets
    leveled   slots have caches of their own, so that a step costs least when all draft equally far
    """

    def __init__(self, spec: Spec, drafters: Drafters, costs: StepCosts, *, leveled: bool = False) -> None:
        self.costs, self.acceptance = costs, Acceptance()
        self._spec, self._drafters, self._leveled = spec, drafters, leveled
        self._minds: dict[int, Mind] = {}
        self._flows: dict[int, Flow] = {}  # by number of decoding slots
        self._experience = Tally()  # of the primary drafter, over all texts
        self._hope = 0.7

    # ---- slots
    def begin(self, slot: int, spec: Spec | None) -> None:
        """A request takes the slot."""
        spec = spec or self._spec
        proven_bad = self._experience.steps >= MIN_PROOF and self._experience.speed < HOPELESS
        watch = Watch(hopeful=not proven_bad) if spec.drafting is Drafting.AUTO else None
        self._minds[slot] = Mind(spec, watch, hope=self._hope)
        self.acceptance.begin(slot)

    def is_awake(self, slot: int) -> bool:
        """Should drafters do what is needed to draft for this slot next?"""
        mind = self._minds[slot]
        return mind.spec.max_draft > 0 and (mind.watch is None or mind.watch.is_awake)

    def max_draft(self, slot: int) -> int:
        return self._minds[slot].spec.max_draft

    def state(self, slot: int) -> tuple[State | None, str]:
        """State and reason for people; None: off."""
        mind = self._minds[slot]
        if mind.spec.max_draft == 0:
            return None, "switched off"
        if mind.watch is None:
            return State.AWAKE, "a PID rule" if mind.pid is not None else f"{mind.length} tokens"
        return mind.watch.state, mind.watch.reason

    # ---- steps
    def choice(self, seats: Sequence[Seat], *, num_prefill_rows: int, num_cells: int) -> StepChoice:
        """What decides in a step: `seats` are the slots that decode."""
        minds = {seat.slot: self._minds[seat.slot] for seat in seats}
        prices = Prices(
            self.costs,
            rate=self._rate(len(seats), num_cells),
            num_base_rows=len(seats) + num_prefill_rows,
            num_cells=num_cells,
        )
        return StepChoice(seats, minds, self._drafters, self.acceptance, prices, leveled=self._leveled)

    def _rate(self, num_seats: int, num_cells: int) -> float:
        """Tokens that a second is worth: what the machine makes in it, never less than plain decoding would."""
        plain_s = self.costs.seconds(num_seats, num_cells) + self.costs.overhead(drafted=False)
        flow = self._flows.get(num_seats)
        return max(num_seats / plain_s if plain_s > 0 else 0.0, flow.rate if flow else 0.0)

    def learn(self, report: StepReport) -> list[Change]:
        """A step is over."""
        self._learn_costs(report)
        before = {slot: self._minds[slot].state for slot in report.verdicts}
        drafted = [slot for slot, (draft, _) in report.verdicts.items() if len(draft)]
        self._learn_rate(report)
        plain_s = self._plain_seconds(report)
        for slot, (draft, verdict) in report.verdicts.items():
            mind = self._minds[slot]
            if slot in drafted:
                self._learn_draft(slot, mind, draft, verdict)
            self._show_watch(mind, report, draft, verdict, plain_s)
        return [
            Change(slot, *self.state(slot))  # type: ignore[arg-type]
            for slot, state in before.items()
            if self._minds[slot].state is not state
        ]

    def _learn_costs(self, report: StepReport) -> None:
        self.costs.learn(report.num_rows, report.decode_s, num_cells=report.num_cells)
        for drafter, num_rows, seconds in report.draft_steps:
            self.costs.learn_draft(drafter, num_rows, seconds)
        if not report.num_prefill_rows:
            self.costs.learn_overhead(bool(report.draft_steps or report.num_drafted), report.other_s)

    def _learn_rate(self, report: StepReport) -> None:
        """Steps with prompts tell nothing of the rate, nor do those that were not ours to decide."""
        minds = [self._minds[slot] for slot in report.verdicts]
        if minds and not report.num_prefill_rows and all(mind.watch is not None for mind in minds):
            self._flows.setdefault(len(minds), Flow()).add(report.num_tokens, report.seconds)

    def _plain_seconds(self, report: StepReport) -> float:
        """What the step would have taken without drafting."""
        num_plain_rows = report.num_rows - report.num_drafted
        decode_s = self.costs.plain_seconds(report.decode_s, num_rows=report.num_rows, num_plain_rows=num_plain_rows)
        return decode_s + self.costs.overhead(drafted=False)

    def _learn_draft(self, slot: int, mind: Mind, draft: Draft, verdict: Verdict) -> None:
        if mind.pid is not None:
            mind.pid.saw(drafted=len(draft), accepted=verdict.num_accepted)
        if mind.watch is not None and mind.watch.is_settling:
            return
        judged = min(len(draft), len(verdict.samples))  # what lies behind a rejection was not judged
        for node in range(judged):
            accepted = node < verdict.num_accepted
            self.acceptance.learn(slot, draft.drafter, node + 1, draft.confidences[node], accepted=accepted)
            if draft.drafter == self._drafters.primary:
                mind.learn_hope(accepted)
                self._hope += (accepted - self._hope) / 256

    def _show_watch(self, mind: Mind, report: StepReport, draft: Draft, verdict: Verdict, plain_s: float) -> None:
        watch = mind.watch
        if watch is None:
            return
        if not len(draft):
            watch.saw_nothing(len(verdict.samples))
            return
        if draft.drafter != self._drafters.primary:
            return  # a lookup costs nothing: its rows are priced one by one
        share = len(draft) / report.num_drafted
        price = (report.seconds - plain_s) * share * len(report.verdicts) / plain_s
        seen = {
            "extra": float(len(verdict.samples) - 1),
            "price": price,
            "drafted": judged_nodes(draft, verdict),
            "accepted": verdict.num_accepted,
        }
        if not watch.is_settling:
            self._experience.add(**seen)  # type: ignore[arg-type]
        watch.saw_draft(**seen)  # type: ignore[arg-type]


def judged_nodes(draft: Draft, verdict: Verdict) -> int:
    return min(len(draft), len(verdict.samples))

"""The drafting policy of the engine, one for all slots: which drafter runs, how far it drafts, and how much is
verified.

It keeps what was learned (acceptance, costs, throughput, one SlotPolicy per slot), and only `learn` teaches it. Each
step gets a StepPolicy (step_policy.py) that decides on plain numbers. Drafters are known by name only. Pure: no clock,
no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.draft import SWITCHED_OFF, Verdict
from eaglelocal.core.request import OFF, DraftPolicy, Spec, fixed_spec
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.speculation.acceptance.acceptance_model import MAX_MIXES, AcceptanceModel
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.costs.ubatch_split import choose_padding_rows
from eaglelocal.speculation.policy.cost_checks import CostChecks
from eaglelocal.speculation.policy.cost_learner import Charge, CostLearner
from eaglelocal.speculation.policy.draft_gate import (
    COSTS_KNOWN,
    PROBE_LENGTH,
    SLOWER_EARLIER,
    DecayingSums,
    DraftGate,
    GateState,
    describe_loss,
)
from eaglelocal.speculation.policy.pending_drafts import PendingDraft, PendingDrafts
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet, SlotPolicy
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import Change, StepReport
from eaglelocal.speculation.policy.throughput import Throughput
from eaglelocal.speculation.policy.token_costs import TokenCosts

MIN_EVIDENCE_STEPS = 24.0  # of other texts, before a new text may start asleep
TEXTS_MEMORY = 128.0  # steps of all texts after which two thirds are forgotten
NEEDLESS_SPEED = 0.9  # of the best fixed length as expected, below which a drafter does not even read the prompt


class Controller:
    """The drafting policy of an engine, for all requests and steps, and everything it has learned.

    spec          for requests that set none
    leveled  slots have caches of their own, so that a step costs least when all draft equally far
    max_siblings  siblings that a slot may send beside its chain; 0: drafts are chains
    max_draft     most tokens that a slot may send, whatever its request sets; None: no such limit
    adapters      of requests that choose none: their acceptance outlives the process
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
        adapters: AdapterMix = NO_ADAPTERS,
    ) -> None:
        self.costs, self.acceptance = costs, AcceptanceModel(adapters)
        self._usual_adapters, self._adapters = adapters, dict[int, AdapterMix]()  # of each slot
        self._spec, self._drafters, self._leveled, self._max_siblings = spec, drafters, leveled, max_siblings
        self._max_draft = max_draft
        self._policies: dict[int, SlotPolicy] = {}
        self._default_slots: set[int] = set()  # those whose requests set no spec
        self._throughput = Throughput(costs, self.acceptance, drafters, max_draft)
        self._cost_learner = CostLearner(costs, drafters)
        self._cost_checks, self._is_retry = CostChecks(costs), False  # whether the current step is one
        self._all_texts: dict[AdapterMix, DecayingSums] = {}  # of the primary drafter; the mix used last is the last
        self._is_dear = False  # its draft steps cost far more than usual
        self._pending_drafts = PendingDrafts()
        self._is_reported = True  # the last step; while a device computes, the next one begins before

    # ---- slots
    @property
    def spec(self) -> Spec:
        """The spec of requests that set none."""
        return self._spec

    def begin(self, slot: int, spec: Spec | None, adapters: AdapterMix | None = None, *, num_prompt: int = 0) -> None:
        """Start the policy of a request in the slot; `spec` or `adapters` None: use the default.

        num_prompt  tokens of the prompt that no cache held
        """
        (self._default_slots.discard if spec else self._default_slots.add)(slot)
        spec = self._limit_spec(spec or self._spec)
        self._adapters[slot] = mix = self._usual_adapters if adapters is None else adapters
        last = self._policies.get(slot)
        gate = None
        if spec.drafting is DraftPolicy.AUTO:
            reason = self._find_reason_to_sleep(mix, num_prompt)
            gate = DraftGate(
                starts_awake=not reason,
                previous=last.gate if last else None,
                is_dear=self._is_dear,
                num_unread=num_prompt,
                reason=reason,
            )
        self._policies[slot] = policy = SlotPolicy(spec, gate)
        if last is not None:
            policy.follow(last)
        self.acceptance.begin(slot, mix)
        self._pending_drafts.forget(slot)

    def _find_reason_to_sleep(self, mix: AdapterMix, num_cells: int) -> str:
        """Return why the primary drafter should begin a text of so many tokens asleep; empty if it should not."""
        texts = self._all_texts.get(mix, DecayingSums())
        if texts.steps >= MIN_EVIDENCE_STEPS and texts.is_loss:
            return SLOWER_EARLIER
        if not self._drafters.reads_texts or mix != self._usual_adapters:
            return ""
        speed = self._throughput.best_fixed_speed(1, num_cells)
        return describe_loss(speed) if speed is not None and speed < NEEDLESS_SPEED else ""

    def _limit_spec(self, spec: Spec) -> Spec:
        """Return the spec within the limits of this engine; OFF without drafters: nothing is learned or reserved."""
        if not self._drafters.names:
            return OFF
        most = self._max_draft
        return spec if most is None or spec.num_draft_tokens <= most else fixed_spec(most)

    def set_default_spec(self, spec: Spec) -> None:
        """Set the spec of requests that set none. Their running policies start again, but keep what was learned from
        others.
        """
        self._spec = spec
        for slot in tuple(self._default_slots):
            gate = self._policies[slot].gate
            self.begin(slot, None, self._adapters[slot], num_prompt=gate.num_unread if gate else 0)

    def is_awake(self, slot: int) -> bool:
        """Return whether drafters should follow this slot's text, so that they can draft for it in the next step."""
        policy = self._policies[slot]
        return policy.spec.max_draft > 0 and (policy.gate is None or policy.gate.is_awake)

    def max_draft(self, slot: int) -> int:
        return self._policies[slot].spec.max_draft

    def state(self, slot: int) -> tuple[GateState | None, str]:
        """Return the drafting state and its reason, for display; the state is None if drafting is off."""
        policy = self._policies[slot]
        if policy.spec.max_draft == 0:
            return None, SWITCHED_OFF
        if policy.gate is None:
            return GateState.AWAKE, "a PID rule" if policy.pid is not None else f"{policy.length} tokens"
        return policy.gate.state, policy.gate.reason

    # ---- steps
    def select_match_lengths(self, slots: Sequence[int]) -> dict[int, Mapping[str, int]] | None:
        """Return the match length that each lookup needs to propose anything, for each slot where only lookups can
        draft.

        None if other drafters can draft too: the step then needs a StepPolicy, whatever the lookups find.
        """
        policies = [(slot, self._policies[slot]) for slot in slots]
        for _, policy in policies:  # before any is counted as asked
            if policy.gate is None:
                if policy.spec.max_draft > 0:
                    return None
            elif self._drafters.primary is not None and policy.gate.is_awake:
                return None
        lookups = self._drafters.lookups
        return {slot: policy.next_match_lengths(lookups) for slot, policy in policies if policy.gate is not None}

    def begin_step(self, slots: Sequence[DecodeSlot], *, num_prefill_rows: int, num_cells: int) -> StepPolicy:
        """Return the StepPolicy of a step in which `slots` decode."""
        is_ruled = self._is_ruled([each.slot for each in slots])
        is_checked = not num_prefill_rows and self._can_be_plain(slots)
        self._is_retry = is_checked and self._cost_checks.is_retry_due
        if is_checked and not self._is_retry and self._cost_checks.is_plain_due(len(slots)):
            slots = [DecodeSlot(each.slot, 0) for each in slots]
        token_costs = TokenCosts(
            self.costs,
            rate=lambda: 0.0 if is_ruled else self._throughput.rate(len(slots), num_cells),
            num_base_rows=len(slots) + num_prefill_rows,
            num_cells=num_cells,
            as_usual=self._is_retry or any([self._policies[each.slot].is_probing for each in slots]),
        )
        drafts = StepDrafts(
            slots,
            self._policies,
            self._drafters,
            self.acceptance,
            token_costs,
            leveled=self._leveled,
            max_siblings=self._max_siblings,
        )
        if self._is_reported:  # else it is not known yet what follows the rests
            self._keep_rests(drafts)
        self._is_reported = False
        return StepPolicy(drafts)

    def _keep_rests(self, drafts: StepDrafts) -> None:
        """Propose the rest of the primary drafter's earlier drafts, where the text has followed them so far."""
        for slot in drafts.auto:
            rest = self._pending_drafts.find_rest(slot, self._drafters.primary or "")
            if rest is not None and drafts.max_draft[slot]:
                drafts.keep(slot, rest)

    def _is_ruled(self, slots: Iterable[int]) -> bool:
        """Return whether a rule (fixed, PID, off) sets the draft lengths of all these slots, regardless of cost."""
        return all([self._policies[slot].gate is None for slot in slots])

    def _can_be_plain(self, slots: Sequence[DecodeSlot]) -> bool:
        """Return whether every slot is on `auto`, and none is probing."""
        policies = [self._policies[each.slot] for each in slots]
        return bool(policies) and all([policy.gate is not None and not policy.is_probing for policy in policies])

    def choose_padding_rows(
        self, decoding: Mapping[int, int], idle: Sequence[int], undivided: int = 0
    ) -> dict[int, int]:
        """Return padding rows by slot that make the step of the decoding slots cheaper; see ubatch_split.py."""
        return choose_padding_rows(decoding, idle, self.costs.seconds, undivided) if self._leveled else {}

    def learn(self, report: StepReport) -> list[Change]:
        """Learn from a finished step. Return the slots whose drafter was put to sleep or woken."""
        self._is_reported = True
        is_ruled, num_awake = self._is_ruled(report.verdicts), self._num_awake(report.verdicts)
        is_drafted = num_awake > 0 or report.num_drafted > 0
        if not (is_ruled or report.num_prefill_rows) and self._cost_checks.record(report, is_retry=self._is_retry):
            self._forget_speeds()
        before = {slot: self._policies[slot].state is GateState.AWAKE for slot in report.verdicts}
        self._cost_learner.add(report, is_awake=num_awake > 0, is_priced=is_drafted and not is_ruled)
        self._note_dear_drafts()
        self._update_pid(report)
        if is_ruled:
            return []
        charge = self._cost_learner.charge(report, num_awake=num_awake) if is_drafted else None
        self._learn_throughput(report, charge)
        for slot, (draft, verdict) in report.verdicts.items():
            policy = self._policies[slot]
            if policy.gate is None:
                continue
            if report.policy is not None:
                policy.record_finds(report.policy.drafts.list_found(slot), is_sent=len(draft) > 0)
                self._learn_acceptance(slot, policy.gate, report.policy, verdict)
            if self._drafters.primary is not None:
                self._update_gate(slot, policy.gate, charge, report)
        return [
            Change(slot, *self.state(slot))  # type: ignore[arg-type]
            for slot, was_awake in before.items()
            if was_awake is not (self._policies[slot].state is GateState.AWAKE)
        ]

    def learn_plain(self, report: StepReport) -> list[Change]:
        """Learn from a step without a StepPolicy, which drafted nothing and changes no slot's state."""
        self._is_reported = True
        self._cost_checks.interrupt()
        self._cost_learner.add(report, is_awake=False, is_priced=False)
        num_auto = 0
        for slot, (_, verdict) in report.verdicts.items():
            gate = self._policies[slot].gate
            if gate is None:
                continue
            num_auto += 1
            if slot in self._pending_drafts:
                self._judge_pending(slot, verdict, ())
            else:
                self.acceptance.advance(slot, len(verdict.samples))
            if self._drafters.primary is not None and not gate.is_awake:
                gate.record_tokens(len(verdict.samples), partial(self._probe_price, gate, report))
        if num_auto == len(report.verdicts) and not report.num_prefill_rows:
            self._throughput.add_plain(num_auto)
        return []

    def _num_awake(self, slots: Iterable[int]) -> int:
        return sum(map(self.is_awake, slots)) if self._drafters.primary is not None else 0

    def _forget_speeds(self) -> None:
        """Forget the measured gains, because they were computed with wrong costs."""
        self._all_texts.clear()
        self._throughput.forget()

    def _update_pid(self, report: StepReport) -> None:
        for slot, (draft, verdict) in report.verdicts.items():
            pid = self._policies[slot].pid
            if pid is not None and len(draft):
                pid.update(drafted=len(draft), accepted=verdict.num_accepted)

    def _learn_throughput(self, report: StepReport, charge: Charge | None) -> None:
        """Update the throughput, except by steps with prompt rows or with a length set by a rule.

        charge  None: no drafter was awake, and nothing was drafted
        """
        policies = [self._policies[slot] for slot in report.verdicts]
        if policies and not report.num_prefill_rows and all(policy.gate is not None for policy in policies):
            num_plain = report.num_tokens if charge is None else charge.step_s / charge.token_s
            self._throughput.add(len(policies), report.num_tokens, num_plain)

    def _learn_acceptance(self, slot: int, gate: DraftGate, step_policy: StepPolicy, verdict: Verdict) -> None:
        self._judge_pending(slot, verdict, () if gate.is_settling else step_policy.drafts.pending(slot))

    def _judge_pending(self, slot: int, verdict: Verdict, new: Sequence[PendingDraft]) -> None:
        """Learn from the drafts that the verdict's tokens confirm or refute; `new` ones were made in this step."""
        text = [sample.token for sample in verdict.samples]
        self.acceptance.advance(slot, len(text))
        for seen in self._pending_drafts.judge(slot, new, text):
            self.acceptance.learn(
                slot, seen.drafter, seen.depth, seen.confidence, accepted=seen.accepted, is_repeat=seen.is_repeat
            )

    def _update_gate(self, slot: int, gate: DraftGate, charge: Charge | None, report: StepReport) -> None:
        draft, verdict = report.verdicts[slot]
        if not gate.is_awake:
            gate.record_tokens(len(verdict.samples), partial(self._probe_price, gate, report))
            return
        policy = report.policy
        promised_speed = policy.promised_speed(slot, report.draft_calls) if policy is not None else 1.0
        if gate.is_probing:
            self.learn_costs()  # a probe is short, and the next step is to know what this one took
            if gate.is_probing:
                gate.record_probe(promised_speed)
            if not gate.is_probing and gate.is_awake:
                self._all_texts.pop(self._adapters[slot], None)  # contradicted
        elif charge is not None and (not len(draft) or self._is_primary(draft.drafter)):
            seen = DecayingSums(
                steps=1.0,
                extra=verdict.num_accepted,
                cost=(charge.awake_s + len(draft) * charge.row_s) / charge.token_s,
                drafted=len(draft),
            )
            self._add_to_texts(self._adapters[slot], seen)
            gate.record_step(seen, promised_speed, is_dear=self._is_dear)

    def _probe_price(self, gate: DraftGate, report: StepReport, is_trial: bool) -> float:
        """Return the price of a probe of one slot, in tokens of all slots that decoded in the step.

        A probe is priced by the number of steps after which a hopeless one ends; a trial's draft step is already part
        of the gap between trials. Prefill counts half, because a text that was prefilled once serves all later probes.
        """
        costs, primary = self.costs, self._drafters.primary or ""
        seconds = 0.5 * gate.num_unread * costs.reading_seconds(primary) if self._drafters.reads_texts else 0.0
        if not is_trial:
            drafting_s = self._drafters.num_steps(primary, PROBE_LENGTH) * costs.draft_seconds(primary, 1)
            following_s = max(costs.overhead(drafted=True) - costs.overhead(drafted=False), 0.0)
            seconds += COSTS_KNOWN * (drafting_s + following_s)
        return seconds * self._throughput.rate(len(report.verdicts), report.num_cells)

    def _add_to_texts(self, mix: AdapterMix, seen: DecayingSums) -> None:
        """Add a step to the statistics of all texts with these adapters; at most MAX_MIXES mixes are kept."""
        texts = self._all_texts.pop(mix, None) or DecayingSums()
        texts.add(seen, TEXTS_MEMORY)
        self._all_texts[mix] = texts
        if len(self._all_texts) > MAX_MIXES:
            del self._all_texts[next(iter(self._all_texts))]

    def _is_primary(self, name: str) -> bool:
        """Return whether the primary drafter proposed the draft of this name, in this step or an earlier one."""
        return name in (self._drafters.primary, self._drafters.kept)

    # ---- costs
    def learn_costs(self) -> None:
        """Learn the costs of all finished steps now; otherwise they are learned in groups."""
        self._cost_learner.learn()
        self._note_dear_drafts()

    def _note_dear_drafts(self) -> None:
        """Update whether draft steps are expensive. When they become cheap again, restart: gates judged
        by other costs.
        """
        was_dear, self._is_dear = self._is_dear, self.costs.is_draft_dear(self._drafters.primary or "")
        if was_dear and not self._is_dear:
            self._forget_speeds()
            for policy in self._policies.values():
                if policy.gate is not None:
                    policy.gate.end_trials()

    def measured_costs(self) -> MeasuredCosts:
        """Return the costs of the sizes that really ran, for display."""
        return replace(self.costs.measured(), block_size=self._drafters.block_size, max_depth=self._drafters.max_depth)

"""The drafting policy of the engine, one for all slots: which drafter runs, how far it drafts, and how much is
verified.

It keeps what was learned (acceptance, costs, throughput, one SlotPolicy per slot), and only `learn` teaches it. Each
step gets a StepPolicy (step_policy.py) that decides on plain numbers. Drafters are known by name only. Pure: no clock,
no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.draft import LOOKUPS_GO_ON, SWITCHED_OFF, Draft, Verdict
from eaglelocal.core.request import MAX_DRAFT_TOKENS, OFF, DraftPolicy, Spec, fixed_spec
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.costs.ubatch_split import choose_padding_rows
from eaglelocal.speculation.policy.cost_learner import CostLearner
from eaglelocal.speculation.policy.draft_switch import DraftSwitch
from eaglelocal.speculation.policy.lookup_filter import Find, LookupFilter
from eaglelocal.speculation.policy.pending_drafts import PendingDraft, PendingDrafts
from eaglelocal.speculation.policy.plain_steps import PlainSteps
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet, GateState, SlotGate, SlotPolicy
from eaglelocal.speculation.policy.step_drafts import StepDrafts
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import Change, StepReport
from eaglelocal.speculation.policy.throughput import Throughput
from eaglelocal.speculation.policy.token_costs import TokenCosts


class Controller:
    """The drafting policy of an engine, for all requests and steps, and everything it has learned.

    spec          for requests that set none
    leveled       slots have caches of their own, so that a step costs least when all draft equally far
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
        most = MAX_DRAFT_TOKENS if max_draft is None else min(max_draft, MAX_DRAFT_TOKENS)
        self._throughput = Throughput(costs, lambda num_slots: self._switch.expect_speed(num_slots))
        self._switch = DraftSwitch(costs, self.acceptance, drafters, most, leveled, self._throughput.rate)
        self._lookups = LookupFilter(costs, self.acceptance, most, leveled, self._throughput.rate)
        self._cost_learner = CostLearner(costs, drafters)
        self._plain_steps: dict[int, PlainSteps] = {}  # by number of decoding slots
        self._pending_drafts = PendingDrafts()
        self._is_reported = True  # the last step; while a device computes, the next one begins before

    # ---- slots
    @property
    def spec(self) -> Spec:
        """The spec of requests that set none."""
        return self._spec

    def begin(
        self,
        slot: int,
        spec: Spec | None,
        adapters: AdapterMix | None = None,
        *,
        num_prompt: int = 0,
        num_running: int = 1,
    ) -> None:
        """Start the policy of a request in the slot; `spec` or `adapters` None: use the default.

        num_prompt   tokens of the prompt that no cache held
        num_running  slots that run from now on, this one included
        """
        (self._default_slots.discard if spec else self._default_slots.add)(slot)
        spec = self._limit_spec(spec or self._spec)
        self._adapters[slot] = mix = self._usual_adapters if adapters is None else adapters
        gate = SlotGate() if spec.drafting is DraftPolicy.AUTO else None
        self._policies[slot] = SlotPolicy(spec, gate)
        self.acceptance.begin(slot, mix)
        self._lookups.begin()
        self._pending_drafts.forget(slot)
        if gate is not None and self._drafters.primary is not None:
            self._switch.begin(slot, gate, num_prompt, num_running)

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
        state, reason = policy.gate.state, policy.gate.reason
        if state is GateState.ASLEEP and self._drafters.lookups:
            reason += LOOKUPS_GO_ON
        return state, reason

    # ---- steps
    def may_look(self, slots: Sequence[int], num_cells: int, num_reading: int = 0) -> bool | None:
        """Return whether lookups may find anything that pays in the next step of these slots.

        None if other drafters can draft too: the step then needs a StepPolicy, whatever the lookups find.

        num_reading  slots whose prompts are read, which will decode beside these
        """
        self._switch.num_reading = num_reading
        for policy in map(self._policies.__getitem__, slots):
            if policy.gate is None:
                if policy.spec.max_draft > 0:
                    return None
            elif self._drafters.primary is not None and policy.gate.is_awake:
                return None
        return not self._is_ruled(slots) and self._lookups.begin_step(slots, num_cells, num_reading)

    def may_pay(self, finds: Iterable[Find]) -> bool:
        """Return whether what lookups find may pay in the step of the last `may_look`."""
        return self._lookups.may_pay([find for find in finds if self._policies[find.slot].gate is not None])

    def begin_step(self, slots: Sequence[DecodeSlot], *, num_prefill_rows: int, num_cells: int) -> StepPolicy:
        """Return the StepPolicy of a step in which `slots` decode."""
        is_ruled = self._is_ruled([each.slot for each in slots])
        if num_prefill_rows and self._leveled and len(slots) > 1:  # drafts of unlike lengths would take more passes
            slots = [DecodeSlot(each.slot, 0) if self._policies[each.slot].gate else each for each in slots]
        if not num_prefill_rows and self._can_be_plain(slots) and self._plain(len(slots)).is_due:
            slots = [DecodeSlot(each.slot, 0) for each in slots]
        token_costs = TokenCosts(
            self.costs,
            rate=lambda: 0.0 if is_ruled else self._throughput.rate(len(slots) + self._switch.num_reading, num_cells),
            num_base_rows=len(slots) + num_prefill_rows,
            num_prefill_rows=num_prefill_rows,
            num_cells=num_cells,
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
        awake = [slot for slot in drafts.auto if self._policies[slot].state is GateState.AWAKE]
        return StepPolicy(
            drafts, lambda: self._switch.find_values(awake, len(drafts.auto), num_cells, num_prefill_rows)
        )

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

    def _plain(self, num_slots: int) -> PlainSteps:
        return self._plain_steps.setdefault(num_slots, PlainSteps())

    def _record_plain(self, report: StepReport) -> None:
        """Record whether a step was plain, and by how much it surprised. Its padding rows do not count as drafts."""
        expected_s = self.costs.seconds(report.num_rows, report.num_cells) if report.num_passes == 1 else 0.0
        surprise = math.log(report.decode_s / expected_s) if expected_s > 0.0 and report.decode_s > 0.0 else 0.0
        self._plain(len(report.verdicts)).record(is_plain=not report.num_drafted, surprise=surprise)

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
        if not (is_ruled or report.num_prefill_rows):
            self._record_plain(report)
        were_awake = self._find_awake(report.verdicts)
        self._cost_learner.add(report, is_priced=is_drafted and not is_ruled)
        self._update_pid(report)
        if is_ruled:
            return []
        num_plain = self._cost_learner.plain_tokens(report) if is_drafted else float(report.num_tokens)
        self._learn_throughput(report, num_plain)
        if report.policy is not None:
            self._learn_acceptance(report.verdicts, report.policy)
        self._update_gates(report, num_plain - report.num_tokens)
        return self._list_changes(report.verdicts, were_awake)

    def learn_plain(self, report: StepReport) -> list[Change]:
        """Learn from a step without a StepPolicy, which drafted nothing. Return the slots whose drafter was woken."""
        self._is_reported = True
        were_awake = self._find_awake(report.verdicts)
        self._cost_learner.add(report, is_priced=False)
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
        if num_auto == len(report.verdicts) and not report.num_prefill_rows:
            self._throughput.add_plain(num_auto)
        self._update_gates(report, 0.0)
        return self._list_changes(report.verdicts, were_awake)

    def skip_tokens(self, slot: int, count: int) -> None:
        """Pass tokens that were not drawn: drafts of others there say nothing about the drafter."""
        self._is_reported = True
        self._pending_drafts.forget(slot)
        if self._policies[slot].gate is not None:
            self.acceptance.advance(slot, count)

    def _find_awake(self, slots: Iterable[int]) -> set[int]:
        return {slot for slot in slots if self._policies[slot].state is GateState.AWAKE}

    def _list_changes(self, slots: Iterable[int], were_awake: set[int]) -> list[Change]:
        changed = were_awake ^ self._find_awake(slots)
        return [Change(slot, *self.state(slot)) for slot in slots if slot in changed]  # type: ignore[arg-type]

    def _num_awake(self, slots: Iterable[int]) -> int:
        return sum(map(self.is_awake, slots)) if self._drafters.primary is not None else 0

    def _update_pid(self, report: StepReport) -> None:
        for slot, (draft, verdict) in report.verdicts.items():
            pid = self._policies[slot].pid
            if pid is not None and len(draft):
                pid.update(drafted=len(draft), accepted=verdict.num_accepted)

    def _learn_throughput(self, report: StepReport, num_plain: float) -> None:
        """Update the throughput, except by steps with prompt rows or with a length set by a rule.

        num_plain  tokens that plain decoding would have made in the same time
        """
        policies = [self._policies[slot] for slot in report.verdicts]
        if policies and not report.num_prefill_rows and all(policy.gate is not None for policy in policies):
            self._throughput.add(len(policies), report.num_tokens, num_plain)

    def _learn_acceptance(self, verdicts: Mapping[int, tuple[Draft, Verdict]], step_policy: StepPolicy) -> None:
        for slot, (_, verdict) in verdicts.items():
            gate = self._policies[slot].gate
            if gate is not None:
                self._judge_pending(slot, verdict, () if gate.is_settling else step_policy.drafts.pending(slot))

    def _judge_pending(self, slot: int, verdict: Verdict, new: Sequence[PendingDraft]) -> None:
        """Learn from the drafts that the verdict's tokens confirm or refute; `new` ones were made in this step."""
        text = [sample.token for sample in verdict.samples]
        self.acceptance.advance(slot, len(text))
        for seen in self._pending_drafts.judge(slot, new, text):
            self.acceptance.learn(
                slot, seen.drafter, seen.depth, seen.confidence, accepted=seen.accepted, is_repeat=seen.is_repeat
            )

    def _update_gates(self, report: StepReport, num_lost: float) -> None:
        """Decide for which slots the primary drafter is awake from now on."""
        gates = {slot: gate for slot in report.verdicts if (gate := self._policies[slot].gate) is not None}
        if self._drafters.primary is None or not gates:
            return
        if any([gate.is_probing for gate in gates.values()]):
            self.learn_costs()  # a trial is short, and the next step is to know what this one took
        tokens = {slot: len(report.verdicts[slot][1].samples) for slot in gates}
        drafts, primary = report.policy.drafts if report.policy else None, self._drafters.primary
        drafted = [slot for slot in gates if drafts is not None and drafts.num_drafted(slot, primary)]
        ruled = [len(draft) for slot, (draft, _) in report.verdicts.items() if slot not in gates]
        self._switch.record(gates, tokens, drafted, num_lost, report.num_cells, ruled)

    # ---- costs
    def learn_costs(self) -> None:
        """Learn the costs of all finished steps now; otherwise they are learned in groups."""
        self._cost_learner.learn()

    def measured_costs(self) -> MeasuredCosts:
        """Return the costs of the sizes that really ran, for display."""
        return replace(self.costs.measured(), block_size=self._drafters.block_size, max_depth=self._drafters.max_depth)

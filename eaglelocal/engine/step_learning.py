"""Choose how a step drafts, and learn from finished steps: costs, acceptance, draft lengths, the cost of prompt rows.

Knows plans, verdicts and times; decodes nothing and emits nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace

from eaglelocal.core.draft import ROOT, Draft, Verdict
from eaglelocal.core.ports import Context
from eaglelocal.core.records import dataclass
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.drafter import Drafter, Lookup, Node
from eaglelocal.engine.runner import Decoded
from eaglelocal.engine.step_times import StepTimes
from eaglelocal.engine.step_timing import StepMarks
from eaglelocal.engine.thinking_limit import make_forced_draft
from eaglelocal.scheduler.prefill import PrefillPace
from eaglelocal.scheduler.scheduler import Chunk, Scheduler, StepPlan
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.costs.ubatch_split import split_rows
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.lookup_filter import Find
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DraftCall
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import Change, StepReport
from eaglelocal.speculation.tree import DraftChain


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The rows of a step, and the policy that decides its drafts."""

    plan: StepPlan
    num_cells: int  # cached positions that a decoding row attends to
    policy: StepPolicy | None  # None: only lookups could draft, and found nothing that may pay


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that was decoded and verified. `verdicts` lacks answers that ended before their rows were decoded."""

    planned: PlannedStep
    drafted: Drafted
    decoded: Decoded
    verdicts: Mapping[int, Verdict]  # by slot
    marks: StepMarks

    @property
    def num_extra_rows(self) -> int:
        """The rows that a plain step would not have: drafted ones and padding."""
        return sum(map(len, self.drafted.drafts.values())) + self.decoded.num_padding_rows


class StepLearning:
    """Teaches the controller and the estimate of the next step."""

    def __init__(
        self, controller: Controller, scheduler: Scheduler, context: Context, drafters: Several[Drafter]
    ) -> None:
        self._lookups = {drafter.traits.name: drafter for drafter in drafters if isinstance(drafter, Lookup)}
        self._controller, self._scheduler, self._is_unified = controller, scheduler, context.is_unified
        self._estimate = StepEstimate(
            controller.costs,
            scheduler.prefix_cache.num_cached,
            is_unified=context.is_unified,
            undivided=context.undivided,
        )

    @property
    def pace(self) -> PrefillPace:
        """Estimates from which the scheduler decides how many prompt rows run beside answers."""
        return self._estimate.pace

    def begin(self, plan: StepPlan, forced: Container[int] = ()) -> PlannedStep:
        """Return the step with the policy for its drafts; slots whose next tokens are `forced` need none."""
        num_cells = self._num_cells(plan)
        may_look = self._controller.may_look([s.slot for s in plan.decode], num_cells, self._num_reading(plan))
        if may_look is False or (may_look and not self._controller.may_pay(self._look(plan.decode))):
            return PlannedStep(plan, num_cells, None)
        policy = self._controller.begin_step(
            [DecodeSlot(s.slot, 0 if s.slot in forced else min(s.draft_room, plan.max_draft)) for s in plan.decode],
            num_prefill_rows=sum(chunk.count for chunk in plan.prefill),
            num_cells=num_cells,
        )
        return PlannedStep(plan, num_cells, policy)

    def _look(self, sequences: Several[Sequence]) -> list[Find]:
        """Return what lookups find for the sequences."""
        estimates = [
            Find(root.slot, name, lookup.estimate(root))
            for root in map(make_root, sequences)
            for name, lookup in self._lookups.items()
        ]
        return [find for find in estimates if find.confidence]

    def _num_reading(self, plan: StepPlan) -> int:
        """Return how many sequences will decode in the company of the plan's, once their prompts are read."""
        running = self._scheduler.running
        return sum([each.is_prefilling and each.request.adapters == plan.adapters for each in running])

    def _num_cells(self, plan: StepPlan) -> int:
        """Return the cached positions that a decoding row attends to: with a unified cache those of all slots."""
        cached = sum(len(sequence.tokens) for sequence in plan.decode)
        return cached if self._is_unified else cached // max(len(plan.decode), 1)

    def learn(self, step: FinishedStep, times: StepTimes) -> list[Change]:
        """Learn from a step and its durations. Return the slots whose drafting fell asleep or woke."""
        plan, decoded, drafts, forced = step.planned.plan, step.decoded, step.drafted.drafts, step.drafted.forced
        if not forced:
            self._estimate.learn(drafts, plan.prefill, times.decode_s)
        for slot in forced.intersection(step.verdicts):
            self._controller.skip_tokens(slot, len(step.verdicts[slot].samples))
        slots = [s.slot for s in plan.decode if s.slot not in forced]
        judged = {slot: (drafts[slot], step.verdicts[slot]) for slot in slots if slot in step.verdicts}
        if not judged:
            return []
        learn = self._controller.learn_plain if step.planned.policy is None else self._controller.learn
        num_unused_rows = sum(len(decoded.rows[slot]) for slot in slots if slot not in judged)
        return learn(
            StepReport(
                policy=step.planned.policy,
                num_rows=decoded.num_rows,
                num_padding_rows=decoded.num_padding_rows + num_unused_rows,
                num_passes=decoded.num_passes,
                num_prefill_rows=sum(chunk.count for chunk in plan.prefill) + sum(len(decoded.rows[s]) for s in forced),
                num_cells=step.planned.num_cells,
                decode_s=times.decode_s,
                draft_calls=step.drafted.calls,
                other_s=times.total_s - times.decode_s - sum([call.seconds for call in step.drafted.calls]),
                verdicts=judged,
            )
        )


# ---- step estimate: estimates the seconds of the next step for the scheduler, from measured costs, rows per slot and
# likely drafts
MEMORY = 8.0  # steps over which the length of a slot's drafts is averaged
PROMPT_MEMORY = 4.0  # the same for the cost of prompt rows, which rises with every chunk
MAX_PROMPT_FACTOR = 32.0  # bound of the factor and of its inverse, against a single slow step


class StepEstimate:
    """The average draft length of each slot, and the cost factor of prompt rows."""

    def __init__(
        self, costs: StepCosts, num_cached: Callable[[int], int], *, is_unified: bool, undivided: int = 0
    ) -> None:
        """Take the measured costs.

        num_cached  gives the positions in a slot's cache
        undivided   see speculation.costs.ubatch_split.split_rows
        """
        self._costs, self._num_cached = costs, num_cached
        self._is_unified, self._undivided = is_unified, undivided
        self._lengths: dict[int, float] = {}  # by slot
        self._log_factor = 0.0  # logarithm of PrefillPace.prompt_factor

    @property
    def pace(self) -> PrefillPace:
        lengths = {slot: round(length) for slot, length in self._lengths.items()}
        return PrefillPace(self.seconds, lengths, math.exp(self._log_factor))

    def seconds(self, rows: Mapping[int, int]) -> float:
        """Return the estimated seconds of a decode, given the rows of each slot; 0.0 before anything was measured."""
        num_cached = {slot: self._num_cached(slot) for slot in rows}
        if self._is_unified:
            return self._costs.seconds(sum(rows.values()), sum(num_cached.values()))
        attended = sum(rows[slot] * num_cached[slot] for slot in rows) // max(sum(rows.values()), 1)  # on average
        return sum(self._costs.seconds(num_rows, attended) for num_rows in split_rows(rows, self._undivided))

    def learn(self, drafts: Mapping[int, Draft], chunks: tuple[Chunk, ...], decode_s: float) -> None:
        """Learn from a step: drafts of the decoding slots, prompt chunks, and seconds of the target's decode."""
        if drafts and chunks:
            self._learn_prompts(drafts, chunks, decode_s)
        lengths = {}
        for slot, draft in drafts.items():
            before = self._lengths.get(slot, float(len(draft)))
            is_quiet = not chunks  # less may be drafted beside a prompt, so such steps do not count
            lengths[slot] = before + (len(draft) - before) / MEMORY if is_quiet else before
        self._lengths = lengths

    def _learn_prompts(self, drafts: Mapping[int, Draft], chunks: tuple[Chunk, ...], decode_s: float) -> None:
        decoding = {slot: 1 + len(draft) for slot, draft in drafts.items()}
        quiet_s = self.seconds(decoding)
        expected_s = self.seconds({**decoding, **{chunk.sequence.slot: chunk.count for chunk in chunks}}) - quiet_s
        if expected_s <= 0.0:
            return
        factor = max(decode_s - quiet_s, 0.0) / expected_s
        log_factor = math.log(min(max(factor, 1 / MAX_PROMPT_FACTOR), MAX_PROMPT_FACTOR))
        self._log_factor += (log_factor - self._log_factor) / PROMPT_MEMORY


# ---- draft loop: the draft loop: call the drafters for tokens after each root until the step's policy needs no more
NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Drafted:
    """The result of the draft loop: the draft of each slot, and the cost of each call of a drafter.

    forced  slots whose draft is not a guess: the tokens that must come next
    """

    drafts: Mapping[int, Draft]
    calls: Several[DraftCall]
    forced: frozenset[int] = frozenset()


def grow(
    sequences: Several[Sequence], drafters: Several[Drafter], policy: StepPolicy | None, is_end: Callable[[int], bool]
) -> Drafted:
    """Draft for all sequences: each drafter in turn, cheapest first, several levels and slots per call.

    A call asks for as many levels as the policy wants in any case, and for more while the drafter is confident enough.

    policy  None: nothing is drafted
    is_end  recognizes end-of-generation tokens; nothing is drafted after one unless the request ignores them
    """
    if policy is None:
        return Drafted({s.slot: NO_DRAFT for s in sequences}, ())
    ignores_end = {s.slot for s in sequences if s.request.continues_after_eos}
    roots = {s.slot: make_root(s) for s in sequences}
    calls: list[DraftCall] = []
    for drafter in drafters:
        name, is_block = drafter.traits.name, drafter.traits.block_size > 1
        while tips := policy.select_tips(name):
            nodes = [make_node(roots[tip.slot], policy.drafts.chain(tip.slot, name, tip.chain)) for tip in tips]
            ended = [n for n in nodes if n.chain and n.slot not in ignores_end and is_end(n.token)]
            if ended:  # a branch begins with any sibling
                for node in ended:
                    policy.drafts.end(node.slot, name, node.chain)
                continue
            depth, extra_levels = policy.select_levels(name, [tip.slot for tip in tips])
            calls += catch_up(drafter, nodes)
            started_at = time.perf_counter()
            continuations = drafter.draft(nodes, depth, extra_levels)
            if levels := max([len(each.tokens) for each in continuations]):
                calls.append(DraftCall(name, len(nodes), time.perf_counter() - started_at, levels))
            for node, (tokens, confidences, siblings) in zip(nodes, continuations, strict=True):
                slot = node.slot
                ends = [] if slot in ignores_end else [n for n, token in enumerate(tokens, start=1) if is_end(token)]
                kept = tokens[: ends[0]] if ends else tokens
                is_cut = len(kept) < len(tokens)
                policy.drafts.add(slot, name, kept, confidences, siblings, branch=node.chain, is_cut=is_cut)
                if ends or not tokens or is_block:
                    policy.drafts.end(slot, name, node.chain)
    return Drafted(policy.select_drafts(), calls)


def force_drafts(drafted: Drafted, plan: StepPlan, forced: Mapping[int, tuple[int, ...]]) -> Drafted:
    """Put in the tokens that must come next, as many as the step has rows for."""
    if not forced:
        return drafted
    known = [s for s in plan.decode if s.slot in forced]
    lengths = [min(s.draft_room, plan.max_draft) for s in known]
    drafts = {s.slot: make_forced_draft(forced[s.slot][:n], s.request) for s, n in zip(known, lengths, strict=True)}
    return replace(drafted, drafts={**drafted.drafts, **drafts}, forced=frozenset(drafts)) if drafts else drafted


def count_forced_as_plain(drafted: Drafted, verdicts: Mapping[int, Verdict]) -> tuple[Drafted, Mapping[int, Verdict]]:
    """Return a committed step without its forced drafts: they are no drafter's success, and cost nothing extra."""
    if not drafted.forced:
        return drafted, verdicts
    drafts = {**drafted.drafts, **dict.fromkeys(drafted.forced, NO_DRAFT)}
    plain = {slot: Verdict((), verdicts[slot].samples) for slot in drafted.forced}
    return replace(drafted, drafts=drafts), {**verdicts, **plain}


def catch_up(drafter: Drafter, nodes: Several[Node]) -> list[DraftCall]:
    """Let the drafter decode deferred tokens before it drafts after roots; return that as a call of no levels."""
    slots = [node.slot for node in nodes if node.is_root]
    if not slots:
        return []
    started_at = time.perf_counter()
    num_read = drafter.catch_up(slots)
    return [DraftCall(drafter.traits.name, num_read, time.perf_counter() - started_at, 0)] if num_read else []


def make_node(root: Node, chain: DraftChain | None) -> Node:
    """Return the last token of the chain as a node; the root if nothing is drafted yet."""
    if chain is None or not chain.tokens:
        return root
    num_before, num_tokens = chain.depth, len(chain.tokens)
    position = root.position + num_before + num_tokens
    return Node(root.slot, num_tokens - 1, chain.tokens[-1], position, chain.number, chain.parent)


def make_root(sequence: Sequence) -> Node:
    return Node(sequence.slot, ROOT, sequence.tokens[-1], len(sequence.tokens) - 1)

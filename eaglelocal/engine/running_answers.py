"""Begin, verify, emit and finish the answers that have a slot.

Knows samplers, texts, drafting states and the events of an answer; knows neither caches nor how steps are scheduled.
"""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace

from eaglelocal.core.draft import SWITCHED_OFF, Draft, Verdict
from eaglelocal.core.events import (
    Failed,
    Finished,
    PromptProgress,
    RequestEvent,
    SpeculationChanged,
    Started,
    Tokens,
)
from eaglelocal.core.ports import Context, Vocabulary
from eaglelocal.core.request import Spec
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.drafter import PRIVATE, Drafter
from eaglelocal.engine.runner import Decoded
from eaglelocal.engine.running_answer import RunningAnswer
from eaglelocal.engine.step_learning import NO_DRAFT, Drafted
from eaglelocal.engine.step_times import Clock, StepTimes
from eaglelocal.engine.step_timing import StepTiming
from eaglelocal.engine.thinking_limit import ThinkingLimit, reads_logits
from eaglelocal.errors import EagleLocalError
from eaglelocal.scheduler.scheduler import Scheduler, StepPlan
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import GateState
from eaglelocal.speculation.policy.step_report import Change
from eaglelocal.speculation.verify import verify
from eaglelocal.text.answer_text import Pieces
from eaglelocal.text.loop_guard import LoopGuard
from eaglelocal.text.reasoning.split_answer import make_answer_text, make_split_text

SHOWN_FIRST = ("on", "asleep", "off")


class RunningAnswers:
    """The running answers, by slot."""

    def __init__(
        self,
        context: Context,
        vocabulary: Vocabulary,
        *,
        drafters: Several[Drafter],
        controller: Controller,
        scheduler: Scheduler,
        timing: StepTiming,
        draft_reason: str,
    ) -> None:
        self._context, self._vocabulary, self._drafters = context, vocabulary, drafters
        self._controller, self._scheduler, self._timing = controller, scheduler, timing
        self._off_reason = None if drafters else draft_reason or SWITCHED_OFF
        self._pieces = Pieces(vocabulary)
        self._by_slot: dict[int, RunningAnswer] = {}

    def __len__(self) -> int:
        return len(self._by_slot)

    def __contains__(self, request_id: str) -> bool:
        return any(answer.request_id == request_id for answer in self._by_slot.values())

    @property
    def slots(self) -> KeysView[int]:
        return self._by_slot.keys()

    @property
    def drafting_state(self) -> tuple[str, str]:
        """The combined drafting state of all answers (on if it is on for any of them), and its reason.

        Without answers, the state in which the next one would start.
        """
        if self._off_reason is not None:
            return "off", self._off_reason
        states = dict(map(self._read_drafting, self._by_slot))
        if not states:
            return ("on", "") if self._controller.spec.max_draft else ("off", SWITCHED_OFF)
        return min(states.items(), key=lambda each: SHOWN_FIRST.index(each[0]))

    def _read_drafting(self, slot: int) -> tuple[str, str]:
        """Return the drafting state of the slot's answer (on, asleep or off), and its reason."""
        if self._off_reason is not None:
            return "off", self._off_reason
        state, reason = self._controller.state(slot)
        return name_state(state), reason

    # ---- beginnings
    def begin(self, sequence: Sequence, clock: Clock) -> None:
        """Prepare sampler, text, policy and drafters for a sequence that got a slot."""
        slot, request = sequence.slot, sequence.request
        sampler = self._context.sampler(request.params, request.constraint)
        count = request.params.repeat_last_n
        tokens = [token for token in sequence.tokens if token >= 0] if request.images else sequence.tokens
        sampler.accept(tokens[-count:] if count else [])
        limit, stops_loops = request.reasoning_limit, request.params.stop_loops
        guard = LoopGuard(0 if limit is None else limit.budget) if stops_loops else None
        if limit is not None and request.split is not None:
            reader, closing = make_split_text(self._pieces, (), request.split), LoopGuard() if stops_loops else None
            sampler = ThinkingLimit(sampler, reader, limit, closing)
        text = make_answer_text(self._pieces, request)
        self._by_slot[slot] = RunningAnswer(sequence, sampler, text, clock, guard=guard)
        self._controller.begin(
            slot,
            request.spec,
            request.adapters,
            num_prompt=sequence.num_prompt_rows,
            num_running=self._scheduler.num_expected,
        )
        owner = f"{PRIVATE}{request.id}" if request.is_private else request.owner
        for drafter in self._drafters:
            drafter.begin(slot, owner, sequence.num_prompt)
        self._timing.totals.prompt_tokens += sequence.num_prompt_rows

    def start(self, sequence: Sequence) -> list[RequestEvent]:
        """Return Started, and SpeculationChanged if the answer starts without drafts, as clients expect drafting."""
        self._timing.totals.reused_tokens += sequence.num_reused_rows
        constraint = sequence.request.constraint
        unbound = constraint.unbound if constraint is not None else ()
        started = Started(sequence.request.id, sequence.num_prompt_rows, sequence.num_reused_rows, unbound)
        if self._read_drafting(sequence.slot)[0] == "on":
            return [started]
        return [started, self._make_change(sequence.slot)]

    def set_spec(self, spec: Spec) -> list[RequestEvent]:
        """Set the spec of requests that set none; return an event for each answer whose drafting it switches."""
        started = [slot for slot in self._by_slot if not self._scheduler.is_waiting(slot)]  # others report it then
        before = {slot: self._read_drafting(slot)[0] for slot in started}
        self._controller.set_default_spec(spec)
        return [self._make_change(slot) for slot, state in before.items() if self._read_drafting(slot)[0] != state]

    def _make_change(self, slot: int) -> SpeculationChanged:
        return SpeculationChanged(self._by_slot[slot].request_id, *self._read_drafting(slot))

    def show_changes(self, changes: Several[Change]) -> list[RequestEvent]:
        """Return the events of answers whose drafter fell asleep or woke."""
        return [
            SpeculationChanged(self._by_slot[change.slot].request_id, name_state(change.state), change.reason)
            for change in changes
        ]

    # ---- steps
    @property
    def forced(self) -> dict[int, tuple[int, ...]]:
        """The tokens that must come next, by slot, of answers for which that is known.

        Where their logits are read too, only as many as can be drafted: more rows than that have none.
        """
        known: dict[int, tuple[int, ...]] = {}
        for slot, answer in self._by_slot.items():
            if isinstance(answer.sampler, ThinkingLimit) and (tokens := answer.sampler.forced):
                is_read = reads_logits(answer.sequence.request)
                most = self._controller.max_draft(slot) if self._drafters else 0
                known[slot] = tokens[:most] if is_read else tokens
        return known

    def verify(self, plan: StepPlan, drafts: Mapping[int, Draft], decoded: Decoded) -> dict[int, Verdict]:
        """Return verdicts by slot, for every draft and for every prompt whose last row was decoded.

        Drafts of answers that ended before they were decoded get an empty verdict.
        """
        verdicts = {}
        for sequence in plan.decode:
            verdicts[sequence.slot] = self._verify(sequence, drafts[sequence.slot], decoded.rows[sequence.slot])
        for chunk in plan.prefill:
            if chunk.is_last:
                slot = chunk.sequence.slot
                verdicts[slot] = self._verify(chunk.sequence, NO_DRAFT, decoded.rows[slot][-1:])
        return verdicts

    def _verify(self, sequence: Sequence, draft: Draft, rows: list[int]) -> Verdict:
        answer = self._by_slot.get(sequence.slot)
        if answer is None or not sequence.num_left:  # max_tokens 0: only the prompt is prefilled
            return Verdict((), ())
        return verify(
            draft,
            rows,
            sample=answer.sampler.sample,
            is_end=(lambda token: False) if sequence.request.continues_after_eos else self._vocabulary.is_end,
            limit=sequence.num_left,
        )

    def report_prompts(self, plan: StepPlan) -> list[RequestEvent]:
        """Return how far prompts have been read whose ends are still to come."""
        return [
            PromptProgress(chunk.sequence.request.id, chunk.sequence.rows_before(chunk.first + chunk.count))
            for chunk in plan.prefill
            if chunk.slot in self._by_slot and not chunk.is_last
        ]

    def extend(self, verdicts: Mapping[int, Verdict]) -> bool:
        """Add the verdicts' tokens to their sequences; return whether an answer ends by a token, limit or error.

        Texts may still end others in `emit`: by a stop string, a call or a line.
        """
        ends = [self._by_slot[slot].extend(verdict, self._vocabulary) for slot, verdict in verdicts.items()]
        return any(ends)

    def emit(self, verdicts: Mapping[int, Verdict], drafted: Drafted, times: StepTimes) -> list[RequestEvent]:
        """Add the texts of the verdicts' tokens to their answers; return the events, and finish answers that end."""
        events: list[RequestEvent] = []
        for slot, verdict in verdicts.items():
            answer = self._by_slot[slot]
            pieces, reason, error = answer.append(verdict, self._vocabulary)
            own = times
            if slot in drafted.forced:  # without drafts, these tokens come in one step too
                own = replace(times, plain_s=times.plain_s / max(len(pieces), 1))
            self._timing.charge(
                answer,
                own,
                num_tokens=len(pieces),
                num_drafted=len(drafted.drafts.get(slot, NO_DRAFT)),
                num_accepted=min(verdict.num_accepted, len(pieces)),
            )
            if pieces:
                events.append(Tokens(answer.request_id, pieces))
            if error is not None:
                events.append(self._fail(answer, error))
            elif reason is not None:
                events.append(self._finish(answer, reason))
        return events

    # ---- ends
    def cancel(self, request_id: str) -> list[RequestEvent]:
        answers = [answer for answer in self._by_slot.values() if answer.request_id == request_id]
        return [self._finish(answer, "cancelled") for answer in answers]

    def fail(self, slot: int, error: EagleLocalError) -> Failed:
        return self._fail(self._by_slot[slot], error)

    def _fail(self, answer: RunningAnswer, error: EagleLocalError) -> Failed:
        self._release(answer)
        return Failed(answer.request_id, error)

    def _finish(self, answer: RunningAnswer, reason: str) -> Finished:
        self._release(answer)
        rest = answer.finish_text(is_cut=True)  # empty unless the answer was cancelled
        sequence, timings = answer.sequence, answer.clock.timings(answer.num_tokens)
        # without tokens sampled after a stop string
        tokens = sequence.tokens[: sequence.num_prompt + answer.num_tokens] if sequence.request.tells_tokens else ()
        state, state_reason = self._read_drafting(sequence.slot)
        return Finished(
            answer.request_id,
            reason,
            text=rest.text,
            reasoning=rest.reasoning,
            stop=answer.stop,
            is_loop=answer.guard is not None and answer.guard.is_looping,
            tokens=tuple(tokens),
            unread_calls=rest.unread,
            prompt_tokens=sequence.num_prompt_rows,
            completion_tokens=answer.num_tokens,
            reasoning_tokens=answer.num_reasoning,
            timings=timings,
            speculation=answer.counter.stats(
                state=state, reason=state_reason, speedup_estimate=answer.speedup(timings.decode_s)
            ),
        )

    def _release(self, answer: RunningAnswer) -> None:
        answer.sampler.close()
        for drafter in self._drafters:
            drafter.end(answer.sequence.slot)
        self._scheduler.release(answer.sequence)
        del self._by_slot[answer.sequence.slot]

    def close(self) -> None:
        for answer in self._by_slot.values():
            answer.sampler.close()
        self._by_slot.clear()


def name_state(state: GateState | None) -> str:
    """Return the state to display: on, asleep or off. A probe is too short to display and counts as asleep."""
    if state is None:
        return "off"
    return "on" if state is GateState.AWAKE else "asleep"

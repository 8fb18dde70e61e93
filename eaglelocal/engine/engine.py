"""The engine: one step, repeated. Schedule, draft, run, verify, commit.

The same lines serve one slot or sixteen, greedy or sampled, with or without drafts. Holds the collaborators and the
running answers; knows neither which drafter runs nor how the target is computed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from collections.abc import Sequence as Several
from concurrent.futures import Executor
from dataclasses import dataclass

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.events import (
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    RequestEvent,
    SpeculationChanged,
    Started,
    Tokens,
)
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.ports import Constraints, Context, ImageReader, Vocabulary
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest, Spec
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.engine.draft_loop import EMPTY, Drafted, grow
from eaglelocal.engine.input_processor import InputProcessor, ReadRequest
from eaglelocal.engine.input_queue import INLINE, INPUT_WAIT_S, InputQueue, Prepared
from eaglelocal.engine.input_size import ChatLanes
from eaglelocal.engine.padding_rows import Padding
from eaglelocal.engine.runner import Decoded, Runner
from eaglelocal.engine.running_answer import Clock, RunningAnswer, counted, never_started, prompted
from eaglelocal.engine.sequence_ids import SequenceIds
from eaglelocal.engine.slot_caches import SlotCaches
from eaglelocal.engine.step_estimate import StepEstimate
from eaglelocal.engine.step_timing import StepTimes, StepTiming, peak_rss_bytes
from eaglelocal.engine.warmup import Warmup
from eaglelocal.errors import RequestError, ResourceError
from eaglelocal.scheduler.scheduler import Scheduler, StepPlan
from eaglelocal.scheduler.slot import SlotAssignment
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.draft_gate import GateState
from eaglelocal.speculation.policy.slot_policy import DecodeSlot
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import StepReport
from eaglelocal.speculation.verify import verify
from eaglelocal.text.detokenizer import Pieces
from eaglelocal.text.reasoning.split_answer import answer_text
from eaglelocal.text.templates.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The objects that read requests, besides the vocabulary.

    template  a chat template that is already running, else the vocabulary's; the engine closes it
    lanes     executors that read requests; threads in a serving process (input_queue.threaded_lanes)
    """

    constraints: Constraints | None = None
    image_reader: ImageReader | None = None
    template: ChatTemplate | None = None
    lanes: Several[Executor] = INLINE


class Engine:
    """The engine of a text model. Implements engine.process.EngineLoop; all methods are called from one thread."""

    def __init__(
        self,
        *,
        context: Context,
        vocabulary: Vocabulary,
        inputs: Inputs = Inputs(),
        drafters: Several[Drafter],
        controller: Controller,
        scheduler: Scheduler,
        info: EngineInfo,
    ) -> None:
        self.info = info
        self._context, self._vocabulary = context, vocabulary
        self._drafters, self._controller, self._scheduler = drafters, controller, scheduler
        branches = SequenceIds(context, info.num_slots)
        self._caches = SlotCaches(context, branches, drafters, scheduler, info.num_slots)
        self._runner = Runner(context, branches)
        self._padding = Padding(context, scheduler, info.num_slots)
        self._pacing = StepEstimate(
            controller.costs, scheduler.num_cached, is_unified=context.is_unified, undivided=context.undivided
        )
        self._intake = InputProcessor(
            vocabulary,
            context.n_ctx,
            inputs.constraints,
            image_reader=inputs.image_reader,
            trained_ctx=info.trained_ctx,
            sampling=info.sampling,
            template=inputs.template,
        )
        self._input_lanes = ChatLanes()
        self._inputs = InputQueue(self._intake.read_asked, inputs.lanes, lane_of=self._input_lanes.lane_of)
        self._pieces = Pieces(vocabulary)
        self._submitted_at: dict[str, float] = {}
        self._answers: dict[int, RunningAnswer] = {}  # by slot
        self._outbox: list[RequestEvent] = []
        self._ledger = StepTiming(controller.costs, self._native_s)
        self._owned = contextlib.ExitStack()

    # ---- EngineLoop: called by the process
    @property
    def has_work(self) -> bool:
        return self._can_step or len(self._inputs) > 0

    @property
    def _can_step(self) -> bool:
        return self._scheduler.has_work or bool(self._outbox)

    def submit(self, request: AnyRequest) -> None:
        """Queue a request. One that cannot be served comes out of a later step as Failed.

        Raises RequestError if the id is in use: an event could not say which request it means.
        """
        if isinstance(request, EmbedRequest):
            raise RequestError(
                f"{self.info.target} {ModelTask.TEXT.explain_mismatch(request.task)}", code="model_not_supported"
            )
        if self._is_known(request.id):
            raise RequestError(f"a request with the id {request.id} is still running")
        self._inputs.submit(request)

    def _is_known(self, request_id: str) -> bool:
        if request_id in self._inputs or request_id in self._submitted_at:
            return True
        return any(answer.request_id == request_id for answer in self._answers.values())

    def _receive(self) -> None:
        """Take over requests that have been read. With nothing else to do, wait up to INPUT_WAIT_S for one."""
        if len(self._inputs) and not self._can_step:
            self._inputs.wait(INPUT_WAIT_S)
        for prepared in self._inputs.take():
            self._take(prepared)

    def _take(self, prepared: Prepared[ChatRequest, ReadRequest]) -> None:
        asked = prepared.asked
        self._input_lanes.learn(asked, prepared.read_s)
        if prepared.made is None:
            assert prepared.error is not None
            self._outbox.append(Failed(asked.id, prepared.error))
            return
        prompt, request = prepared.made
        if asked.tells_prompt:
            self._outbox.append(prompted(asked.id, prompt, self._vocabulary))
        if request is None:
            self._outbox += counted(asked.id, prompt.num_rows)
        else:
            self._submitted_at[asked.id] = prepared.submitted_at_s
            self._scheduler.add(request)

    def cancel(self, request_id: str) -> None:
        """Cancel a request, waiting or running; an unknown or finished id is ignored."""
        if self._inputs.withdraw(request_id):
            self._outbox.append(never_started(request_id))
        if self._scheduler.withdraw(request_id):
            del self._submitted_at[request_id]
            self._outbox.append(never_started(request_id))
        for answer in [a for a in self._answers.values() if a.request_id == request_id]:
            self._outbox.append(self._finish(answer, "cancelled"))

    def set_spec(self, spec: Spec) -> None:
        """Set the spec of requests that have none of their own. Answers whose drafting it switches emit an event."""
        told = [slot for slot in self._answers if not self._scheduler.is_waiting(slot)]  # others report when they start
        before = {slot: self._state(slot)[0] for slot in told}
        self._controller.set_default_spec(spec)
        for slot, state in before.items():
            if self._state(slot)[0] != state:
                self._outbox.append(self._changed(slot))

    def step(self) -> list[RequestEvent]:
        """Run one step for all slots, and return its events."""
        self._receive()
        self._ledger.begin()
        self._resume()
        self._admit()
        self._look()
        max_draft = max(map(self._controller.max_draft, self._answers), default=0)
        plan = self._scheduler.schedule(max_draft, self._pacing.pace)
        if not (plan.decode or plan.prefill):
            return self._told([])
        num_cells = self._num_cells(plan)
        try:
            drafted = grow(plan.decode, self._drafters, self._choice(plan, num_cells), self._vocabulary.is_end)
            drafts = drafted.drafts
            self._ledger.mark(self._drafters_s)
            fillers = self._padding.rows(plan, drafts, self._controller.choose_padding_rows)
            decoded = self._runner.run(plan, drafts, fillers)
            self._ledger.mark(self._drafters_s)
            verdicts = self._judge(plan, drafts, decoded)
            self._ledger.mark()
            self._caches.keep(plan, drafts, decoded, verdicts, self._controller.is_awake)
        except ResourceError as error:
            self._ledger.rest()
            return self._told(self._give_up(plan, error))
        num_drafted = sum(map(len, drafts.values()))
        num_extra = num_drafted + decoded.num_filler_rows
        times = self._ledger.end(num_rows=decoded.num_rows, num_drafted=num_extra)
        self._pacing.saw(drafts, plan.prefill, times.decode_s)
        self._outbox += self._learn(plan, num_cells, drafted, decoded, verdicts, times)
        return self._told(self._tell(verdicts, drafts, times))

    def snapshot(self) -> EngineSnapshot:
        self._controller.learn_costs()
        totals = self._ledger.totals
        state, reason = self._drafting_state()
        return EngineSnapshot(
            running=len(self._answers),
            waiting=self._scheduler.num_waiting + len(self._inputs),
            steps=totals.steps,
            prompt_tokens=totals.prompt_tokens,
            generated_tokens=totals.generated_tokens,
            speculation=self._ledger.counter.stats(state=state, reason=reason, speedup_estimate=totals.speedup),
            host_s=totals.host_s,
            native_s=self._native_s(),
            peak_rss_bytes=peak_rss_bytes(),
            costs=self._controller.measured_costs(),
            draft_s=totals.draft_s,
            verify_s=totals.verify_s,
            cached_tokens=sum(map(self._scheduler.num_cached, range(self.info.num_slots))),
            cache_cells=self.info.num_slots * self._context.n_ctx,
            miscounted_slots=tuple(self.miscounted_slots()),
            engine_pid=os.getpid(),
            plain_s=totals.plain_s,
            answer_s=totals.answer_s,
            reused_tokens=totals.reused_tokens,
            swapped_bytes=self._scheduler.swap.num_bytes,
            spec=str(self._controller.spec) if self._drafters else "",
        )

    def miscounted_slots(self) -> list[int]:
        """Return Caches.miscounted()."""
        return self._caches.miscounted()

    def warm_up(self, *, max_rows: int, stored: object | None = None, makes_kernels: bool = False) -> None:
        """Measure what decodes cost. This also loads the weights, and lets drafting start with good estimates.

        stored         costs that an earlier engine measured on this machine with this model
        makes_kernels  a GPU may compute, which compiles or loads kernels when a number of rows first runs
        """
        costs = self._controller.costs
        is_restored = stored is not None and costs.restore(stored)
        warming = Warmup(self._context, self._drafters, max_outputs=max_rows)
        warming.measure(costs, num_slots=self.info.num_slots, is_known=is_restored, makes_kernels=makes_kernels)

    def on_close(self, owned: contextlib.ExitStack) -> None:
        """Set what close() closes, after the samplers."""
        self._owned = owned

    def close(self) -> None:
        self._intake.close()  # first: it ends a rendering in progress
        self._inputs.close()
        for answer in self._answers.values():
            answer.sampler.close()
        self._answers.clear()
        self._owned.close()

    # ---- the parts of a step
    def _choice(self, plan: StepPlan, num_cells: int) -> StepPolicy:
        return self._controller.begin_step(
            [DecodeSlot(s.slot, min(s.draft_room, plan.max_draft)) for s in plan.decode],
            num_prefill_rows=sum(chunk.count for chunk in plan.prefill),
            num_cells=num_cells,
        )

    def _num_cells(self, plan: StepPlan) -> int:
        """Return the cached positions that a decoding row attends to: with a unified cache those of all slots."""
        cached = sum(len(sequence.tokens) for sequence in plan.decode)
        return cached if self._context.is_unified else cached // max(len(plan.decode), 1)

    def _learn(
        self,
        plan: StepPlan,
        num_cells: int,
        drafted: Drafted,
        decoded: Decoded,
        verdicts: dict[int, Verdict],
        times: StepTimes,
    ) -> list[RequestEvent]:
        """Report the step to the controller; return an event for each answer whose drafting fell asleep or woke."""
        if not plan.decode:
            return []
        num_prefill_rows = sum(chunk.count for chunk in plan.prefill)
        changes = self._controller.learn(
            StepReport(
                num_rows=decoded.num_rows,
                num_padding_rows=decoded.num_filler_rows,
                num_passes=decoded.num_passes,
                num_prefill_rows=num_prefill_rows,
                num_cells=num_cells,
                decode_s=times.decode_s,
                encode_s=times.shown_s,
                draft_calls=drafted.calls,
                other_s=times.total_s - times.decode_s - sum([call.seconds for call in drafted.calls]),
                verdicts={s.slot: (drafted.drafts[s.slot], verdicts[s.slot]) for s in plan.decode},
            )
        )
        return [
            SpeculationChanged(self._answers[change.slot].request_id, shown_state(change.state), change.reason)
            for change in changes
        ]

    def _admit(self) -> None:
        for admission in self._scheduler.admit():
            sequence = admission.sequence
            self._begin(admission)
            sampler = self._context.sampler(sequence.request.params, sequence.request.constraint)
            sampler.accept(last(said(sequence), sequence.request.params.repeat_last_n))
            clock = Clock(self._submitted_at.pop(sequence.request.id), time.perf_counter())
            text = answer_text(self._pieces, sequence.request)
            self._answers[sequence.slot] = RunningAnswer(sequence, sampler, text, clock)
            self._controller.begin(sequence.slot, sequence.request.spec)
            for drafter in self._drafters:
                drafter.begin(sequence.slot, sequence.request.owner, sequence.num_prompt)
            self._ledger.totals.prompt_tokens += sequence.num_prompt_rows
            if not admission.is_waiting:
                self._start(sequence)

    def _begin(self, admission: SlotAssignment) -> None:
        self._caches.begin(admission)
        if admission.swaps:  # copying may take a second, which must not count as time of this step
            self._ledger.begin_anew()

    def _look(self) -> None:
        """Decode at most one image, so that other answers go on between images. Its time is not learned from."""
        due = self._scheduler.image_due()
        if due is None:
            return
        sequence, image = due
        try:
            self._caches.decode_image(sequence, image)
        except ResourceError as error:
            self._outbox += self._fail([sequence], error)
        self._ledger.begin_anew()

    def _start(self, sequence: Sequence) -> None:
        """Emit Started, and a SpeculationChanged if the answer is not drafted for: drafting counts as on by default."""
        self._ledger.totals.reused_tokens += sequence.num_reused_rows
        self._outbox.append(Started(sequence.request.id, sequence.num_prompt_rows, sequence.num_reused_rows))
        if self._state(sequence.slot)[0] != "on":
            self._outbox.append(self._changed(sequence.slot))

    def _changed(self, slot: int) -> SpeculationChanged:
        return SpeculationChanged(self._answers[slot].request_id, *self._state(slot))

    def _resume(self) -> None:
        """Start sequences that waited for another slot to prefill the prefix that they share."""
        for admission in self._scheduler.resume():
            self._begin(admission)
            self._start(admission.sequence)

    def _give_up(self, plan: StepPlan, error: ResourceError) -> list[RequestEvent]:
        """Fail the requests of a step for which target or drafter had no room, and empty their caches."""
        return self._fail(sequences_of(plan), error)

    def _fail(self, sequences: Several[Sequence], error: ResourceError) -> list[RequestEvent]:
        answers = [self._answers[s.slot] for s in sequences]
        for answer in answers:
            self._release(answer)
            self._caches.forget(answer.sequence.slot)
        return [Failed(answer.request_id, error) for answer in answers]

    def _judge(self, plan: StepPlan, drafts: Mapping[int, Draft], decoded: Decoded) -> dict[int, Verdict]:
        """Return verdicts by slot, for every draft and for every prompt whose last row was decoded."""
        verdicts = {}
        for sequence in plan.decode:
            verdicts[sequence.slot] = self._verify(sequence, drafts[sequence.slot], decoded.rows[sequence.slot])
        for chunk in plan.prefill:
            if chunk.is_last:
                slot = chunk.sequence.slot
                verdicts[slot] = self._verify(chunk.sequence, EMPTY, decoded.rows[slot][-1:])
        return verdicts

    def _verify(self, sequence: Sequence, draft: Draft, rows: list[int]) -> Verdict:
        if not sequence.num_left:  # max_tokens 0: only the prompt is read
            return Verdict((), ())
        return verify(
            draft,
            rows,
            sample=self._answers[sequence.slot].sampler.sample,
            is_end=is_never_end if sequence.request.continues_after_eos else self._vocabulary.is_end,
            limit=sequence.num_left,
        )

    def _tell(self, verdicts: dict[int, Verdict], drafts: Mapping[int, Draft], times: StepTimes) -> list[RequestEvent]:
        events: list[RequestEvent] = []
        for slot, verdict in verdicts.items():
            answer = self._answers[slot]
            taken = answer.take(verdict, self._vocabulary)
            pieces = taken.pieces
            self._ledger.charge(
                answer,
                times,
                num_tokens=len(pieces),
                num_drafted=len(drafts.get(slot, EMPTY)),
                num_accepted=min(verdict.num_accepted, len(pieces)),
            )
            if pieces:
                events.append(Tokens(answer.request_id, pieces))
            if taken.error is not None:
                self._release(answer)
                events.append(Failed(answer.request_id, taken.error))
            elif taken.reason is not None:
                events.append(self._finish(answer, taken.reason))
        return events

    def _told(self, events: list[RequestEvent]) -> list[RequestEvent]:
        told, self._outbox = [*self._outbox, *events], []
        if not self._scheduler.has_work:
            self._ledger.rest()
        return told

    # ---- ends
    def _finish(self, answer: RunningAnswer, reason: str) -> Finished:
        self._release(answer)
        rest = answer.rest(is_cut=True)  # empty unless the answer was cancelled
        timings = answer.clock.timings(answer.sequence.num_emitted)
        state, because = self._state(answer.sequence.slot)
        return Finished(
            answer.request_id,
            reason,
            text=rest.text,
            reasoning=rest.reasoning,
            stop=answer.stop,
            prompt_tokens=answer.sequence.num_prompt_rows,
            completion_tokens=answer.sequence.num_emitted,
            timings=timings,
            speculation=answer.counter.stats(
                state=state, reason=because, speedup_estimate=answer.speedup(timings.decode_s)
            ),
        )

    def _release(self, answer: RunningAnswer) -> None:
        answer.sampler.close()
        for drafter in self._drafters:
            drafter.end(answer.sequence.slot)
        self._scheduler.release(answer.sequence)
        del self._answers[answer.sequence.slot]

    def _state(self, slot: int) -> tuple[str, str]:
        """Return an answer's drafting state (on, asleep, off) and the reason for it."""
        if not self._drafters:
            return "off", self.info.draft_reason or "switched off"
        state, reason = self._controller.state(slot)
        return shown_state(state), reason

    def _drafting_state(self) -> tuple[str, str]:
        """Return the drafting state of all answers together, with its reason: on if any is drafted for.

        Without answers, return the state that the next one would start with.
        """
        if not self._drafters:
            return "off", self.info.draft_reason or "switched off"
        states = dict(map(self._state, self._answers))
        if not states:
            return ("on", "") if self._controller.spec.max_draft else ("off", "switched off")
        return min(states.items(), key=lambda each: ("on", "asleep", "off").index(each[0]))

    def _native_s(self) -> float:
        return self._context.native_s + self._drafters_s

    @property
    def _drafters_s(self) -> float:
        return sum([drafter.native_s for drafter in self._drafters])


def sequences_of(plan: StepPlan) -> list[Sequence]:
    return [*plan.decode, *(chunk.sequence for chunk in plan.prefill)]


def shown_state(state: GateState | None) -> str:
    """Return the state to show: on, asleep or off. A probe is too short to show and counts as asleep."""
    if state is None:
        return "off"
    return "on" if state is GateState.AWAKE else "asleep"


def said(sequence: Sequence) -> list[int]:
    """Return the text tokens of a prompt, without the stand-ins of images."""
    return [token for token in sequence.tokens if token >= 0] if sequence.request.images else sequence.tokens


def last(tokens: list[int], count: int) -> list[int]:
    return tokens[-count:] if count else []


def is_never_end(token: int) -> bool:
    return False

"""The engine: one step, repeated. Schedule, draft, run, verify, commit.

The same lines serve one slot or sixteen, greedy or sampled, with or without drafts. Holds the collaborators; knows
neither which drafter runs nor how the target is computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from concurrent.futures import Executor

from eaglelocal.core.draft import Verdict
from eaglelocal.core.events import EngineInfo, EngineSnapshot, RequestEvent
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.ports import Context
from eaglelocal.core.request import AnyRequest, EmbedRequest, Spec
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.engine.draft_loop import Drafted, grow
from eaglelocal.engine.idle_work import IdleWork
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.engine.input_queue import INLINE
from eaglelocal.engine.padding_rows import Padding
from eaglelocal.engine.runner import Decoded, Runner
from eaglelocal.engine.running_answer import make_never_started
from eaglelocal.engine.running_answers import RunningAnswers
from eaglelocal.engine.sequence_ids import SequenceIds
from eaglelocal.engine.slot_caches import SlotCaches
from eaglelocal.engine.step_estimate import StepEstimate
from eaglelocal.engine.step_times import StepTimes
from eaglelocal.engine.step_timing import StepTiming, peak_rss_bytes
from eaglelocal.engine.waiting_requests import WaitingRequests
from eaglelocal.errors import RequestError, ResourceError
from eaglelocal.scheduler.scheduler import Scheduler, StepPlan
from eaglelocal.scheduler.slot import SlotAssignment
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DecodeSlot
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import StepReport


class Engine:
    """The engine of a text model. Implements worker.process.EngineLoop; all methods are called from one thread."""

    def __init__(
        self,
        *,
        context: Context,
        input_processor: InputProcessor,
        drafters: Several[Drafter],
        controller: Controller,
        scheduler: Scheduler,
        info: EngineInfo,
        lanes: Several[Executor] = INLINE,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Take ownership of the input processor and the lanes.

        lanes  executors that read requests; threads in a serving process (input_queue.start_lanes)
        close  closes what the builder opened, in reverse order
        """
        self.info = info
        vocabulary = input_processor.vocabulary
        self._context, self._vocabulary, self._input_processor = context, vocabulary, input_processor
        self._drafters, self._controller, self._scheduler = drafters, controller, scheduler
        self._close_opened = close
        branches = SequenceIds(context, info.num_slots)
        self._caches = SlotCaches(context, branches, drafters, scheduler, info.num_slots)
        self._runner = Runner(context, branches)
        self._padding = Padding(context, scheduler, info.num_slots)
        self._timing = StepTiming(controller.costs, self._native_s)
        self._step_estimate = StepEstimate(
            controller.costs, scheduler.num_cached, is_unified=context.is_unified, undivided=context.undivided
        )
        self._waiting = WaitingRequests(input_processor, scheduler, lanes)
        self._answers = RunningAnswers(
            context,
            vocabulary,
            drafters=drafters,
            controller=controller,
            scheduler=scheduler,
            timing=self._timing,
            draft_reason=info.draft_reason,
        )
        self._outbox: list[RequestEvent] = []
        self.idle_work = IdleWork()

    # ---- EngineLoop: called by the process
    @property
    def has_work(self) -> bool:
        return self._can_step or self._waiting.num_reading > 0 or self.idle_work.is_left

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
        if request.id in self._waiting or request.id in self._answers:
            raise RequestError(f"a request with the id {request.id} is still running")
        self.idle_work.drop()
        self._waiting.submit(request)

    def cancel(self, request_id: str) -> None:
        """Cancel a request, waiting or running; an unknown or finished id is ignored."""
        if self._waiting.withdraw(request_id):
            self._outbox.append(make_never_started(request_id))
        self._outbox += self._answers.cancel(request_id)

    def set_spec(self, spec: Spec) -> None:
        """Set the spec of requests that have none of their own. Answers whose drafting it switches emit an event."""
        self._outbox += self._answers.set_spec(spec)

    def step(self) -> list[RequestEvent]:
        """Run one step for all slots, and return its events."""
        if self.idle_work.is_left:
            self.idle_work.do_next()
            return self._drain_outbox()
        self._receive()
        if self._caches.copy_ahead():
            self._timing.pause()  # its time is not learned from
        self._timing.begin()
        self._resume()
        self._admit()
        self._decode_image()
        max_draft = max(map(self._controller.max_draft, self._answers.slots), default=0)
        plan = self._scheduler.schedule(max_draft, self._step_estimate.pace)
        if not (plan.decode or plan.prefill):
            return self._drain_outbox()
        num_cells = self._num_cells(plan)
        try:
            drafted = grow(plan.decode, self._drafters, self._choose_policy(plan, num_cells), self._vocabulary.is_end)
            drafts = drafted.drafts
            self._timing.mark(self._drafters_s)
            padding = self._padding.rows(plan, drafts, self._controller.choose_padding_rows)
            decoded = self._runner.run(plan, drafts, padding)
            self._timing.mark(self._drafters_s)
            verdicts = self._answers.verify(plan, drafts, decoded)
            self._timing.mark()
            self._caches.commit(plan, drafts, decoded, verdicts, self._controller.is_awake)
        except ResourceError as error:
            self._timing.pause()
            self._fail([*plan.decode, *(chunk.sequence for chunk in plan.prefill)], error)
            return self._drain_outbox()
        num_extra = sum(map(len, drafts.values())) + decoded.num_padding_rows
        times = self._timing.end(num_rows=decoded.num_rows, num_drafted=num_extra)
        self._step_estimate.learn(drafts, plan.prefill, times.decode_s)
        self._learn(plan, num_cells, drafted, decoded, verdicts, times)
        self._outbox += self._answers.emit(verdicts, drafts, times)
        return self._drain_outbox()

    def work_ahead(self) -> bool:
        return self._caches.copy_ahead()

    def snapshot(self) -> EngineSnapshot:
        self._controller.learn_costs()
        totals = self._timing.totals
        state, reason = self._answers.drafting_state
        return EngineSnapshot(
            running=len(self._answers),
            waiting=len(self._waiting),
            steps=totals.steps,
            prompt_tokens=totals.prompt_tokens,
            generated_tokens=totals.generated_tokens,
            speculation=self._timing.counter.stats(state=state, reason=reason, speedup_estimate=totals.speedup),
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
        """Return the slots whose cells disagree with the count of the scheduler; empty unless there is a bug."""
        return self._caches.find_miscounted()

    def close(self) -> None:
        self._waiting.close()
        self._answers.close()
        self._close_opened()

    # ---- the parts of a step
    def _receive(self) -> None:
        """Enqueue requests that have been read. With nothing else to do, wait for one."""
        if self._waiting.num_reading and not self._can_step:
            self._waiting.wait()
        self._outbox += self._waiting.enqueue()

    def _resume(self) -> None:
        """Start sequences that waited for another slot to prefill the prefix that they share."""
        for assignment in self._scheduler.resume():
            self._prepare_slot(assignment)
            self._outbox += self._answers.start(assignment.sequence)

    def _admit(self) -> None:
        """Give waiting requests free slots."""
        for assignment in self._scheduler.admit():
            sequence = assignment.sequence
            self._prepare_slot(assignment)
            self._answers.begin(sequence, self._waiting.start(sequence.request.id))
            if not assignment.is_waiting:
                self._outbox += self._answers.start(sequence)

    def _prepare_slot(self, assignment: SlotAssignment) -> None:
        self._caches.assign(assignment)
        if assignment.swaps:  # copying may take a second, which must not count as time of this step
            self._timing.restart()

    def _decode_image(self) -> None:
        """Decode at most one image, so that other answers go on between images. Its time is not learned from."""
        due = self._scheduler.image_due()
        if due is None:
            return
        sequence, image = due
        try:
            self._caches.decode_image(sequence, image)
        except ResourceError as error:
            self._fail([sequence], error)
        self._timing.restart()

    def _num_cells(self, plan: StepPlan) -> int:
        """Return the cached positions that a decoding row attends to: with a unified cache those of all slots."""
        cached = sum(len(sequence.tokens) for sequence in plan.decode)
        return cached if self._context.is_unified else cached // max(len(plan.decode), 1)

    def _choose_policy(self, plan: StepPlan, num_cells: int) -> StepPolicy:
        return self._controller.begin_step(
            [DecodeSlot(s.slot, min(s.draft_room, plan.max_draft)) for s in plan.decode],
            num_prefill_rows=sum(chunk.count for chunk in plan.prefill),
            num_cells=num_cells,
        )

    def _fail(self, sequences: Several[Sequence], error: ResourceError) -> None:
        """Fail the requests for which target or drafter had no memory, and empty their caches."""
        for sequence in sequences:
            self._outbox.append(self._answers.fail(sequence.slot, error))
            self._caches.forget(sequence.slot)

    def _learn(
        self,
        plan: StepPlan,
        num_cells: int,
        drafted: Drafted,
        decoded: Decoded,
        verdicts: Mapping[int, Verdict],
        times: StepTimes,
    ) -> None:
        """Report the step to the controller."""
        if not plan.decode:
            return
        changes = self._controller.learn(
            StepReport(
                num_rows=decoded.num_rows,
                num_padding_rows=decoded.num_padding_rows,
                num_passes=decoded.num_passes,
                num_prefill_rows=sum(chunk.count for chunk in plan.prefill),
                num_cells=num_cells,
                decode_s=times.decode_s,
                encode_s=times.encode_s,
                draft_calls=drafted.calls,
                other_s=times.total_s - times.decode_s - sum([call.seconds for call in drafted.calls]),
                verdicts={s.slot: (drafted.drafts[s.slot], verdicts[s.slot]) for s in plan.decode},
            )
        )
        self._outbox += self._answers.show_changes(changes)

    def _drain_outbox(self) -> list[RequestEvent]:
        events, self._outbox = self._outbox, []
        if not self._scheduler.has_work:
            self._timing.pause()
        return events

    def _native_s(self) -> float:
        return self._context.native_s + self._drafters_s

    @property
    def _drafters_s(self) -> float:
        return sum([drafter.native_s for drafter in self._drafters])

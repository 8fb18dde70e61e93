"""The engine: one step, repeated. Schedule, draft, run, verify, commit.

The same lines serve one slot or many, greedy or sampled, with or without drafts. Holds the collaborators; does not
know which drafter runs, or how the target is computed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from pathlib import Path
from typing import NamedTuple

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.events import Begun, EmitEvents, EngineInfo, EngineSnapshot, RequestEvent
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.ports import Context
from eaglelocal.core.request import AnyRequest, EmbedRequest, Spec
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.head_holder import CloseHead, Exchange, HeadHolder
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.engine.input_queue import INLINE, InputExecutors, WaitingRequests
from eaglelocal.engine.runner import Runner, SubmittedRows
from eaglelocal.engine.running_answer import make_never_started
from eaglelocal.engine.running_answers import RunningAnswers
from eaglelocal.engine.sequence_ids import SequenceIds, choose_padding
from eaglelocal.engine.slot_caches import SlotCaches
from eaglelocal.engine.step_learning import (
    Drafted,
    FinishedStep,
    PlannedStep,
    StepLearning,
    count_forced_as_plain,
    force_drafts,
    grow,
)
from eaglelocal.engine.step_timing import StepTiming, peak_rss_bytes
from eaglelocal.errors import IncompatibleError, RequestError, ResourceError
from eaglelocal.scheduler.scheduler import Scheduler
from eaglelocal.scheduler.slot import SlotAssignment
from eaglelocal.speculation.policy.controller import Controller

MAX_LAST_COPIES_S = 3.0  # for conversations that are stored when the engine ends


class SubmittedStep(NamedTuple):
    """A step whose rows are being decoded."""

    planned: PlannedStep
    drafted: Drafted
    rows: SubmittedRows


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
        input_executors: InputExecutors = INLINE,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Take ownership of the input processor and the executors, with the files that they read.

        input_executors  executors that read requests; threads in a serving process (input_queue.start_executors)
        close            closes what the builder opened, in reverse order
        """
        self.info = info
        self.context, self.input_processor, self.files = context, input_processor, input_executors.files
        self.drafters, self.controller, self.scheduler = drafters, controller, scheduler
        self._close_opened = close
        self._holder = next((drafter for drafter in drafters if isinstance(drafter, HeadHolder)), None)
        sequence_ids = SequenceIds(context, info.num_slots)
        self.caches = SlotCaches(context, sequence_ids, drafters, scheduler, self.files)
        self._runner = Runner(context, sequence_ids)
        self._timing = StepTiming(controller.costs, self._native_s)
        self._learning = StepLearning(controller, scheduler, context, drafters)
        self._waiting = WaitingRequests(input_processor, scheduler, input_executors)
        self._report_work = input_executors.report
        self._answers = RunningAnswers(
            context,
            input_processor.vocabulary,
            drafters=drafters,
            controller=controller,
            scheduler=scheduler,
            timing=self._timing,
            draft_reason=info.draft_reason,
        )
        self._submitted: SubmittedStep | None = None
        self._finished: FinishedStep | None = None  # collected, but not reported yet
        self._outbox: list[RequestEvent] = []
        self.emit: EmitEvents | None = None
        self.idle_work: Iterator[None] | None = None  # optional work before the first request, in short pieces

    # ---- EngineLoop: called by the process
    @property
    def has_work(self) -> bool:
        return self._can_step or self._waiting.num_reading > 0 or self.idle_work is not None

    @property
    def _can_step(self) -> bool:
        return self.scheduler.has_work or self._submitted is not None or bool(self._outbox)

    def submit(self, request: AnyRequest) -> None:
        """Queue a request. A request that cannot be served comes out of a later step as Failed.

        Raises RequestError if the id is in use: events could not be assigned to a request.
        """
        if isinstance(request, EmbedRequest):
            raise RequestError(
                f"{self.info.target} {ModelTask.TEXT.explain_mismatch(request.task)}", code="model_not_supported"
            )
        if request.id in self._waiting or request.id in self._answers:
            raise RequestError(f"a request with the id {request.id} is still running")
        self.idle_work = None
        self._waiting.submit(request)

    def cancel(self, request_id: str) -> None:
        """Cancel a request, waiting or running; an unknown or finished id is ignored."""
        if self._waiting.withdraw(request_id):
            self._outbox.append(make_never_started(request_id))
        elif request_id in self._answers:
            self._catch_up()
            self._outbox += self._answers.cancel(request_id)

    def set_spec(self, spec: Spec) -> None:
        """Set the spec of requests that have none of their own. Answers whose drafting it switches emit an event."""
        self._catch_up()
        self._outbox += self._answers.set_spec(spec)

    def set_adapters(self, mix: AdapterMix) -> None:
        """Set the LoRA adapters of later requests that choose none."""
        self.input_processor.adapters = mix

    def prepare_head(self, path: Path, version: int) -> Exchange:
        """Open a head to replace the one in use; see worker.process.EngineLoop. Raises EagleLocalError."""
        if self._holder is None:
            names = ", ".join(drafter.traits.name for drafter in self.drafters) or "nothing"
            raise IncompatibleError(
                f"only EAGLE-3, P-EAGLE and Medusa heads in files can be exchanged: here {names} drafts",
                hint="--draft HEAD.gguf",
            )
        exchange = self._holder.prepare(path, version)

        def exchange_between_steps() -> CloseHead | None:
            self._catch_up()
            return exchange()

        return exchange_between_steps

    def step(self) -> list[RequestEvent]:
        """Run one step for all slots, and return its events.

        If a device computes beside the processor, the step returns while its rows are decoded, with the events of the
        previous step. The next step first collects these rows, and reports them while its own rows are decoded.
        """
        if self.idle_work is not None:
            if next(self.idle_work, self) is self:  # nothing was left
                self.idle_work = None
            return self._drain_outbox()
        self._collect()
        self._receive()
        if self.caches.copy_ahead():
            self._timing.pause()  # its time must not be learned from
        self._timing.begin()
        self._start()
        self._decode_image()
        self._submit()
        if not self.context.is_asynchronous:
            self._collect()
        self._report()
        return self._drain_outbox()

    def work_ahead(self) -> bool:
        return self._submitted is None and self.caches.copy_ahead()

    def snapshot(self) -> EngineSnapshot:
        self._catch_up()
        self.controller.learn_costs()
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
            costs=self.controller.measured_costs(),
            draft_s=totals.draft_s,
            verify_s=totals.verify_s,
            cached_tokens=sum(map(self.scheduler.prefix_cache.num_cached, range(self.info.num_slots))),
            cache_cells=self.info.num_slots * self.context.n_ctx,
            miscounted_slots=tuple(self.miscounted_slots()),
            engine_pid=os.getpid(),
            plain_s=totals.plain_s,
            answer_s=totals.answer_s,
            reused_tokens=totals.reused_tokens,
            swapped_bytes=self.scheduler.prefix_cache.swap.num_bytes,
            stored_bytes=0 if self.files is None else self.files.num_bytes,
            store_problem="" if self.files is None else self.files.problem,
            spec=str(self.controller.spec) if self.drafters else "",
            draft_version=0 if self._holder is None else self._holder.version,
        )

    def miscounted_slots(self) -> list[int]:
        """Return the slots whose cells disagree with the count of the scheduler; empty unless there is a bug."""
        self._catch_up()
        return self.caches.find_miscounted()

    def close(self) -> None:
        self._catch_up()
        self._waiting.close()
        if self.files is not None:
            end_s = time.monotonic() + MAX_LAST_COPIES_S
            while self.caches.copy_ahead() and time.monotonic() < end_s:
                pass
            self.files.close()
        self._answers.close()
        self._close_opened()

    # ---- the parts of a step
    def _receive(self) -> None:
        """Enqueue requests that have been read. If there is no other work, wait for one."""
        if self._waiting.num_reading and not self._can_step:
            self._waiting.wait()
        self._outbox += self._waiting.enqueue()
        self.caches.take_read()  # after that: an input thread reads the disk before it returns the request

    def _start(self) -> None:
        """Start sequences that get a slot, or waited for another slot to prefill the prefix that they share."""
        started = self.scheduler.resume()
        for assignment in started:
            self._prepare_slot(assignment)
        for assignment in self.scheduler.admit():
            sequence = assignment.sequence
            self._report_work(Begun(sequence.request.id))
            self._prepare_slot(assignment)
            self._answers.begin(sequence, self._waiting.start(sequence.request.id))
            if not assignment.is_waiting:
                started.append(assignment)
        for assignment in started:
            self._outbox += self._answers.start(assignment.sequence)
        if started and self.emit is not None:
            self.emit(self._drain_outbox())

    def _prepare_slot(self, assignment: SlotAssignment) -> None:
        self.caches.assign(assignment)
        if assignment.swaps:  # copying may take a second, which must not count as time of this step
            self._timing.restart()

    def _decode_image(self) -> None:
        """Decode at most one image, so that other answers go on between images. Its time is not learned from."""
        due = self.scheduler.image_due()
        if due is None:
            return
        sequence, image = due
        try:
            self.caches.decode_image(sequence, image)
        except ResourceError as error:
            self._fail([sequence], error)
        self._timing.restart()

    def _submit(self) -> None:
        """Schedule rows, draft after the roots among them, and start to decode all of it."""
        forced = self._answers.forced
        lengths = [*map(self.controller.max_draft, self._answers.slots), *map(len, forced.values())]
        plan = self.scheduler.schedule(max(lengths, default=0), self._learning.pace)
        if not (plan.decode or plan.prefill):
            return
        step = self._learning.begin(plan, forced)
        try:
            drafted = grow(plan.decode, self.drafters, step.policy, self.input_processor.vocabulary.is_end)
            drafted = force_drafts(drafted, plan, forced)
            self._timing.mark(self._drafters_s)
            count_rows = self.controller.choose_padding_rows
            padding = choose_padding(plan, drafted.drafts, self.context, self.scheduler, count_rows)
            rows = self._runner.submit(plan, drafted.drafts, padding)
        except ResourceError as error:
            self._fail(plan.sequences, error)
        else:
            self._submitted = SubmittedStep(step, drafted, rows)

    def _collect(self) -> None:
        """Wait for the submitted rows, verify and commit them. If an answer ends with them, report the step at once."""
        submitted, self._submitted = self._submitted, None
        if submitted is None:
            return
        step, drafted, rows = submitted
        plan, drafts = step.plan, drafted.drafts
        try:
            decoded = self._runner.collect(rows)
            self._timing.mark(self._drafters_s)
            verdicts = self._answers.verify(plan, drafts, decoded)
            self._timing.mark()
            self.caches.commit(plan, drafts, decoded, verdicts, self.controller.is_awake)
        except ResourceError as error:
            self._fail(plan.sequences, error)
            return
        drafted, judged = count_forced_as_plain(drafted, verdicts)
        verdicts = {slot: verdict for slot, verdict in judged.items() if slot in self._answers.slots}
        self._finished = FinishedStep(step, drafted, decoded, verdicts, self._timing.end())
        if self._answers.extend(verdicts):
            self._report()

    def _report(self) -> None:
        """Learn from the step that was collected, and emit its events."""
        step, self._finished = self._finished, None
        if step is not None:
            rows, num_extra, num_slots = step.decoded.num_rows, step.num_extra_rows, len(step.planned.plan.decode)
            times = self._timing.measure(step.marks, num_slots=num_slots, num_rows=rows, num_drafted=num_extra)
            self._outbox += self._answers.report_prompts(step.planned.plan)
            self._outbox += self._answers.show_changes(self._learning.learn(step, times))
            self._outbox += self._answers.emit(step.verdicts, step.drafted, times)

    def _catch_up(self) -> None:
        """Collect and report submitted rows, for calls that need the state between two steps."""
        self._collect()
        self._report()

    def _fail(self, sequences: Several[Sequence], error: ResourceError) -> None:
        """Fail the requests for which target or drafter had no memory, and empty their caches."""
        self._timing.pause()
        self._report()
        for sequence in sequences:
            if sequence.slot in self._answers.slots:  # otherwise it has just ended
                self._outbox.append(self._answers.fail(sequence.slot, error))
            self.caches.forget(sequence.slot)

    def _drain_outbox(self) -> list[RequestEvent]:
        events, self._outbox = self._outbox, []
        if not self.scheduler.has_work:
            self._timing.pause()
        return events

    def _native_s(self) -> float:
        return self.context.native_s + self._drafters_s

    @property
    def _drafters_s(self) -> float:
        return sum([drafter.native_s for drafter in self.drafters])

"""The engine: one step, repeated. Schedule, draft, run, verify, commit.

The same lines serve one slot or sixteen, greedy or sampled, drafted or not. Holds collaborators and
the answers in the making; knows neither which drafter runs nor how the target is computed.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import time

from eaglelocal.core.batch import Batch
from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.events import (
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    RequestEvent,
    Started,
    Tokens,
)
from eaglelocal.core.ports import Context, Vocabulary
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sequence import Sequence
from eaglelocal.core.stats import SpeculationCounter, SpeculationStats
from eaglelocal.drafters.base import Committed, Drafter
from eaglelocal.engine.answering import Answering, Clock
from eaglelocal.engine.drafting import EMPTY, grow
from eaglelocal.engine.intake import Intake
from eaglelocal.engine.ledger import Ledger, StepTimes
from eaglelocal.engine.runner import Decoded, Runner
from eaglelocal.errors import EagleLocalError, RequestError, ResourceError
from eaglelocal.scheduler.scheduler import Admission, Chunk, Scheduler, StepPlan
from eaglelocal.speculation.policy import Policy
from eaglelocal.speculation.verify import verify
from eaglelocal.text.answer import AnswerText
from eaglelocal.text.detokenizer import Pieces


class Engine:
    """Implements engine.process.EngineLoop. One thread calls it."""

    def __init__(
        self,
        *,
        context: Context,
        vocabulary: Vocabulary,
        drafter: Drafter,
        policy: Policy,
        scheduler: Scheduler,
        info: EngineInfo,
    ) -> None:
        self.info = info
        self._context, self._vocabulary = context, vocabulary
        self._drafter, self._policy, self._scheduler = drafter, policy, scheduler
        self._runner = Runner(context)
        self._intake = Intake(vocabulary, context.n_ctx)
        self._pieces = Pieces(vocabulary)
        self._submitted_at: dict[str, float] = {}
        self._answers: dict[int, Answering] = {}  # by slot
        self._outbox: list[RequestEvent] = []
        self._ledger = Ledger()
        self._owned = contextlib.ExitStack()

    # ---- what the process asks
    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._outbox)

    def submit(self, request: ChatRequest) -> None:
        """Queue a request. What cannot be served is told as Failed by the next step.

        Raises RequestError where the id is taken: an event could not say which of the two it means.
        """
        if request.id in self._submitted_at or any(a.request_id == request.id for a in self._answers.values()):
            raise RequestError(f"a request with the id {request.id} is still running")
        try:
            self._scheduler.add(self._intake.read(request))
        except EagleLocalError as error:
            self._outbox.append(Failed(request.id, error))
        else:
            self._submitted_at[request.id] = time.perf_counter()

    def cancel(self, request_id: str) -> None:
        """End a request where it stands; one that is unknown or over is left alone."""
        if self._scheduler.withdraw(request_id):
            del self._submitted_at[request_id]
            self._outbox.append(never_started(request_id))
        for answer in [a for a in self._answers.values() if a.request_id == request_id]:
            self._outbox.append(self._finish(answer, "cancelled"))

    def step(self) -> list[RequestEvent]:
        """One step for every slot; returns what there is to tell."""
        self._ledger.begin(self._native_s)
        self._admit()
        plan = self._scheduler.schedule(self._policy.max_draft)
        if not (plan.decode or plan.prefill):
            return self._told([])
        try:
            drafts = grow(plan.decode, self._drafter, policy=self._policy, max_draft=plan.max_draft)
            self._ledger.mark(self._drafter.native_s)
            decoded = self._runner.run(plan, drafts)
            verdicts = self._judge(plan, drafts, decoded)
            self._ledger.mark(self._drafter.native_s)
            self._commit(plan, drafts, decoded, verdicts)
        except ResourceError as error:
            return self._told(self._give_up(plan, error))
        num_drafted = sum(map(len, drafts.values()))
        times = self._ledger.end(self._native_s, num_rows=decoded.num_rows, num_drafted=num_drafted)
        return self._told(self._tell(verdicts, drafts, times))

    def snapshot(self) -> EngineSnapshot:
        totals = self._ledger.totals
        return EngineSnapshot(
            running=len(self._answers),
            waiting=self._scheduler.num_waiting,
            steps=totals.steps,
            prompt_tokens=totals.prompt_tokens,
            generated_tokens=totals.generated_tokens,
            speculation=self._speculation(self._ledger.counter, None, self._policy.max_draft),
            host_s=totals.host_s,
            native_s=self._native_s,
            peak_rss_bytes=peak_rss_bytes(),
        )

    def warm_up(self, *, max_s: float = 2.0) -> None:
        """Decode a few rows, so that weights are in memory and it is known what drafted rows cost."""
        started_at = time.perf_counter()
        self._time_rows(1)  # the first decode reads the weights from disk and tells nothing
        most = min(self._context.n_batch, self._context.n_ctx)
        draft, slots = 1 + self._policy.max_draft, self.info.num_slots
        sizes = sorted({min(size, most) for size in (1, draft, slots, slots * draft)})
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        for repetition in range(5):
            for size in sizes:
                seconds[size].append(self._time_rows(size))
            if repetition >= 2 and time.perf_counter() - started_at > max_s:
                break
        self._ledger.costs.calibrate(seconds)

    def _time_rows(self, num_rows: int) -> float:
        """Seconds of the target for a chain of rows in the first slot, which is left empty."""
        started_at, drafter_s = time.perf_counter(), self._drafter.native_s
        rows = list(range(num_rows))
        self._context.decode(Batch([0] * num_rows, rows, [(0,)] * num_rows, [True] * num_rows))
        took = time.perf_counter() - started_at - (self._drafter.native_s - drafter_s)
        self._context.remove(0, 0)
        return took

    def on_close(self, owned: contextlib.ExitStack) -> None:
        """Hand over what must be closed, in order, after the samplers."""
        self._owned = owned

    def close(self) -> None:
        for answer in self._answers.values():
            answer.sampler.close()
        self._answers.clear()
        self._owned.close()

    # ---- the parts of a step
    def _admit(self) -> None:
        for admission in self._scheduler.admit():
            sequence = admission.sequence
            self._cut(admission)
            sampler = self._context.sampler(sequence.request.params)
            sampler.accept(last(sequence.tokens, sequence.request.params.repeat_last_n))
            clock = Clock(self._submitted_at.pop(sequence.request.id), time.perf_counter())
            text = AnswerText(self._pieces, sequence.request.params.stop)
            self._answers[sequence.slot] = Answering(sequence, sampler, text, clock)
            self._ledger.totals.prompt_tokens += sequence.num_prompt
            self._outbox.append(Started(sequence.request.id, sequence.num_prompt, sequence.num_reused))

    def _cut(self, admission: Admission) -> None:
        if admission.is_cut:
            slot = admission.sequence.slot
            self._context.remove(slot, admission.sequence.num_reused)
            self._drafter.drop(slot, admission.num_unchanged)

    def _give_up(self, plan: StepPlan, error: ResourceError) -> list[RequestEvent]:
        """Target or drafter had no room: the requests of the step fail, their caches go, the engine lives on."""
        answers = [self._answers[s.slot] for s in sequences_of(plan)]
        for answer in answers:
            self._release(answer)
            self._forget(answer.sequence.slot)
        return [Failed(answer.request_id, error) for answer in answers]

    def _judge(self, plan: StepPlan, drafts: dict[int, Draft], decoded: Decoded) -> dict[int, Verdict]:
        """Verdicts by slot: of every draft, and of every prompt whose last row was decoded."""
        verdicts = {}
        for sequence in plan.decode:
            verdicts[sequence.slot] = self._verify(sequence, drafts[sequence.slot], decoded.rows[sequence.slot])
        for chunk in plan.prefill:
            if chunk.is_last:
                slot = chunk.sequence.slot
                verdicts[slot] = self._verify(chunk.sequence, EMPTY, decoded.rows[slot][-1:])
        return verdicts

    def _verify(self, sequence: Sequence, draft: Draft, rows: list[int]) -> Verdict:
        ignore_eos = sequence.request.params.ignore_eos
        return verify(
            draft,
            rows,
            sample=self._answers[sequence.slot].sampler.sample,
            is_end=is_never_end if ignore_eos else self._vocabulary.is_end,
            limit=sequence.num_left,
        )

    def _commit(self, plan: StepPlan, drafts: dict[int, Draft], decoded: Decoded, verdicts: dict[int, Verdict]) -> None:
        """Drop rejected cells, and show the drafter what stays."""
        kept = [self._keep_prompt(chunk, decoded) for chunk in plan.prefill]
        for sequence in plan.decode:
            kept.append(self._keep_draft(sequence, drafts[sequence.slot], decoded, verdicts[sequence.slot]))
        self._drafter.observe(kept)

    def _keep_prompt(self, chunk: Chunk, decoded: Decoded) -> Committed:
        slot, tokens = chunk.sequence.slot, chunk.tokens
        self._scheduler.cached(chunk.sequence, tokens)
        return Committed(slot, chunk.first, tokens, decoded.features(decoded.rows[slot]))

    def _keep_draft(self, sequence: Sequence, draft: Draft, decoded: Decoded, verdict: Verdict) -> Committed:
        slot, first = sequence.slot, len(sequence.tokens) - 1
        tokens = [sequence.tokens[-1], *(draft.tokens[node] for node in verdict.path)]
        rows = [decoded.rows[slot][node + 1] for node in (-1, *verdict.path)]
        if len(tokens) <= len(draft):
            self._context.remove(slot, first + len(tokens))
        self._scheduler.cached(sequence, tokens)
        return Committed(slot, first, tokens, decoded.features(rows))

    def _tell(self, verdicts: dict[int, Verdict], drafts: dict[int, Draft], times: StepTimes) -> list[RequestEvent]:
        events: list[RequestEvent] = []
        for slot, verdict in verdicts.items():
            answer = self._answers[slot]
            pieces, reason = answer.take(verdict, self._vocabulary)
            self._ledger.charge(
                answer,
                times,
                num_tokens=len(pieces),
                num_drafted=len(drafts.get(slot, EMPTY)),
                num_accepted=min(verdict.num_accepted, len(pieces)),
            )
            events.append(Tokens(answer.request_id, pieces))
            if reason is not None:
                events.append(self._finish(answer, reason))
        return events

    def _told(self, events: list[RequestEvent]) -> list[RequestEvent]:
        told, self._outbox = [*self._outbox, *events], []
        if not self._scheduler.has_work:
            self._ledger.rest()
        return told

    # ---- ends
    def _finish(self, answer: Answering, reason: str) -> Finished:
        self._release(answer)
        timings = answer.clock.timings(answer.sequence.num_emitted)
        return Finished(
            answer.request_id,
            reason,
            text=answer.text.finish(),
            prompt_tokens=answer.sequence.num_prompt,
            completion_tokens=answer.sequence.num_emitted,
            timings=timings,
            speculation=self._speculation(answer.counter, answer.speedup(timings.decode_s), self._most(answer)),
        )

    def _release(self, answer: Answering) -> None:
        answer.sampler.close()
        self._scheduler.release(answer.sequence)
        del self._answers[answer.sequence.slot]

    def _forget(self, slot: int) -> None:
        self._context.remove(slot, 0)
        self._drafter.drop(slot, 0)
        self._scheduler.forget(slot)

    def _most(self, answer: Answering) -> int:
        """Tokens that may be drafted at once for an answer: by the policy and by its request."""
        wanted = answer.sequence.request.max_draft
        return self._policy.max_draft if wanted is None else min(wanted, self._policy.max_draft)

    def _speculation(self, counter: SpeculationCounter, speedup: float | None, length: int) -> SpeculationStats:
        off = self.info.draft_reason or "switched off"
        state, reason = ("on", f"{length} tokens") if length else ("off", off)
        return counter.stats(state=state, reason=reason, speedup_estimate=speedup)

    @property
    def _native_s(self) -> float:
        return self._context.native_s + self._drafter.native_s


def sequences_of(plan: StepPlan) -> list[Sequence]:
    return [*plan.decode, *(chunk.sequence for chunk in plan.prefill)]


def last(tokens: list[int], count: int) -> list[int]:
    return tokens[-count:] if count else []


def is_never_end(token: int) -> bool:
    return False


def never_started(request_id: str) -> Finished:
    return Finished(
        request_id,
        "cancelled",
        "",
        0,
        0,
        Clock(0.0).timings(0),
        SpeculationCounter().stats(state="off", reason="cancelled before it started", speedup_estimate=None),
    )


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

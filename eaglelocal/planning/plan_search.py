"""Search for the best plan among options, for a machine and a goal, and say why the others were rejected. Pure.

A best-first search: every way to run has a bound: its score if it fitted whole with the roomiest setup. The best bound
is weighed first. If it fits at some setup, it returns to the heap with its true score; if not, it is tried with layers
in RAM or with experts in RAM, whichever is better, or rejected. The first weighed way to be popped is the best, so most
of the catalog is never weighed, and the chosen way is known to fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eaglelocal.catalog.draft_entries import NGRAM
from eaglelocal.core.byte_sizes import format_memory
from eaglelocal.core.run_options import TENSOR, RunOptions
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.gguf.hazards import graph_problem
from eaglelocal.memory.budget import RAM
from eaglelocal.memory.placement import WHOLE, Offload, explain_borrowed_output, explain_tensor_split
from eaglelocal.planning.candidate import (
    COMFORTABLE_CTX,
    GOALS,
    WORKING_CTX,
    Candidate,
    Chosen,
    Comfort,
    Rejected,
    compute_terms,
    explain_lower_score,
    explain_missing_memory,
)
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateEvaluator, CandidateMemory, fits_gpus
from eaglelocal.planning.machine_spec import MachineSpec, select_gpus
from eaglelocal.planning.options import DraftOption, ModelOption
from eaglelocal.planning.speed import expect_cells

CONTEXTS = (32768, WORKING_CTX, COMFORTABLE_CTX, 4096)  # the context sizes to try if none is given, in this order
# More is taken up to these limits where it costs nothing else: llama.cpp scans all cells in each step, and a processor
# takes too long to prefill a longer prompt.
LONGEST_CTX, LONGEST_CTX_WITHOUT_GPU = 131072, 65536
LEFT_SHARE = 0.25  # of the free RAM: what a context above WORKING_CTX leaves to other programs
KV_TYPES = ("f16", "q8_0", "q4_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """The result of a search. `rejected`: the nearest to being chosen first; `chosen`: None if nothing fits."""

    machine: MachineSpec
    options: RunOptions
    chosen: Chosen | None
    rejected: tuple[Rejected, ...]

    @property
    def nearest(self) -> Rejected | None:
        """Return the rejected way that lacks least memory, if nothing fits; else None."""
        missed = [each for each in self.rejected if each.missing_bytes is not None]
        return min(missed, key=lambda each: each.missing_bytes or 0, default=None) if self.chosen is None else None


def search_plan(
    models: Sequence[ModelOption],
    machine: MachineSpec,
    options: RunOptions,
    *,
    measured: Mapping[str, MeasuredCosts] | None = None,
) -> SearchOutcome:
    """Return the best way to run one of the candidates, and why the others were rejected.

    measured  costs of decodes measured on this machine, by the reference of an option

    Raises UsageError if the options name GPUs that the machine does not have, or contradict each other.
    """
    options.check_cache()
    search = _Search(machine, options, measured or {})
    chosen = search.run(models)
    rejected = [*search.rejected, *(search.list_outscored(chosen) if chosen else ()), *list_unusable_drafts(models)]
    return SearchOutcome(
        machine=select_gpus(machine, options), options=options, chosen=chosen, rejected=tuple(rejected)
    )


def make_evaluator(
    machine: MachineSpec, options: RunOptions, measured: Mapping[str, MeasuredCosts] | None = None
) -> CandidateEvaluator:
    """Return an evaluator for this machine. Raises UsageError if the options name GPUs that it lacks."""
    return CandidateEvaluator(
        select_gpus(machine, options),
        num_slots=options.parallel,
        measured=measured or {},
        split=options.split_mode,
        shares=options.shares,
        flash_attn=options.flash_attn,
        num_cells=expect_cells(options.ctx),
    )


def list_setups(option: ModelOption, options: RunOptions, *, on_gpu: bool = True) -> tuple[CacheSetup, ...]:
    """Return the contexts, cache types and window modes to try, roomiest first, up to the trained context.

    on_gpu  layers are computed on a GPU. A processor reads a quantized cache slowly: only the least context has it.
    """
    contexts = list_contexts(option, options, on_gpu=on_gpu)
    windows = (True, False) if option.shape.has_windows else (True,)
    last_with_choice = max(CONTEXTS) if on_gpu else contexts[-1]
    return tuple(
        CacheSetup(n_ctx=ctx, kv_type=kv_type, swa_full=whole)
        for ctx in contexts
        for kv_type in list_kv_types(options)[: 1 if ctx > last_with_choice and options.ctx is None else None]
        if not explain_graph_abort(option, options, kv_type)
        for whole in windows
    )


def list_contexts(option: ModelOption, options: RunOptions, *, on_gpu: bool) -> tuple[int, ...]:
    """Return the contexts to try, the longest first: only the user's --ctx, or from the model's own downward."""
    if options.ctx:
        return (options.ctx,)
    own = option.max_context or max(CONTEXTS)
    longest = min(own, LONGEST_CTX if on_gpu else LONGEST_CTX_WITHOUT_GPU)
    halves = (LONGEST_CTX >> count for count in range(LONGEST_CTX.bit_length()))
    return (longest, *(ctx for ctx in halves if min(CONTEXTS) <= ctx < longest))


def explain_graph_abort(option: ModelOption, options: RunOptions, kv_type: str) -> str:
    """Return the reason why llama.cpp would abort with this cache type; empty if it would not.

    Each slot counts as a cache of its own, because whether slots share one depends on the offload.
    """
    return graph_problem(option.shape.architecture, kv_type=kv_type, num_caches=options.parallel)


def list_kv_types(options: RunOptions) -> tuple[str, ...]:
    """Return the cache types to try: the user's choice or all, but only f16 where llama.cpp refuses others."""
    if options.kv_type is not None:
        return (options.kv_type,)
    return KV_TYPES[:1] if options.flash_attn == "off" or options.split_mode == TENSOR else KV_TYPES


def list_small_setups(setups: Sequence[CacheSetup]) -> Iterator[tuple[CacheSetup, ...]]:
    """Yield groups of setups to try for a target that does not fit the GPUs whole, without full-size window caches.

    First those with COMFORTABLE_CTX (or the least context), then those with the least, if the first do not fit.
    """
    contexts = {setup.n_ctx for setup in setups}
    windows = min(setup.swa_full for setup in setups)
    for n_ctx in dict.fromkeys((COMFORTABLE_CTX if COMFORTABLE_CTX in contexts else min(contexts), min(contexts))):
        yield tuple(setup for setup in setups if (setup.n_ctx, setup.swa_full) == (n_ctx, windows))


def exceeds_room(setup: CacheSetup, memory: CandidateMemory, options: RunOptions) -> bool:
    """Return whether a context takes RAM that should be left to other programs; a context that the user
    asked for may.
    """
    if options.ctx is not None or setup.n_ctx <= WORKING_CTX:
        return False
    free = {load.device: load.free_bytes for load in memory.used}.get(RAM)
    return free is not None and any(load.total > (1 - LEFT_SHARE) * free for load in memory.used if load.device == RAM)


def exceeds_trained_context(option: ModelOption, options: RunOptions) -> bool:
    """Return whether --ctx is more than the model was trained for."""
    return bool(options.ctx and option.max_context and options.ctx > option.max_context)


@dataclass(order=True, slots=True)
class _HeapEntry:
    """An entry of the heap, best score first. `order` makes ties deterministic."""

    minus_score: float
    order: int
    candidate: Candidate = field(compare=False)
    memory: CandidateMemory | None = field(compare=False, default=None)  # None: the score is a bound
    is_split: bool = field(compare=False, default=False)  # it does not fit whole: a bound with some layers in RAM


class _Search:
    def __init__(self, machine: MachineSpec, options: RunOptions, measured: Mapping[str, MeasuredCosts]) -> None:
        self._evaluator = make_evaluator(machine, options, measured)
        self._options, self._goal = options, GOALS[options.goal]
        self._heap: list[_HeapEntry] = []
        self._order = 0
        self.rejected: list[Rejected] = []

    def run(self, models: Sequence[ModelOption]) -> Chosen | None:
        """Return the best way that fits; None if none does. Adds to `rejected`."""
        too_large = [option for option in models if not self._push_bounds(option)]
        while self._heap:
            node = heapq.heappop(self._heap)
            if node.memory is not None:
                self.rejected += [self._too_large(option) for option in too_large]
                return Chosen(candidate=node.candidate, memory=node.memory)
            if node.is_split:
                self._try_split(node.candidate)
            else:
                self._try_whole(node.candidate)
        self.rejected += [self._nearest_of(option) for option in too_large]
        return None

    def list_outscored(self, chosen: Chosen) -> Iterator[Rejected]:
        """Yield the ways left in the heap as rejected: their score is lower, whether or not they fit."""
        for node in sorted(self._heap):
            candidate, is_bound = node.candidate, node.memory is None
            if candidate.option is chosen.candidate.option and candidate.draft.id == chosen.candidate.draft.id:
                continue  # a lookup of no tokens became NO_LOOKUP, the same way as none
            if is_bound and candidate.offload.is_whole and self._evaluator.lacks_gpu_bytes(candidate.option):
                candidate = self._best_bound(candidate) or candidate
            reason = self._idle_reason(candidate) or explain_lower_score(
                candidate, chosen.candidate, self._goal, is_bound=is_bound
            )
            yield Rejected(
                option=candidate.option,
                draft=candidate.draft.id,
                reason=reason,
                candidate=candidate,
                memory=node.memory,
            )

    # ---- inside
    @property
    def _may_split(self) -> bool:
        return self._evaluator.has_gpus and self._options.gpu_layers is None

    @property
    def _on_gpu(self) -> bool:
        return self._evaluator.has_gpus and self._options.gpu_layers != 0

    def _setups(self, option: ModelOption) -> tuple[CacheSetup, ...]:
        return list_setups(option, self._options, on_gpu=self._on_gpu)

    def _may_split_experts(self, option: ModelOption) -> bool:
        """Return whether experts may lie in RAM while the rest of their layers is on GPUs."""
        is_open = self._options.n_cpu_moe is None and self._options.gpu_layers != 0
        return self._evaluator.has_gpus and is_open and any(option.shape.expert_bytes)

    def _offload(self, option: ModelOption) -> Offload:
        """Return the layers that the options put on the GPUs; all if they set none."""
        if not self._evaluator.has_gpus:
            return WHOLE
        blocks, options = option.shape.n_layer + option.shape.n_layer_ahead, self._options
        layers = None if options.gpu_layers is None or options.gpu_layers > blocks else options.gpu_layers
        return Offload(layers, options.n_cpu_moe or 0)

    def _push_bounds(self, option: ModelOption) -> bool:
        """Push the bounds of an option, or reject it; return False if its weights exceed all free memory."""
        if exceeds_trained_context(option, self._options):
            reason = f"it was trained for {option.max_context} tokens, --ctx asks for {self._options.ctx}"
            self.rejected.append(Rejected(option=option, draft="", reason=reason))
            return True
        if self._options.kv_type and (problem := explain_graph_abort(option, self._options, self._options.kv_type)):
            reason = f"{problem}; --kv-type f16 goes, or --parallel 1"
            self.rejected.append(Rejected(option=option, draft="", reason=reason))
            return True
        if problem := option.shape.experts_problem(self._options.n_cpu_moe or 0):
            reason = f"{problem}, --n-cpu-moe asks for {self._options.n_cpu_moe}"
            self.rejected.append(Rejected(option=option, draft="", reason=reason))
            return True
        if self._options.split_mode == TENSOR and (problem := explain_tensor_split(option.shape)):
            self.rejected.append(Rejected(option=option, draft="", reason=f"{problem}; --split layer goes"))
            return True
        free = self._evaluator.total_free_bytes
        if free is not None and option.shape.weights_bytes > free:
            return False
        roomiest, *_ = self._setups(option)
        for draft in option.drafts:
            if self._options.split_mode == TENSOR and (problem := explain_borrowed_output(draft.shape)):
                self.rejected.append(Rejected(option=option, draft=draft.id, reason=f"{problem}; --split layer goes"))
                continue
            self._push(self._way(option, draft, roomiest, self._offload(option)))
        return True

    def _push(self, candidate: Candidate, *, memory: CandidateMemory | None = None, is_split: bool = False) -> None:
        self._order += 1
        heapq.heappush(self._heap, _HeapEntry(-candidate.score, self._order, candidate, memory, is_split))

    def _way(self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload) -> Candidate:
        prediction = self._evaluator.predict(option, draft, offload)
        return Candidate(
            option=option,
            draft=NO_LOOKUP if draft.kind == NGRAM and not prediction.num_draft_tokens else draft,
            setup=setup,
            offload=offload,
            prediction=prediction,
            terms=compute_terms(
                self._goal,
                quality_b=option.quality_b,
                age_worth=option.age.worth,
                tok_s=prediction.spec_tok_s,
                comfort=Comfort(
                    n_ctx=setup.n_ctx,
                    kv_type=setup.kv_type,
                    swa_full=setup.swa_full,
                    on_host=not offload.is_whole,
                    is_unseen=option.is_unseen,
                    is_by_name=bool(option.by_name),
                ),
            ),
        )

    def _try_whole(self, bound: Candidate) -> None:
        """Try the layers asked for, else all on the GPUs; push the best setup that fits, or a bound with RAM."""
        option, draft, offload = bound.option, bound.draft, bound.offload
        setups = self._setups(option)
        smallest = self._evaluator.estimate_memory(option, draft, setups[-1], offload)
        if smallest.fits:
            for candidate in sorted(
                (self._way(option, draft, setup, offload) for setup in setups), key=lambda candidate: -candidate.score
            ):
                memory = self._evaluator.estimate_memory(option, candidate.draft, candidate.setup, offload)
                in_ram = not (self._on_gpu and offload.is_whole)
                if memory.fits and not (in_ram and exceeds_room(candidate.setup, memory, self._options)):
                    return self._push_if_used(candidate, memory)
            raise AssertionError("the smallest setup fitted a moment ago")
        if at_best := self._best_bound(replace(bound, setup=setups[0])):
            return self._push(at_best, is_split=True)
        return self._reject(replace(bound, setup=setups[-1]), smallest)

    def _best_bound(self, whole: Candidate) -> Candidate | None:
        """Return the better bound with layers or experts in RAM; None if the options forbid both."""
        option, draft, fixed = whole.option, whole.draft, self._offload(whole.option)
        offloads = []
        if self._may_split:
            offloads.append(self._evaluator.max_gpu_layers(option, draft, fixed.n_cpu_moe))
        if self._may_split_experts(option):
            offloads.append(self._evaluator.min_cpu_experts(option, draft, fixed.gpu_layers))
        candidates = [self._way(option, draft, whole.setup, offload) for offload in offloads]
        return max(candidates, key=lambda candidate: candidate.score, default=None)

    def _try_split(self, bound: Candidate) -> None:
        """Try with a part in RAM; a small cache leaves room for more layers on the GPUs."""
        option, draft = bound.option, bound.draft
        tried = []
        for group in list_small_setups(self._setups(option)):
            split = [each for setup in group for each in self._splits(option, draft, setup)]
            found = [(candidate, memory) for candidate, memory in split if memory.fits]
            if found:
                return self._push_if_used(*max(found, key=lambda each: each[0].score))
            tried += split
        return self._reject(*min(tried, key=lambda each: each[1].worst.missing_bytes))

    def _splits(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup
    ) -> Iterator[tuple[Candidate, CandidateMemory]]:
        """Yield the way with layers in RAM, then the way with experts in RAM.

        If moving all experts is not enough, the second way has whole layers in RAM too.
        """
        evaluator, fixed = self._evaluator, self._offload(option)
        found = [evaluator.best_split(option, draft, setup, fixed.n_cpu_moe)] if self._may_split else []
        if self._may_split_experts(option):
            offload, memory = evaluator.best_experts(option, draft, setup, fixed.gpu_layers)
            if self._may_split and not fits_gpus(memory):
                offload, memory = evaluator.best_split(option, draft, setup, offload.n_cpu_moe)
            found.append((offload, memory))
        yield from ((self._way(option, draft, setup, offload), memory) for offload, memory in found)

    def _push_if_used(self, candidate: Candidate, memory: CandidateMemory) -> None:
        idle = self._idle_reason(candidate)
        if idle:
            rejected = Rejected(
                option=candidate.option, draft=candidate.draft.id, reason=idle, candidate=candidate, memory=memory
            )
            return self.rejected.append(rejected)
        return self._push(candidate, memory=memory)

    def _idle_reason(self, candidate: Candidate) -> str:
        return DOES_NOT_PAY if candidate.drafts_nothing and not self._options.names_draft else ""

    def _reject(self, candidate: Candidate, memory: CandidateMemory) -> None:
        reason = explain_missing_memory(candidate, memory)
        self.rejected.append(
            Rejected(
                option=candidate.option, draft=candidate.draft.id, reason=reason, candidate=candidate, memory=memory
            )
        )

    def _too_large(self, option: ModelOption) -> Rejected:
        free = self._evaluator.total_free_bytes or 0
        reason = f"{format_memory(option.shape.weights_bytes)} of weights, {format_memory(free)} to use in all"
        return Rejected(option=option, draft="", reason=reason)

    def _nearest_of(self, option: ModelOption) -> Rejected:
        """Evaluate a too large option where it lacks least memory, for the message that nothing fits."""
        draft, setup = option.drafts[-1], self._setups(option)[-1]
        splits = self._splits(option, draft, setup)
        candidate, memory = min(splits, key=lambda each: each[1].worst.missing_bytes, default=(None, None))
        if candidate is None or memory is None:
            candidate = self._way(option, draft, setup, self._offload(option))
            memory = self._evaluator.estimate_memory(option, draft, setup, candidate.offload)
        return replace(self._too_large(option), candidate=candidate, memory=memory)


DOES_NOT_PAY = "it is predicted not to pay: verifying costs more than is accepted"


NO_LOOKUP = DraftOption(
    id="none", kind="none", notes=("no lookup: a rejected token would cost more than a whole step",)
)


def list_unusable_drafts(models: Sequence[ModelOption]) -> Iterator[Rejected]:
    """Yield the drafts that cannot be used, once for each target."""
    seen: set[tuple[str, str]] = set()
    for option in models:
        for draft in option.unusable:
            if (option.target, draft.id) not in seen:
                seen.add((option.target, draft.id))
                yield Rejected(option=option, draft=draft.id, reason=draft.reason)

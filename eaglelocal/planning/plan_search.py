"""Search for the best plan among options, for a machine and a goal, and say why the others were rejected. Pure.

A best-first search: every way to run has a bound: its score if it fitted whole with the roomiest setup. The best bound
is weighed first. If it fits at some setup, it returns to the heap with its true score; if not, it is tried with layers
in RAM or with experts in RAM, whichever is better, or rejected. The first weighed way to be popped is the best, so most
of the catalog is never weighed, and the chosen way is known to fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from eaglelocal.catalog.draft_entries import NGRAM
from eaglelocal.core.amounts import format_memory
from eaglelocal.core.plan import PIECES
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import PLANNED_KV_TYPES, TENSOR, RunOptions
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.gguf.hazards import graph_problem
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.projector import UNSPLIT_KINDS
from eaglelocal.memory.budget import RAM
from eaglelocal.memory.cache_types import (
    check_kernels,
    explain_refused_type,
    explain_slow_kernel,
    find_missing_kernel,
)
from eaglelocal.memory.contexts import ROWS_PER_SLOT
from eaglelocal.memory.placement import WHOLE, Offload, explain_borrowed_output, explain_tensor_split
from eaglelocal.memory.tensor_moves import find_unmatched
from eaglelocal.planning.candidate import (
    COMFORTABLE_CTX,
    GOALS,
    WORKING_CTX,
    Candidate,
    Rejected,
    compute_terms,
    explain_lower_score,
    explain_missing_memory,
)
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateEvaluator, CandidateMemory
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.options import NO_DRAFT_OPTION, DraftOption, ModelOption

CONTEXTS = (32768, WORKING_CTX, COMFORTABLE_CTX, 4096)  # the context sizes to try if none is given, in this order
# More is taken up to these limits where it costs nothing else: llama.cpp scans all cells in each step, and a processor
# takes too long to prefill a longer prompt.
LONGEST_CTX, LONGEST_CTX_WITHOUT_GPU = 131072, 65536
LEFT_SHARE = 0.25  # of the free RAM: what a context above WORKING_CTX leaves to other programs
DOES_NOT_PAY = "it is predicted not to pay: verifying costs more than is accepted"
NO_LOOKUP = replace(NO_DRAFT_OPTION, notes=("no lookup: a rejected token would cost more than a whole step",))


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of a search. `rejected`: the nearest to being chosen first; `chosen`: None if nothing fits."""

    machine: MachineSpec  # with the GPUs that the options allow
    options: RunOptions
    chosen: Candidate | None
    rejected: tuple[Rejected, ...]
    with_free_memory: Candidate | None = None  # what this machine would run if no other program held memory

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
    evaluator = CandidateEvaluator(machine, options, measured)
    check_kernels(options.kv_type, options.flash_attn, evaluator.computing_devices)
    search = _Search(evaluator)
    chosen = search.run(models)
    rejected = [*search.rejected, *(search.list_outscored(chosen) if chosen else ()), *list_unusable_drafts(models)]
    return SearchOutcome(search.evaluator.machine, options, chosen, tuple(rejected))


def list_setups(option: ModelOption, options: RunOptions, devices: Sequence[str] = ()) -> tuple[CacheSetup, ...]:
    """Return the contexts, cache types and window modes to try, roomiest first, up to the trained context.

    devices  that compute: GPUs, or RAM. A processor reads a quantized cache slowly: only the least context has it.
    """
    on_gpu = RAM not in devices
    options = limit_options(options, option.shape, option.max_context)
    contexts = list_contexts(option, options, on_gpu=on_gpu)
    windows = (True, False) if option.shape.has_windows else (True,)
    last_with_choice = max(CONTEXTS) if on_gpu else contexts[-1]
    return tuple(
        CacheSetup(n_ctx=ctx, kv_type=kv_type, swa_full=whole)
        for ctx in contexts
        for kv_type in list_kv_types(options, devices)[: 1 if ctx > last_with_choice and options.ctx is None else None]
        if not explain_refused_cache(option.shape, options, kv_type)
        for whole in windows
    )


def list_small_pieces(option: ModelOption, options: RunOptions) -> tuple[int, ...]:
    """Return the pieces of a prompt, smaller than the usual, that leave room for each slot's draft and for an image."""
    if option.projector is not None and option.projector.kind in UNSPLIT_KINDS:
        return ()
    return tuple(piece for piece in PIECES[1:] if piece >= options.parallel * ROWS_PER_SLOT)


def list_contexts(option: ModelOption, options: RunOptions, *, on_gpu: bool) -> tuple[int, ...]:
    """Return the contexts to try, the longest first: only the user's --ctx, or from the model's own downward."""
    if options.ctx:
        return (options.ctx,)
    longest = min(option.max_context or max(CONTEXTS), LONGEST_CTX if on_gpu else LONGEST_CTX_WITHOUT_GPU)
    halves = (LONGEST_CTX >> count for count in range(LONGEST_CTX.bit_length()))
    return (longest, *(ctx for ctx in halves if min(CONTEXTS) <= ctx < longest))


def limit_options(options: RunOptions, shape: ModelShape, max_context: int) -> RunOptions:
    """Return the options with as much as this model can take of those that were set for every model.

    max_context  tokens that it was trained for; 0: unknown
    """
    for name, _ in options.origins:
        if name == "ctx" and options.ctx and 0 < max_context < options.ctx:
            options = replace(options, ctx=max_context)
        elif name == "kv_type" and options.kv_type and explain_refused_cache(shape, options, options.kv_type):
            options = replace(options, kv_type="f16")
        elif name == "n_cpu_moe" and options.n_cpu_moe and shape.experts_problem(options.n_cpu_moe):
            options = replace(options, n_cpu_moe=shape.n_layer if shape.expert_bytes else 0)
    return options


def explain_refused_cache(shape: ModelShape, options: RunOptions, kv_type: str) -> str:
    """Return the reason why llama.cpp would abort with this cache type, or refuse it; empty if it would not.

    Each slot counts as a cache of its own, because whether slots share one depends on the offload.
    """
    if problem := graph_problem(shape.architecture, kv_type=kv_type, num_caches=options.parallel):
        return f"{problem}; --kv-type f16 goes, or --parallel 1"
    return explain_refused_type(shape, kv_type, options.flash_attn)


def list_kv_types(options: RunOptions, devices: Sequence[str]) -> tuple[str, ...]:
    """Return the cache types to try: the user's choice or all, but only f16 where llama.cpp refuses others.

    Those for which a device has no kernel, or only a slow one, are left to the user.
    """
    if options.kv_type is not None:
        return (options.kv_type,)
    if options.flash_attn == "off" or options.split_mode == TENSOR:
        return PLANNED_KV_TYPES[:1]
    return tuple(
        kind
        for kind in PLANNED_KV_TYPES
        if not any(find_missing_kernel(kind, each) or explain_slow_kernel(kind, each) for each in devices)
    )


def list_small_setups(setups: Sequence[CacheSetup]) -> Iterator[tuple[CacheSetup, ...]]:
    """Yield groups of setups to try for a target that does not fit the GPUs whole, without full-size window caches.

    First those with COMFORTABLE_CTX (or the least context), then those with the least, if the first do not fit.
    """
    contexts = {setup.n_ctx for setup in setups}
    windows = min(setup.swa_full for setup in setups)
    for n_ctx in dict.fromkeys((COMFORTABLE_CTX if COMFORTABLE_CTX in contexts else min(contexts), min(contexts))):
        yield tuple(setup for setup in setups if (setup.n_ctx, setup.swa_full) == (n_ctx, windows))


def exceeds_room(setup: CacheSetup, memory: CandidateMemory, options: RunOptions) -> bool:
    """Return whether a context takes RAM that belongs to other programs, unless the user asked for it."""
    if options.ctx is not None or setup.n_ctx <= WORKING_CTX:
        return False
    ram = next((load for load in memory.used if load.device == RAM), None)
    return ram is not None and ram.free_bytes is not None and ram.total > (1 - LEFT_SHARE) * ram.free_bytes


def exceeds_trained_context(option: ModelOption, options: RunOptions) -> bool:
    """Return whether --ctx is more than the model was trained for."""
    ctx = limit_options(options, option.shape, option.max_context).ctx
    return bool(ctx and option.max_context and ctx > option.max_context)


def find_refusal(option: ModelOption, options: RunOptions) -> tuple[str, str]:
    """Return why a model cannot run as asked, whatever the machine, and the flag that helps; empty if it can."""
    options = limit_options(options, option.shape, option.max_context)
    if exceeds_trained_context(option, options):
        reason = f"it was trained for {option.max_context} tokens, --ctx asks for {options.ctx}"
        return reason, f"--ctx {option.max_context}"
    if options.kv_type and (problem := explain_refused_cache(option.shape, options, options.kv_type)):
        return problem, "--kv-type f16"
    if problem := option.shape.experts_problem(options.n_cpu_moe or 0):
        return f"{problem}, --n-cpu-moe asks for {options.n_cpu_moe}", "leave --n-cpu-moe out"
    if option.header is not None and (unmatched := find_unmatched(option.header.tensors.values(), options.overrides)):
        return f"--override-tensor {unmatched}: no tensor of this file has such a name", "leave --override-tensor out"
    if options.split_mode == TENSOR and (problem := explain_tensor_split(option.shape)):
        return f"{problem}; --split layer goes", ""
    return "", ""


class _Search:
    """The heap of candidates, best score first, and what was rejected of them."""

    def __init__(self, evaluator: CandidateEvaluator) -> None:
        self.evaluator = evaluator
        self._options, self._goal = evaluator.options, GOALS[evaluator.options.goal]
        self._is_tensor_split = evaluator.options.split_mode == TENSOR
        self._heap: list[tuple[float, int, Candidate]] = []  # by falling score, then in the order of being pushed
        self._num_pushed = 0
        self.rejected: list[Rejected] = []

    def run(self, models: Sequence[ModelOption]) -> Candidate | None:
        """Return the best way that fits; None if none does. Adds to `rejected`."""
        too_large = [option for option in models if not self._push_bounds(option)]
        while self._heap:
            _, _, candidate = heapq.heappop(self._heap)
            if not candidate.is_bound:
                self.rejected += [self._too_large(option) for option in too_large]
                self._weigh_other_drafts(candidate.option)
                return candidate
            self._try(candidate)
        self.rejected += [self._too_large(option, self._find_nearest(option)) for option in too_large]
        return None

    def list_outscored(self, chosen: Candidate) -> Iterator[Rejected]:
        """Yield the ways left in the heap as rejected: their score is lower, whether or not they fit."""
        for _, _, candidate in sorted(self._heap):
            if candidate.option is chosen.option and candidate.draft.id == chosen.draft.id:
                continue  # a lookup of no tokens became NO_LOOKUP, the same way as none
            if candidate.is_bound and candidate.offload.is_whole and self.evaluator.lacks_gpu_bytes(candidate.option):
                candidate = self._best_bound(candidate) or candidate
            is_idle = candidate.drafts_nothing and not self._options.names_draft
            reason = DOES_NOT_PAY if is_idle else explain_lower_score(candidate, chosen, self._goal)
            yield Rejected(candidate.option, candidate.draft.id, reason, candidate)

    # ---- inside
    def _try(self, bound: Candidate) -> None:
        """Replace a bound, which was taken from the heap, by the best way that fits, or reject it."""
        if replace(bound.offload, shares=()) == self._offload(bound.option):
            self._try_whole(bound)
        else:
            self._try_split(bound)

    def _weigh_other_drafts(self, chosen: ModelOption) -> None:
        """Weigh the other drafts of the chosen model: they are rejected with figures instead of bounds."""
        while bounds := [entry for entry in self._heap if entry[-1].is_bound and entry[-1].option is chosen]:
            self._heap = [entry for entry in self._heap if entry not in bounds]
            for _, _, bound in bounds:
                self._try(bound)

    @property
    def _may_split(self) -> bool:
        return self.evaluator.has_gpus and self._options.gpu_layers is None

    def _setups(self, option: ModelOption) -> tuple[CacheSetup, ...]:
        return list_setups(option, self._options, self.evaluator.computing_devices)

    def _may_split_experts(self, option: ModelOption) -> bool:
        """Return whether experts may lie in RAM while the rest of their layers is on GPUs."""
        return self.evaluator.may_use_gpus and self._options.n_cpu_moe is None and any(option.shape.expert_bytes)

    def _offload(self, option: ModelOption) -> Offload:
        """Return the layers that the options put on the GPUs; all if they set none."""
        if not self.evaluator.has_gpus:
            return WHOLE
        blocks, layers = option.shape.n_layer + option.shape.n_layer_ahead, self._options.gpu_layers
        experts = limit_options(self._options, option.shape, option.max_context).n_cpu_moe
        return Offload(None if layers is None or layers > blocks else layers, experts or 0)

    def _push_bounds(self, option: ModelOption) -> bool:
        """Push the bounds of an option, or reject it; return False if its weights exceed all free memory."""
        reason, _ = find_refusal(option, self._options)
        if reason:
            self.rejected.append(Rejected(option, "", reason))
            return True
        free = self.evaluator.total_free_bytes
        if free is not None and option.shape.weights_bytes > free:
            return False
        roomiest, *_ = self._setups(option)
        for draft in option.drafts:
            if self._is_tensor_split and (problem := explain_borrowed_output(draft.shape)):
                self.rejected.append(Rejected(option, draft.id, f"{problem}; --split layer goes"))
            else:
                offload = self.evaluator.divide_bound(option, self._offload(option))
                self._push(self._way(option, draft, roomiest, offload))
        return True

    def _push(self, candidate: Candidate) -> None:
        """Push a way. One that was weighed is rejected instead if its draft is predicted not to pay."""
        if candidate.drafts_nothing and not candidate.is_bound and not self._options.names_draft:
            self.rejected.append(Rejected(candidate.option, candidate.draft.id, DOES_NOT_PAY, candidate))
            return
        self._num_pushed += 1
        heapq.heappush(self._heap, (-candidate.score, self._num_pushed, candidate))

    def _way(self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload) -> Candidate:
        return self._list_ways(option, draft, [setup], offload)[0]

    def _list_ways(
        self, option: ModelOption, draft: DraftOption, setups: Sequence[CacheSetup], offload: Offload
    ) -> list[Candidate]:
        """Return a way for each setup; the predicted speed is that of all."""
        prediction = self.evaluator.predict(option, draft, offload)
        return [
            Candidate(
                option=option,
                draft=NO_LOOKUP if draft.kind == NGRAM and not prediction.num_draft_tokens else draft,
                setup=setup,
                offload=offload,
                prediction=prediction,
                terms=compute_terms(self._goal, option, setup, offload, prediction.spec_tok_s),
            )
            for setup in setups
        ]

    def _weigh(self, way: Candidate) -> Candidate:
        offload, memory = self.evaluator.divide(way.option, way.draft, way.setup, way.offload)
        divided = way if offload == way.offload else self._way(way.option, way.draft, way.setup, offload)
        return replace(divided, memory=memory)

    def _try_whole(self, bound: Candidate) -> None:
        """Try the layers asked for, else all on the GPUs; push the best setup that fits, or a bound with RAM."""
        setups = self._setups(bound.option)
        smallest = self._weigh(replace(bound, setup=setups[-1]))
        if smallest.memory.fits:
            in_ram = not (self.evaluator.may_use_gpus and bound.offload.is_whole)
            ways = self._list_ways(bound.option, bound.draft, setups, bound.offload)
            best: Candidate | None = None
            for ceiling in sorted(ways, key=lambda way: -way.score):
                if best is not None and ceiling.score <= best.score:
                    break
                way = self._weigh(ceiling)
                fits = way.memory.fits and not (in_ram and exceeds_room(way.setup, way.memory, self._options))
                if fits and (best is None or way.score > best.score):
                    best = way
            assert best is not None, "the smallest setup fitted a moment ago"
            return self._push(best)
        in_pieces, split = self._fit_in_pieces(bound), self._best_bound(replace(bound, setup=setups[0]))
        if at_best := max(filter(None, (in_pieces, split)), key=lambda way: way.score, default=None):
            return self._push(at_best)
        return self._reject(smallest)

    def _fit_in_pieces(self, bound: Candidate) -> Candidate | None:
        """Return the best way with the layers asked for, else all, on the GPUs that fits with small pieces of prompts.

        None: none fits, or no GPU computes.
        """
        option, offload = bound.option, self._offload(bound.option)
        pieces = list_small_pieces(option, self._options) if self.evaluator.may_use_gpus else ()
        setups = [replace(setup, n_batch=piece) for piece in pieces for setup in self._setups(option)]
        ways = self._list_ways(option, bound.draft, setups, offload) if setups else []
        if not ways or not self._weigh(ways[-1]).memory.fits:
            return None
        in_order = map(self._weigh, sorted(ways, key=lambda way: -way.score))
        return next(way for way in in_order if way.memory.fits)

    def _best_bound(self, whole: Candidate) -> Candidate | None:
        """Return the better bound with layers or experts in RAM; None if the options forbid both."""
        option, draft, fixed = whole.option, whole.draft, self._offload(whole.option)
        offloads = []
        if self._may_split:
            offloads.append(self.evaluator.max_gpu_layers(option, draft, fixed.n_cpu_moe))
        if self._may_split_experts(option):
            least = self.evaluator.min_cpu_experts(option, draft, fixed.gpu_layers)
            offloads.append(self.evaluator.divide_bound(option, least))
        candidates = [self._way(option, draft, whole.setup, offload) for offload in offloads]
        return max(candidates, key=lambda candidate: candidate.score, default=None)

    def _try_split(self, bound: Candidate) -> None:
        """Try with a part in RAM; a small cache, or small pieces of prompts, leave room for more layers on the GPUs."""
        tried: list[Candidate] = []
        in_pieces = self._fit_in_pieces(bound)
        for group in list_small_setups(self._setups(bound.option)):
            pieces = (PIECES[0], *list_small_pieces(bound.option, self._options))
            sized = [replace(setup, n_batch=piece) for piece in pieces for setup in group]
            split = [way for setup in sized for way in self._splits(bound.option, bound.draft, setup)]
            found = [way for way in (*split, in_pieces) if way is not None and way.memory.fits]
            if found:
                return self._push(max(found, key=lambda way: way.score))
            tried += split
        return self._reject(min(tried, key=lambda way: way.memory.worst.missing_bytes))

    def _splits(self, option: ModelOption, draft: DraftOption, setup: CacheSetup) -> Iterator[Candidate]:
        """Yield the way with layers in RAM, then the way with experts in RAM.

        If moving all experts is not enough, the second way has whole layers in RAM too.
        """
        evaluator, fixed = self.evaluator, self._offload(option)
        found = [evaluator.best_split(option, draft, setup, fixed.n_cpu_moe)] if self._may_split else []
        if self._may_split_experts(option):
            offload, memory = evaluator.best_experts(option, draft, setup, fixed.gpu_layers)
            if self._may_split and not memory.fits_gpus:
                offload, memory = evaluator.best_split(option, draft, setup, offload.n_cpu_moe)
            found.append((offload, memory))
        for offload, memory in found:
            if not self._is_slow_in_ram(setup, offload):
                yield replace(self._way(option, draft, setup, offload), memory=memory)

    def _is_slow_in_ram(self, setup: CacheSetup, offload: Offload) -> bool:
        """Return whether the processor would read the cache of layers in RAM slowly, and the user did not ask so."""
        is_asked = self._options.kv_type is not None
        return not is_asked and offload.gpu_layers is not None and bool(explain_slow_kernel(setup.kv_type, RAM))

    def _reject(self, candidate: Candidate) -> None:
        reason = explain_missing_memory(candidate)
        self.rejected.append(Rejected(candidate.option, candidate.draft.id, reason, candidate))

    def _too_large(self, option: ModelOption, nearest: Candidate | None = None) -> Rejected:
        free = self.evaluator.total_free_bytes or 0
        reason = f"{format_memory(option.shape.weights_bytes)} of weights, {format_memory(free)} to use in all"
        return Rejected(option, "", reason, nearest)

    def _find_nearest(self, option: ModelOption) -> Candidate:
        """Weigh a too large option where it lacks least memory, for the message that nothing fits."""
        draft, setup = option.drafts[-1], self._setups(option)[-1]
        splits = list(self._splits(option, draft, setup))
        if not splits:
            return self._weigh(self._way(option, draft, setup, self._offload(option)))
        return min(splits, key=lambda way: way.memory.worst.missing_bytes)


def list_unusable_drafts(models: Sequence[ModelOption]) -> Iterator[Rejected]:
    """Yield the drafts that cannot be used, once for each target."""
    seen: set[tuple[str, str]] = set()
    for option in models:
        for draft in option.unusable:
            if (option.target, draft.id) not in seen:
                seen.add((option.target, draft.id))
                yield Rejected(option, draft.id, draft.reason)

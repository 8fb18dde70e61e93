"""Weigh one way to run on one machine: its memory on each device, whether it fits, and its speed. Pure.

Combines estimate.py and speed.py, and finds how many layers the GPUs can hold if they cannot hold all, or of how many
layers the experts must stay in RAM.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from eaglelocal.catalog.draft_entries import NGRAM
from eaglelocal.core.plan import PIECES, Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import TENSOR, RunOptions
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.upper_layers import list_loaded_tensors
from eaglelocal.memory.budget import RAM, Buffer, DeviceLoad, device_load, join_devices, may_read, subtract_margins
from eaglelocal.memory.cache_bytes import list_cache_bytes
from eaglelocal.memory.contexts import plan_rollback, plan_target_context, settle_plan
from eaglelocal.memory.estimate import MemorySummary, estimate, sum_apart_bytes, sum_by_purpose
from eaglelocal.memory.placement import WHOLE, Offload, choose_gpus, place_experts, place_layers
from eaglelocal.memory.tensor_moves import TensorMove, find_moves
from eaglelocal.planning.machine_spec import MachineSpec, name_computing, select_gpus
from eaglelocal.planning.options import NO_DRAFT_OPTION, DraftOption, ModelOption
from eaglelocal.planning.speed import HALVES, MAX_DRAFT, Curve, Prediction, expect_cells, make_curve, move_work, predict

SPEED_KV_TYPE = "f16"  # a quantized cache counts as fast as f16: it saves reading, but costs unpacking
MAX_CORRECTIONS = 4  # of a division of layers; further ones change little
NO_FILE = Path()  # plans here are for sizes only


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSetup:
    """Context, cache and pieces of prompts as the planner chooses them. `swa_full`, `n_batch`: as in core/plan.py."""

    n_ctx: int
    kv_type: str
    swa_full: bool = True
    n_batch: int = PIECES[0]


@dataclass(frozen=True, slots=True)
class CandidateMemory:
    """The memory of a way to run on each device."""

    buffers: tuple[Buffer, ...]
    loads: tuple[DeviceLoad, ...]  # of each device without its margin

    @property
    def fits(self) -> bool:
        return all(load.missing_bytes <= 0 for load in self.loads)

    @property
    def fits_gpus(self) -> bool:
        return all(load.missing_bytes <= 0 for load in self.loads if load.device != RAM)

    def load_of(self, device: str) -> DeviceLoad:
        return next(load for load in self.loads if load.device == device)

    @property
    def worst(self) -> DeviceLoad:
        """Return the load of the device that lacks most."""
        return max(self.loads, key=lambda load: load.missing_bytes)

    @property
    def used(self) -> tuple[DeviceLoad, ...]:
        return tuple(load for load in self.loads if load.total)

    @property
    def sum(self) -> MemorySummary:
        return sum_by_purpose(self.buffers)

    @property
    def budget_bytes(self) -> int:
        """Return the free bytes of all used devices; memory shared with RAM counts once."""
        return sum(load.free_bytes or 0 for load in self.used if not load.in_ram)


NOT_WEIGHED = CandidateMemory((), ())


class CandidateEvaluator:
    """Computes memory and speed of options on one machine, with the GPUs that the run's options allow.

    measured   costs of decodes measured here, by the reference of an option
    num_cells  in the cache while an answer is written, on average; None: by the context that the options ask for

    Raises UsageError if the options name GPUs that the machine lacks.
    """

    def __init__(
        self,
        machine: MachineSpec,
        options: RunOptions,
        measured: Mapping[str, MeasuredCosts] | None = None,
        *,
        num_cells: int | None = None,
    ) -> None:
        self.machine = select_gpus(machine, options)
        self.options = options
        self.measured = measured or {}
        self.overrides = options.overrides
        self._split = options.split_mode
        self._shares = options.shares
        self._num_cells = num_cells or expect_cells(options.ctx)
        self._computer = join_cards(self.machine) if self._split == TENSOR else self.machine
        self._free_memory = subtract_margins(self.machine.free_memory)
        self._gpus = choose_gpus(self._free_memory, device=None, split=self._split)
        self._gpu_bytes = sum(room.free_bytes or 0 for room in self._gpus)
        self._may_divide = (
            len(self._gpus) > 1 and options.split == "layer" and all(room.free_bytes for room in self._gpus)
        )
        self._is_last_faster = bool(self._gpus) and self.machine.gpus[-1].bytes_s > self.machine.gpus[0].bytes_s
        self._are_equal = len({(gpu.bytes_s, gpu.flops, gpu.link) for gpu in self.machine.gpus}) == 1
        self.total_free_bytes = join_devices(self._free_memory).free_bytes  # None if a part is unknown
        self.has_gpus = bool(self._gpus)
        self.may_use_gpus = self.has_gpus and options.gpu_layers != 0
        self.computing_devices = name_computing(self.machine, options)

    def lacks_gpu_bytes(self, option: ModelOption) -> bool:
        """Return whether there are GPUs and even the weights alone exceed their memory."""
        shape = option.shape
        held = shape.weights_bytes - shape.embedding_bytes + shape.tied_output_bytes
        return self.has_gpus and held > self._gpu_bytes

    def estimate_memory(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload = WHOLE
    ) -> CandidateMemory:
        """Return the memory of a way to run on each device."""
        plan, free = self.make_sizing_plan(option, draft, setup, offload), self._free_memory
        tensors = self._list_tensors(option)
        buffers = estimate(plan, option.shape, draft.shape, free, option.projector, option.adapters, tensors)
        return CandidateMemory(buffers, tuple(device_load(room, buffers, free) for room in free))

    def _list_tensors(self, option: ModelOption) -> tuple[TensorInfo, ...]:
        """Return the target's tensors if the options move some, and its file is known; else none."""
        if option.header is None or not self.overrides:
            return ()
        return tuple(list_loaded_tensors(option.header, n_layer=option.shape.n_layer))

    def find_moves(self, option: ModelOption, offload: Offload = WHOLE) -> list[TensorMove]:
        """Return the tensors that the options move, as far as the model's file is known."""
        where = place_layers(option.shape, self._gpus, self._shares or offload.shares, gpu_layers=offload.gpu_layers)
        experts = place_experts(where, offload.n_cpu_moe)
        return list(find_moves(self._list_tensors(option), self.overrides, where, experts))

    def stays_mapped(self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload) -> bool:
        """Return whether weights in RAM, apart from layers on a GPU, stay pages of the file for want of memory."""
        gpus, plan = [gpu for gpu in self._gpus if not gpu.in_ram], self.make_sizing_plan(option, draft, setup, offload)
        apart_bytes = sum_apart_bytes(plan, option.shape, gpus, self._list_tensors(option)) if gpus else 0
        return bool(apart_bytes) and not may_read(apart_bytes, self.machine.host.free_bytes)

    def make_sizing_plan(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload = WHOLE
    ) -> Plan:
        """Return a plan with the sizes of a way to run, but no files."""
        plan = Plan(
            target=NO_FILE,
            target_label=option.target,
            draft_kind=draft.kind,
            n_ctx=setup.n_ctx,
            n_batch=setup.n_batch,
            kv_type=setup.kv_type,
            swa_full=setup.swa_full,
            num_slots=self.options.parallel,
            gpu_layers=offload.gpu_layers,
            n_cpu_moe=offload.n_cpu_moe,
            overrides=self.overrides,
            flash_attn=self.options.flash_attn,
            split=self._split,
            shares=self._shares or offload.shares,
        )
        return settle_plan(
            plan,
            option.shape,
            draft.shape,
            self._free_memory,
            is_quantized=option.model.arithmetic != HALVES,
            has_kernel=self.machine.has_attention_kernel,
        )

    def make_curve(self, option: ModelOption, draft: DraftOption, offload: Offload = WHOLE) -> Curve:
        """Return what decodes and draft steps cost. Costs were measured with whole layers, all on GPUs."""
        computing = self._gpus[:1] if self._split == TENSOR else self._gpus  # GPUs that compute after one another
        is_usual = offload.is_whole and not (self._shares or offload.shares or self.overrides)
        is_measured = is_usual and self._split != TENSOR
        curve = make_curve(
            option.model,
            place_layers(option.shape, computing, self._shares or offload.shares, gpu_layers=offload.gpu_layers),
            self._computer,
            draft.shape,
            n_cpu_moe=offload.n_cpu_moe,
            kv_type=SPEED_KV_TYPE,
            num_cells=self._num_cells,
            measured=self.measured.get(option.reference) if is_measured else None,
        )
        moves = self.find_moves(option, offload)
        return replace(curve, readings=move_work(curve.readings, moves, option.model, self._computer))

    def predict(self, option: ModelOption, draft: DraftOption, offload: Offload = WHOLE) -> Prediction:
        """Return the predicted speed, and the best draft length."""
        curve = self.make_curve(option, draft, offload)
        most = plan_rollback(draft.kind) if option.shape.has_state else MAX_DRAFT
        alone = predict(curve, draft.acceptance, looks_up=draft.kind == NGRAM, most=most)
        return replace(alone, together_tok_s=curve.together_tok_s(self.options.parallel))

    def max_gpu_layers(self, option: ModelOption, draft: DraftOption, n_cpu_moe: int = 0) -> Offload:
        """Return an upper bound of the layers on GPUs, less than all: by weights alone, without cache and buffers."""
        shape = option.shape
        layers = 1 + count_fitting(layer_weights(shape, n_cpu_moe), self._free_beside(shape, draft))
        return Offload(min(layers, shape.n_layer + shape.n_layer_ahead), n_cpu_moe)

    def min_cpu_experts(self, option: ModelOption, draft: DraftOption, gpu_layers: int | None) -> Offload:
        """Return a lower bound, at least 1, of the layers with experts in RAM, by weights alone."""
        shape, free = option.shape, self._free_beside(option.shape, draft)
        on_gpu = shape.n_layer if gpu_layers is None else min(max(gpu_layers - 1, 0), shape.n_layer)
        first = shape.n_layer - on_gpu
        lacking = sum(layer_weights(shape, 0)[first:]) - free
        moved = accumulate(shape.experts_of_layer(layer) * (layer >= first) for layer in range(shape.n_layer - 1))
        return Offload(gpu_layers, next((n for n, size in enumerate(moved, 1) if size >= lacking), shape.n_layer))

    def _free_beside(self, shape: ModelShape, draft: DraftOption) -> int:
        """Return the free bytes of the GPUs for layers, beside the output and the draft's weights."""
        drafting = draft.shape.weights_bytes - draft.shape.embedding_bytes if draft.shape else 0
        return self._gpu_bytes - shape.read_output_bytes - drafting

    # ---- the division of layers among several GPUs
    def divide_bound(self, option: ModelOption, offload: Offload) -> Offload:
        """Return the division that would be fastest if weights were all that takes memory."""
        if not self._is_divided(offload):
            return offload
        rooms = [(room.free_bytes or 0) for room in self._gpus]
        sizes = [*layer_weights(option.shape, offload.n_cpu_moe), option.shape.read_output_bytes]
        packed = replace(offload, shares=pack_blocks(sizes, rooms, from_last=self._is_last_faster))
        return self._find_fastest(option, NO_DRAFT_OPTION, [offload, packed])

    def divide(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload
    ) -> tuple[Offload, CandidateMemory]:
        """Return the offload with the faster division of its layers that fits, and its memory.

        The divisions: by free memory, as llama.cpp does it, and one GPU after another filled. By free memory if neither
        fits.
        """
        offload = replace(offload, shares=())
        memory = self.estimate_memory(option, draft, setup, offload)
        if not self._is_divided(offload):
            return offload, memory
        filled, filled_memory = self._fill(option, draft, setup, offload, memory)
        if not filled_memory.fits_gpus:
            return offload, memory
        if memory.fits_gpus and self._find_fastest(option, draft, [offload, filled]) is offload:
            return offload, memory
        return filled, filled_memory

    def _is_divided(self, offload: Offload) -> bool:
        """Return whether GPUs differ in speed or in what they hold, so that a division may be faster than others."""
        return self._may_divide and offload.gpu_layers is None and (bool(offload.n_cpu_moe) or not self._are_equal)

    def _find_fastest(self, option: ModelOption, draft: DraftOption, offloads: Sequence[Offload]) -> Offload:
        """Return the first of the fastest, by computed costs: measured ones do not tell divisions apart."""
        curves = {each: self.make_curve(option, draft, each) for each in dict.fromkeys(offloads)}
        return min(curves, key=lambda each: curves[each].compute_s(1) + curves[each].draft_s)

    def _fill(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload, memory: CandidateMemory
    ) -> tuple[Offload, CandidateMemory]:
        """Return the offload with one GPU after another filled, and its memory; the last to be filled may lack room.

        What else lies on a GPU depends a little on its layers, so the rooms are corrected until all fits.

        memory  with the layers divided by free memory
        """
        shape = option.shape
        sizes = plan_target_context(self.make_sizing_plan(option, draft, setup, offload), shape).sizes
        weights = layer_weights(shape, offload.n_cpu_moe)
        blocks = [sum(pair) for pair in zip(weights, list_cache_bytes(shape, sizes), strict=True)]
        blocks += [0] * shape.n_layer_ahead + [shape.read_output_bytes]
        filled = offload
        rooms = [(room.free_bytes or 0) for room in self._gpus]
        places = place_layers(shape, self._gpus, (), gpu_layers=None)
        for index, room in enumerate(self._gpus):
            laid = sum(size for size, place in zip(blocks, places, strict=True) if place == room.device)
            rooms[index] -= memory.load_of(room.device).total - laid
        for _ in range(MAX_CORRECTIONS):
            filled = replace(offload, shares=pack_blocks(blocks, rooms, from_last=self._is_last_faster))
            memory = self.estimate_memory(option, draft, setup, filled)
            if memory.fits_gpus:
                break
            missing = [max(memory.load_of(room.device).missing_bytes, 0) for room in self._gpus]
            rooms = [room - lacks for room, lacks in zip(rooms, missing, strict=True)]
        return filled, memory

    def best_split(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, n_cpu_moe: int = 0
    ) -> tuple[Offload, CandidateMemory]:
        """Return the most layers, output included, that fit on the GPUs, and the memory; RAM may lack room.

        An evaluation with only the output on the GPUs gives the bytes of everything but layers. The number of layers
        that fits beside them is a guess, which is then corrected, because several GPUs are never filled evenly.
        """
        shape, alone = option.shape, Offload(1, n_cpu_moe)
        held = sum(load.total for load in self.estimate_memory(option, draft, setup, alone).loads if load.device != RAM)
        sizes = plan_target_context(self.make_sizing_plan(option, draft, setup, alone), shape).sizes
        weights = layer_weights(shape, n_cpu_moe)
        each = [sum(pair) for pair in zip(weights, list_cache_bytes(shape, sizes), strict=True)]
        guess = 1 + count_fitting(each, self._gpu_bytes - held)

        def fits(layers: int) -> bool:
            return self.estimate_memory(option, draft, setup, Offload(layers, n_cpu_moe)).fits_gpus

        layers = guess
        while layers and not fits(layers):
            layers = max(layers - max(1, (guess - layers) // 2), 0)
        while layers <= shape.n_layer and fits(layers + 1):
            layers += 1
        chosen = Offload(layers, n_cpu_moe)
        return chosen, self.estimate_memory(option, draft, setup, chosen)

    def best_experts(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, gpu_layers: int | None
    ) -> tuple[Offload, CandidateMemory]:
        """Return the fewest layers with experts in RAM so that the rest fits the GPUs; all layers if it never fits."""
        least = self.min_cpu_experts(option, draft, gpu_layers).n_cpu_moe
        offloads = [Offload(gpu_layers, count) for count in range(least, option.shape.n_layer + 1)]

        def fits(offload: Offload) -> bool:
            memory = self.estimate_memory(option, draft, setup, offload)
            if memory.fits_gpus or not self._is_divided(offload):
                return memory.fits_gpus
            return self._fill(option, draft, setup, offload, memory)[1].fits_gpus

        chosen = offloads[min(bisect_left(offloads, True, key=fits), len(offloads) - 1)]
        return self.divide(option, draft, setup, chosen)


def join_cards(machine: MachineSpec) -> MachineSpec:
    """Join the machine's GPUs into one, as fast as all of them together if each were as fast as the slowest."""
    joined = replace(
        machine.gpus[0],
        num_cards=len(machine.gpus),
        bytes_s=min(gpu.bytes_s for gpu in machine.gpus),
        flops=min(gpu.flops for gpu in machine.gpus),
    )
    return replace(machine, gpus=(joined,))


def layer_weights(shape: ModelShape, n_cpu_moe: int) -> list[int]:
    """Return the bytes of each layer, without experts that stay in RAM."""
    return [
        shape.bytes_of_layer(layer) - (shape.experts_of_layer(layer) if layer < n_cpu_moe else 0)
        for layer in range(shape.n_layer)
    ]


def count_fitting(sizes: Sequence[int], free_bytes: int) -> int:
    """Return how many of the sizes, from the last on, fit into the free bytes."""
    return sum(1 for taken in accumulate(reversed(sizes)) if taken <= free_bytes)


def pack_blocks(sizes: Sequence[int], rooms: Sequence[int], *, from_last: bool = False) -> tuple[float, ...]:
    """Return how many consecutive blocks each device takes, if one after another takes all that it has room for.

    The last to choose takes the rest, whether or not it has room. llama.cpp divides layers by free memory: a slower
    card would hold as many as it can even where a faster one has room for all.

    from_last  the last device chooses first

    >>> pack_blocks([4, 4, 4, 1], [9, 5]), pack_blocks([4, 4, 4, 1], [9, 5], from_last=True)
    ((2.0, 2.0), (2.0, 2.0))
    """
    if from_last:
        return pack_blocks(sizes[::-1], rooms[::-1])[::-1]
    counts, start = [], 0
    for room in rooms[:-1]:
        end = start
        while end < len(sizes) and sizes[end] <= room:
            room -= sizes[end]
            end += 1
        counts.append(float(end - start))
        start = end
    return (*counts, float(len(sizes) - start))

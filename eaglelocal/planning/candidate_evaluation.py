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
from eaglelocal.core.plan import Plan, shares_cache
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import TENSOR
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.gguf.draft_pairing import branch_problem
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.memory.budget import RAM, Buffer, DeviceLoad, FreeMemory, device_load, subtract_margins
from eaglelocal.memory.cache_bytes import cache_bytes_of_layer
from eaglelocal.memory.contexts import (
    has_kernel_widths,
    plan_rollback,
    plan_target_context,
    resolve_flash_attn,
    scores_bytes,
)
from eaglelocal.memory.estimate import MemorySummary, estimate, sum_by_purpose
from eaglelocal.memory.placement import WHOLE, Offload, choose_gpus, place_layers
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.options import DraftOption, ModelOption
from eaglelocal.planning.speed import HALVES, MAX_DRAFT, TYPICAL_CELLS, Prediction, make_curve, predict, predict_length

SPEED_KV_TYPE = "f16"  # a quantized cache counts as fast as f16: it saves reading, but costs unpacking
N_BATCH = 512  # as in core/plan.py
NO_FILE = Path()  # plans here are for sizes only


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSetup:
    """Context and cache as the planner chooses them. `swa_full`: as in core/plan.py."""

    n_ctx: int
    kv_type: str
    swa_full: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateMemory:
    """The memory of a way to run on each device."""

    buffers: tuple[Buffer, ...]
    loads: tuple[DeviceLoad, ...]  # of each device without its margin

    @property
    def fits(self) -> bool:
        return all(load.missing_bytes <= 0 for load in self.loads)

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


class CandidateEvaluator:
    """Computes memory and speed of options on one machine.

    measured            costs of decodes measured here, by the reference of an option
    split, shares, flash_attn  as in core/plan.py
    num_cells           in the cache while an answer is written, on average: what speeds are predicted for
    """

    def __init__(
        self,
        machine: MachineSpec,
        *,
        num_slots: int,
        measured: Mapping[str, MeasuredCosts],
        split: str = "layer",
        shares: tuple[float, ...] = (),
        flash_attn: str = "auto",
        num_cells: int = TYPICAL_CELLS,
    ) -> None:
        self._machine = join_cards(machine) if split == TENSOR else machine
        self._split = split
        self._shares = shares
        self._flash_attn_setting = flash_attn
        self._num_cells = num_cells
        self._num_slots = num_slots
        self._measured = measured
        self.free_memory: tuple[FreeMemory, ...] = subtract_margins(machine.free_memory)
        self._gpus = choose_gpus(self.free_memory, device=None, split=split)

    @property
    def _gpu_bytes(self) -> int:
        return sum(room.free_bytes or 0 for room in self._gpus)

    @property
    def _computing(self) -> tuple[FreeMemory, ...]:
        """Return the GPUs that compute after one another."""
        return self._gpus[:1] if self._split == TENSOR else self._gpus

    def _is_measured(self, offload: Offload) -> bool:
        """Return whether measured costs apply: they were measured with whole layers, all on GPUs."""
        return offload.is_whole and self._split != TENSOR

    @property
    def has_gpus(self) -> bool:
        return bool(self._gpus)

    def lacks_gpu_bytes(self, option: ModelOption) -> bool:
        """Return whether there are GPUs and even the weights alone exceed their memory."""
        shape = option.shape
        held = shape.weights_bytes - shape.embedding_bytes + shape.tied_output_bytes
        return self.has_gpus and held > self._gpu_bytes

    @property
    def total_free_bytes(self) -> int | None:
        """Return the free bytes of all devices; None if a part is unknown."""
        free = [room.free_bytes for room in self.free_memory if not room.in_ram]
        known = [each for each in free if each is not None]
        return sum(known) if len(known) == len(free) else None

    def estimate_memory(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload = WHOLE
    ) -> CandidateMemory:
        """Return the memory of a way to run on each device."""
        plan = self.make_sizing_plan(option, draft, setup, offload)
        buffers = estimate(plan, option.shape, draft.shape, self.free_memory, option.projector, option.adapters)
        return CandidateMemory(
            buffers=buffers, loads=tuple(device_load(room, buffers, self.free_memory) for room in self.free_memory)
        )

    def predict(
        self,
        option: ModelOption,
        draft: DraftOption,
        offload: Offload = WHOLE,
        num_drafted: int | None = None,
    ) -> Prediction:
        """Return the predicted speed, and the draft length for it: `num_drafted`, or the best."""
        curve = make_curve(
            option.model,
            place_layers(option.shape, self._computing, self._shares, gpu_layers=offload.gpu_layers),
            self._machine,
            draft.shape,
            n_cpu_moe=offload.n_cpu_moe,
            kv_type=SPEED_KV_TYPE,
            num_cells=self._num_cells,
            measured=self._measured.get(option.reference) if self._is_measured(offload) else None,
        )
        most = plan_rollback(draft.kind) if option.shape.has_state else MAX_DRAFT
        if num_drafted is not None and draft.acceptance is not None:
            return predict_length(curve, draft.acceptance, num_drafted)
        alone = predict(curve, draft.acceptance, looks_up=draft.kind == NGRAM, most=most)
        return replace(alone, together_tok_s=curve.together_tok_s(self._num_slots))

    def max_gpu_layers(self, option: ModelOption, draft: DraftOption, n_cpu_moe: int = 0) -> Offload:
        """Return an upper bound of the layers on GPUs, less than all: by weights alone, without cache and buffers."""
        shape, each = option.shape, layer_weights(option.shape, n_cpu_moe)
        layers = 1 + count_fitting(each, self._free_beside(shape, draft))
        return Offload(min(layers, shape.n_layer + shape.n_layer_ahead), n_cpu_moe)

    def min_cpu_experts(self, option: ModelOption, draft: DraftOption, gpu_layers: int | None) -> Offload:
        """Return a lower bound, at least 1, of the layers with experts in RAM, by weights alone."""
        shape, free = option.shape, self._free_beside(option.shape, draft)
        on_gpu = shape.n_layer if gpu_layers is None else min(max(gpu_layers - 1, 0), shape.n_layer)
        held = (sum(layer_weights(shape, count)[shape.n_layer - on_gpu :]) for count in range(1, shape.n_layer))
        least = next((count for count, size in enumerate(held, 1) if size <= free), shape.n_layer)
        return Offload(gpu_layers, least)

    def _free_beside(self, shape: ModelShape, draft: DraftOption) -> int:
        """Return the free bytes of the GPUs for layers, beside the output and the draft's weights."""
        drafting = draft.shape.weights_bytes - draft.shape.embedding_bytes if draft.shape else 0
        return self._gpu_bytes - shape.read_output_bytes - drafting

    def best_split(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, n_cpu_moe: int = 0
    ) -> tuple[Offload, CandidateMemory]:
        """Return the most layers on the GPUs that fit, the output included, and the memory; the rest may not fit into
        RAM.

        An evaluation with only the output on the GPUs gives the bytes of everything but layers. The number of layers
        that fits beside them is a guess, which is then corrected, because several GPUs are never filled evenly.
        """
        alone = Offload(1, n_cpu_moe)
        held = sum(load.total for load in self.estimate_memory(option, draft, setup, alone).loads if load.device != RAM)
        shape, sizes = (
            option.shape,
            plan_target_context(self.make_sizing_plan(option, draft, setup, alone), option.shape).sizes,
        )
        weights = layer_weights(shape, n_cpu_moe)
        each = [size + cache_bytes_of_layer(shape, layer, sizes) for layer, size in enumerate(weights)]
        guess = replace(alone, gpu_layers=1 + count_fitting(each, self._gpu_bytes - held))
        chosen = self._correct_layers(option, draft, setup, guess)
        return chosen, self.estimate_memory(option, draft, setup, chosen)

    def _correct_layers(self, option: ModelOption, draft: DraftOption, setup: CacheSetup, guess: Offload) -> Offload:
        """Return the most layers that fit the GPUs, searched down and up from a guess."""

        def fits(layers: int) -> bool:
            return fits_gpus(self.estimate_memory(option, draft, setup, replace(guess, gpu_layers=layers)))

        guessed = layers = guess.gpu_layers or 0
        while layers and not fits(layers):
            layers -= max(1, (guessed - layers) // 2)
            layers = max(layers, 0)
        while layers <= option.shape.n_layer and fits(layers + 1):
            layers += 1
        return replace(guess, gpu_layers=layers)

    def best_experts(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, gpu_layers: int | None
    ) -> tuple[Offload, CandidateMemory]:
        """Return the fewest layers with experts in RAM so that the rest fits the GPUs; all layers if it never fits."""
        offloads = [Offload(gpu_layers, count) for count in range(1, option.shape.n_layer + 1)]

        def fits(offload: Offload) -> bool:
            return fits_gpus(self.estimate_memory(option, draft, setup, offload))

        chosen = offloads[min(bisect_left(offloads, True, key=fits), len(offloads) - 1)]
        return chosen, self.estimate_memory(option, draft, setup, chosen)

    def make_sizing_plan(
        self, option: ModelOption, draft: DraftOption, setup: CacheSetup, offload: Offload = WHOLE
    ) -> Plan:
        """Return a plan with the sizes of a way to run, but no files."""
        gpu_layers = offload.gpu_layers
        return Plan(
            target=NO_FILE,
            target_label=option.target,
            draft_kind=draft.kind,
            n_ctx=setup.n_ctx,
            num_slots=self._num_slots,
            gpu_layers=gpu_layers,
            n_cpu_moe=offload.n_cpu_moe,
            kv_type=setup.kv_type,
            flash_attn=self._flash_attn(option, setup, gpu_layers),
            unified=self._shares_cache(option, gpu_layers),
            split=self._split,
            shares=self._shares,
            swa_full=setup.swa_full,
        )

    def _flash_attn(self, option: ModelOption, setup: CacheSetup, gpu_layers: int | None) -> str:
        """Return the setting of flash attention, `auto` resolved."""
        cells = setup.n_ctx * (self._num_slots if self._shares_cache(option, gpu_layers) else 1)
        return resolve_flash_attn(
            self._flash_attn_setting,
            on_gpu=self._is_on_gpu(gpu_layers),
            kv_type=setup.kv_type,
            scores_bytes=scores_bytes(n_batch=N_BATCH, num_cells=cells, n_head=option.shape.n_head),
            has_kernel=self._machine.has_attention_kernel and has_kernel_widths(option.shape),
        )

    def _shares_cache(self, option: ModelOption, gpu_layers: int | None) -> bool:
        on_gpu = self._is_on_gpu(gpu_layers)
        is_quantized = not on_gpu and option.model.arithmetic != HALVES
        may_branch = on_gpu and not branch_problem(option.shape)
        return shares_cache(self._num_slots, on_gpu=may_branch, is_quantized=is_quantized)

    def _is_on_gpu(self, gpu_layers: int | None) -> bool:
        return self.has_gpus and gpu_layers != 0


def join_cards(machine: MachineSpec) -> MachineSpec:
    """Join the machine's GPUs into one that computes like all of them at once, each as fast as the slowest."""
    first, *_ = machine.gpus
    joined = replace(
        first,
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
    sums = accumulate(reversed(sizes))
    return sum(1 for taken in sums if taken <= free_bytes)


def fits_gpus(memory: CandidateMemory) -> bool:
    return all(load.missing_bytes <= 0 for load in memory.loads if load.device != RAM)

"""One way to run against one machine: what lies where, whether it fits, how fast it would be. Pure.

Memory is planner/memory.py's, speed is speed.py's; this file puts them together, and finds how many layers a GPU can
take where it cannot take them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from eaglelocal.backend.attention import scores_bytes, settled
from eaglelocal.backend.fit import RAM, Buffer, Load, Room, load_of
from eaglelocal.catalog.drafts import NGRAM
from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.core.plan import Plan, shares_cache
from eaglelocal.gguf.footprint import cache_bytes_of_layer
from eaglelocal.gguf.pair import branch_problem
from eaglelocal.planner.jobs import rollback_of, target_job
from eaglelocal.planner.machine import Rig
from eaglelocal.planner.memory import Sum, estimate, safe_rooms, summed
from eaglelocal.planner.options import DraftWay, Option
from eaglelocal.planner.placement import places, shares_of, used_gpus
from eaglelocal.planner.speed import MAX_DRAFT, Prediction, curve_of, predict

SPEED_KV_TYPE = "f16"  # a quantized cache is for room: what it saves in reading goes into unpacking
N_BATCH = 512  # as in core/plan.py
NO_FILE = Path()  # nothing is downloaded yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The sizes that the planner chooses. `whole_windows`: as in core/plan.py."""

    n_ctx: int
    kv_type: str
    whole_windows: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What a way to run holds on each device."""

    buffers: tuple[Buffer, ...]
    loads: tuple[Load, ...]  # of each room, less the margins

    @property
    def fits(self) -> bool:
        return all(load.missing_bytes <= 0 for load in self.loads)

    @property
    def worst(self) -> Load:
        """The room that lacks most."""
        return max(self.loads, key=lambda load: load.missing_bytes)

    @property
    def used(self) -> tuple[Load, ...]:
        return tuple(load for load in self.loads if load.total)

    @property
    def sum(self) -> Sum:
        return summed(self.buffers)

    @property
    def budget_bytes(self) -> int:
        """Of all used rooms; memory that is shared counts once."""
        return sum(load.room.free_bytes or 0 for load in self.used if not load.room.in_ram)


class Scale:
    """Weighs options for one machine and a number of slots. `shares`, `flash_attention`: as in core/plan.py."""

    def __init__(
        self,
        rig: Rig,
        *,
        num_slots: int,
        measured: Mapping[str, MeasuredCosts],
        shares: tuple[float, ...] = (),
        flash_attention: str = "auto",
    ) -> None:
        self._rig = rig
        self._shares = shares
        self._attention = flash_attention
        self._num_slots = num_slots
        self._measured = measured
        self.rooms: tuple[Room, ...] = safe_rooms(rig.rooms)
        self._gpus = used_gpus(self.rooms, device=None, split="layer")

    @property
    def _gpu_bytes(self) -> int:
        return sum(room.free_bytes or 0 for room in self._gpus)

    @property
    def has_gpus(self) -> bool:
        return bool(self._gpus)

    def lacks_gpu_bytes(self, option: Option) -> bool:
        """Are there GPUs, and not even the weights fit them?"""
        shape = option.shape
        held = shape.weights_bytes - shape.embedding_bytes + shape.tied_output_bytes
        return self.has_gpus and held > self._gpu_bytes

    @property
    def total_free_bytes(self) -> int | None:
        """Of all memory; None where a part is unknown."""
        free = [room.free_bytes for room in self.rooms if not room.in_ram]
        known = [each for each in free if each is not None]
        return sum(known) if len(known) == len(free) else None

    def weigh(self, option: Option, way: DraftWay, setup: Setup, gpu_layers: int | None) -> Weighed:
        plan = self.plan_of(option, way, setup, gpu_layers)
        buffers = estimate(plan, option.shape, way.shape, self.rooms)
        return Weighed(buffers=buffers, loads=tuple(load_of(room, buffers, self.rooms) for room in self.rooms))

    def predict(self, option: Option, way: DraftWay, gpu_layers: int | None) -> Prediction:
        where = self._where(option, gpu_layers)
        measured = self._measured.get(option.reference) if gpu_layers is None else None  # of another placement
        curve = curve_of(option.model, where, self._rig, way.shape, kv_type=SPEED_KV_TYPE, measured=measured)
        most = rollback_of(way.kind) if option.shape.has_state else MAX_DRAFT
        return predict(curve, way.acceptance, looks_up=way.kind == NGRAM, most=most)

    def layers_at_best(self, option: Option, draft: DraftWay) -> int:
        """As many layers as the GPUs could ever take: weights alone, no cache, no buffers, and not all of them."""
        shape = option.shape
        drafting = draft.shape.weights_bytes - draft.shape.embedding_bytes if draft.shape else 0
        free = self._gpu_bytes - shape.read_output_bytes - drafting
        layers = 1 + fitting([shape.bytes_of_layer(layer) for layer in range(shape.n_layer)], free)
        return min(layers, shape.n_layer + shape.n_layer_ahead)

    def best_split(self, option: Option, way: DraftWay, setup: Setup) -> tuple[int, Weighed]:
        """As many layers on the GPUs as fit there, the output counted; the rest may not fit main memory.

        With the output alone there, all that is no layer is known; the layers are counted from the last one on, and the
        count is put right, for several GPUs are never filled evenly.
        """
        held = sum(load.total for load in self.weigh(option, way, setup, 1).loads if load.room.device != RAM)
        shape, sizes = option.shape, target_job(self.plan_of(option, way, setup, 1), option.shape).sizes
        layers = range(shape.n_layer)
        each = [shape.bytes_of_layer(layer) + cache_bytes_of_layer(shape, layer, sizes) for layer in layers]
        settled = self._settled(option, way, setup, 1 + fitting(each, self._gpu_bytes - held))
        return settled, self.weigh(option, way, setup, settled)

    def _settled(self, option: Option, way: DraftWay, setup: Setup, guess: int) -> int:
        """The most layers that the GPUs hold, looked for from a guess on."""
        layers = guess
        while layers and not fits_gpus(self.weigh(option, way, setup, layers)):
            layers -= max(1, (guess - layers) // 2)
            layers = max(layers, 0)
        while layers <= option.shape.n_layer and fits_gpus(self.weigh(option, way, setup, layers + 1)):
            layers += 1
        return layers

    def plan_of(self, option: Option, way: DraftWay, setup: Setup, gpu_layers: int | None) -> Plan:
        return Plan(
            target=NO_FILE,
            target_label=option.target,
            draft_kind=way.kind,
            n_ctx=setup.n_ctx,
            num_slots=self._num_slots,
            gpu_layers=gpu_layers,
            kv_type=setup.kv_type,
            flash_attention=self._flash_attention(option, setup, gpu_layers),
            unified=self._shares_cache(option, gpu_layers),
            shares=self._shares,
            whole_windows=setup.whole_windows,
        )

    def _flash_attention(self, option: Option, setup: Setup, gpu_layers: int | None) -> str:
        """What `auto` means there."""
        cells = setup.n_ctx * (self._num_slots if self._shares_cache(option, gpu_layers) else 1)
        return settled(
            self._attention,
            on_gpu=self._is_on_gpu(gpu_layers),
            kv_type=setup.kv_type,
            scores_bytes=scores_bytes(n_batch=N_BATCH, num_cells=cells, n_head=option.shape.n_head),
        )

    def _shares_cache(self, option: Option, gpu_layers: int | None) -> bool:
        may_branch = not branch_problem(option.shape) and self._is_on_gpu(gpu_layers)
        return shares_cache(self._num_slots, on_gpu=may_branch)

    def _is_on_gpu(self, gpu_layers: int | None) -> bool:
        return self.has_gpus and gpu_layers != 0

    def _where(self, option: Option, gpu_layers: int | None) -> Sequence[str]:
        shape = option.shape
        names = [room.device for room in self._gpus]
        blocks = shape.n_layer + shape.n_layer_ahead
        return places(blocks, names, shares_of(self._gpus, self._shares), gpu_layers=gpu_layers)


def fitting(sizes: Sequence[int], free_bytes: int) -> int:
    """How many of the last ones fit."""
    sums = accumulate(reversed(sizes))
    return sum(1 for taken in sums if taken <= free_bytes)


def fits_gpus(weighed: Weighed) -> bool:
    return all(load.missing_bytes <= 0 for load in weighed.loads if load.room.device != RAM)

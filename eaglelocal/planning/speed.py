"""Predict the speed of a model before it runs, from the bytes that each device reads and the cost of more rows. Pure.

    seconds of a decode of n rows = sum over devices of   bytes read / bandwidth  (weights, experts of n tokens, cache)
                                                        + launching the kernels of its layers
                                                        + (n - 1) x arithmetic of a row

The constants are fitted to published speeds of llama.cpp; docs/measured.md says how far off they are. Kernel launches
limit small models, bandwidth large ones. If a curve for the model was measured on this machine, that is used instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import NamedTuple

from eaglelocal.catalog.catalog import CPU, CUDA, METAL, VULKAN
from eaglelocal.core.records import dataclass
from eaglelocal.core.stats import MeasuredCosts
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.upper_layers import is_input
from eaglelocal.memory.cache_bytes import row_bytes
from eaglelocal.memory.placement import place_experts
from eaglelocal.memory.tensor_moves import TensorMove
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.planning.quality import PredictedAcceptance
from eaglelocal.speculation.costs.cost_curve import interpolate_costs


class Kernels(NamedTuple):
    """The costs of launching the kernels of a kind of device.

    layer_s    a layer, in seconds; experts of a layer, which are routed, cost as much again
    within     error that 8 of 10 published speeds do not exceed, if their card was not fitted to
    recurrent  the state of a recurrent layer, in multiples of a layer
    """

    layer_s: float
    within: float
    recurrent: float = 1.0


OLDER_CUDA = "older cuda"  # an NVIDIA card before RECENT_CUDA
RECENT_CUDA = 8.9  # compute capability of Ada
# Fitted to published speeds by `tests/measures/public_speeds.py --fit`. CPU: by hand, one such machine was published.
KERNELS: Mapping[str, Kernels] = MappingProxyType(
    {
        CUDA: Kernels(35e-6, 0.15, recurrent=0.0),
        OLDER_CUDA: Kernels(56e-6, 0.2, recurrent=0.0),
        VULKAN: Kernels(54e-6, 0.27, recurrent=1.5),
        METAL: Kernels(100e-6, 0.12),
        CPU: Kernels(110e-6, 0.2, recurrent=6.0),
    }
)
UNSEEN_WITHIN = 0.3  # the same where no such device, or hardly any such split, was published. Assumed
SPLIT = "split"
EFFICIENCY = 0.86  # share of a GPU's peak bandwidth at which weights are read
ROW_SHARE = 0.18  # share of its flops reached with few rows
METAL_ROW = 0.79  # of a decode: each further row of a quantized model there; measured on an M3 Ultra
SHARED_EXPERTS = 0.8  # a further token needs this share of the experts that a randomly routed token would need
CPU_EXPERTS = 0.6  # of the bandwidth, when a CPU reads scattered experts
CROSSING_S = 60e-6  # of a layer with its experts on another device: rows go there and back, each waited for. Assumed
HOST_S, DRAFTED_HOST_S, DRAFT_HOST_S = 0.2e-3, 0.6e-3, 0.2e-3  # host time: plain step, step with a draft, draft step
ENCODE_STEPS = 0.5  # encoding the target's features, in draft steps
STATE_BYTES = 4  # of a value of a hidden state, between devices
REDUCTION_S = 15e-6  # adding up what several cards computed, twice a layer; of two published pairs
TYPICAL_CELLS = 1024  # in the cache while an answer is written, on average, if no context is asked for
# the same of a context that is asked for; published speeds of long contexts are measured with few tokens in them
FILLED_SHARE, MOST_CELLS = 0.25, 4096
MAX_DRAFT = 7  # the depth that heads are trained for; acceptance beyond it is unknown
MOST_WASTE = 2.0  # cost limit of a wholly rejected draft, in plain decodes, if its acceptance is unknown


class Arithmetic(NamedTuple):
    """The cost of computing with weights of one type on a CPU."""

    share: float  # of the CPU's flops, reached by a decode of one row
    row: float  # time of each further row, as a share of the first


HALF_BITS = 14.0  # bits per weight above which kernels are those of 16-bit types
HALVES, QUANTIZED = Arithmetic(0.8, 0.1), Arithmetic(1.0, 0.5)  # of 16-bit weights; of quantized ones
# Repacked for the CPU (backend/cpu_repack.py), or multiplied by kernels of our own (backend/native/row_products.c).
# Measured on two cores with AVX-512.
QUICKER: Mapping[str, Arithmetic] = MappingProxyType(
    {
        "Q4_0": Arithmetic(1.3, 0.15),
        "Q4_K": Arithmetic(1.7, 0.23),
        "Q5_K": Arithmetic(1.0, 0.25),
        "Q6_K": Arithmetic(1.35, 0.3),
        "Q8_0": Arithmetic(1.0, 0.3),
    }
)


def choose_arithmetic(quant: str, bits_per_weight: float) -> Arithmetic:
    if bits_per_weight > HALF_BITS:
        return HALVES
    return next((known for name, known in QUICKER.items() if name in quant.upper()), QUANTIZED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedModel:
    """A model to predict the speed of."""

    shape: ModelShape
    parameters: float
    active_parameters: float  # those that one token is multiplied with
    arithmetic: Arithmetic  # of its weights on a CPU


class Certainty(NamedTuple):
    """The error to expect of a prediction.

    within   error that 8 of 10 predictions do not exceed
    is_seen  whether speeds of such devices were published; of a split, only a few were
    device   what the prediction is for: card, machine, processor, or split (between several devices)
    """

    within: float
    is_seen: bool
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted speeds. `num_draft_tokens`: the best draft length (of a lookup: a safe one); 0: none pays."""

    plain_tok_s: float
    spec_tok_s: float
    num_draft_tokens: int
    is_measured: bool = False  # decode costs are measured; acceptance may still be reported or assumed
    together_tok_s: float | None = None  # of all slots at once, without drafts; None: one slot, or not known
    noise: float = 0.0  # of measured decodes, see MeasuredCosts
    slowdown: float = 1.0  # measured seconds of a plain decode / computed ones; 1.0 where nothing was measured
    certainty: Certainty | None = None  # of computed speeds; None: measured

    @property
    def gain(self) -> float:
        return self.spec_tok_s / self.plain_tok_s


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The work of one decode on one device."""

    device: DeviceSpec
    shared_bytes: float = 0.0  # weights that every row uses, and the cache
    expert_bytes: float = 0.0  # of the experts that one token is routed to
    num_layers: int = 0
    num_recurrent: int = 0  # of these
    num_routed: int = 0  # layers with their experts here
    num_crossings: int = 0  # layers on other devices with experts or moved tensors here
    parameters: float = 0.0  # multiplied for one token


@dataclass(frozen=True, slots=True)
class Curve:
    """The seconds of target decodes and draft steps, by number of rows."""

    readings: Sequence[DeviceWork]
    shape: ModelShape
    arithmetic: Arithmetic
    draft_s: float = 0.0  # of a draft step
    draft: ModelShape | None = None
    measured: MeasuredCosts | None = None
    _table: list[float] = field(default_factory=list)  # [rows], measured seconds of a decode; empty: computed

    def decode_s(self, num_rows: int) -> float:
        """Return the seconds of a target decode of this many rows."""
        return self._table[num_rows] if self._table else self.compute_s(num_rows)

    def compute_s(self, num_rows: int) -> float:
        """Return the predicted seconds of a decode, whether or not it was measured."""
        return sum(self._link_s(reading, num_rows) + self._device_s(reading, num_rows) for reading in self.readings)

    @property
    def max_depth(self) -> int:
        """The longest useful draft, limited by the draft model and by the depth to which acceptance is known."""
        return min(MAX_DRAFT, self.draft.max_depth) if self.draft else MAX_DRAFT

    def plain_s(self) -> float:
        """Return the seconds of a step without a draft, host time included."""
        return self.decode_s(1) + (self.measured.plain_overhead_s if self.measured else HOST_S)

    def together_tok_s(self, num_slots: int) -> float | None:
        """Return the tokens per second of this many concurrent answers without drafts; None if that was not measured.

        Caches are short beside the weights, so they count once.
        """
        if num_slots < 2 or (self._table and num_slots >= len(self._table)):
            return None
        return num_slots / (self.decode_s(num_slots) + self.plain_s() - self.decode_s(1))

    def drafted_s(self, num_drafted: int) -> float:
        """Return the seconds of a step that drafts this many tokens and verifies them."""
        rest = self.measured.drafted_overhead_s if self.measured else DRAFTED_HOST_S
        encode = ENCODE_STEPS if self.draft_s else 0.0
        block_size = self.draft.block_size if self.draft else 1
        steps = -(-num_drafted // block_size) + encode
        return self.decode_s(num_drafted + 1) + steps * self.draft_s + rest

    def _link_s(self, reading: DeviceWork, num_rows: int) -> float:
        """Return the seconds in which the rows' states reach the device's machine and come back; 0 for a local one."""
        link = reading.device.link
        if link is None or not reading.num_layers:
            return 0.0
        return 2 * (link.latency_s + num_rows * self.shape.n_embd * STATE_BYTES / link.bytes_s)

    def _device_s(self, reading: DeviceWork, num_rows: int) -> float:
        device, kernels = reading.device, find_kernels(reading.device)
        experts = reading.expert_bytes * distinct_experts(self.shape, num_rows)
        launches = reading.num_layers + reading.num_recurrent * kernels.recurrent + reading.num_routed
        starting = launches * kernels.layer_s
        if device.kind == CPU:
            crossing = reading.num_crossings * CROSSING_S
            return starting + crossing + self._cpu_s(reading, experts, num_rows)
        reading_s = (reading.shared_bytes + experts) / read_bytes_s(device)
        divided_s = (reading_s + (num_rows - 1) * self._row_s(reading)) / device.num_cards
        return divided_s + starting + (2 * reading.num_layers * REDUCTION_S if device.num_cards > 1 else 0.0)

    def _row_s(self, reading: DeviceWork) -> float:
        """Return the compute time of one more row on a GPU, without memory traffic."""
        device = reading.device
        if device.kind == METAL:
            one_s = (reading.shared_bytes + reading.expert_bytes) / read_bytes_s(device)
            return one_s * (METAL_ROW if self.arithmetic != HALVES else HALVES.row)
        return 2.0 * reading.parameters / (device.flops * ROW_SHARE)

    def _cpu_s(self, reading: DeviceWork, experts: float, num_rows: int) -> float:
        """Return the seconds by bandwidth or arithmetic, whichever is slower; with few cores, arithmetic.

        experts  bytes that all rows read of them; each further row computes with as many as the first
        """
        device = reading.device
        share, row = self.arithmetic
        if not device.has_layouts and self.arithmetic != HALVES:
            share, row = min(share, QUANTIZED.share), max(row, QUANTIZED.row)
        computing_s = 2.0 * reading.parameters / (device.flops * share)
        all_s, one_s = (
            max((reading.shared_bytes + num_bytes / CPU_EXPERTS) / device.bytes_s, computing_s)
            for num_bytes in (experts, reading.expert_bytes)
        )
        return all_s + (num_rows - 1) * row * one_s


def find_kernels(device: DeviceSpec) -> Kernels:
    return KERNELS[name_kernels(device)]


def read_bytes_s(device: DeviceSpec) -> float:
    """Return the bytes a second at which a device reads weights; the bandwidth of a CPU's memory is measured so."""
    return device.bytes_s if device.kind == CPU else device.bytes_s * EFFICIENCY


def name_kernels(device: DeviceSpec) -> str:
    """Return the key of KERNELS for a device. An NVIDIA card of unknown capability counts as recent.

    A GPU in main memory, NVIDIA's too, was as slow to launch as cards of other makers.
    """
    if device.kind == CUDA and device.shares_ram:
        return VULKAN
    is_older = device.kind == CUDA and device.capability is not None and device.capability < RECENT_CUDA
    return OLDER_CUDA if is_older else device.kind


def rate_certainty(devices: Sequence[DeviceSpec]) -> Certainty:
    """Return how sure a prediction for these devices is; each holds a part of the model."""
    first, kinds = devices[0], {(name_kernels(device), device.bytes_s, device.flops) for device in devices}
    if len(kinds) > 1 or any(device.num_cards > 1 or device.link for device in devices):
        return Certainty(UNSEEN_WITHIN, False, SPLIT)
    device = "machine" if first.shares_ram else "processor" if first.kind == CPU else "card"
    if not all(each.is_published for each in devices):
        return Certainty(UNSEEN_WITHIN, False, device)
    return Certainty(KERNELS[name_kernels(first)].within, True, device)


def distinct_experts(shape: ModelShape, num_rows: int) -> float:
    """Return how many distinct experts consecutive tokens use, in multiples of one token's.

    Assumes random routing, except that neighbours share some (SHARED_EXPERTS).
    """
    if not shape.n_expert or not shape.n_expert_used:
        return 1.0
    share = shape.n_expert_used / shape.n_expert
    return float((1.0 - (1.0 - share) ** (1 + (num_rows - 1) * SHARED_EXPERTS)) / share)


def expect_cells(asked_ctx: int | None) -> int:
    """Return the average number of cells in the cache while an answer is written.

    asked_ctx  the context that the user asked for, if any
    """
    return TYPICAL_CELLS if asked_ctx is None else min(max(int(asked_ctx * FILLED_SHARE), 1), MOST_CELLS)


def list_readings(
    model: SpeedModel, where: Sequence[str], machine: MachineSpec, *, n_cpu_moe: int = 0, kv_type: str, num_cells: int
) -> list[DeviceWork]:
    """Return the work of each device for a decode with `num_cells` cells in the cache.

    where      the device of each layer, then that of the output
    n_cpu_moe  as in placement.py
    """
    shape = model.shape
    experts = place_experts(where[: shape.n_layer], n_cpu_moe)
    used_share = shape.n_expert_used / shape.n_expert if shape.n_expert else 0.0  # that one token is routed to
    readings: list[DeviceWork] = []
    for name in dict.fromkeys((*where, *experts)):
        layers = [layer for layer in range(shape.n_layer) if where[layer] == name]
        routed = [layer for layer in range(shape.n_layer) if experts[layer] == name]
        shared = sum(shape.bytes_of_layer(layer) - shape.experts_of_layer(layer) for layer in layers)
        shared += shape.read_output_bytes if where[-1] == name else 0
        sent = used_share * sum(shape.experts_of_layer(layer) for layer in routed)
        readings.append(
            DeviceWork(
                device=machine.device(name),
                shared_bytes=shared + sum(cache_bytes(shape, layer, kv_type, num_cells) for layer in layers),
                expert_bytes=sent,
                num_layers=len(layers),
                num_recurrent=sum(1 for layer in layers if shape.layer_states[layer]),
                num_routed=sum(1 for layer in routed if shape.experts_of_layer(layer)),
                num_crossings=len([layer for layer in routed if where[layer] != name]),
                parameters=model.active_parameters * (shared + sent) / max(shape.active_bytes, 1),
            )
        )
    return readings


def move_work(
    readings: Sequence[DeviceWork], moves: Sequence[TensorMove], model: SpeedModel, machine: MachineSpec
) -> list[DeviceWork]:
    """Return the work of each device after some tensors moved. Embeddings are looked up, so they are no work.

    The rows of a layer go once to each device that holds a moved tensor of it.
    """
    works, shape = {work.device.name: work for work in readings}, model.shape
    experts: set[tuple[int | None, str, str]] = set()
    crossings: set[tuple[int | None, str]] = set()
    for move in (move for move in moves if not is_input(move.tensor.name)):
        num_bytes = move.tensor.nbytes * (shape.n_expert_used / shape.n_expert if move.is_expert else 1.0)
        experts |= {(move.layer, move.source, move.device)} if move.is_expert else set()
        crossings.add((move.layer, move.device))
        for name, change in ((move.source, -num_bytes), (move.device, num_bytes)):
            work = works.get(name) or DeviceWork(device=machine.device(name))
            works[name] = replace(
                work,
                expert_bytes=max(work.expert_bytes + (change if move.is_expert else 0.0), 0.0),
                shared_bytes=max(work.shared_bytes + (0.0 if move.is_expert else change), 0.0),
                parameters=work.parameters + model.active_parameters * change / max(shape.active_bytes, 1),
            )
    for _, source, device in experts:
        works[source] = replace(works[source], num_routed=max(works[source].num_routed - 1, 0))
        works[device] = replace(works[device], num_routed=works[device].num_routed + 1)
    for _, device in crossings:
        works[device] = replace(works[device], num_crossings=works[device].num_crossings + 1)
    return list(works.values())


def cache_bytes(shape: ModelShape, layer: int, kv_type: str, num_cells: int) -> int:
    """Return the bytes of a layer's cache that a row reads after this many tokens, recurrent state included."""
    window = shape.windows[layer]
    cells = num_cells if window is None else min(num_cells, window)
    keys, values = shape.key_width(layer), shape.value_width(layer)
    kept = cells * (row_bytes(kv_type, keys) + row_bytes(kv_type, values)) if keys else 0
    if shape.compressions and shape.compressions[layer][0]:
        ratio, width = shape.compressions[layer]
        kept += num_cells // ratio * row_bytes(kv_type, width)
    return kept + shape.layer_states[layer]


def draft_step_s(draft: ModelShape, device: DeviceSpec) -> float:
    """Return the seconds of a draft step of one slot: one token, or all tokens of a block head."""
    launching_s = (draft.n_layer + 1) * find_kernels(device).layer_s
    return draft.active_bytes / read_bytes_s(device) + launching_s + DRAFT_HOST_S


def make_curve(
    model: SpeedModel,
    where: Sequence[str],
    machine: MachineSpec,
    draft: ModelShape | None,
    *,
    n_cpu_moe: int = 0,
    kv_type: str,
    num_cells: int = TYPICAL_CELLS,
    measured: MeasuredCosts | None,
) -> Curve:
    """Return the cost curve of a model and its draft: measured on this machine if it was, else computed."""
    device = machine.device(where[-1])  # the draft lies on the device of the output
    draft_s = draft_step_s(draft, device) if draft else 0.0
    readings = list_readings(model, where, machine, n_cpu_moe=n_cpu_moe, kv_type=kv_type, num_cells=num_cells)
    if measured is None or not measured.decodes:
        return Curve(readings, model.shape, model.arithmetic, draft_s, draft)
    steps = [cost.seconds for _, cost in measured.draft_steps if cost.num_rows == 1]
    table = interpolate_costs({cost.num_rows: cost.seconds for cost in measured.decodes}, MAX_DRAFT + 1)
    draft_s = max(steps) if steps and draft else draft_s
    return Curve(readings, model.shape, model.arithmetic, draft_s, draft, measured, table)


def predict(
    curve: Curve, acceptance: PredictedAcceptance | None, *, looks_up: bool = False, most: int = MAX_DRAFT
) -> Prediction:
    """Return the speeds, with the draft length up to `most` that gives the most tokens/s.

    All lengths are tried, because measured curves have steps. The acceptance of a lookup depends on the text, so no
    gain is predicted for it, and its length is one that costs at most MOST_WASTE if rejected.
    """
    plain = 1.0 / curve.plain_s()
    best, length = plain, 0
    if acceptance is None and looks_up:
        length = max(k for k in range(most + 1) if curve.decode_s(k + 1) <= MOST_WASTE * curve.decode_s(1))
    if acceptance is not None:
        for num_drafted in range(1, min(most, curve.max_depth) + 1):
            speed = acceptance.tokens(num_drafted) / curve.drafted_s(num_drafted)
            if speed > best:
                best, length = speed, num_drafted
    return Prediction(
        plain_tok_s=plain,
        spec_tok_s=best,
        num_draft_tokens=length,
        is_measured=curve.measured is not None,
        noise=curve.measured.noise if curve.measured else 0.0,
        slowdown=curve.decode_s(1) / curve.compute_s(1) if curve.measured else 1.0,
        certainty=None if curve.measured else rate_certainty([reading.device for reading in curve.readings]),
    )

"""How fast a model answers, before it ever ran: what one token makes each device read, and what more rows add. Pure.

    a decode of n rows = sum over devices of   bytes read / bandwidth          (weights, experts of n tokens, cache)
                                             + layers x starting their kernels
                                             + (n - 1) x arithmetic of a row

The constants are fitted to published speeds of llama.cpp: RTX A6000 with Llama-3 8B and 70B Q4_K_M (102 and 14.6
tokens/s), M3 Max and M2 Ultra with the same (50.7 and 7.5, 76 and 12), DDR4-3200 with 8B Q4 (6 to 10); other cards of
that table come out within a quarter, data centre cards too fast by up to a third. Small models are decided by kernels,
large ones by bandwidth. Where this machine has measured its own curve for the model, that curve is used instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from eaglelocal.catalog.machines import CPU, CUDA, METAL
from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.gguf.footprint import row_bytes
from eaglelocal.gguf.shape import Shape
from eaglelocal.planner.acceptance import Acceptance
from eaglelocal.planner.machine import Device, Rig
from eaglelocal.planner.placement import expert_places
from eaglelocal.speculation.cost_curve import lines

EFFICIENCY: Mapping[str, float] = MappingProxyType({CUDA: 0.88, METAL: 0.75, CPU: 1.0})  # of a device's bytes_s
CPU_EXPERTS = 0.6  # of the bandwidth, where a processor hops from expert to expert
LAYER_S: Mapping[str, float] = MappingProxyType({CUDA: 90e-6, METAL: 200e-6, CPU: 20e-6})  # starting a layer's kernels
CROSSING_S = 60e-6  # of a layer whose experts lie elsewhere: its rows go there and back, each waited for. Not measured
ROW_SHARE: Mapping[str, float] = MappingProxyType({CUDA: 0.15, METAL: 0.35})  # of the flops, that few rows reach
HOST_S, DRAFTED_HOST_S, DRAFT_HOST_S = 0.2e-3, 0.6e-3, 0.2e-3  # of a step, of one with a draft, of a draft step
ENCODE_STEPS = 0.5  # taking the features in, as a share of a draft step
TYPICAL_CELLS = 1024  # behind which an answer is written, on average
MAX_DRAFT = 7  # heads are trained so deep; nothing is known of what lies beyond
MOST_WASTE = 2.0  # that a draft which is rejected whole may cost, where nobody knows how often that happens


class Arithmetic(NamedTuple):
    """What weights of a type ask of a processor."""

    share: float  # of its flops, that a decode of one row reaches
    row: float  # of such a decode, that a further row adds


HALF_BITS = 14.0  # of a weight, above which kernels are those of 16 bits
HALVES, QUANTIZED = Arithmetic(0.8, 0.1), Arithmetic(1.0, 0.5)  # measured: 0.75 to 0.83 of q8_0's
# In a layout for the processor (backend/layouts.py) or, Q6_K, by better kernels. Measured on two cores with AVX-512.
QUICKER: Mapping[str, Arithmetic] = MappingProxyType(
    {"Q4_0": Arithmetic(1.3, 0.15), "Q4_K": Arithmetic(1.7, 0.2), "Q6_K": Arithmetic(1.35, 0.3)}
)


def arithmetic_of(quant: str, bits_per_weight: float) -> Arithmetic:
    if bits_per_weight > HALF_BITS:
        return HALVES
    return next((known for name, known in QUICKER.items() if name in quant.upper()), QUANTIZED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is to be run."""

    shape: Shape
    parameters: float
    active_parameters: float  # that one token is multiplied with
    arithmetic: Arithmetic  # of its weights on a processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """`num_draft_tokens`: the length that pays most (of a lookup: that is safe); 0: none pays."""

    plain_tok_s: float
    spec_tok_s: float
    num_draft_tokens: int
    is_measured: bool = False  # the curve; acceptance may still be what was reported

    @property
    def gain(self) -> float:
        return self.spec_tok_s / self.plain_tok_s


@dataclass(frozen=True, slots=True)
class Reading:
    """What a decode asks of one device."""

    device: Device
    shared_bytes: float = 0.0  # weights that every row uses, and the cache
    expert_bytes: float = 0.0  # of the experts that one token is sent to
    num_layers: int = 0
    num_crossings: int = 0  # layers elsewhere, of which the experts are read here
    parameters: float = 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of target decodes and draft steps."""

    readings: Sequence[Reading]
    shape: Shape
    arithmetic: Arithmetic
    draft_s: float = 0.0
    at_once: int = 1  # tokens of a draft step
    measured: MeasuredCosts | None = None
    _table: list[float] = field(default_factory=list)  # [rows], of what was measured

    def decode_s(self, num_rows: int) -> float:
        if self._table:
            return self._table[num_rows]
        return sum(self._device_s(reading, num_rows) for reading in self.readings)

    def plain_s(self) -> float:
        return self.decode_s(1) + (self.measured.plain_overhead_s if self.measured else HOST_S)

    def drafted_s(self, num_drafted: int) -> float:
        """A step that drafts so many tokens and verifies them."""
        rest = self.measured.drafted_overhead_s if self.measured else DRAFTED_HOST_S
        encode = ENCODE_STEPS if self.draft_s else 0.0
        steps = -(-num_drafted // self.at_once) + encode
        return self.decode_s(num_drafted + 1) + steps * self.draft_s + rest

    def _device_s(self, reading: Reading, num_rows: int) -> float:
        device = reading.device
        experts = reading.expert_bytes * distinct_experts(self.shape, num_rows)
        bytes_s = device.bytes_s * EFFICIENCY[device.kind]
        if device.kind == CPU:
            crossing = reading.num_crossings * CROSSING_S
            return crossing + self._cpu_s(reading, reading.shared_bytes + experts / CPU_EXPERTS, num_rows)
        row_s = 2.0 * reading.parameters / (device.flops * ROW_SHARE[device.kind])
        starting = reading.num_layers * LAYER_S[device.kind]
        return (reading.shared_bytes + experts) / bytes_s + starting + (num_rows - 1) * row_s

    def _cpu_s(self, reading: Reading, num_bytes: float, num_rows: int) -> float:
        """Bandwidth or arithmetic, whichever is slower; where there are few cores that is arithmetic."""
        device = reading.device
        share, row = self.arithmetic if device.has_layouts else (min(self.arithmetic.share, 1.0), self.arithmetic.row)
        one_s = max(num_bytes / (device.bytes_s * EFFICIENCY[CPU]), 2.0 * reading.parameters / (device.flops * share))
        return one_s * (1.0 + (num_rows - 1) * row) + reading.num_layers * LAYER_S[CPU]


def distinct_experts(shape: Shape, num_rows: int) -> float:
    """Experts that so many tokens are sent to together, as a multiple of those of one; chosen as if at random."""
    if not shape.n_expert or not shape.n_expert_used:
        return 1.0
    share = shape.n_expert_used / shape.n_expert
    return float((1.0 - (1.0 - share) ** num_rows) / share)


def readings_of(
    model: Model, where: Sequence[str], rig: Rig, *, n_cpu_moe: int = 0, kv_type: str, num_cells: int
) -> list[Reading]:
    """`where`: the device of each layer, and behind them that of the output. `n_cpu_moe`: as in placement.py."""
    shape = model.shape
    experts = expert_places(where[: shape.n_layer], n_cpu_moe)
    readings: list[Reading] = []
    for name in dict.fromkeys((*where, *experts)):
        layers = [layer for layer in range(shape.n_layer) if where[layer] == name]
        routed = [layer for layer in range(shape.n_layer) if experts[layer] == name]
        shared = sum(shape.bytes_of_layer(layer) - shape.experts_of_layer(layer) for layer in layers)
        shared += shape.read_output_bytes if where[-1] == name else 0
        sent = used_share(shape) * sum(shape.experts_of_layer(layer) for layer in routed)
        readings.append(
            Reading(
                device=rig.device(name),
                shared_bytes=shared + sum(cache_bytes(shape, layer, kv_type, num_cells) for layer in layers),
                expert_bytes=sent,
                num_layers=len(layers),
                num_crossings=len([layer for layer in routed if where[layer] != name]),
                parameters=model.active_parameters * (shared + sent) / max(shape.active_bytes, 1),
            )
        )
    return readings


def used_share(shape: Shape) -> float:
    """Of the experts, those that one token is sent to."""
    return shape.n_expert_used / shape.n_expert if shape.n_expert else 0.0


def cache_bytes(shape: Shape, layer: int, kv_type: str, num_cells: int) -> int:
    """That a row reads behind so many tokens, recurrent state included."""
    window = shape.windows[layer]
    cells = num_cells if window is None else min(num_cells, window)
    keys, values = shape.key_width(layer), shape.value_width(layer)
    kept = cells * (row_bytes(kv_type, keys) + row_bytes(kv_type, values)) if keys else 0
    return kept + shape.layer_states[layer]


def draft_step_s(draft: Shape, device: Device) -> float:
    """Of one slot: a token, or as many as come at once."""
    bytes_s = device.bytes_s * EFFICIENCY[device.kind]
    return draft.active_bytes / bytes_s + (draft.n_layer + 1) * LAYER_S[device.kind] + DRAFT_HOST_S


def curve_of(
    model: Model,
    where: Sequence[str],
    rig: Rig,
    draft: Shape | None,
    *,
    n_cpu_moe: int = 0,
    kv_type: str,
    measured: MeasuredCosts | None,
) -> Curve:
    """Computed, or as it was measured on this machine."""
    device = rig.device(where[-1])  # without any layer on a GPU the draft has none there either
    draft_s, at_once = (draft_step_s(draft, device), draft.at_once) if draft else (0.0, 1)
    readings = readings_of(model, where, rig, n_cpu_moe=n_cpu_moe, kv_type=kv_type, num_cells=TYPICAL_CELLS)
    if measured is None or not measured.decodes:
        return Curve(readings, model.shape, model.arithmetic, draft_s, at_once)
    steps = [cost.seconds for _, cost in measured.draft_steps if cost.num_rows == 1]
    table = lines({cost.num_rows: cost.seconds for cost in measured.decodes}, MAX_DRAFT + 1)
    draft_s = max(steps) if steps and draft else draft_s
    return Curve(readings, model.shape, model.arithmetic, draft_s, at_once, measured, table)


def predict(
    curve: Curve, acceptance: Acceptance | None, *, looks_up: bool = False, most: int = MAX_DRAFT
) -> Prediction:
    """The length up to `most` with the most tokens a second, over all of them: curves are steps.

    Of a lookup nothing is known before there is a text: no gain is counted on, and the length is what is safe.
    """
    plain = 1.0 / curve.plain_s()
    best, length = plain, 0
    if acceptance is None and looks_up:
        length = max(k for k in range(most + 1) if curve.decode_s(k + 1) <= MOST_WASTE * curve.decode_s(1))
    if curve.at_once > 1:
        most = min(most, curve.at_once)
    if acceptance is not None:
        for num_drafted in range(1, most + 1):
            speed = acceptance.tokens(num_drafted) / curve.drafted_s(num_drafted)
            if speed > best:
                best, length = speed, num_drafted
    return Prediction(
        plain_tok_s=plain, spec_tok_s=best, num_draft_tokens=length, is_measured=curve.measured is not None
    )

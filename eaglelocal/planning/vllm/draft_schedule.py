"""Choose the number of draft tokens for each number of running sequences, by predicted goodput. Pure.

The costs are those of planning/speed.py, the acceptance that of planning/predicted_acceptance.py; a step of b sequences
with k draft tokens each is

    seconds = decode of b (k + 1) rows  +  reading the caches of the other b - 1 sequences
            + passes of the draft, each of b rows                 tokens = b E(k)

A further row costs what it costs in llama.cpp's kernels, to which the constants were fitted. vLLM's are faster with
many rows, so the schedule stops drafting at fewer sequences than vLLM could draft for.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.catalog.known_machines import CPU
from eaglelocal.core.records import dataclass
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.planning.speed import (
    DRAFT_HOST_S,
    DRAFTED_HOST_S,
    HALVES,
    HOST_S,
    MOST_WASTE,
    TYPICAL_CELLS,
    Curve,
    find_kernels,
    make_curve,
)
from eaglelocal.planning.vllm.served_pair import BYTES_PER_WEIGHT, KV_TYPE, VllmDraft, VllmTarget

Range = tuple[int, int, int]  # first and last number of sequences, draft tokens of each


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """The seconds of a step, by sequences and draft tokens of each."""

    curve: Curve
    device: DeviceSpec
    cache_s: float  # reading the cache of one sequence
    draft: VllmDraft

    def step_s(self, num_sequences: int, num_drafted: int) -> float:
        """Return the seconds of a step. `num_drafted`: tokens drafted for each sequence; 0: a plain step."""
        decode_s = self.curve.decode_s(num_sequences * (num_drafted + 1)) + (num_sequences - 1) * self.cache_s
        if not num_drafted:
            return decode_s + HOST_S
        return decode_s + DRAFTED_HOST_S + self._draft_s(num_sequences, num_drafted)

    def _draft_s(self, num_sequences: int, num_drafted: int) -> float:
        """Return the seconds of all passes of the draft."""
        if not self.draft.num_bytes:
            return 0.0
        if self.draft.drafts_in_one_pass:
            return self._pass_s(num_sequences * num_drafted)
        return num_drafted * self._pass_s(num_sequences)

    def _pass_s(self, num_rows: int) -> float:
        kernels = find_kernels(self.device)
        read_s = self.draft.num_bytes / (self.device.bytes_s * kernels.efficiency)
        starting = (self.draft.num_layers + 1) * kernels.layer_s + DRAFT_HOST_S
        if self.device.kind == CPU:
            return starting + read_s * (1.0 + (num_rows - 1) * HALVES.row)
        row_s = 2.0 * self.draft.num_bytes / BYTES_PER_WEIGHT / (self.device.flops * kernels.row_share)
        return starting + read_s + (num_rows - 1) * row_s

    def goodput(self, num_sequences: int, num_drafted: int) -> float:
        """Return the expected tokens a second of all sequences together."""
        acceptance = self.draft.acceptance
        tokens = acceptance.tokens(num_drafted) if acceptance is not None else 1.0
        return num_sequences * tokens / self.step_s(num_sequences, num_drafted)


def make_batch_costs(target: VllmTarget, draft: VllmDraft, device: DeviceSpec) -> BatchCosts:
    """Return the costs of a pair on one device, which may stand for several cards that share each layer."""
    where = [device.name] * (target.shape.n_layer + 1)
    alone = MachineSpec(name=device.label, host=device)
    curve = make_curve(target.model, where, alone, None, kv_type=KV_TYPE, num_cells=TYPICAL_CELLS, measured=None)
    bytes_s = device.bytes_s * find_kernels(device).efficiency
    return BatchCosts(curve, device, target.cache_bytes(TYPICAL_CELLS) / bytes_s, draft)


def choose_draft_length(costs: BatchCosts, num_sequences: int, most: int) -> int:
    """Return the number of draft tokens with the best goodput, at most `most`; 0: plain steps are best.

    A lookup's acceptance depends on the text: the longest draft that costs at most MOST_WASTE plain steps if rejected.
    """
    lengths = range(most + 1)
    if costs.draft.acceptance is None:
        plain_s = costs.step_s(num_sequences, 0)
        return max(k for k in lengths if k == 0 or costs.step_s(num_sequences, k) <= MOST_WASTE * plain_s)
    return max(lengths, key=lambda k: (costs.goodput(num_sequences, k), -k))


def make_schedule(costs: BatchCosts, max_num_seqs: int) -> tuple[Range, ...]:
    """Return ranges of sequences with their draft length, from 1 to `max_num_seqs`; never longer for more sequences.

    >>> merge_lengths([5, 5, 3, 0, 0])
    ((1, 2, 5), (3, 3, 3), (4, 5, 0))
    """
    lengths: list[int] = []
    for num_sequences in range(1, max_num_seqs + 1):
        most = lengths[-1] if lengths else costs.draft.most
        lengths.append(choose_draft_length(costs, num_sequences, most) if most else 0)
    return merge_lengths(lengths)


def merge_lengths(lengths: Sequence[int]) -> tuple[Range, ...]:
    """Return the ranges of equal lengths. `lengths`: of 1, 2, ... sequences."""
    ranges: list[Range] = []
    for count, length in enumerate(lengths, 1):
        if ranges and ranges[-1][2] == length:
            ranges[-1] = (ranges[-1][0], count, length)
        else:
            ranges.append((count, count, length))
    return tuple(ranges)

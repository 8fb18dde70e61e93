"""Define a target and its draft as vLLM loads them: their costs, and what fits a card. Pure.

vLLM loads the original weights, in 16 bits or in the native type of the model, not a GGUF. So sizes here are those of a
plan's shapes, widened. vLLM gives all sequences one pool of pages: the pool must hold one sequence of the whole
context, and all of them at the length that conversations have on average (FILLED_SHARE of the context).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from eaglelocal.catalog.catalog import CPU, CUDA
from eaglelocal.core.amounts import GIB, format_memory
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.planning.no_fit_hints import most_that
from eaglelocal.planning.quality import PredictedAcceptance
from eaglelocal.planning.speed import (
    DRAFT_HOST_S,
    DRAFTED_HOST_S,
    FILLED_SHARE,
    HALVES,
    HOST_S,
    MOST_WASTE,
    ROW_SHARE,
    TYPICAL_CELLS,
    Curve,
    SpeedModel,
    cache_bytes,
    find_kernels,
    make_curve,
    read_bytes_s,
)

KV_TYPE = "f16"  # as many bytes as vLLM's bfloat16
BYTES_PER_WEIGHT = 2
EAGLE3, PEAGLE, DRAFT_MODEL, MTP = "eagle3", "peagle", "draft_model", "mtp"
DFLASH, DSPARK, MEDUSA, NGRAM, SUFFIX = "dflash", "dspark", "medusa", "ngram", "suffix"
REPO_METHODS = (EAGLE3, PEAGLE, DRAFT_MODEL, DFLASH, DSPARK, MEDUSA, MTP)  # with weights in a repository
METHODS = (*REPO_METHODS, NGRAM, SUFFIX)
IN_ONE_PASS = (PEAGLE, DFLASH, DSPARK, MEDUSA)


def names_folder(repo: str) -> bool:
    """Return whether a text names a folder on disk; any other text is a repository."""
    return repo.startswith(("/", "./", "../", "~"))


@dataclass(frozen=True, slots=True)
class WeightsPin:
    """A repository at a commit. `revision`: empty for a folder on disk, which has none."""

    repo: str
    revision: str = ""

    @property
    def is_folder(self) -> bool:
        return not self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmTarget:
    """A target for vLLM. `id`: as the catalog or a person calls it."""

    id: str
    pin: WeightsPin
    model: SpeedModel
    max_context: int
    is_gated: bool = False

    @property
    def shape(self) -> ModelShape:
        return self.model.shape

    def cache_bytes(self, num_tokens: int) -> int:
        """Return the bytes of keys and values of a sequence of this many tokens, recurrent states included."""
        layers = range(self.shape.n_layer)
        return sum(cache_bytes(self.shape, layer, KV_TYPE, num_tokens) for layer in layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmDraft:
    """A draft for vLLM.

    pin           None: it has no weights, or those of the target
    most          tokens that a draft may have
    num_bytes     of its weights
    acceptance    None: it depends on the text
    head_file     a head of this machine, which must be exported into the folder of `pin`
    shares_vocab  False: its vocabulary has another size than the target's, or an unknown one
    """

    id: str
    method: str  # one of METHODS
    pin: WeightsPin | None = None
    most: int
    num_bytes: int = 0
    num_layers: int = 0
    kv_bytes_per_token: int = 0
    acceptance: PredictedAcceptance | None = None
    head_file: Path | None = None
    is_gated: bool = False
    shares_vocab: bool = True

    @property
    def drafts_in_one_pass(self) -> bool:
        return self.method in IN_ONE_PASS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPair:
    """A target with its draft. `draft`: None drafts nothing. `is_named`: a person named it, so that it must draft."""

    target: VllmTarget
    draft: VllmDraft | None
    is_named: bool = False
    notes: tuple[str, ...] = ()


# bits of a weight in the layers, with scales, by what the names of quantized repositories say; the rest keeps 16
QUANTIZED = {
    4.5: re.compile(r"awq|gptq|w4a16|int4|4-?bit|nvfp4|mxfp4", re.IGNORECASE),
    8.1: re.compile(r"fp8|w8a8|w8a16|int8|8-?bit", re.IGNORECASE),
}


def find_weight_bits(repo: str) -> float:
    """Return the bits of a weight in a repository's layers, by its name; 16 where that says nothing.

    >>> find_weight_bits("Qwen/Qwen3-8B-AWQ"), find_weight_bits("Qwen/Qwen3-8B")
    (4.5, 16.0)
    """
    name = repo.rpartition("/")[2]
    return next((bits for bits, pattern in QUANTIZED.items() if pattern.search(name)), 16.0)


def widen_model(model: SpeedModel, *, is_native: bool, bits: float = 16.0) -> SpeedModel:
    """Return the model with the bytes of its original weights.

    is_native  they are as small as in the GGUF
    bits       of a weight in the layers; embeddings and output have 16
    """
    shape = model.shape
    if is_native:
        return model
    factor = BYTES_PER_WEIGHT * model.parameters / max(shape.weights_bytes, 1)
    inner, outside = factor * bits / 16, shape.embedding_bytes + shape.output_bytes
    read_outside = shape.output_bytes + shape.tied_output_bytes
    wide = replace(
        shape,
        weights_bytes=int(outside * factor + (shape.weights_bytes - outside) * inner),
        embedding_bytes=int(shape.embedding_bytes * factor),
        tied_output_bytes=int(shape.tied_output_bytes * factor),
        output_bytes=int(shape.output_bytes * factor),
        active_bytes=int(read_outside * factor + (shape.active_bytes - read_outside) * inner),
        layer_bytes=tuple(int(each * inner) for each in shape.layer_bytes),
        expert_bytes=tuple(int(each * inner) for each in shape.expert_bytes),
    )
    return replace(model, shape=wide, arithmetic=HALVES)


# ---- draft schedule: choose the number of draft tokens for each number of running sequences, by predicted goodput.
# Pure
#
# The costs are those of planning/speed.py, the acceptance that of planning/quality.py; a step of b sequences with k
# draft tokens each is
#
# seconds = decode of b (k + 1) rows + reading the caches of the other b - 1 sequences + passes of the draft, each of
# b rows tokens = b E(k)
#
# A further row costs what it costs in llama.cpp's kernels, to which the constants were fitted. vLLM's are faster with
# many rows, so the schedule stops drafting at fewer sequences than vLLM could draft for.
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
        if not self.draft.num_bytes:
            return decode_s + DRAFTED_HOST_S
        if self.draft.drafts_in_one_pass:
            return decode_s + DRAFTED_HOST_S + self._pass_s(num_sequences * num_drafted)
        return decode_s + DRAFTED_HOST_S + num_drafted * self._pass_s(num_sequences)

    def _pass_s(self, num_rows: int) -> float:
        """Return the seconds of a pass of the draft."""
        read_s = self.draft.num_bytes / read_bytes_s(self.device)
        starting = (self.draft.num_layers + 1) * find_kernels(self.device).layer_s + DRAFT_HOST_S
        if self.device.kind == CPU:
            return starting + read_s * (1.0 + (num_rows - 1) * HALVES.row)
        row_s = 2.0 * self.draft.num_bytes / BYTES_PER_WEIGHT / (self.device.flops * ROW_SHARE)
        return starting + read_s + (num_rows - 1) * row_s

    def goodput(self, num_sequences: int, num_drafted: int) -> float:
        """Return the expected tokens a second of all sequences together."""
        acceptance = self.draft.acceptance
        tokens = acceptance.tokens(num_drafted) if acceptance is not None else 1.0
        return num_sequences * tokens / self.step_s(num_sequences, num_drafted)

    def best_length(self, num_sequences: int, most: int) -> int:
        """Return the number of draft tokens with the best goodput, at most `most`; 0: plain steps are best.

        A lookup's acceptance depends on the text: the longest draft that costs at most MOST_WASTE plain steps if
        rejected.
        """
        if self.draft.acceptance is None:
            plain_s = self.step_s(num_sequences, 0)
            fits = (k for k in range(1, most + 1) if self.step_s(num_sequences, k) <= MOST_WASTE * plain_s)
            return max(fits, default=0)
        return max(range(most + 1), key=lambda k: (self.goodput(num_sequences, k), -k))


def make_batch_costs(target: VllmTarget, draft: VllmDraft, device: DeviceSpec) -> BatchCosts:
    """Return the costs of a pair on one device, which may stand for several cards that share each layer."""
    where = [device.name] * (target.shape.n_layer + 1)
    alone = MachineSpec(name=device.label, host=device)
    curve = make_curve(target.model, where, alone, None, kv_type=KV_TYPE, num_cells=TYPICAL_CELLS, measured=None)
    bytes_s = read_bytes_s(device)
    return BatchCosts(curve, device, target.cache_bytes(TYPICAL_CELLS) / bytes_s, draft)


def make_schedule(costs: BatchCosts, max_num_seqs: int) -> tuple[Range, ...]:
    """Return ranges of sequences with their draft length, from 1 to `max_num_seqs`; never longer for more sequences."""
    lengths: list[int] = []
    for num_sequences in range(1, max_num_seqs + 1):
        most = lengths[-1] if lengths else costs.draft.most
        lengths.append(costs.best_length(num_sequences, most) if most else 0)
    return merge_lengths(lengths)


def merge_lengths(lengths: Sequence[int]) -> tuple[Range, ...]:
    """Return the ranges of equal lengths. `lengths`: of 1, 2, ... sequences.

    >>> merge_lengths([5, 5, 3, 0, 0])
    ((1, 2, 5), (3, 3, 3), (4, 5, 0))
    """
    ranges: list[Range] = []
    for length, same in groupby(lengths):
        last = ranges[-1][1] if ranges else 0
        ranges.append((last + 1, last + len(list(same)), length))
    return tuple(ranges)


# ---- memory: context, sequences and memory share with which vLLM holds a pair. Pure
MAX_UTILIZATION = 0.92  # of a card; the rest is for what vLLM does not count, such as its graphs
CONTEXT_BYTES = GIB  # CUDA's context, kernels and graphs. Assumed
BATCHED_TOKENS = 8192  # rows of a prefill step, whose activations must fit; vLLM's default for a server
CONTEXTS = (32768, 16384, 8192, 4096, 2048)  # to try if none is given
WORKING_CTX = 8192  # tokens: less than this only where no more cards and no larger slice hold more
LOADS = {"interactive": 32, "batch": 256}  # limits on the sequences, if none is given: answers soon, or many
FEWEST = 4  # sequences that a context which was not asked for must leave room for
TENSOR_PARALLEL = (1, 2, 4, 8)
LARGE_MACHINES = {"2x-rtx-4090": 47, "h100-sxm": 79, "2x-a6000": 95}  # to hint at, with their GiB
# (compute slices of 7, memory slices of 8) of the profiles of NVIDIA's cards, and how NVIDIA calls their memory in GB
MIG_SLICES = ((1, 1), (2, 2), (3, 4), (7, 8))
MIG_LABELS = {
    ("A100", 40): (5, 10, 20, 40),
    ("A100", 80): (10, 20, 40, 80),
    ("H100", 80): (10, 20, 40, 80),
    ("H100", 94): (12, 24, 47, 94),
    ("H200", 141): (18, 35, 71, 141),
}
MIG_SHARE = 0.95  # of a slice's memory that a program gets; NVIDIA's tables say 0.95 to 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """Limits that were asked for. None: chosen here."""

    ctx: int | None = None
    parallel: int | None = None
    load: str = "interactive"
    wants_slice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit:
    """A way to run a pair in vLLM: on `num_cards` cards, or a slice of one, or a processor."""

    device: DeviceSpec  # all cards together, or the slice
    num_cards: int  # 0: a processor
    slice: str  # of a card, as `nvidia.com/mig-NAME` requests it, such as 3g.40gb; empty: whole cards
    n_ctx: int
    max_num_seqs: int
    weights_bytes: int
    draft_bytes: int  # of all copies
    cache_bytes: int  # of both
    working_bytes: int

    @property
    def needed_bytes(self) -> int:
        return self.weights_bytes + self.draft_bytes + self.cache_bytes + self.working_bytes

    @property
    def utilization(self) -> float:
        """The share of each card's memory that vLLM may use: the needed hundredths, at most the free memory."""
        total = self.device.total_bytes or self.needed_bytes
        most = math.floor(round(100 * count_room(self.device) / total, 6))
        return min(math.ceil(100 * self.needed_bytes / total), most) / 100

    @property
    def cache_gib(self) -> int:
        return max(1, math.ceil(self.cache_bytes / GIB))


def find_fit(pair: ServedPair, machine: MachineSpec, limits: ServingLimits) -> ServingFit:
    """Return the fit on the fewest cards, or on the smallest slice, that holds a context to work with.

    Raises UsageError if the machine has no such slice or no card that vLLM takes, ResourceError if nothing fits.
    """
    if limits.ctx and pair.target.max_context and limits.ctx > pair.target.max_context:
        raise UsageError(
            f"{pair.target.id} was trained for {pair.target.max_context} tokens, --ctx asks for {limits.ctx}",
            hint=f"--ctx {pair.target.max_context}",
        )
    placements = list(list_slices(machine) if limits.wants_slice else list_cards(machine, pair.target.shape.n_head))
    enough = 0 if limits.ctx else min(WORKING_CTX, pair.target.max_context or WORKING_CTX)
    for least_ctx in (enough, 0):
        for device, num_cards, part in placements:
            found = fit_device(pair, device, limits, num_cards)
            if found is not None and found.n_ctx >= least_ctx:
                return replace(found, slice=part)
    device, num_cards, _ = placements[-1]
    least = weigh(pair, device, limits.ctx or CONTEXTS[-1], limits.parallel or 1, num_cards)
    raise ResourceError(
        f"{pair.target.id} needs {format_memory(least.needed_bytes)} in vLLM, with its draft and both caches; "
        f"{machine.name} has {format_memory(count_room(device))} for it",
        hint=suggest_larger(least.needed_bytes),
    )


def suggest_larger(needed_bytes: int) -> str:
    """Return the hint for a pair that does not fit: the smallest of the large machines that holds it."""
    holding = (name for name, gib in LARGE_MACHINES.items() if needed_bytes < MAX_UTILIZATION * gib * GIB)
    larger = next(holding, "")
    return f"--machine {larger}" if larger else "a smaller target; your own machine can be described (docs/models.md)"


def list_cards(machine: MachineSpec, n_head: int) -> Iterator[tuple[DeviceSpec, int, str]]:
    """Yield the devices to try: one card, then several as one, or the processor. Raises UsageError on other GPUs."""
    cards = [gpu for gpu in machine.gpus if gpu.kind == CUDA]
    if machine.gpus and not cards:
        raise UsageError(
            f"vLLM is planned for NVIDIA cards and processors, not for {machine.name}", hint="--machine rtx-4090"
        )
    if not cards:
        yield machine.host, 0, ""
    for count in TENSOR_PARALLEL:
        if count <= len(cards) and n_head % count == 0:
            yield join_cards(cards[0], count), count, ""


def join_cards(card: DeviceSpec, count: int) -> DeviceSpec:
    """Return several cards that share each layer as one."""
    total, free = card.total_bytes or card.free_bytes or 0, card.free_bytes or 0
    return replace(
        card,
        total_bytes=total * count,
        free_bytes=free * count,
        bytes_s=card.bytes_s * count,
        flops=card.flops * count,
    )


def list_slices(machine: MachineSpec) -> Iterator[tuple[DeviceSpec, int, str]]:
    """Yield the slices of a card, the smallest first. Raises UsageError if it has none that are known."""
    card = next((gpu for gpu in machine.gpus if gpu.kind == CUDA), None)
    total_gb = (card.total_bytes or 0) / GIB if card else 0.0
    chips = [chip for chip in MIG_LABELS if chip[0] in machine.name and abs(chip[1] - total_gb) <= 0.07 * chip[1]]
    if card is None or not chips:
        raise UsageError(f"no MIG slices of {machine.name} are known", hint="--machine h100-sxm")
    for (sevenths, eighths), label in zip(MIG_SLICES, MIG_LABELS[chips[0]], strict=True):
        num_bytes = int((card.total_bytes or 0) * eighths / 8 * MIG_SHARE)
        device = replace(
            card,
            total_bytes=num_bytes,
            free_bytes=num_bytes,
            bytes_s=card.bytes_s * eighths / 8,
            flops=card.flops * sevenths / 7,
        )
        yield device, 1, f"{sevenths}g.{label}gb"


def fit_device(pair: ServedPair, device: DeviceSpec, limits: ServingLimits, num_cards: int) -> ServingFit | None:
    """Return the longest context and the most sequences that a device holds; None if it holds none.

    num_cards  that the device stands for; 0: it is a processor
    """
    longest = pair.target.max_context or CONTEXTS[0]
    contexts = (limits.ctx,) if limits.ctx else tuple(dict.fromkeys(min(ctx, longest) for ctx in CONTEXTS))

    def holds(ctx: int, count: int) -> bool:
        return weigh(pair, device, ctx, count, num_cards).needed_bytes <= count_room(device)

    for least in dict.fromkeys((limits.parallel or FEWEST, limits.parallel or 1)):
        for ctx in contexts:
            if holds(ctx, least):
                count = limits.parallel or most_that(partial(holds, ctx), max(LOADS[limits.load], least))
                return weigh(pair, device, ctx, count, num_cards)
    return None


def weigh(pair: ServedPair, device: DeviceSpec, n_ctx: int, num_sequences: int, num_cards: int = 1) -> ServingFit:
    """Return the memory of a pair with this context and number of sequences, of all cards together.

    Cards share the target's weights and cache. Each has activations and a context of its own, and a head is not split.
    """
    draft, shape, copies = pair.draft, pair.target.shape, max(num_cards, 1)
    is_split = draft is None or draft.pin is None or draft.method == DRAFT_MODEL
    num_drafts = 1 if is_split else copies

    def cache(num_tokens: int) -> int:
        drafted = num_drafts * draft.kv_bytes_per_token if draft else 0
        return pair.target.cache_bytes(num_tokens) + num_tokens * drafted

    usual = cache(max(1, int(n_ctx * FILLED_SHARE)))
    rows = num_sequences * ((draft.most if draft else 0) + 1)
    activations = min(BATCHED_TOKENS, max(n_ctx, rows)) * (2 * shape.n_ff + 6 * shape.n_embd) * 2
    return ServingFit(
        device=device,
        num_cards=num_cards,
        slice="",
        n_ctx=n_ctx,
        max_num_seqs=num_sequences,
        weights_bytes=shape.weights_bytes,
        draft_bytes=num_drafts * draft.num_bytes if draft else 0,
        cache_bytes=max(cache(n_ctx), num_sequences * usual),
        working_bytes=copies * (activations + 2 * rows * shape.n_vocab * 4 + (CONTEXT_BYTES if device.is_gpu else 0)),
    )


def count_room(device: DeviceSpec) -> int:
    """Return the bytes that vLLM may use of a device."""
    if not device.is_gpu:
        return device.free_bytes or 0
    return int(min(device.free_bytes or 0, MAX_UTILIZATION * (device.total_bytes or 0)))

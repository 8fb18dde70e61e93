"""Find context, sequences and memory share with which vLLM holds a pair: its weights and both caches. Pure.

vLLM gives all sequences one pool of pages. So the pool must hold one sequence of the whole context, and all of them at
the length that conversations have on average (FILLED_SHARE of the context).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from eaglelocal.catalog.catalog import CUDA
from eaglelocal.core.byte_sizes import GIB, format_memory
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.planning.speed import FILLED_SHARE
from eaglelocal.preparation.vllm.served_pair import DRAFT_MODEL, ServedPair

MAX_UTILIZATION = 0.92  # of a card; the rest is for what vLLM does not count, such as its graphs
CONTEXT_BYTES = GIB  # CUDA's context, kernels and graphs. Assumed
BATCHED_TOKENS = 8192  # rows of a prefill step, whose activations must fit; vLLM's default for a server
CONTEXTS = (32768, 16384, 8192, 4096, 2048)  # to try if none is given
LOADS = {"interactive": 32, "batch": 256}  # limits on the sequences, if none is given: answers soon, or many
FEWEST = 4  # sequences that a context which was not asked for must leave room for
TENSOR_PARALLEL = (1, 2, 4, 8)
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


@dataclass(frozen=True, slots=True)
class CardSlice:
    """A part of a card, as `nvidia.com/mig-NAME` requests it."""

    name: str  # such as 3g.40gb
    device: DeviceSpec


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

    device: DeviceSpec  # all cards together
    num_cards: int  # 0: a processor
    slice: CardSlice | None
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
        """The share of each card's memory that vLLM may use: what is needed in hundredths, at most what is free."""
        total = self.device.total_bytes or self.needed_bytes
        most = math.floor(round(100 * count_room(self.device) / total, 6))
        return min(math.ceil(100 * self.needed_bytes / total), most) / 100

    @property
    def cache_gib(self) -> int:
        return max(1, math.ceil(self.cache_bytes / GIB))


def find_fit(pair: ServedPair, machine: MachineSpec, limits: ServingLimits) -> ServingFit:
    """Return the fit on the fewest cards, or on the smallest slice.

    Raises UsageError if the machine has no such slice or no card that vLLM takes, ResourceError if nothing fits.
    """
    if limits.ctx and pair.target.max_context and limits.ctx > pair.target.max_context:
        raise UsageError(
            f"{pair.target.id} was trained for {pair.target.max_context} tokens, --ctx asks for {limits.ctx}",
            hint=f"--ctx {pair.target.max_context}",
        )
    placements = list(list_slices(machine) if limits.wants_slice else list_cards(machine, pair.target.shape.n_head))
    for device, num_cards, part in placements:
        if (found := fit_device(pair, device, limits, num_cards)) is not None:
            return replace(found, slice=part)
    device, num_cards, _ = placements[-1]
    least = weigh(pair, device, limits.ctx or CONTEXTS[-1], limits.parallel or 1, num_cards)
    raise ResourceError(
        f"{pair.target.id} needs {format_memory(least.needed_bytes)} in vLLM, with its draft and both caches; "
        f"{machine.name} has {format_memory(count_room(device))} for it",
        hint="--machine h100-sxm",
    )


def list_cards(machine: MachineSpec, n_head: int) -> Iterator[tuple[DeviceSpec, int, CardSlice | None]]:
    """Yield the devices to try: one card, then several as one, or the processor. Raises UsageError on other GPUs."""
    cards = [gpu for gpu in machine.gpus if gpu.kind == CUDA]
    if machine.gpus and not cards:
        raise UsageError(
            f"vLLM is planned for NVIDIA cards and processors, not for {machine.name}", hint="--machine rtx-4090"
        )
    if not cards:
        yield machine.host, 0, None
    for count in TENSOR_PARALLEL:
        if count <= len(cards) and n_head % count == 0:
            yield join_cards(cards[0], count), count, None


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


def list_slices(machine: MachineSpec) -> Iterator[tuple[DeviceSpec, int, CardSlice | None]]:
    """Yield the slices of a card, the smallest first. Raises UsageError if it has none that are known."""
    card = next((gpu for gpu in machine.gpus if gpu.kind == CUDA), None)
    total_gb = (card.total_bytes or 0) / GIB if card else 0.0
    labels = next(
        (
            labels
            for (chip, size), labels in MIG_LABELS.items()
            if chip in machine.name and abs(size - total_gb) <= 0.07 * size
        ),
        None,
    )
    if card is None or labels is None:
        raise UsageError(f"no MIG slices of {machine.name} are known", hint="--machine h100-sxm")
    for (sevenths, eighths), label in zip(MIG_SLICES, labels, strict=True):
        num_bytes = int((card.total_bytes or 0) * eighths / 8 * MIG_SHARE)
        device = replace(
            card,
            total_bytes=num_bytes,
            free_bytes=num_bytes,
            bytes_s=card.bytes_s * eighths / 8,
            flops=card.flops * sevenths / 7,
        )
        yield device, 1, CardSlice(f"{sevenths}g.{label}gb", device)


def fit_device(pair: ServedPair, device: DeviceSpec, limits: ServingLimits, num_cards: int) -> ServingFit | None:
    """Return the longest context and the most sequences that a device holds; None if it holds none.

    num_cards  that the device stands for; 0: it is a processor
    """
    longest = pair.target.max_context or CONTEXTS[0]
    contexts = (limits.ctx,) if limits.ctx else tuple(dict.fromkeys(min(ctx, longest) for ctx in CONTEXTS))
    for count in dict.fromkeys((limits.parallel or FEWEST, limits.parallel or 1)):
        for ctx in contexts:
            fit = weigh(pair, device, ctx, count, num_cards)
            if fit.needed_bytes <= count_room(device):
                return fit if limits.parallel else _add_sequences(pair, fit, LOADS[limits.load])
    return None


def _add_sequences(pair: ServedPair, fit: ServingFit, most: int) -> ServingFit:
    """Return the fit with as many sequences as fit, at most `most`."""
    low, high = fit.max_num_seqs, max(most, fit.max_num_seqs)
    while low < high:
        middle = (low + high + 1) // 2
        fits = weigh(pair, fit.device, fit.n_ctx, middle, fit.num_cards).needed_bytes <= count_room(fit.device)
        low, high = (middle, high) if fits else (low, middle - 1)
    return weigh(pair, fit.device, fit.n_ctx, low, fit.num_cards)


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
        slice=None,
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

"""Build the error message if nothing fits: the nearest option, what it lacks, and what would make it fit. Pure.

Every hinted option was planned with: it is named because the plan then fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from eaglelocal.core.byte_sizes import GIB, format_memory
from eaglelocal.core.run_options import RunOptions
from eaglelocal.memory.budget import RAM, DeviceLoad
from eaglelocal.planning.candidate import Candidate, Chosen, Rejected
from eaglelocal.planning.machine_spec import MachineSpec, replace_ram
from eaglelocal.planning.plan_search import (
    KV_TYPES,
    SearchOutcome,
    exceeds_trained_context,
    explain_graph_abort,
    search_plan,
)
from eaglelocal.planning.rejections import lies_text

RAM_GIB = (32, 48, 64, 96, 128, 192, 256)  # usual sizes of RAM
CTX_STEP = 256  # a hinted --ctx is a multiple of it


def explain_no_fit(outcome: SearchOutcome) -> tuple[str, str]:
    """Return (message: what lacks least and how much, hint: what would make it fit)."""
    miss = outcome.nearest
    if miss is None:
        return _too_long(outcome) or _unweighed(outcome)
    if miss.candidate is None or miss.memory is None:
        raise AssertionError("what lacks memory was weighed")
    load = miss.memory.worst
    assumed = outcome.machine.assumed if load.device == RAM else ""
    message = (
        f"nothing fits {outcome.machine.name}: the nearest, {name_model(miss)}, "
        f"needs {format_memory(load.total)} on {load.device} "
        f"{with_setup(miss.candidate, outcome.options)} where {format_memory(load.free_bytes or 0)} may be used"
        f"{f' ({assumed}, as assumed)' if assumed else ''}"
    )
    candidates = [*_freed(load, outcome.machine), *_more_memory(miss, outcome), *_other_asks(miss, outcome)]
    return message, " or ".join(candidates or ["a smaller model" if _has_smaller_tried(miss, outcome) else SMALLER])


SMALLER = "a smaller model or quantization"


def name_model(rejected: Rejected) -> str:
    return f"{rejected.option.target} {rejected.option.quant}".strip()


def with_setup(candidate: Candidate, options: RunOptions) -> str:
    slots = f"{options.parallel} x " if options.parallel > 1 else ""
    return f"with {slots}{candidate.setup.n_ctx} tokens in {candidate.setup.kv_type}{lies_text(candidate, 'and')}"


def _too_long(outcome: SearchOutcome) -> tuple[str, str] | None:
    """Return message and hint if --ctx is more than any option was trained for; else None."""
    long = [each.option for each in outcome.rejected if exceeds_trained_context(each.option, outcome.options)]
    if not long:
        return None
    most = max(long, key=lambda option: option.max_context)
    is_one = all(option.target == most.target for option in long)
    message = f"--ctx {outcome.options.ctx} is too much: {most.target} was trained for {most.max_context} tokens"
    return message + ("" if is_one else ", the most of all"), f"--ctx {most.max_context}"


def _unweighed(outcome: SearchOutcome) -> tuple[str, str]:
    miss = next(iter(outcome.rejected), None)
    if miss is None:
        return "there is nothing to plan", ""
    hint = ""
    if miss.option.shape.experts_problem(outcome.options.n_cpu_moe or 0):
        hint = "leave --n-cpu-moe out"
    elif outcome.options.kv_type and explain_graph_abort(miss.option, outcome.options, outcome.options.kv_type):
        hint = "--kv-type f16"
    return f"{name_model(miss)}: {miss.reason}", hint


def _freed(load: DeviceLoad, machine: MachineSpec) -> Iterator[str]:
    """Yield the hint to free memory, if other processes on this machine hold enough."""
    device = machine.device(load.device)
    held = (device.total_bytes or 0) - (device.free_bytes or 0)
    if machine.is_here and load.missing_bytes <= held:
        yield f"free {format_memory(load.missing_bytes)} on {load.device}"


def _more_memory(miss: Rejected, outcome: SearchOutcome) -> Iterator[str]:
    """Yield the least --ram that fits, for a catalog machine whose RAM was assumed."""
    held = outcome.machine.host.total_bytes or 0
    sizes = (size for size in RAM_GIB if outcome.machine.assumed and size * GIB > held)
    fits = (
        size
        for size in sizes
        if search_plan([miss.option], replace_ram(outcome.machine, size * GIB), outcome.options).chosen
    )
    yield from (f"--ram {size}, if you have it" for size in islice(fits, 1))


def _other_asks(miss: Rejected, outcome: SearchOutcome) -> Iterator[str]:
    """Yield single changes of the options that make this option fit, the least loss first."""
    options = outcome.options

    def planned(other: RunOptions) -> Chosen | None:
        return search_plan([miss.option], outcome.machine, other).chosen

    if options.gpu_layers is not None and (chosen := planned(replace(options, gpu_layers=None))):
        layers = chosen.candidate.gpu_layers
        yield "no --gpu-layers" if layers is None else f"--gpu-layers {layers}"
    if options.n_cpu_moe is not None and (chosen := planned(replace(options, n_cpu_moe=None))):
        count = chosen.candidate.n_cpu_moe
        yield f"--n-cpu-moe {count}" if count else "no --n-cpu-moe"
    if options.kv_type is not None:
        smaller = (each for each in KV_TYPES[KV_TYPES.index(options.kv_type) + 1 :] if options.flash_attn != "off")
        yield from islice((f"--kv-type {each}" for each in smaller if planned(replace(options, kv_type=each))), 1)
    n_ctx = options.ctx or (miss.candidate.setup.n_ctx if miss.candidate else 0)
    steps = most_that(
        lambda count: planned(replace(options, ctx=count * CTX_STEP)) is not None, (n_ctx - 1) // CTX_STEP
    )
    if steps:
        yield f"--ctx {steps * CTX_STEP}"
    slots = most_that(lambda count: planned(replace(options, parallel=count)) is not None, options.parallel - 1)
    if slots:
        yield f"--parallel {slots}"


def most_that(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest count up to `most` that fits, by bisection: if a count fits, all less do. 0: none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _has_smaller_tried(miss: Rejected, outcome: SearchOutcome) -> bool:
    """Return whether other quantizations of the same target were rejected too."""
    tried = {each.option.quant for each in outcome.rejected if each.option.target == miss.option.target}
    return len(tried) > 1

"""Build the error message if nothing fits: the nearest option, the memory it lacks, and options that make it fit. Pure.

Each hint was tested: a plan with the hinted option fits.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from eaglelocal.catalog.catalog import METAL
from eaglelocal.core.amounts import GIB, count_noun, format_memory
from eaglelocal.core.plan import PIECES
from eaglelocal.core.run_options import CTX_STEP, RunOptions
from eaglelocal.core.stats import NOISY
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.upper_layers import find_block, is_expert
from eaglelocal.memory.budget import FILE_PAGES, RAM, DeviceLoad
from eaglelocal.memory.cache_bytes import bits_per_value
from eaglelocal.memory.cache_types import explain_slow_kernel
from eaglelocal.memory.placement import WHOLE, Offload, table_buffers
from eaglelocal.planning.candidate import GOALS, Candidate, Rejected, lies_text, offload_text
from eaglelocal.planning.candidate_evaluation import CandidateEvaluator
from eaglelocal.planning.machine_spec import (
    MachineSpec,
    free_held_memory,
    name_computing,
    name_places,
    replace_ram,
)
from eaglelocal.planning.options import ModelOption
from eaglelocal.planning.plan_search import (
    SearchOutcome,
    exceeds_trained_context,
    find_refusal,
    list_kv_types,
    list_small_pieces,
    search_plan,
)
from eaglelocal.planning.quality import estimate_kv_loss

RAM_GIB = (32, 48, 64, 96, 128, 192, 256)  # usual sizes of RAM


def explain_no_fit(outcome: SearchOutcome) -> tuple[str, str]:
    """Return the message (the smallest lack of memory) and the hint (options that make a plan fit)."""
    miss = outcome.nearest
    if miss is None or miss.candidate is None:
        return _too_long(outcome) or _unweighed(outcome)
    load, setup = miss.candidate.memory.worst, miss.candidate.setup
    slots = f"{outcome.options.parallel} x " if outcome.options.parallel > 1 else ""
    assumed = outcome.machine.assumed if load.device == RAM else ""
    message = (
        f"nothing fits {outcome.machine.name}: the nearest, {name_model(miss)}, "
        f"needs {format_memory(load.total)} on {load.device} "
        f"with {slots}{setup.n_ctx} tokens in {setup.kv_type}{lies_text(miss.candidate, 'and')} "
        f"where {format_memory(load.free_bytes or 0)} may be used"
        f"{f' ({assumed}, as assumed)' if assumed else ''}"
    )
    hints = [
        *_freed(load, outcome.machine),
        *_more_memory(miss.option, outcome),
        *_other_asks(miss.option, setup.n_ctx, outcome),
    ]
    return message, " or ".join(hints or [_suggest_smaller(miss.option, outcome)])


def name_model(rejected: Rejected) -> str:
    return f"{rejected.option.target} {rejected.option.quant}".strip()


def _too_long(outcome: SearchOutcome) -> tuple[str, str] | None:
    """Return message and hint if --ctx exceeds the trained context of all options; else None."""
    long = [each.option for each in outcome.rejected if exceeds_trained_context(each.option, outcome.options)]
    if not long:
        return None
    most = max(long, key=lambda option: option.max_context)
    is_one = all(option.target == most.target for option in long)
    message = f"--ctx {outcome.options.ctx} is too much: {most.target} was trained for {most.max_context} tokens"
    return message + ("" if is_one else ", the most of all"), f"--ctx {most.max_context}"


def _unweighed(outcome: SearchOutcome) -> tuple[str, str]:
    if not outcome.rejected:
        return "there is nothing to plan", ""
    miss = outcome.rejected[0]
    _, hint = find_refusal(miss.option, outcome.options)
    return f"{name_model(miss)}: {miss.reason}", hint


def _freed(load: DeviceLoad, machine: MachineSpec) -> Iterator[str]:
    """Yield the hint to free memory, if other processes on this machine hold enough."""
    device = machine.device(load.device)
    held = (device.total_bytes or 0) - (device.free_bytes or 0)
    if machine.is_here and load.missing_bytes <= held:
        yield f"free {format_memory(load.missing_bytes)} on {load.device}"


def _more_memory(option: ModelOption, outcome: SearchOutcome) -> Iterator[str]:
    """Yield the smallest --ram that fits, for a catalog machine whose RAM was assumed."""
    held = outcome.machine.host.total_bytes or 0
    for size in RAM_GIB if outcome.machine.assumed else ():
        machine = replace_ram(outcome.machine, size * GIB)
        if size * GIB > held and search_plan([option], machine, outcome.options).chosen:
            yield f"--ram {size}, if you have it"
            return


def _other_asks(option: ModelOption, n_ctx: int, outcome: SearchOutcome) -> Iterator[str]:
    """Yield single changes of the user's options that make this option fit, the smallest loss first.

    n_ctx  the context with which it does not fit
    """
    options = outcome.options

    def planned(other: RunOptions) -> Candidate | None:
        return search_plan([option], outcome.machine, other).chosen

    if options.gpu_layers is not None and (chosen := planned(replace(options, gpu_layers=None))):
        yield "no --gpu-layers" if chosen.gpu_layers is None else f"--gpu-layers {chosen.gpu_layers}"
    if options.n_cpu_moe is not None and (chosen := planned(replace(options, n_cpu_moe=None))):
        yield f"--n-cpu-moe {chosen.n_cpu_moe}" if chosen.n_cpu_moe else "no --n-cpu-moe"
    if options.override_tensor and planned(replace(options, override_tensor=())):
        yield "no --override-tensor"
    if options.kv_type is not None and options.flash_attn != "off":
        planned_types = list_kv_types(replace(options, kv_type=None), name_computing(outcome.machine, options))
        smaller = [each for each in planned_types if bits_per_value(each) < bits_per_value(options.kv_type)]
        yield from islice((f"--kv-type {each}" for each in smaller if planned(replace(options, kv_type=each))), 1)
    most_steps = (n_ctx - 1) // CTX_STEP
    if steps := most_that(lambda count: planned(replace(options, ctx=count * CTX_STEP)) is not None, most_steps):
        yield f"--ctx {steps * CTX_STEP}"
    most_slots = options.parallel - 1
    if slots := most_that(lambda count: planned(replace(options, parallel=count)) is not None, most_slots):
        yield f"--parallel {slots}"


def most_that(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest count up to `most` that fits, by bisection; 0: none. Less than what fits must fit too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _suggest_smaller(option: ModelOption, outcome: SearchOutcome) -> str:
    """Suggest another quantization too, unless others of the same target were rejected as well."""
    tried = {each.option.quant for each in outcome.rejected if each.option.target == option.target}
    return "a smaller model" if len(tried) > 1 else "a smaller model or quantization"


# ---- reasons: explain the chosen plan in sentences with figures. Pure: takes an outcome, returns texts
SPILLED = 4.0  # times the predicted time, under WSL 2: users report 27
HARMFUL_LOSS = 0.2  # of quality, by the type of the cache
SLOW = 1.5  # times the predicted time of a decode: one published speed in ten is off by more than a fifth


def explain_choice(outcome: SearchOutcome, chosen: Candidate) -> tuple[str, ...]:
    """Return the reasons for the chosen plan, the most important first."""
    return (
        *_about_quant(chosen.option),
        *_about_held_memory(outcome, chosen),
        *_about_cuts(outcome, chosen),
        *_about_goal(outcome, chosen),
        *_about_layers(outcome, chosen),
        *_about_shares(outcome.machine, chosen.offload),
        *_about_table(chosen.option.shape, outcome.machine),
        *_about_overrides(outcome, chosen),
        *explain_file_pages(outcome, chosen),
        *_about_pieces(outcome, chosen),
        *explain_slow_cache(outcome, chosen),
        *_about_measurement(outcome, chosen),
        *_about_draft(chosen, outcome.options),
        *_about_memory(chosen, outcome.options),
        *_about_refused_pieces(outcome, chosen),
        *(f"not {draft.id}: {draft.reason}" for draft in chosen.option.unusable if chosen.draft.shape is None),
        *chosen.option.notes,
        *outcome.machine.notes,
    )


def _about_quant(option: ModelOption) -> Iterator[str]:
    if option.stands_for:
        yield f"{option.stands_for} is not in the catalog by that name: planned as {option.quant}, the nearest"


def _about_held_memory(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    """Yield the better model that the memory held by other programs rules out."""
    other, freed = outcome.with_free_memory, free_held_memory(outcome.machine).devices
    if other is not None and other.option.target != chosen.option.target:
        pairs = zip(freed, outcome.machine.devices, strict=True)
        held = sum((after.free_bytes or 0) - (before.free_bytes or 0) for after, before in pairs)
        yield f"other programs hold {format_memory(held)}; with them closed: {other.option.reference}"


def _about_cuts(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    setup, explain_cuts = chosen.setup, outcome.options.explain_cuts
    yield from explain_cuts(chosen.option.target, ctx=setup.n_ctx, kv_type=setup.kv_type, n_cpu_moe=chosen.n_cpu_moe)


def _about_goal(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    goal, option = GOALS[outcome.options.goal], chosen.option
    if not any(each.option.quality_b != option.quality_b for each in outcome.rejected):
        return  # the model was named, and its file too: the goal decided nothing
    age = option.age
    weighed = "" if age.worth == 1.0 else f", times {age.worth:.1f} for its release in {age.released}"
    rating = f"rated {option.quality_b:.1f} B{weighed}"
    if chosen.prediction.spec_tok_s < goal.pace:
        yield f"{goal.name}: the best compromise, though below the {goal.pace:.0f} tokens/s of this goal; {rating}"
    else:
        yield f"{goal.name}: the best answers expected at {goal.pace:.0f} tokens/s or more; {rating}"


def _about_layers(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    """Yield the layers and experts that are not on the GPU, and why."""
    options, layers = outcome.options, chosen.option.shape.n_layer
    if chosen.offload.is_whole:
        return
    memory = f" ({outcome.machine.assumed}, as assumed)" if outcome.machine.assumed else ""
    if chosen.gpu_layers is not None:
        places = name_places(outcome.machine.gpus)
        why = f"are on the {places}, as asked" if options.gpu_layers is not None else f"fit the {places}"
        on_gpu = f"{chosen.gpu_layers} of {layers + 1} layers {why}"
        yield f"{on_gpu}; the others run from main memory{memory}, prompts slowly"
    if in_ram := count_experts_in_ram(outcome, chosen):
        why = ", as asked," if options.n_cpu_moe is not None and in_ram == chosen.n_cpu_moe else ""
        experts = f"the experts of {in_ram} of {layers} layers{why}"
        yield f"{experts} run from main memory{memory}, prompts slowly"
    if options.gpu_layers is None and any(gpu.kind == METAL for gpu in outcome.machine.gpus):
        yield "macOS limits the GPU's memory; `sudo sysctl iogpu.wired_limit_mb=N` raises that until a restart"


def _about_shares(machine: MachineSpec, offload: Offload) -> Iterator[str]:
    """Yield how the layers are divided among the GPUs, if not by free memory."""
    holding = [gpu.name for gpu, share in zip(machine.gpus, offload.shares, strict=False) if share]
    others = [gpu.name for gpu in machine.gpus if gpu.name not in holding]
    if len(holding) == 1:
        yield f"all layers are on {holding[0]}: sharing them with {' and '.join(others)} would cost speed"
    elif holding:
        shares = " to ".join(f"{share:.0f}" for share in offload.shares)
        names = " and ".join(gpu.name for gpu in machine.gpus)
        yield f"layers are divided {shares} among {names}, which is faster than by free memory"


def count_experts_in_ram(outcome: SearchOutcome, chosen: Candidate) -> int:
    """Return of how many layers a plan keeps the experts in RAM, without those that overrides place elsewhere."""
    moves = CandidateEvaluator(outcome.machine, outcome.options).find_moves(chosen.option, chosen.offload)
    moved = Counter(move.layer for move in moves if move.is_expert and move.source == RAM)
    tensors = chosen.option.header.tensors if moved and chosen.option.header is not None else ()
    experts = Counter(find_block(name) for name in tensors if is_expert(name))
    return chosen.n_cpu_moe - sum(moved[layer] == experts[layer] > 0 for layer in range(chosen.n_cpu_moe))


def _about_measurement(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    """Yield how to measure again, if the measured costs suggest that the machine was busy.

    If the memory's bandwidth was assumed, or measured on a busy machine, the comparison proves nothing.
    """
    prediction, probed = chosen.prediction, outcome.machine.probed
    bandwidth = probed.cpu.bandwidth if probed is not None else None
    is_sound = probed is None or (bandwidth is not None and not bandwidth.is_disturbed)
    if prediction.slowdown >= SPILLED and probed is not None and probed.system.wsl == 2 and outcome.machine.gpus:
        what = f"decodes took {prediction.slowdown:.0f} times as long as predicted here"
        yield f"{what}: under WSL 2 a card that is full moves data into main memory without an error"
        return
    if prediction.slowdown >= SLOW and is_sound:
        what = f"decodes took {prediction.slowdown:.1f} times as long as predicted when they were measured here"
    elif prediction.noise >= NOISY:
        what = f"equal decodes differed by a factor of {math.exp(prediction.noise):.1f} when they were measured here"
    else:
        return
    command = shlex.join(["eaglelocal", "tune", "--target", chosen.option.reference])
    yield f"{what}: if other programs ran then, `{command}` measures again"


def _about_draft(chosen: Candidate, options: RunOptions) -> Iterator[str]:
    count, acceptance = chosen.prediction.num_draft_tokens, chosen.draft.acceptance
    if chosen.drafts_nothing and options.names_draft:
        yield "the draft is predicted not to pay, and is used because you named it"
    elif chosen.drafts_nothing:
        yield "the draft is predicted not to pay; it is on this disk, so it is loaded, and drafts where it pays"
    elif acceptance is not None:
        source = "by its reported acceptance" if acceptance.is_reported else "by an assumed acceptance"
        mean = acceptance.tokens(count)
        yield f"{count} draft token{'s pay' if count > 1 else ' pays'} most: acceptance length {mean:.1f}, {source}"
    elif count:
        tokens = f"up to {count} looked-up tokens are" if count > 1 else "1 looked-up token is"
        yield f"{tokens} safe: a step that rejects {'all of them' if count > 1 else 'it'} takes at most twice as long"
    yield from chosen.draft.notes


def _about_table(shape: ModelShape, machine: MachineSpec) -> Iterator[str]:
    """Yield where a table of embeddings lies that is not loaded."""
    if shape.table_bytes and not list(table_buffers(shape, machine.free_memory)):
        yield f"{format_memory(shape.table_bytes)} of n-gram embeddings stay in the file: keep it on an SSD"


def _about_overrides(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    """Yield the tensors that the user's overrides move, with their bytes."""
    overrides = outcome.options.overrides
    if overrides and chosen.option.header is None:
        yield "--override-tensor is not counted: which tensors it moves is known once the file is on this disk"
        return
    moves = CandidateEvaluator(outcome.machine, outcome.options).find_moves(chosen.option, chosen.offload)
    for place in dict.fromkeys(move.device for move in moves):
        there = [move for move in moves if move.device == place]
        count, size = count_noun(len(there), "tensor"), format_memory(sum(move.tensor.nbytes for move in there))
        is_slow = place == RAM and any(move.is_expert for move in there)
        slow = "; prompts are read slowly" if is_slow else ""
        yield f"{count} ({size}) on {place}, by --override-tensor{slow}"
    if overrides and not moves:
        yield "--override-tensor moves nothing: its tensors lie there anyway"


def explain_file_pages(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    """Yield the note on weights in RAM that stay pages of their file, apart from layers on a GPU."""
    evaluator = CandidateEvaluator(outcome.machine, outcome.options)
    if evaluator.stays_mapped(chosen.option, chosen.draft, chosen.setup, chosen.offload):
        yield f"the weights in main memory {FILE_PAGES}"


def _about_pieces(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    """Yield what small pieces of prompts cost and bring, if the plan has them."""
    piece, usual = chosen.setup.n_batch, PIECES[0]
    if piece != usual:
        cost = f"{piece} tokens at a time, in about {chosen.prompt_factor:.1f} times the time of {usual}"
        usual_speed = describe_speed(change_piece(outcome, chosen, usual))
        yield f"prompts are read {cost}; that allows {describe_speed(chosen)}, {usual} only {usual_speed}"


def _about_refused_pieces(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    """Yield what the smallest pieces of prompts would cost and bring, if the plan keeps a part in RAM without them."""
    pieces = list_small_pieces(chosen.option, outcome.options)
    is_asked = outcome.options.gpu_layers is not None or outcome.options.n_cpu_moe is not None
    if not pieces or chosen.offload.is_whole or chosen.setup.n_batch != PIECES[0] or is_asked:
        return
    other = change_piece(outcome, chosen, pieces[-1])
    if other.offload != chosen.offload:
        cost = f"in about {other.prompt_factor:.1f} times the time"
        yield f"prompts read {pieces[-1]} tokens at a time, {cost}, would allow {describe_speed(other)}"


def change_piece(outcome: SearchOutcome, chosen: Candidate, piece: int) -> Candidate:
    """Return the plan with other pieces of prompts, and as much on the GPUs as then fits."""
    evaluator, option, draft = CandidateEvaluator(outcome.machine, outcome.options), chosen.option, chosen.draft
    setup, offload = replace(chosen.setup, n_batch=piece), WHOLE
    if not evaluator.estimate_memory(option, draft, setup).fits_gpus:
        if any(option.shape.expert_bytes) and chosen.gpu_layers is None:
            offload, _ = evaluator.best_experts(option, draft, setup, None)
        else:
            offload, _ = evaluator.best_split(option, draft, setup, chosen.n_cpu_moe)
    return replace(chosen, setup=setup, offload=offload, prediction=evaluator.predict(option, draft, offload))


def describe_speed(candidate: Candidate) -> str:
    """Return the layers on the GPU and the speed: `25 of 65 layers on the GPU and 5.7 tokens/s`."""
    return f"{offload_text(candidate) or 'all layers on the GPU'} and {candidate.prediction.spec_tok_s:.1f} tokens/s"


def explain_slow_cache(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    """Yield the note on a cache for which the first of the devices has no fast kernel."""
    devices = name_computing(outcome.machine, outcome.options)
    devices += (RAM,) if chosen.offload.gpu_layers is not None else ()
    notes = (explain_slow_kernel(chosen.setup.kv_type, device) for device in devices)
    yield from islice(filter(None, notes), 1)


def _about_memory(chosen: Candidate, options: RunOptions) -> Iterator[str]:
    setup = chosen.setup
    if options.kv_type is not None:
        yield f"the cache is {setup.kv_type}, as asked"
    elif setup.kv_type != "f16":
        yield f"the cache is {setup.kv_type}, which makes room for {setup.n_ctx} tokens"
    if estimate_kv_loss(setup.kv_type) >= HARMFUL_LOSS:
        yield "keys of four bits harm the answers of some models: fewer tokens in q8_0 are safer"
    if chosen.option.shape.has_windows:
        yield (
            "layers with a window keep all tokens too, as there is room: a chat that branches is not read again"
            if setup.swa_full
            else "layers with a window keep only that: a chat that branches is read again"
        )

"""The output of `plan`: a screen of 80 columns with memory bars, and a JSON object. Pure: an outcome in, text out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from eaglelocal.catalog.draft_entries import MTP, NGRAM
from eaglelocal.cli.output import WIDTH, wrap_text
from eaglelocal.cli.show import describe_link, link_object
from eaglelocal.core.adapters import adapter_objects, describe_adapters
from eaglelocal.core.amounts import GIB, count_noun, format_memory
from eaglelocal.core.draft import describe_draft
from eaglelocal.core.run_options import AUTO, WARNING, RunOptions
from eaglelocal.core.user_paths import quote_word
from eaglelocal.memory.budget import DeviceLoad
from eaglelocal.planning.candidate import Candidate, Rejected
from eaglelocal.planning.machine_spec import name_places
from eaglelocal.planning.no_fit_hints import count_experts_in_ram, explain_choice, explain_slow_cache
from eaglelocal.planning.options import list_lookup_options
from eaglelocal.planning.plan_search import SearchOutcome
from eaglelocal.planning.speed import SPLIT, Certainty

BAR_CELLS = min(30, WIDTH - 29)
SHOWN, SHOWN_REASONS = 2, 3  # rejected candidates and reasons shown without --all
PROGRAM = "eaglelocal"
CONTINUES = " \\"  # continues a shell command on the next line


# ---- for people
def report_lines(outcome: SearchOutcome, chosen: Candidate, *, show_all: bool) -> list[str]:
    """Return the report, at most WIDTH columns wide; with few reasons it fits a screen of 24 lines."""
    reasons = explain_choice(outcome, chosen)
    size = f"{format_memory(adapter_bytes(chosen))} of the weights" if outcome.options.lora else ""
    return [
        *wrap_text("machine  ", outcome.machine.name),
        *wrap_text("plan     ", f"{chosen.option.reference}, {draft_text(chosen, outcome.options.lookups)}"),
        *wrap_text("         ", setup_text(outcome, chosen)),
        *wrap_text("speed    ", speed_text(outcome, chosen)),
        "",
        *(line for load in chosen.memory.used for line in memory_lines(load)),
        *wrap_text("         ", sum_text(chosen)),
        *(wrap_text("adapters ", f"{describe_adapters(outcome.options.adapters)}: {size}") if size else []),
        *link_lines(outcome),
        "",
        *(line for reason in (reasons if show_all else reasons[:SHOWN_REASONS]) for line in wrap_text("- ", reason)),
        "",
        *rejected_lines(outcome, chosen, show_all=show_all),
        *command_lines(outcome, chosen),
    ]


def draft_text(candidate: Candidate, lookups: Sequence[str]) -> str:
    count = candidate.prediction.num_draft_tokens
    if candidate.draft.kind == "none":
        return "no draft"
    name = describe_draft("" if candidate.draft.kind == NGRAM else candidate.draft.id, lookups)
    if candidate.drafts_nothing:
        return f"draft {name}, where it pays"
    return f"draft {name}, {count_noun(count, 'token')} ahead"


def setup_text(outcome: SearchOutcome, candidate: Candidate) -> str:
    slots = outcome.options.parallel
    tokens = count_noun(candidate.setup.n_ctx, "token")
    context = f"{slots} x {tokens} of context" if slots > 1 else f"{tokens} of context"
    return f"{context}, cache {candidate.setup.kv_type}{layers_text(outcome, candidate)}"


def layers_text(outcome: SearchOutcome, candidate: Candidate) -> str:
    if not outcome.machine.gpus:
        return ""
    blocks = candidate.option.shape.n_layer + 1
    on_gpu = blocks if candidate.gpu_layers is None else min(candidate.gpu_layers, blocks)
    in_ram = count_experts_in_ram(outcome, candidate)
    experts = f", experts of {in_ram} of {blocks - 1} in main memory" if in_ram else ""
    return f", {on_gpu} of {blocks} layers on the {name_places(outcome.machine.gpus)}{experts}"


def speed_text(outcome: SearchOutcome, candidate: Candidate) -> str:
    prediction, num_slots = candidate.prediction, outcome.options.parallel
    source = "measured here" if prediction.is_measured else "predicted"
    if num_slots > 1:
        source += " for an answer alone"
    if prediction.together_tok_s is not None:
        source += f"; {num_slots} at once {prediction.together_tok_s:.0f} in all, without drafts"
    if prediction.certainty is not None and any(explain_slow_cache(outcome, candidate)):
        source += f" for a cache of f16; one of {candidate.setup.kv_type} is slower here"
    elif prediction.certainty is not None:
        source += f"; {certainty_text(prediction.certainty)}"
    if candidate.draft.acceptance is None or candidate.drafts_nothing:
        return f"{prediction.plain_tok_s:.1f} tokens/s, {source}"
    return (
        f"{prediction.spec_tok_s:.1f} tokens/s with the draft, {prediction.plain_tok_s:.1f} without "
        f"({prediction.gain:.2f}x), {source}"
    )


def certainty_text(certainty: Certainty) -> str:
    within = f"within {certainty.within:.0%}"
    if certainty.is_seen:
        return f"fits published speeds of such {certainty.device}s {within}"
    if certainty.device == SPLIT:
        return f"few splits were ever measured: {within}"
    return f"no {certainty.device} of this kind was seen: {within}"


def adapter_bytes(candidate: Candidate) -> int:
    return sum(tensor.nbytes for tensor in candidate.option.adapters)


def link_lines(outcome: SearchOutcome) -> Iterator[str]:
    """Yield the measured link to each device of an rpc-server, the assumptions about the device, and the warning."""
    links = [(gpu.name, gpu.link) for gpu in outcome.machine.gpus if gpu.link is not None]
    for name, link in links:
        speed = "as fast as this processor, assumed"
        yield from wrap_text(f"{name:<8} ", f"at {link.address}: {describe_link(link)}; {speed}")
    if links:
        yield from wrap_text("warning  ", WARNING)


def memory_lines(load: DeviceLoad) -> list[str]:
    """Return a device's memory bar: `CUDA0    ██████████████████████████████  22.4 of 23.0 GiB`."""
    begin, total, free = f"{load.device:<8} ", load.total / GIB, load.free_bytes
    if free is None:
        return wrap_text(begin, f"{total:.1f} GiB, free memory unknown")
    full = min(BAR_CELLS, -(-BAR_CELLS * load.total // max(free, 1)))
    bar, shared = "█" * full + "░" * (BAR_CELLS - full), ", a part of RAM" if load.in_ram else ""
    return wrap_text(begin, f"{bar} {total:5.1f} of {free / GIB:.1f} GiB{shared}")


def sum_text(chosen: Candidate) -> str:
    sum = chosen.memory.sum
    parts = [("weights", sum.weights_bytes), ("cache", sum.kv_bytes)]
    if sum.draft_bytes:
        parts += [("draft", sum.draft_bytes), ("its cache", sum.draft_kv_bytes)]
    if sum.images_bytes:
        parts.append(("images", sum.images_bytes))
    parts.append(("buffers", sum.compute_bytes))
    return ", ".join(f"{name} {num_bytes / GIB:.2f}" for name, num_bytes in parts) + " GiB"


def rejected_lines(outcome: SearchOutcome, chosen: Candidate, *, show_all: bool) -> list[str]:
    shown = list(outcome.rejected) if show_all else choose_shown(outcome, chosen)
    if not shown:
        return []
    more = "" if show_all else f" ({len(shown)} of {len(outcome.rejected)}; --all shows all, and every reason)"
    return [*wrap_text("", f"not taken{more}"), *_rejected_reasons(shown), ""]


def list_all_rejected(outcome: SearchOutcome) -> list[str]:
    """Return a heading with the machine and the target, and all that was rejected with its reason."""
    target = f", {outcome.options.target}" if outcome.options.target else ""
    return [f"not taken, {outcome.machine.name}{target}", *_rejected_reasons(outcome.rejected)]


def _rejected_reasons(rejected: Sequence[Rejected]) -> Iterator[str]:
    for each in rejected:
        draft = f" with {each.draft}" if each.draft not in ("", "none") else ""
        yield from wrap_text("  ", f"{each.option.reference}{draft}: {each.reason}")


def choose_shown(outcome: SearchOutcome, chosen: Candidate) -> list[Rejected]:
    """Return at most SHOWN rejected candidates: one of the chosen target, then the best of other targets by score."""
    best: dict[str, Rejected] = {}
    for each in outcome.rejected:
        if each.candidate is None or each.option.target == chosen.option.target:
            continue
        known = best.get(each.option.target)
        if known is None or known.candidate is None or each.candidate.score > known.candidate.score:
            best[each.option.target] = each
    ranked = sorted(best.values(), key=lambda each: -each.candidate.score if each.candidate else 0.0)
    same = [each for each in outcome.rejected if each.option is chosen.option]
    return [*same[:1], *ranked][:SHOWN]


def command_lines(outcome: SearchOutcome, chosen: Candidate) -> Iterator[str]:
    found = commands(outcome.options, chosen)
    for key, label in (("pull", "get it"), ("import", "import"), ("run", "run it")):
        if found[key]:
            yield from wrap_command(f"{label:<9}", found[key] or "")


def commands(options: RunOptions, chosen: Candidate) -> dict[str, str | None]:
    """Return the commands to pull the files, import the head and run the plan; None for a step that is not needed."""
    reference = quote_word(chosen.option.reference)
    command = "chat" if options.parallel == 1 else "serve"
    run = " ".join([PROGRAM, command, "--target", reference, *run_flags(options, chosen)])
    if chosen.option.is_here and chosen.draft.is_at_hand:
        return {"pull": None, "import": None, "run": run}
    pull = f"{PROGRAM} pull {reference} --draft {chosen.draft.id if chosen.draft.shape is not None else 'none'}"
    source = chosen.draft.import_from
    head = f"{PROGRAM} import {source} --target {reference}" if source else None
    return {"pull": pull, "import": head, "run": run}


def run_flags(options: RunOptions, candidate: Candidate) -> list[str]:
    """Return the flags that make a run use this plan."""
    setup, layers, experts = candidate.setup, candidate.gpu_layers, candidate.n_cpu_moe
    flags = [
        ("--ctx", f"{setup.n_ctx}"),
        ("--kv-type", setup.kv_type if setup.kv_type != "f16" or options.kv_type is not None else ""),
        ("--gpu-layers", "" if layers is None else f"{layers}"),
        ("--n-cpu-moe", f"{experts}" if experts or options.n_cpu_moe is not None else ""),
        *(("--override-tensor", each) for each in options.override_tensor),
        ("--draft", draft_flag(options, candidate)),
        *(("--lora", adapter) for adapter in options.lora),
        ("--mmproj", options.mmproj if options.mmproj != AUTO else ""),
        ("--parallel", f"{options.parallel}" if options.parallel > 1 else ""),
        ("--device", options.device or ""),
        ("--rpc", ",".join(options.rpc)),
        ("--split", split_flag(options, candidate)),
        ("--flash-attn", options.flash_attn if options.flash_attn != AUTO else ""),
    ]
    return [f"{flag} {quote_word(value)}" for flag, value in flags if value]


def split_flag(options: RunOptions, candidate: Candidate) -> str:
    """Return the value of --split: as asked, else the planned share of each GPU; "" if llama.cpp divides so itself."""
    return options.split if options.split != "layer" else ",".join(f"{share:g}" for share in candidate.offload.shares)


def draft_flag(options: RunOptions, candidate: Candidate) -> str:
    """Return the value of --draft for the planned drafts; "" if `auto` chooses them anyway."""
    name = draft_name(options, candidate)
    if options.lookups == (NGRAM,) or candidate.draft.kind == "none":
        return name
    models = [] if candidate.draft.kind == NGRAM else [name or AUTO]
    return ",".join([*models, *options.lookups])


def draft_name(options: RunOptions, candidate: Candidate) -> str:
    """Return the name of the planned draft alone; "" if `auto` chooses it anyway."""
    shape = candidate.option.shape
    if candidate.draft.needs_naming:
        return candidate.draft.id
    if candidate.draft.shape is not None:
        return options.draft if options.names_draft and candidate.option.is_here else ""
    lookup, *_ = list_lookup_options(shape.architecture, has_state=shape.has_state)
    # `--draft auto` would take an MTP layer of the model's file, once that is here
    has_own = not candidate.option.is_here and any(draft.kind == MTP for draft in candidate.option.drafts)
    if candidate.draft.kind == NGRAM and options.draft == AUTO and not has_own:
        return ""
    return candidate.draft.kind if lookup.kind == NGRAM else ""


def wrap_command(begin: str, command: str) -> list[str]:
    """Wrap a command with backslashes at the ends of lines, so that it can be copied."""
    *lines, last = textwrap.wrap(
        command, WIDTH - len(begin) - len(CONTINUES), break_on_hyphens=False, break_long_words=False
    )
    indent = " " * len(begin)
    shown = [*(line + CONTINUES for line in lines), last]
    return [(begin if number == 0 else indent) + line for number, line in enumerate(shown)]


# ---- for programs
def outcome_object(outcome: SearchOutcome) -> dict[str, object]:
    """Return the JSON object of `plan --json`; `chosen` is null if nothing fits."""
    chosen = outcome.chosen
    return {
        "machine": outcome.machine.name,
        "goal": outcome.options.goal,
        "devices": [
            {
                "device": device.name,
                "name": device.label,
                "total_bytes": device.total_bytes,
                "free_bytes": device.free_bytes,
                "bandwidth_bytes_s": device.bytes_s,
                "link": None if device.link is None else link_object(device.link),
            }
            for device in outcome.machine.devices
        ],
        "chosen": chosen_object(outcome, chosen) if chosen else None,
        "rejected": [rejected_object(each) for each in outcome.rejected],
    }


def chosen_object(outcome: SearchOutcome, chosen: Candidate) -> dict[str, object]:
    sum = chosen.memory.sum
    return {
        "target": chosen.option.target,
        "quant": chosen.option.quant,
        "reference": chosen.option.reference,
        "draft": chosen.draft.id,
        "draft_kind": chosen.draft.kind,
        "num_draft_tokens": chosen.prediction.num_draft_tokens,
        "ctx": chosen.setup.n_ctx,
        "parallel": outcome.options.parallel,
        "kv_type": chosen.setup.kv_type,
        "n_batch": chosen.setup.n_batch,
        "gpu_layers": chosen.gpu_layers,
        "n_cpu_moe": chosen.n_cpu_moe,
        "score": chosen.score,
        "shares": chosen.offload.shares or outcome.options.shares,
        "overrides": list(map(str, outcome.options.overrides)),
        "adapters": adapter_objects(outcome.options.adapters),
        "memory": {
            "weights_bytes": sum.weights_bytes,
            "kv_bytes": sum.kv_bytes,
            "draft_bytes": sum.draft_bytes,
            "draft_kv_bytes": sum.draft_kv_bytes,
            "images_bytes": sum.images_bytes,
            "compute_bytes": sum.compute_bytes,
            "total_bytes": sum.total_bytes,
            "adapters_bytes": adapter_bytes(chosen),
            "budget_bytes": chosen.memory.budget_bytes,
            "devices": [
                {"device": load.device, "used_bytes": load.total, "budget_bytes": load.free_bytes}
                for load in chosen.memory.used
            ],
        },
        "predicted": {
            "plain_tok_s": chosen.prediction.plain_tok_s,
            "together_tok_s": chosen.prediction.together_tok_s,
            "spec_tok_s": chosen.prediction.spec_tok_s,
            "is_measured": chosen.prediction.is_measured,
            "certainty": chosen.prediction.certainty._asdict() if chosen.prediction.certainty else None,
        },
        "released": chosen.option.age.released or None,
        "terms": {term.value: worth for term, worth in chosen.terms.items()},
        "reasons": list(explain_choice(outcome, chosen)),
        "commands": commands(outcome.options, chosen),
    }


def rejected_object(rejected: Rejected) -> dict[str, object]:
    return {
        "target": rejected.option.target,
        "quant": rejected.option.quant,
        "draft": rejected.draft or None,
        "released": rejected.option.age.released or None,
        "reason": rejected.reason,
    }

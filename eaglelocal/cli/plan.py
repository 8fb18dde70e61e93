"""The command `eaglelocal plan`: what to run on this machine or one of the catalog. Downloads and loads nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from eaglelocal.catalog.catalog import KINDS
from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_machine, complete_target
from eaglelocal.cli.flags import argument, flag
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.cli.plan_report import outcome_object
from eaglelocal.conversation.spelling import closest_word
from eaglelocal.core.byte_sizes import GIB
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError
from eaglelocal.memory.budget import RAM

if TYPE_CHECKING:
    from eaglelocal.catalog.catalog import KnownMachine
    from eaglelocal.core.run_options import RunOptions
    from eaglelocal.planning.candidate_evaluation import CacheSetup
    from eaglelocal.planning.plan_search import SearchOutcome

OF_SETTINGS = ("mmproj", "lora", "draft", *flags.PLACEMENT, "parallel")
LIST = "list"  # value of --machine


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """The arguments and flags that only `plan` has, or with another meaning than elsewhere."""

    targets: list[str] | None = argument(
        "TARGET",
        "qwen3-8b, qwen3-8b:Q5_K_M, demo@8b:q4_0, ./model.gguf; several give a table.",
        complete_target,
        default=None,
    )
    ctx: str | None = flag(None, "N", "Tokens of a conversation. Unset: as many as fit well.")
    goal: str = flag("balanced", ("speed", "balanced", "quality"), "Prefer speed, quality, or a balance.")
    parallel: str | None = flag(None, "N", "Answers at once; each has --ctx tokens.")
    machine: list[str] | None = flag(
        None,
        "NAME,NAME|list",
        "Plan for another machine: rtx-3090, m2-max-32gb, cpu-16gb; several give a table, list lists them.",
        complete=complete_machine,
    )
    ram: float | None = flag(None, "GIB", "RAM of --machine, in GiB.", min=1, max=4096)
    show_all: bool = flag(False, "", "Show every rejected option and why.", "--all")
    as_json: flags.AsJson = False


@flags.takes(*OF_SETTINGS, before="as_json")
def plan(context: typer.Context, wanted: PlanFlags) -> None:
    """Say what to run here: model, quantization, draft, memory, speed.

    \b
    eaglelocal plan
    eaglelocal plan qwen3-8b --ctx 16384
    eaglelocal plan --machine rtx-3090 --ram 64 --goal quality
    eaglelocal plan --machine rtx-3060,rtx-4090,m2-max-32gb
    """
    output = standard_output()
    machines: list[str | None] = [*parse_machines(wanted.machine or ())]
    if machines == [LIST]:
        list_machines(output, as_json=wanted.as_json)
        return
    check_goal(wanted.goal)
    given = {name: context.params[name] for name in OF_SETTINGS}
    models: list[str | None] = [*wanted.targets] if wanted.targets else [None]
    plans = [
        plan_one(options_for(target, given, goal=wanted.goal, is_elsewhere=name is not None), name, wanted.ram)
        for name in machines or [None]
        for target in models
    ]
    if len(plans) == 1:
        show_plan(plans[0], output, wanted)
    else:
        show_plans(plans, output, wanted)


def parse_machines(texts: Sequence[str]) -> list[str]:
    """Return the names of all --machine. Raises UsageError if the list is asked for beside machines."""
    text = ",".join(texts)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if LIST in names and len(names) > 1:
        raise UsageError(f"--machine {text}: {LIST} goes alone", hint=f"--machine {LIST}")
    if texts and not names:
        raise UsageError(f"--machine {text!r} names no machine", hint=f"--machine {LIST}")
    return names


def plan_one(options: RunOptions, machine: str | None, ram_gib: float | None) -> SearchOutcome | PlanFailure:
    """Return the plan of one model on one machine, or the error that says why there is none."""
    from eaglelocal.catalog.catalog import load_machines
    from eaglelocal.preparation.autoplan import plan_target

    try:
        return plan_target(options, machine_name=machine, ram_gib=ram_gib)
    except EagleLocalError as error:
        known = load_machines().get((machine or "").lower())
        name = known.name if known else machine or "this machine"
        return PlanFailure(name, options.target or "", error)


def show_plan(plan: SearchOutcome | PlanFailure, output: Output, wanted: PlanFlags) -> None:
    """Show one plan in full. Raises its error if it failed, and ResourceError if nothing fits."""
    from eaglelocal.cli.plan_report import list_all_rejected, outcome_object, report_lines
    from eaglelocal.planning.no_fit_hints import explain_no_fit

    if isinstance(plan, PlanFailure):
        raise plan.error
    if wanted.as_json:
        output.object(outcome_object(plan))
    elif plan.chosen is not None:
        output.lines(report_lines(plan, plan.chosen, show_all=wanted.show_all))
    elif wanted.show_all:
        output.lines(list_all_rejected(plan))
    if plan.chosen is None:
        message, hint = explain_no_fit(plan)
        raise ResourceError(message, hint=hint)


def show_plans(plans: Sequence[SearchOutcome | PlanFailure], output: Output, wanted: PlanFlags) -> None:
    """Show several plans as a table, failed ones as rows; with --all also what was rejected, and why.

    Raises the errors of failed plans as one, and ResourceError if nothing fits anywhere.
    """
    from eaglelocal.cli.plan_report import link_lines, list_all_rejected

    failures = [plan for plan in plans if isinstance(plan, PlanFailure)]
    outcomes = [plan for plan in plans if not isinstance(plan, PlanFailure)]
    if wanted.as_json:
        output.object({"plans": [plan_object(plan) for plan in plans]})
    elif outcomes:
        output.lines(plan_table(plans))
        output.lines(dict.fromkeys(line for outcome in outcomes for line in link_lines(outcome)))
        if wanted.show_all:
            output.lines(line for outcome in outcomes for line in ["", *list_all_rejected(outcome)])
    if failures:
        raise join_failures(failures)
    if all(outcome.chosen is None for outcome in outcomes):
        raise ResourceError("none of these fits", hint=hint_none_fits(outcomes, show_all=wanted.show_all))


def hint_none_fits(outcomes: Sequence[SearchOutcome], *, show_all: bool) -> str:
    """Return --all, which shows why; where that is shown, what would make the nearest plan fit."""
    from eaglelocal.planning.no_fit_hints import explain_no_fit

    if not show_all:
        return "--all"
    missed = [(near.missing_bytes, outcome) for outcome in outcomes if (near := outcome.nearest) is not None]
    nearest = min(missed, key=lambda each: each[0] or 0)[1] if missed else outcomes[0]
    return explain_no_fit(nearest)[1]


def list_machines(output: Output, *, as_json: bool) -> None:
    """Show the machines that --machine knows."""
    from eaglelocal.catalog.catalog import load_machines

    machines = sort_machines(load_machines().values())
    if as_json:
        output.object({"machines": [machine_object(machine) for machine in machines]})
        return
    output.lines(machine_table(machines))


def options_for(target: str | None, given: Mapping[str, Any], *, goal: str, is_elsewhere: bool) -> RunOptions:
    """Return the options that `chat` would have; for another machine without the settings about this machine's GPUs.

    given  flags of the command, by name; None: not given

    Raises UsageError for rpc-servers of another machine.
    """
    from eaglelocal.cli.load_model import load_settings, make_run_options

    settings = load_settings(given)
    options = replace(make_run_options(settings, parallel=settings.parallel or 1), target=target, goal=goal)
    if not is_elsewhere:
        return options
    if given["rpc"] is not None:
        problem = f"--rpc {given['rpc']}: its link can only be measured from that machine"
        raise UsageError(problem, hint="run `eaglelocal plan` there")
    return replace(
        options,
        gpu_layers=options.gpu_layers if given["gpu_layers"] is not None else None,
        n_cpu_moe=options.n_cpu_moe if given["n_cpu_moe"] is not None else None,
        device=given["device"],
        split=options.split if given["split"] is not None else "layer",
        rpc=(),
    )


def check_goal(name: str) -> None:
    """Raise UsageError with the nearest name if `name` is not a goal."""
    from eaglelocal.planning.candidate import GOALS

    if name not in GOALS:
        hint = f"--goal {closest_word(name, GOALS) or 'balanced'}"
        raise UsageError(f"--goal must be {', '.join(GOALS)}, not {name!r}", hint=hint)


# ---- The short outputs of `plan`: a table of plans for several machines or models, and the list of machines. Pure
HEADINGS = ("machine", "model", "quant", "GiB", "context", "tok/s", "quality")
MACHINE_HEADINGS = ("--machine", "memory", "GB/s", "")
RIGHT = frozenset({"GiB", "context", "tok/s", "quality", "memory", "GB/s"})  # columns of numbers
NO_FIT, NOT_PLANNED = "no room", "error"
MAX_MACHINE_CHARS = 22
GIB_NOTE = "GiB: on the GPUs if there are any, else in main memory"
IN_RAM, IN_RAM_NOTE = "*", "tok/s*: a part of the model stays in main memory, and prompts are read slowly"
QUALITY_NOTE = "quality: billions of parameters, weighed by quantization and age; no benchmark"


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """A plan that could not be made: an unknown model or machine, or a file that cannot be read."""

    machine: str
    target: str
    error: EagleLocalError


def join_failures(failures: Sequence[PlanFailure]) -> EagleLocalError:
    """Return the errors as one: each message once, and the first hint."""
    errors = list({failure.error.message: failure.error for failure in failures}.values())
    if len(errors) == 1:
        return errors[0]
    return UsageError("; ".join(error.message for error in errors), hint=errors[0].hint)


def plan_object(plan: SearchOutcome | PlanFailure) -> dict[str, object]:
    """Return the JSON object of a plan; a failed one has nothing chosen, and its error."""
    if not isinstance(plan, PlanFailure):
        return outcome_object(plan)
    error = {"message": plan.error.message, "hint": plan.error.hint or None}
    return {"machine": plan.machine, "target": plan.target or None, "chosen": None, "rejected": [], "error": error}


def plan_table(plans: Sequence[SearchOutcome | PlanFailure]) -> list[str]:
    """Return a row for each plan and what the columns mean; with the names of the catalog within 80 columns."""
    rows = [plan_row(plan) for plan in plans]
    is_split = any(row[5].endswith(IN_RAM) for row in rows)
    return [*format_columns([HEADINGS, *rows]), "", GIB_NOTE, *([IN_RAM_NOTE] if is_split else []), QUALITY_NOTE]


def plan_row(plan: SearchOutcome | PlanFailure) -> tuple[str, ...]:
    if isinstance(plan, PlanFailure):
        return _shorten(plan.machine), plan.target, NOT_PLANNED, "", "", "", ""
    chosen, machine = plan.chosen, _shorten(plan.machine.name)
    if chosen is None:
        return machine, plan.options.target or "", NO_FIT, "", "", "", ""
    candidate, slots = chosen.candidate, plan.options.parallel
    on_gpus = [load for load in chosen.memory.used if load.device != RAM]
    used = on_gpus or chosen.memory.used
    return (
        machine,
        candidate.option.target,
        candidate.option.quant,
        f"{sum(load.total for load in used) / GIB:.1f}",
        _describe_cache(candidate.setup, slots),
        f"{candidate.prediction.spec_tok_s:.1f}{'' if candidate.offload.is_whole else IN_RAM}",
        f"{candidate.option.answers_b:.1f}",
    )


def _describe_cache(setup: CacheSetup, num_slots: int) -> str:
    """Return the context of each slot, and the cache's type if it is not f16: `2 x 32768 q8_0`."""
    slots = f"{num_slots} x " if num_slots > 1 else ""
    return f"{slots}{setup.n_ctx}{'' if setup.kv_type == 'f16' else f' {setup.kv_type}'}"


def _shorten(machine: str) -> str:
    return machine if len(machine) <= MAX_MACHINE_CHARS else f"{machine[: MAX_MACHINE_CHARS - 3].rstrip()}..."


def sort_machines(machines: Iterable[KnownMachine]) -> list[KnownMachine]:
    """Return the machines by kind, NVIDIA's cards first, then by number of cards, then by name, numbers as numbers."""

    def key(machine: KnownMachine) -> tuple[int, int, list[tuple[int, str]]]:
        parts = re.findall(r"([0-9]*)([^0-9]*)", machine.id)
        return KINDS.index(machine.kind), machine.num_gpus, [(int(number or 0), rest) for number, rest in parts]

    return sorted(machines, key=key)


def machine_table(machines: Iterable[KnownMachine]) -> list[str]:
    """Return a row for each machine of the catalog: the name for --machine, its memory, and what it is."""
    rows = [
        (
            machine.id,
            f"{max(machine.num_gpus, 1) * machine.memory_bytes / GIB:.0f} GiB",
            f"{machine.bandwidth_gb_s:.0f}",
            machine.name,
        )
        for machine in machines
    ]
    return format_columns([MACHINE_HEADINGS, *rows])


def machine_object(machine: KnownMachine) -> dict[str, object]:
    return {
        "id": machine.id,
        "name": machine.name,
        "aliases": list(machine.aliases),
        "kind": machine.kind,
        "num_gpus": machine.num_gpus,
        "memory_bytes": machine.memory_bytes,
        "bandwidth_gb_s": machine.bandwidth_gb_s,
    }


def format_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; the first row is the headings, which say how to align."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if heading in RIGHT else cell.ljust(width)
            for cell, width, heading in zip(row, widths, rows[0], strict=True)
        ).rstrip()
        for row in rows
    ]

"""The command `eaglelocal plan`: what to run on this machine or one of the catalog. Downloads and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_machine, complete_target, complete_words
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.conversation.spelling import closest_word
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError

if TYPE_CHECKING:
    from eaglelocal.cli.reports.plan_table import PlanFailure
    from eaglelocal.core.run_options import RunOptions
    from eaglelocal.planning.plan_search import SearchOutcome

OF_SETTINGS = ("mmproj", "lora", "draft", *flags.PLACEMENT, "parallel")
LIST = "list"  # value of --machine


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """The arguments and flags that only `plan` has, or with another meaning than elsewhere."""

    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="qwen3-8b, qwen3-8b:Q5_K_M, demo@8b:q4_0, ./model.gguf; several give a table.",
            autocompletion=complete_target,
        ),
    ] = None
    ctx: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens of a conversation. Unset: as many as fit well.")
    ] = None
    goal: Annotated[
        str,
        typer.Option(
            "--goal",
            metavar="speed|balanced|quality",
            help="Prefer speed, quality, or a balance.",
            autocompletion=complete_words("speed", "balanced", "quality"),
        ),
    ] = "balanced"
    parallel: Annotated[str | None, typer.Option(metavar="N", help="Answers at once; each has --ctx tokens.")] = None
    machine: Annotated[
        list[str] | None,
        typer.Option(
            "--machine",
            metavar="NAME,NAME|list",
            help="Plan for another machine: rtx-3090, m2-max-32gb, cpu-16gb; several give a table, list lists them.",
            autocompletion=complete_machine,
        ),
    ] = None
    ram: Annotated[float | None, typer.Option(metavar="GIB", min=1, max=4096, help="RAM of --machine, in GiB.")] = None
    show_all: Annotated[bool, typer.Option("--all", help="Show every rejected option and why.")] = False
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
    from eaglelocal.cli.reports.plan_table import PlanFailure
    from eaglelocal.preparation.autoplan import plan_target

    try:
        return plan_target(options, machine_name=machine, ram_gib=ram_gib)
    except EagleLocalError as error:
        known = load_machines().get((machine or "").lower())
        name = known.name if known else machine or "this machine"
        return PlanFailure(name, options.target or "", error)


def show_plan(plan: SearchOutcome | PlanFailure, output: Output, wanted: PlanFlags) -> None:
    """Show one plan in full. Raises its error if it failed, and ResourceError if nothing fits."""
    from eaglelocal.cli.reports.plan import list_all_rejected, outcome_object, report_lines
    from eaglelocal.cli.reports.plan_table import PlanFailure
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
    from eaglelocal.cli.reports.plan import link_lines, list_all_rejected
    from eaglelocal.cli.reports.plan_table import PlanFailure, join_failures, plan_object, plan_table

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
    from eaglelocal.cli.reports.plan_table import machine_object, machine_table, sort_machines

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
    from eaglelocal.conversation.session import ModelChoice

    settings = load_settings(given)
    options = replace(
        make_run_options(settings, ModelChoice(), parallel=settings.parallel or 1), target=target, goal=goal
    )
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

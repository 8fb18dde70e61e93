"""`eaglelocal plan`: what to run, on this machine or one of the catalogue, and why. Downloads and loads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.talk.nearest import nearest

if TYPE_CHECKING:
    from eaglelocal.catalog.catalog import Catalog
    from eaglelocal.planner.goals import Goal
    from eaglelocal.planner.machine import Rig
    from eaglelocal.planner.plan import Outcome

Target = Annotated[
    str | None, typer.Argument(metavar="TARGET", help="qwen3-8b, qwen3-8b:Q5_K_M, demo@8b:q4_0, ./model.gguf.")
]
GoalName = Annotated[str, typer.Option("--goal", metavar="speed|balanced|quality", help="What counts most.")]
MachineName = Annotated[
    str | None, typer.Option("--machine", metavar="NAME", help="Not here: rtx-3090, m2-max-32gb, cpu-16gb.")
]
Ctx = Annotated[str | None, typer.Option(metavar="N", help="Tokens of a conversation; unset: as many as fit well.")]
Parallel = Annotated[str | None, typer.Option(metavar="N", help="Answers at once; each has --ctx tokens.")]
ShowAll = Annotated[bool, typer.Option("--all", help="Everything that was rejected, with its reason.")]


def plan(
    target: Target = None,
    ctx: Ctx = None,
    goal: GoalName = "balanced",
    parallel: Parallel = None,
    machine: MachineName = None,
    show_all: ShowAll = False,
    as_json: flags.AsJson = False,
) -> None:
    """Say what to run here: model, quantization, draft, memory, speed.

    \b
    eaglelocal plan
    eaglelocal plan qwen3-8b --ctx 16384
    eaglelocal plan --machine rtx-3090 --goal quality --json
    """
    from eaglelocal.catalog.catalog import load
    from eaglelocal.cli.loading import settings_of
    from eaglelocal.cli.plan_report import outcome_object, report_lines
    from eaglelocal.cli.planning import candidates
    from eaglelocal.measured import measured_costs
    from eaglelocal.planner.plan import Asked
    from eaglelocal.planner.plan import plan as decide

    output = standard_output()
    settings = settings_of({"ctx": ctx, "parallel": parallel})
    asked = Asked(goal=goal_named(goal), ctx=settings.ctx, num_slots=settings.parallel or 1)
    catalog = load()
    found = candidates(target, catalog)
    rig = here(catalog) if machine is None else there(machine, catalog)
    outcome = decide(found, rig, asked, measured=measured_costs(found, rig))
    if as_json:
        output.object(outcome_object(outcome))
    elif outcome.chosen is not None:
        for line in report_lines(outcome, outcome.chosen, show_all=show_all):
            output.data(line)
    if outcome.chosen is None:
        raise nothing_fits(outcome)


def goal_named(name: str) -> Goal:
    from eaglelocal.planner.goals import GOALS

    if name not in GOALS:
        close = nearest(name, GOALS)
        raise UsageError(
            f"--goal must be {', '.join(GOALS)}, not {name!r}", hint=f"did you mean {close}?" if close else ""
        )
    return GOALS[name]


def here(catalog: Catalog) -> Rig:
    from eaglelocal.planner.machine import rig_of
    from eaglelocal.probe.probe import probe

    return rig_of(probe(), catalog.machines)


def there(name: str, catalog: Catalog) -> Rig:
    from eaglelocal.planner.machine import rig_of_known

    return rig_of_known(catalog.machine(name))


def nothing_fits(outcome: Outcome) -> ResourceError:
    from eaglelocal.planner.reasons import nearest_miss

    miss = outcome.nearest or next(iter(outcome.rejected), None)
    if miss is None:
        return ResourceError("there is nothing to plan")
    message, hint = nearest_miss(outcome, miss)
    return ResourceError(message, hint=hint)

"""The command `eaglelocal plan`: what to run on this machine or one of the catalog. Downloads and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_machine, complete_target
from eaglelocal.cli.flags import argument, flag
from eaglelocal.cli.output import standard_output
from eaglelocal.core.records import dataclass
from eaglelocal.core.spelling import closest_word
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.core.run_options import RunOptions

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
        "Plan for another machine: rtx-3090, 2x-rtx-3090, cpu-16gb; several give a table, list lists them.",
        complete=complete_machine,
    )
    ram: float | None = flag(None, "GIB", "RAM of --machine, in GiB.", min=1, max=4096)
    show_all: bool = flag(False, "", "Show all that was rejected; `search` finds models by words.", "--all")
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
    from eaglelocal.cli.plan_table import list_machines, plan_one, show_plan, show_plans

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
        show_plan(plans[0], output, as_json=wanted.as_json, show_all=wanted.show_all)
    else:
        show_plans(plans, output, as_json=wanted.as_json, show_all=wanted.show_all)


def parse_machines(texts: Sequence[str]) -> list[str]:
    """Return the names of all --machine. Raises UsageError if the list is asked for beside machines."""
    text = ",".join(texts)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if LIST in names and len(names) > 1:
        raise UsageError(f"--machine {text}: {LIST} goes alone", hint=f"--machine {LIST}")
    if texts and not names:
        raise UsageError(f"--machine {text!r} names no machine", hint=f"--machine {LIST}")
    return names


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
        override_tensor=options.override_tensor if given["override_tensor"] is not None else (),
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

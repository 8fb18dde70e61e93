"""The command `eaglelocal plan`: what to run on this machine or one of the catalog. Downloads and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output
from eaglelocal.conversation.spelling import closest_word
from eaglelocal.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from eaglelocal.core.run_options import RunOptions

Target = Annotated[
    str | None, typer.Argument(metavar="TARGET", help="qwen3-8b, qwen3-8b:Q5_K_M, demo@8b:q4_0, ./model.gguf.")
]
GoalName = Annotated[
    str, typer.Option("--goal", metavar="speed|balanced|quality", help="Prefer speed, quality, or a balance.")
]
MachineName = Annotated[
    str | None,
    typer.Option("--machine", metavar="NAME", help="Plan for another machine: rtx-3090, m2-max-32gb, cpu-16gb."),
]
Ctx = Annotated[str | None, typer.Option(metavar="N", help="Tokens of a conversation. Unset: as many as fit well.")]
Parallel = Annotated[str | None, typer.Option(metavar="N", help="Answers at once; each has --ctx tokens.")]
Ram = Annotated[float | None, typer.Option(metavar="GIB", min=1, max=4096, help="RAM of --machine, in GiB.")]
OF_SETTINGS = (
    *("ctx", "parallel", "mmproj", "draft", "gpu_layers", "n_cpu_moe", "device", "split", "kv_type", "flash_attn"),
)
ShowAll = Annotated[bool, typer.Option("--all", help="Show every rejected option and why.")]


def plan(
    context: typer.Context,
    target: Target = None,
    ctx: Ctx = None,
    goal: GoalName = "balanced",
    parallel: Parallel = None,
    machine: MachineName = None,
    ram: Ram = None,
    mmproj: flags.Mmproj = None,
    draft: flags.Draft = None,
    gpu_layers: flags.GpuLayers = None,
    n_cpu_moe: flags.NCpuMoe = None,
    device: flags.Device = None,
    split: flags.Split = None,
    kv_type: flags.KvType = None,
    flash_attn: flags.FlashAttn = None,
    show_all: ShowAll = False,
    as_json: flags.AsJson = False,
) -> None:
    """Say what to run here: model, quantization, draft, memory, speed.

    \b
    eaglelocal plan
    eaglelocal plan qwen3-8b --ctx 16384
    eaglelocal plan --machine rtx-3090 --ram 64 --goal quality
    """
    from eaglelocal.cli.reports.plan import outcome_object, report_lines
    from eaglelocal.planning.no_fit_hints import explain_no_fit
    from eaglelocal.planning.plan_models import plan_models

    output = standard_output()
    given = {name: context.params[name] for name in OF_SETTINGS}
    options = options_for(target, given, goal=check_goal(goal), is_elsewhere=machine is not None)
    outcome = plan_models(options, machine_name=machine, ram_gib=ram)
    if as_json:
        output.object(outcome_object(outcome))
    elif outcome.chosen is not None:
        for line in report_lines(outcome, outcome.chosen, show_all=show_all):
            output.data(line)
    if outcome.chosen is None:
        message, hint = explain_no_fit(outcome)
        raise ResourceError(message, hint=hint)


def options_for(target: str | None, given: Mapping[str, Any], *, goal: str, is_elsewhere: bool) -> RunOptions:
    """Return the options that `chat` would have; for another machine without the settings about this machine's GPUs.

    given  flags of the command, by name; None: not given
    """
    from eaglelocal.cli.load_model import load_settings, make_run_options
    from eaglelocal.conversation.session import ModelChoice

    settings = load_settings(given)
    options = replace(
        make_run_options(settings, ModelChoice(), parallel=settings.parallel or 1), target=target, goal=goal
    )
    if not is_elsewhere:
        return options
    return replace(
        options,
        gpu_layers=options.gpu_layers if given["gpu_layers"] is not None else None,
        n_cpu_moe=options.n_cpu_moe if given["n_cpu_moe"] is not None else None,
        device=given["device"],
        split=options.split if given["split"] is not None else "layer",
    )


def check_goal(name: str) -> str:
    """Return `name` if it is a goal. Raises UsageError if not."""
    from eaglelocal.planning.goals import GOALS

    if name not in GOALS:
        close = closest_word(name, GOALS)
        raise UsageError(
            f"--goal must be {', '.join(GOALS)}, not {name!r}", hint=f"did you mean {close}?" if close else ""
        )
    return name

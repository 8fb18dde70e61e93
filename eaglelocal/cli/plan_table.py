"""The plans of `plan`: one in full, several as a table, and the list of machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from eaglelocal.catalog.catalog import KINDS, KnownMachine, load_catalog, load_machines
from eaglelocal.cli.output import Output, format_columns
from eaglelocal.cli.plan_report import link_lines, list_all_rejected, outcome_object, report_lines
from eaglelocal.core.amounts import GIB
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.spelling import closest_word
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError
from eaglelocal.planning.candidate_evaluation import CacheSetup
from eaglelocal.planning.no_fit_hints import explain_no_fit
from eaglelocal.planning.options import ModelOption
from eaglelocal.planning.plan_search import SearchOutcome
from eaglelocal.preparation.autoplan import plan_target
from eaglelocal.preparation.model_choices import CatalogChoice

HEADINGS = ("machine", "model", "quant", "GiB", "context", "tok/s", "quality")
MACHINE_HEADINGS = ("--machine", "memory", "GB/s", "")
RIGHT = frozenset({"GiB", "context", "tok/s", "quality", "memory", "GB/s"})  # columns of numbers
NO_FIT, NOT_PLANNED = "no room", "error"
MAX_MACHINE_CHARS = 22
SEVERAL_CARDS_NOTE = "several cards: 2x-rtx-3090 is two of one kind, rtx-3090+rtx-3060 one of each"
GIB_NOTE = "GiB: the model's file, without a draft; its context needs memory too"
IN_RAM, IN_RAM_NOTE = "*", "tok/s*: a part of the model stays in main memory, and prompts are read slowly"
BEST, THIS_MACHINE = "best", "this machine"
ON_DISK, ON_DISK_NOTE = "+", "quant+: on this disk"
QUALITY_NOTE = "quality: billions of parameters, weighed by quantization and age; no benchmark"


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """A plan that could not be made: an unknown model or machine, or a file that cannot be read."""

    machine: str
    target: str
    error: EagleLocalError


def plan_one(options: RunOptions, machine: str | None, ram_gib: float | None) -> SearchOutcome | PlanFailure:
    """Return the plan of one model on one machine, or the error that says why there is none."""
    try:
        return plan_target(options, machine_name=machine, ram_gib=ram_gib)
    except EagleLocalError as error:
        known = load_machines().get((machine or "").lower())
        name = known.name if known else machine or THIS_MACHINE
        return PlanFailure(name, options.target or "", error)


def show_plan(plan: SearchOutcome | PlanFailure, output: Output, *, as_json: bool, show_all: bool) -> None:
    """Show one plan in full. Raises its error if it failed, and ResourceError if nothing fits."""
    if isinstance(plan, PlanFailure):
        raise plan.error
    if as_json:
        output.object(outcome_object(plan))
    elif plan.chosen is not None:
        output.page(report_lines(plan, plan.chosen, show_all=show_all))
    elif show_all:
        output.page(list_all_rejected(plan))
    if plan.chosen is None:
        message, hint = explain_no_fit(plan)
        raise ResourceError(message, hint=hint)


def show_plans(plans: Sequence[SearchOutcome | PlanFailure], output: Output, *, as_json: bool, show_all: bool) -> None:
    """Show several plans as a table, failed ones as rows; with --all also what was rejected, and why.

    Raises the errors of failed plans as one, and ResourceError if nothing fits anywhere.
    """
    failures = [plan for plan in plans if isinstance(plan, PlanFailure)]
    outcomes = [plan for plan in plans if not isinstance(plan, PlanFailure)]
    if as_json:
        output.object({"plans": [plan_object(plan) for plan in plans]})
    elif outcomes:
        links = dict.fromkeys(line for outcome in outcomes for line in link_lines(outcome))
        rejected = (line for outcome in outcomes for line in ["", *list_all_rejected(outcome)])
        output.page([*plan_table(plans), *links, *(rejected if show_all else ())])
    if failures:
        raise join_failures(failures)
    if all(outcome.chosen is None for outcome in outcomes):
        raise ResourceError("none of these fits", hint=hint_none_fits(outcomes, show_all=show_all))


def show_choices(choices: Sequence[CatalogChoice], words: Sequence[str], output: Output, *, as_json: bool) -> None:
    """Show models of the catalog that were found by words, as a table of plans. Raises UsageError if there is none."""
    if not choices:
        near = closest_word(words[0], load_catalog().targets)
        name = " and ".join(words)
        raise UsageError(f"no model of the catalog has {name} in its name", hint=f"eaglelocal search {near or 'qwen'}")
    if as_json:
        output.object({"models": [choice_object(choice) for choice in choices]})
    else:
        output.page(plan_table([choice.plan for choice in choices]))


def choice_object(choice: CatalogChoice) -> dict[str, object]:
    option = choice.option
    return {
        "reference": option.reference,
        "target": option.target,
        "quant": option.quant,
        "is_here": option.is_here,
        "size_bytes": option.shape.weights_bytes,
        "fits": choice.fits,
        "tok_s": choice.tok_s,
    }


def hint_none_fits(outcomes: Sequence[SearchOutcome], *, show_all: bool) -> str:
    """Return --all, which shows why; where that is shown, what would make the nearest plan fit."""
    if not show_all:
        return "--all"
    missed = [(near.missing_bytes, outcome) for outcome in outcomes if (near := outcome.nearest) is not None]
    nearest = min(missed, key=lambda each: each[0] or 0)[1] if missed else outcomes[0]
    return explain_no_fit(nearest)[1]


def list_machines(output: Output, *, as_json: bool) -> None:
    """Show the machines that --machine knows."""
    machines = sort_machines(load_machines().values())
    if as_json:
        output.object({"machines": [machine_object(machine) for machine in machines]})
        return
    rows = [MACHINE_HEADINGS]
    for machine in machines:
        memory = f"{max(machine.num_gpus, 1) * machine.memory_bytes / GIB:.0f} GiB"
        rows.append((machine.id, memory, f"{machine.bandwidth_gb_s:.0f}", machine.name))
    output.page([*format_columns(rows, right=RIGHT), "", SEVERAL_CARDS_NOTE])


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
    rows, headings, above = [plan_row(plan) for plan in plans], HEADINGS, []
    marks = {ON_DISK_NOTE: any(row[2].endswith(ON_DISK) for row in rows)}
    marks |= {IN_RAM_NOTE: any(row[5].endswith(IN_RAM) for row in rows)}
    notes = [GIB_NOTE, *(note for note, is_used in marks.items() if is_used), QUALITY_NOTE]
    machines = {plan.machine if isinstance(plan, PlanFailure) else plan.machine.name for plan in plans}
    machines -= {THIS_MACHINE} if len(machines) > 1 else set()
    if len(machines) == 1:
        best, above = find_best(plans), [f"machine  {machines.pop()}", ""]
        rows = [(*row[1:], BEST if number == best else "") for number, row in enumerate(rows)]
        headings = (*HEADINGS[1:], "")
    return [*above, *format_columns([headings, *rows], right=RIGHT), "", *notes]


def find_best(plans: Sequence[SearchOutcome | PlanFailure]) -> int | None:
    """Return the place of the best plan for a machine; None if not several fit."""
    chosen = {n: plan.chosen for n, plan in enumerate(plans) if not isinstance(plan, PlanFailure) and plan.chosen}
    return max(chosen, key=lambda number: chosen[number].score) if len(chosen) > 1 else None


def plan_row(plan: SearchOutcome | PlanFailure) -> tuple[str, ...]:
    if isinstance(plan, PlanFailure):
        return _shorten(plan.machine), plan.target, NOT_PLANNED, "", "", "", ""
    chosen, machine = plan.chosen, _shorten(plan.machine.name)
    if chosen is None:
        tried = {each.option.reference: each.option for each in plan.rejected}
        if len(tried) == 1:
            option = tried.popitem()[1]
            return machine, option.target, _mark_quant(option), _format_size(option), NO_FIT, "", ""
        return machine, plan.options.target or "", NO_FIT, "", "", "", ""
    slots = plan.options.parallel
    return (
        machine,
        chosen.option.target,
        _mark_quant(chosen.option),
        _format_size(chosen.option),
        _describe_cache(chosen.setup, slots),
        f"{chosen.prediction.spec_tok_s:.1f}{'' if chosen.offload.is_whole else IN_RAM}",
        f"{chosen.option.answers_b:.1f}",
    )


def _describe_cache(setup: CacheSetup, num_slots: int) -> str:
    """Return the context of each slot, and the cache's type if it is not f16: `2 x 32768 q8_0`."""
    slots = f"{num_slots} x " if num_slots > 1 else ""
    return f"{slots}{setup.n_ctx}{'' if setup.kv_type == 'f16' else f' {setup.kv_type}'}"


def _mark_quant(option: ModelOption) -> str:
    return f"{option.quant}{ON_DISK if option.is_here else ''}"


def _format_size(option: ModelOption) -> str:
    return f"{option.shape.weights_bytes / GIB:.1f}"


def _shorten(machine: str) -> str:
    return machine if len(machine) <= MAX_MACHINE_CHARS else f"{machine[: MAX_MACHINE_CHARS - 3].rstrip()}..."


def sort_machines(machines: Iterable[KnownMachine]) -> list[KnownMachine]:
    """Return the machines by kind, NVIDIA's cards first, then by number of cards, then by name, numbers as numbers."""

    def key(machine: KnownMachine) -> tuple[int, int, list[tuple[int, str]]]:
        parts = re.findall(r"([0-9]*)([^0-9]*)", machine.id)
        return KINDS.index(machine.kind), machine.num_gpus, [(int(number or 0), rest) for number, rest in parts]

    return sorted(machines, key=key)


def machine_object(machine: KnownMachine) -> dict[str, object]:
    return {
        "id": machine.id,
        "name": machine.name,
        "kind": machine.kind,
        "num_gpus": machine.num_gpus,
        "memory_bytes": machine.memory_bytes,
        "bandwidth_gb_s": machine.bandwidth_gb_s,
        "aliases": list(machine.aliases),
    }

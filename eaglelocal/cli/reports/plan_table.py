"""The short outputs of `plan`: a table of plans for several machines or models, and the list of machines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from eaglelocal.catalog.catalog import KINDS
from eaglelocal.cli.reports.plan import outcome_object
from eaglelocal.core.byte_sizes import GIB
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.memory.budget import RAM

if TYPE_CHECKING:
    from eaglelocal.catalog.catalog import KnownMachine
    from eaglelocal.planning.candidate_evaluation import CacheSetup
    from eaglelocal.planning.plan_search import SearchOutcome

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
    slots = plan.options.parallel
    on_gpus = [load for load in chosen.memory.used if load.device != RAM]
    used = on_gpus or chosen.memory.used
    return (
        machine,
        chosen.option.target,
        chosen.option.quant,
        f"{sum(load.total for load in used) / GIB:.1f}",
        _describe_cache(chosen.setup, slots),
        f"{chosen.prediction.spec_tok_s:.1f}{'' if chosen.offload.is_whole else IN_RAM}",
        f"{chosen.option.answers_b:.1f}",
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

"""Read the decode costs that engines measured on this machine for the models on its disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eaglelocal.backend.llama_library import BUILD
from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.loading.calibration_store import find_newest_costs
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.options import ModelOption
from eaglelocal.speculation.costs.saved_costs import UNREADABLE, SavedCosts


def read_measured_costs(options: Iterable[ModelOption], machine: MachineSpec) -> Mapping[str, MeasuredCosts]:
    """Return the measured costs by the reference of the option; empty for a machine that is not this one."""
    found: dict[str, MeasuredCosts] = {}
    for option in options:
        if option.header is None or machine.probed is None:
            continue
        state = find_newest_costs(machine.probed, option.header, BUILD)
        costs = None if state is None else _restore(state)
        if costs is not None:
            found[option.reference] = costs
    return found


def _restore(state: object) -> MeasuredCosts | None:
    """Return the costs in a calibration; None if it is not understood."""
    try:
        return SavedCosts.read(state).measured()
    except UNREADABLE:
        return None

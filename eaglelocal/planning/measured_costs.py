"""Read the decode costs that engines measured on this machine for the models on its disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eaglelocal.backend.llama_library import BUILD
from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.loading.calibration_store import find_newest_costs
from eaglelocal.planning.machine_spec import MachineSpec
from eaglelocal.planning.options import ModelOption
from eaglelocal.speculation.costs.step_costs import StepCosts


def read_measured_costs(options: Iterable[ModelOption], machine: MachineSpec) -> Mapping[str, MeasuredCosts]:
    """Return the measured costs by the reference of the option; empty for a machine that is not this one."""
    found: dict[str, MeasuredCosts] = {}
    for option in options:
        if option.header is None or machine.probed is None:
            continue
        costs, state = StepCosts(), find_newest_costs(machine.probed, option.header, BUILD)
        if state is not None and costs.restore(state):
            found[option.reference] = costs.measured()
    return found

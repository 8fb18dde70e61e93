"""The list of checks, in the order in which they are shown: the most serious first.

A check is a function of the facts alone; None means that there is nothing to report.
"""

from __future__ import annotations

from collections.abc import Callable

from eaglelocal.doctor import build_checks, folder_checks, machine_checks
from eaglelocal.doctor.finding import Finding
from eaglelocal.doctor.installation import Installation

Check = Callable[[Installation], Finding | None]

CHECKS: tuple[Check, ...] = (
    machine_checks.gpu_backend,
    machine_checks.gpu_driver,
    machine_checks.hidden_gpus,
    machine_checks.gpu_devices,
    build_checks.library_version,
    build_checks.library_loads,
    build_checks.images,
    build_checks.native_part,
    build_checks.compiler,
    build_checks.toolkit,
    build_checks.packages,
    build_checks.extras,
    folder_checks.settings,
    folder_checks.disks,
    folder_checks.hub_token,
    folder_checks.hub_client,
    folder_checks.offline,
    folder_checks.partial_downloads,
    folder_checks.calibrations,
    folder_checks.port,
    folder_checks.leftovers,
    machine_checks.memory,
    machine_checks.swap,
    machine_checks.threads,
)


def run_checks(facts: Installation) -> list[Finding]:
    """Return the findings of all checks, in their order."""
    return [finding for check in CHECKS if (finding := check(facts)) is not None]

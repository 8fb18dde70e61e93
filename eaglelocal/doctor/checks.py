"""The list of checks, in the order in which they are shown: the most serious first.

A check is a function of the facts alone. It returns None if there is nothing to report.
"""

from __future__ import annotations

from collections.abc import Callable

from eaglelocal.doctor import build_checks, folder_checks, machine_checks
from eaglelocal.doctor.finding import Finding
from eaglelocal.doctor.installation import Installation

Check = Callable[[Installation], Finding | None]

CHECKS: tuple[Check, ...] = (
    machine_checks.check_gpu_backend,
    machine_checks.check_gpu_driver,
    machine_checks.check_hidden_gpus,
    machine_checks.check_gpu_devices,
    build_checks.check_library_version,
    build_checks.check_library_load,
    build_checks.check_images,
    build_checks.check_native_part,
    build_checks.check_compiler,
    build_checks.check_toolkit,
    build_checks.check_packages,
    build_checks.check_extras,
    folder_checks.check_settings,
    folder_checks.check_disks,
    folder_checks.check_hub_token,
    folder_checks.check_hub_client,
    folder_checks.check_offline,
    folder_checks.check_partial_downloads,
    folder_checks.check_calibrations,
    folder_checks.check_drift,
    folder_checks.check_port,
    folder_checks.check_leftovers,
    machine_checks.check_memory,
    machine_checks.check_swap,
    machine_checks.check_threads,
)


def run_checks(facts: Installation) -> list[Finding]:
    """Return the findings of all checks, in their order."""
    return [finding for check in CHECKS if (finding := check(facts)) is not None]

"""The list of checks, in the order in which they are shown: the most serious first.

A check is a function of the facts alone. It returns None if there is nothing to report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing, suppress

from eaglelocal.catalog.catalog import load_catalog, load_machines
from eaglelocal.catalog.reference import EmbeddedModel
from eaglelocal.client.http_client import HttpClient
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.user_paths import quote_path
from eaglelocal.doctor import folder_checks, machine_checks
from eaglelocal.doctor.installation import Finding, Installation, ok, problem
from eaglelocal.errors import EagleLocalError, IncompatibleError, ResourceError, UsageError
from eaglelocal.hub.derived_models import check_room as check_room_for_derived
from eaglelocal.hub.draft_resolver import ModelFiles, find_draft, find_files
from eaglelocal.hub.inflation.generated_files import no_progress
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.projector_resolver import find_projector
from eaglelocal.hub.target_resolver import NATIVE, find_demo, find_target
from eaglelocal.memory.budget import RAM
from eaglelocal.planning.machine_spec import select_gpus
from eaglelocal.planning.no_fit_hints import explain_file_pages, explain_no_fit
from eaglelocal.preparation.autoplan import autoplan, plan_target
from eaglelocal.preparation.decision import check_ctx, choose_ctx
from eaglelocal.preparation.machines import this_machine
from eaglelocal.preparation.models import make_demo_option

Check = Callable[[Installation], Finding | None]

CHECKS: tuple[Check, ...] = (
    machine_checks.check_gpu_backend,
    machine_checks.check_gpu_driver,
    machine_checks.check_hidden_gpus,
    machine_checks.check_gpu_devices,
    machine_checks.check_spill,
    machine_checks.check_library_version,
    machine_checks.check_library_load,
    machine_checks.check_images,
    machine_checks.check_native_part,
    machine_checks.check_compiler,
    machine_checks.check_toolkit,
    machine_checks.check_packages,
    machine_checks.check_extras,
    folder_checks.check_settings,
    folder_checks.check_disks,
    folder_checks.check_hub_token,
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


# ---- model check: check of what the settings make `chat` do: whether it would find its model's files, accept the
# options, and fit
#
# Everything that chat refuses before it loads is refused here, with its words. Nothing is downloaded, written or
# loaded.
PROGRAM = "eaglelocal "
READ_FROM_DISK = "; mapped all the same, what exceeds the memory would be read from the disk for each token"
Complete = Callable[[str, str], str]  # (hint, message) -> the commands that the hint means, a line each


def check_model(options: RunOptions, complete: Complete) -> Finding:
    """Plan what `chat` would run with these options."""
    try:
        return ok("model", f"`eaglelocal chat` runs {find_model(options)}")
    except EagleLocalError as error:
        return refuse(error, complete)


def check_server(url: str, api_key: str, model: str, complete: Complete) -> Finding:
    """Ask the server that `chat` would join for its model."""
    try:
        with closing(HttpClient(url, api_key=api_key, model=model)) as client:
            info = client.start()
        if info.task is not ModelTask.TEXT:
            raise UsageError(f"{url} does not generate text", hint="--url none")
        return ok("model", f"`eaglelocal chat` asks {url}: {info.target}")
    except EagleLocalError as error:
        return refuse(error, complete)


def refuse(error: EagleLocalError, complete: Complete) -> Finding:
    """Return the finding of an error with which `chat` would end; its hint is the command if it is one."""
    hint = complete(error.hint, error.message).partition("\n")[0]
    command = hint if hint.startswith(PROGRAM) else ""
    text = f"`eaglelocal chat` would fail: {error.message}"
    return problem("model", text if command or not hint else f"{text} ({hint})", command)


def find_model(options: RunOptions) -> str:
    """Return the name of the model that would run, and what slows it.

    Raises what loading it would raise, as far as planning knows.
    """
    decision = autoplan(options)
    named = dataclasses.replace(options, target=decision.target)
    select_gpus(this_machine(load_machines()), named)
    files = decision.files or find_embedded(named)
    if files is None:
        check_unwritten(named)
    else:
        choose_ctx(decision.ctx, files.target)
        for made in filter(None, (files.target.made, files.draft.made)):
            check_room_for_derived(made)
        if files.task is not ModelTask.TEXT:
            message = f"{files.target.label} {files.task.description}"
            raise UsageError(message, hint=f"eaglelocal serve --target {quote_path(decision.target)}")
    outcome = plan_target(named)
    if outcome.chosen is None:
        message, hint = explain_no_fit(outcome)
        nearest = outcome.nearest.candidate if outcome.nearest else None
        from_disk = nearest is not None and nearest.memory.worst.device == RAM
        raise ResourceError(f"{message}{READ_FROM_DISK if from_disk else ''}", hint=hint)
    return "; ".join([decision.target, *explain_file_pages(outcome, outcome.chosen)])


def find_embedded(options: RunOptions) -> ModelFiles | None:
    """Return the files of the embedded model in its native size, or as it was written; None if it was not."""
    reference = locate_reference(options.target or NATIVE)
    match reference:
        case EmbeddedModel(text) if text != NATIVE and not find_demo(text).complete:
            return None
    return find_files(reference, options)


def check_unwritten(options: RunOptions) -> None:
    """Check an embedded model that `chat` would write first: its context, the disk, and the named draft and projector.

    Whether those suit it is known only of the native size; files that are missing or broken suit none.
    """
    reference = options.target or NATIVE
    check_ctx(options.ctx, make_demo_option(reference, options, load_catalog()).max_context, reference)
    find_demo(reference).check_room()
    native = find_target(EmbeddedModel(NATIVE), on_progress=no_progress)
    with suppress(IncompatibleError):
        find_projector(options.mmproj, native)
    if options.names_draft and options.drafts:
        with suppress(IncompatibleError):
            find_draft(options.draft, native)

"""The list of checks, in the order in which they are shown: the most serious first.

A check is a function of the facts alone. It returns None if there is nothing to report.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from eaglelocal.catalog.catalog import load_machines
from eaglelocal.catalog.reference import EmbeddedModel
from eaglelocal.client.http_client import HttpClient
from eaglelocal.core.amounts import format_disk
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.user_paths import quote_path
from eaglelocal.doctor import machine_checks
from eaglelocal.doctor.installation import Disk, Finding, Installation, ok, problem, warning
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError
from eaglelocal.hub.derived_models import check_room as check_room_for_derived
from eaglelocal.hub.draft_resolver import ModelFiles, find_files
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.target_resolver import NATIVE, find_demo
from eaglelocal.memory.budget import RAM
from eaglelocal.planning.machine_spec import select_gpus
from eaglelocal.planning.no_fit_hints import explain_file_pages, explain_no_fit
from eaglelocal.preparation.autoplan import autoplan, plan_target
from eaglelocal.preparation.decision import check_unwritten, choose_ctx
from eaglelocal.preparation.machines import this_machine

MIN_FREE_BYTES = 2 << 30  # smaller than any useful model
LOW_FREE_BYTES = 15 << 30  # a large model does not fit
FOLDER_VARIABLES = {"downloads": "HF_HUB_CACHE", "generated models": "XDG_CACHE_HOME"}


# ---- files and settings: disks, the hub, the config file, the port, leftovers of earlier runs
def check_disks(facts: Installation) -> Finding:
    """Check free space and write access of each disk; return the worst finding."""
    downloads = next((disk.folder for disk in facts.disks if disk.holds == "downloads"), None)
    findings = [finding for disk in facts.disks if (finding := _check_disk(disk, downloads))]
    good = ok("disk", "; ".join(f"{format_disk(disk.free_bytes)} free for {disk.holds}" for disk in facts.disks))
    return min(findings, key=lambda finding: finding.level != "problem", default=good)


def _check_disk(disk: Disk, downloads: Path | None) -> Finding | None:
    command = f"export {FOLDER_VARIABLES[disk.holds]}=/a/folder/on/another/disk"
    if disk.holds != "downloads" and downloads is not None:  # else the downloads would move too, and be fetched again
        command += f" HF_HUB_CACHE={shlex.quote(str(downloads))}"
    if not disk.is_writable:
        return problem("disk", f"the folder for {disk.holds} cannot be written: {disk.folder}", command)
    if disk.free_bytes is None or disk.free_bytes >= LOW_FREE_BYTES:
        return None
    text = f"only {format_disk(disk.free_bytes)} free for {disk.holds} in {disk.folder}"
    return (problem if disk.free_bytes < MIN_FREE_BYTES else warning)("disk", text, command)


def check_drift(facts: Installation) -> Finding | None:
    """Warn if drafts are accepted much less than they were, with what to do about it."""
    if not facts.drifts:
        return None
    worst = min(facts.drifts, key=lambda report: report.ratio)
    others = f" (and {len(facts.drifts) - 1} more)" if len(facts.drifts) > 1 else ""
    # another draft, where the model itself has changed; else learning
    remedy = "eaglelocal train --target REF" if "model file" in worst.changed else "eaglelocal serve --learn"
    return warning("drift", f"{worst.text}{others}", remedy)


def check_hub_token(facts: Installation) -> Finding:
    """Check the hub's token. Only gated repositories need one, so a missing token is at most a warning."""
    hub = facts.hub
    if hub.is_token_malformed:
        where = f" in {hub.token_variable}" if hub.token_variable else ""
        text = f"the token for the model hub{where} does not begin with hf_, so the hub will refuse it"
        return warning("hub_token", text, f"unset {hub.token_variable}" if where else "hf auth login")
    if hub.has_token:
        return ok("hub_token", "a token for the model hub is set")
    if hub.gated:
        text = f"no token for the model hub is set, and {', '.join(hub.gated)} cannot be pulled without one"
        return warning("hub_token", text, "hf auth login")
    return ok("hub_token", "no token for the model hub is set; only gated models need one (hf auth login)")


def check_hub_client(facts: Installation) -> Finding | None:
    """Warn of an environment variable that the hub's client cannot use; only downloads need it."""
    error = facts.hub.client_problem
    return warning("hub_client", f"models cannot be pulled: {error.message}", error.hint) if error else None


def check_offline(facts: Installation) -> Finding | None:
    if not facts.hub.is_offline:
        return None
    return warning("offline", "HF_HUB_OFFLINE is set, so models cannot be pulled", "unset HF_HUB_OFFLINE")


def check_partial_downloads(facts: Installation) -> Finding | None:
    hub = facts.hub
    if not hub.num_partial:
        return None
    downloads = "a download was" if hub.num_partial == 1 else f"{hub.num_partial} downloads were"
    text = f"{downloads} interrupted, {format_disk(hub.partial_bytes)}: pull again to resume, or delete what is there"
    old_files = "-path '*/models--*/blobs/*.incomplete' -mmin +10"  # newer ones may be running downloads
    return warning("partial_downloads", text, f"find {shlex.quote(str(hub.cache))} {old_files} -delete")


def check_settings(facts: Installation) -> Finding:
    if not facts.settings_problem:
        return ok("settings", "the settings are valid")
    is_in_file = str(facts.config_file) in facts.settings_problem
    variable = next((name for name in facts.environ if name in facts.settings_problem), None)
    command = f"unset {variable}" if variable else ""
    if is_in_file:
        command = f"${{EDITOR:-vi}} {shlex.quote(str(facts.config_file))}"
    hint = "" if facts.settings_hint == command else facts.settings_hint
    return problem("settings", f"{facts.settings_problem}: {hint}" if hint else facts.settings_problem, command)


def check_port(facts: Installation) -> Finding:
    if facts.port.taken_by is None:
        state = "is that of a running eaglelocal server" if facts.port.is_ours else "is free"
        return ok("port", f"port {facts.port.number} {state}")
    text = f"port {facts.port.number} is taken by {facts.port.taken_by}, so `eaglelocal serve` cannot use it"
    return warning("port", text, f"eaglelocal serve --port {facts.port.number + 1}")


def check_leftovers(facts: Installation) -> Finding | None:
    number = len(facts.stale_announcements)
    if not number:
        return None
    servers = "a server that is" if number == 1 else f"{number} servers that are"
    return warning("leftovers", f"the state folder still lists {servers} no longer running", "eaglelocal ps")


def check_calibrations(facts: Installation) -> Finding:
    """Warn of calibrations of another build or driver, which are no longer read."""
    stale = facts.stale_calibrations
    if not stale:
        return ok("calibration", "no calibration is outdated")
    builds = ", ".join(dict.fromkeys(build for _, build in stale))
    number = "a calibration is" if len(stale) == 1 else f"{len(stale)} calibrations are"
    text = f"{number} outdated: measured with {builds}, now it is {facts.current_build}; the next run measures again"
    names = shlex.join(path.name for path, _ in stale)  # these only: their folder also holds current ones
    return warning("calibration", text, f"(cd {shlex.quote(str(stale[0][0].parent))} && rm {names})")


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
    check_settings,
    check_disks,
    check_hub_token,
    check_hub_client,
    check_offline,
    check_partial_downloads,
    check_calibrations,
    check_drift,
    check_port,
    check_leftovers,
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
Complete = Callable[[EagleLocalError], str]  # the commands that the hint means, a line each


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
    hint = complete(error).partition("\n")[0]
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
        check_unwritten(dataclasses.replace(decision, options=named), decision.target)
        find_demo(decision.target).check_room()
    else:
        choose_ctx(decision, files.target)
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

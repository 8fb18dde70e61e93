"""Checks of files and settings: disks, the hub, the config file, the port, leftovers of earlier runs."""

from __future__ import annotations

import shlex
from pathlib import Path

from eaglelocal.core.amounts import format_disk
from eaglelocal.doctor.installation import Disk, Finding, Installation, ok, problem, warning

MIN_FREE_BYTES = 2 << 30  # smaller than any useful model
LOW_FREE_BYTES = 15 << 30  # a large model does not fit
FOLDER_VARIABLES = {"downloads": "HF_HUB_CACHE", "generated models": "XDG_CACHE_HOME"}


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
        return ok("port", f"port {facts.port.number} is free, or an eaglelocal server has it")
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

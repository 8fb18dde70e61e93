"""Checks of files and settings: disks, the hub, the config file, the port, leftovers of earlier runs."""

from __future__ import annotations

import shlex
from pathlib import Path

from eaglelocal.doctor.finding import Finding, format_gib, ok, problem, warning
from eaglelocal.doctor.installation import Disk, Installation

LEAST_FREE_BYTES = 2 << 30  # smaller than any useful model
LITTLE_FREE_BYTES = 15 << 30  # a model of 20 GB does not fit
FOLDER_VARIABLES = {"downloads": "HF_HUB_CACHE", "generated models": "XDG_CACHE_HOME"}


def disks(facts: Installation) -> Finding:
    """Check free space and write access of each disk; return the worst finding."""
    downloads = next((disk.folder for disk in facts.disks if disk.holds == "downloads"), None)
    found = [finding for disk in facts.disks if (finding := _disk(disk, downloads))]
    fine = ok("disk", "; ".join(f"{format_gib(disk.free_bytes)} free for {disk.holds}" for disk in facts.disks))
    return min(found, key=lambda finding: finding.level != "problem", default=fine)


def _disk(disk: Disk, downloads: Path | None) -> Finding | None:
    elsewhere = f"export {FOLDER_VARIABLES[disk.holds]}=/a/folder/on/another/disk"
    if disk.holds != "downloads" and downloads is not None:  # the downloads would move too, and be fetched again
        elsewhere += f" HF_HUB_CACHE={shlex.quote(str(downloads))}"
    if not disk.is_writable:
        return problem("disk", f"{disk.folder} for {disk.holds} cannot be written", elsewhere)
    if disk.free_bytes is None or disk.free_bytes >= LITTLE_FREE_BYTES:
        return None
    text = f"only {format_gib(disk.free_bytes)} free for {disk.holds} in {disk.folder}"
    return (problem if disk.free_bytes < LEAST_FREE_BYTES else warning)("disk", text, elsewhere)


def hub_token(facts: Installation) -> Finding:
    """Check the hub token. Only gated repositories need one, so a missing one is at most a warning."""
    hub = facts.hub
    if hub.token_looks_wrong:
        where = f" in {hub.token_variable}" if hub.token_variable else ""
        text = f"the model hub's token{where} does not begin with hf_: it will be refused"
        return warning("hub_token", text, f"unset {hub.token_variable}" if where else "hf auth login")
    if hub.has_token:
        return ok("hub_token", "there is a token for the model hub")
    if hub.gated:
        text = f"no token for the model hub, and {', '.join(hub.gated)} cannot be had without one"
        return warning("hub_token", text, "hf auth login")
    return ok("hub_token", "no token for the model hub; only gated models need one (hf auth login)")


def hub_client(facts: Installation) -> Finding | None:
    """Warn where the hub's client cannot use the environment variables, which only downloads need."""
    text = facts.hub.client_problem
    if not text:
        return None
    name = text.split()[0]
    return warning("hub_client", f"nothing can be pulled: {text}", f"unset {name}" if name in facts.environ else "")


def offline(facts: Installation) -> Finding | None:
    return (
        warning("offline", "HF_HUB_OFFLINE is set: nothing can be pulled", "unset HF_HUB_OFFLINE")
        if (facts.hub.is_offline)
        else None
    )


def partial_downloads(facts: Installation) -> Finding | None:
    hub = facts.hub
    if not hub.num_partial:
        return None
    downloads = "a download was" if hub.num_partial == 1 else f"{hub.num_partial} downloads were"
    text = f"{downloads} broken off and hold {format_gib(hub.partial_bytes)}; pull them again to go on, or remove them"
    old = "-path '*/models--*/blobs/*.incomplete' -mmin +10"  # newer ones may be running downloads
    return warning("partial_downloads", text, f"find {shlex.quote(str(hub.cache))} {old} -delete")


def settings(facts: Installation) -> Finding:
    if not facts.settings_problem:
        return ok("settings", "the settings can be read")
    named = str(facts.config_file) in facts.settings_problem
    text = f"{facts.settings_problem}: {facts.settings_hint}" if facts.settings_hint else facts.settings_problem
    variable = next((name for name in facts.environ if name in facts.settings_problem), None)
    mend = f"unset {variable}" if variable and not named else ""
    return problem("settings", text, f"${{EDITOR:-vi}} {shlex.quote(str(facts.config_file))}" if named else mend)


def port(facts: Installation) -> Finding:
    if facts.port.taken_by is None:
        return ok("port", f"port {facts.port.number} is free for the server, or a server of ours has it")
    text = f"port {facts.port.number} is taken by {facts.port.taken_by}, so `eaglelocal serve` cannot have it"
    return warning("port", text, f"eaglelocal serve --port {facts.port.number + 1}")


def leftovers(facts: Installation) -> Finding | None:
    number = len(facts.stale_announcements)
    if not number:
        return None
    servers = "a server that has" if number == 1 else f"{number} servers that have"
    return warning("leftovers", f"notes of {servers} ended are left in the state folder", "eaglelocal ps")


def calibrations(facts: Installation) -> Finding:
    """Warn of calibrations of another build or driver, which are never read again."""
    stale = facts.stale_calibrations
    if not stale:
        return ok("calibration", "no calibration of another llama.cpp build or driver is left")
    builds = ", ".join(dict.fromkeys(build for _, build in stale))
    number = "a calibration is" if len(stale) == 1 else f"{len(stale)} calibrations are"
    text = f"{number} stale: measured with {builds}, and now it is {facts.current_build}; the next run measures anew"
    return warning("calibration", text, _remove([path for path, _ in stale]))


def _remove(paths: list[Path]) -> str:
    """Return the command that deletes these files alone: their folder also holds current ones."""
    names = shlex.join(path.name for path in paths)
    return f"(cd {shlex.quote(str(paths[0].parent))} && rm {names})"

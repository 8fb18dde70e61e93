"""The facts that the checks read, collected by gather.py, and what a check finds. Plain data."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError
from eaglelocal.learning.drift import DriftReport
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.subprocess_calls import NoAnswer, run_module

if TYPE_CHECKING:
    from eaglelocal.backend.llama_library import LlamaLibrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Paths of the programs that a build needs; None: not found."""

    c: Path | None = None
    cxx: Path | None = None
    nvcc: Path | None = None
    hipcc: Path | None = None
    icpx: Path | None = None
    glslc: Path | None = None
    missing_vulkan_parts: tuple[str, ...] = ()  # as they are shown
    pip: str = "pip"  # the command that runs pip for this Python


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFiles:
    """The device files through which AMD's and Intel's GPUs compute."""

    paths: tuple[Path, ...] = ()
    inaccessible: tuple[tuple[Path, str], ...] = ()  # each with the group that may open it


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePart:
    """The C library that is compiled from native/*.c."""

    library: Path
    exists: bool = True
    is_outdated: bool = False  # its source is newer
    install_from: str = "eaglelocal"  # the argument of pip install that installs eaglelocal again


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaTrial:
    """The result of loading llama.cpp in a separate process."""

    devices: tuple[str, ...] = ()  # GPUs, as llama.cpp names them
    failure: str = ""  # empty: it loads
    image_problem: str = ""  # why it cannot read images; empty: it can


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A folder for models, and the disk that holds it."""

    folder: Path
    holds: str  # as it is shown: downloads, generated models
    free_bytes: int | None = None
    is_writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The model hub as it is set up here: its cache, its token, and interrupted downloads."""

    cache: Path
    has_token: bool = False
    is_token_malformed: bool = False
    token_variable: str = ""  # the one that holds the token; empty: it is in a file
    is_offline: bool = False
    client_problem: UsageError | None = None  # names the variable that the hub's client cannot use
    gated: tuple[str, ...] = ()  # repositories in the settings that require accepting a license
    num_partial: int = 0  # interrupted downloads, without those that may still run
    partial_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The server's port."""

    number: int
    taken_by: str | None = None  # a process, as it is shown; None: it is free, or an eaglelocal server has it
    is_ours: bool = False  # an eaglelocal server has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The facts about an installation."""

    machine: Machine
    tools: Tools
    native: NativePart
    disks: tuple[Disk, ...]
    hub: Hub
    port: Port
    required_version: str  # of llama-cpp-python
    trial: LlamaTrial | None = None  # None: not tried, because there is nothing to load
    device_files: DeviceFiles | None = None  # None: unknown
    missing_packages: tuple[str, ...] = ()
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # extra -> its missing packages
    config_file: Path = Path("config.toml")
    settings_problem: str = ""  # empty: they can be read
    settings_hint: str = ""
    stale_calibrations: tuple[tuple[Path, str], ...] = ()  # (file, the build it was measured with)
    current_build: str = ""  # as calibrations name it
    stale_announcements: tuple[Path, ...] = ()
    drifts: tuple[DriftReport, ...] = ()  # kinds of text whose drafts are accepted less than they were
    environ: Mapping[str, str] = field(default_factory=dict)


# ---- findings
Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    check: str  # the name that programs read, such as compiler
    level: Level
    text: str
    command: str = ""  # to paste into a shell; empty: nothing to do, or no command can do it


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str, command: str = "") -> Finding:
    return Finding(check, "warning", text, command)


def problem(check: str, text: str, command: str = "") -> Finding:
    return Finding(check, "problem", text, command)


# ---- llama trial: a trial of llama.cpp: load it in a separate process and list its devices, without a model
#
# A build for another processor, or a driver that does not match, can crash the process that loads it.
MODULE = "eaglelocal.doctor.installation"
SIGNALS = {signal.SIGILL: "an instruction this processor does not have", signal.SIGSEGV: "an invalid memory access"}
TIMEOUT_S = 60.0  # a first start on CUDA may compile kernels


def try_library(*, timeout_s: float = TIMEOUT_S) -> LlamaTrial:
    """Load llama.cpp in a child process; return its devices, or what failed. Never raises."""
    try:
        ran = run_module(MODULE, timeout_s=timeout_s)
    except NoAnswer:
        return LlamaTrial(failure=f"it did not load within {timeout_s:g} s")
    if ran is None:
        return LlamaTrial(failure=f"{sys.executable} cannot be started")
    if ran.returncode:
        return LlamaTrial(failure=_describe_crash(ran.returncode, ran.stderr.decode(errors="replace")))
    try:
        answer = read_object(ran.stdout.splitlines()[-1])
        devices = tuple(map(str, cast("list[object]", answer["devices"])))
        return LlamaTrial(devices=devices, failure=str(answer["failure"]), image_problem=str(answer["image_problem"]))
    except (ValueError, IndexError, KeyError, TypeError):
        return LlamaTrial(failure="its answer cannot be read")


def _describe_crash(code: int, stderr: str) -> str:
    """Describe how the process ended: by a signal, else with the last line of its stderr."""
    if code < 0:
        try:
            kind = signal.Signals(-code)
        except ValueError:  # a real-time signal has no name
            return f"it crashes (signal {-code})"
        return f"it crashes ({kind.name}: {SIGNALS[kind]})" if kind in SIGNALS else f"it crashes ({kind.name})"
    lines = stderr.strip().splitlines()
    return lines[-1][:200] if lines else f"it ends with code {code}"


def main() -> None:
    from eaglelocal.backend.llama_library import free_memory, load_library
    from eaglelocal.backend.parent_watch import end_with_parent
    from eaglelocal.errors import EagleLocalError
    from eaglelocal.memory.budget import RAM

    with contextlib.suppress(EagleLocalError):  # the C library may be what is broken
        end_with_parent()
    devices, failure, image_problem = list[str](), "", ""
    try:
        library = load_library()
        pools = free_memory(library, ram_bytes=None, unified=False)
        devices = [pool.device for pool in pools if pool.device != RAM]
        image_problem = find_image_problem(library)
    except EagleLocalError as error:
        failure = error.message
    sys.stdout.write(json.dumps({"devices": devices, "failure": failure, "image_problem": image_problem}) + "\n")


def find_image_problem(library: LlamaLibrary) -> str:
    """Return why models cannot read images with this build; empty if those with a projector can."""
    from eaglelocal.backend.image_encoder import load_mtmd
    from eaglelocal.errors import LibraryError

    try:
        load_mtmd(library)
    except LibraryError as error:
        return error.message
    return ""


if __name__ == "__main__":
    main()

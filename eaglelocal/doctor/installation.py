"""The facts that the checks read: plain data about an installation and its machine, collected by gather.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from eaglelocal.core.records import dataclass
from eaglelocal.learning.drift import DriftReport
from eaglelocal.probe.machine import Machine


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
    client_problem: str = ""  # the variable that the hub's client cannot use, and why; empty: none
    gated: tuple[str, ...] = ()  # repositories in the settings that require accepting a license
    num_partial: int = 0  # interrupted downloads, without those that may still run
    partial_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The server's port."""

    number: int
    taken_by: str | None = None  # a process, as it is shown; None: it is free, or an eaglelocal server has it


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
    missing_extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # extra -> its missing packages
    config_file: Path = Path("config.toml")
    settings_problem: str = ""  # empty: they can be read
    settings_hint: str = ""
    stale_calibrations: tuple[tuple[Path, str], ...] = ()  # (file, the build it was measured with)
    current_build: str = ""  # as calibrations name it
    stale_announcements: tuple[Path, ...] = ()
    drifts: tuple[DriftReport, ...] = ()  # kinds of text whose drafts are accepted less than they were
    environ: Mapping[str, str] = field(default_factory=dict)

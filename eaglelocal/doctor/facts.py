"""What the checks are told: plain data about an installation and its machine, gathered by gather.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eaglelocal.probe.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Programs that a build needs, where they are; None: not found."""

    c: Path | None = None
    cxx: Path | None = None
    nvcc: Path | None = None
    hipcc: Path | None = None
    icpx: Path | None = None
    glslc: Path | None = None
    missing_of_vulkan: tuple[str, ...] = ()  # in words
    pip: str = "pip"  # the words that run pip for this very Python


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFiles:
    """Through which AMD's and Intel's GPUs compute."""

    paths: tuple[Path, ...] = ()
    closed: tuple[tuple[Path, str], ...] = ()  # those that this process may not open, and the group that may


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePart:
    """The C part, native/*.c compiled."""

    library: Path
    exists: bool = True
    is_outdated: bool = False  # its source is newer
    install_from: str = "eaglelocal"  # what pip is given to install us again


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of loading llama.cpp in a process of its own."""

    devices: tuple[str, ...] = ()  # GPUs, as llama.cpp names them
    failure: str = ""  # empty: it loads
    blindness: str = ""  # why it reads no images; empty: it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    folder: Path
    holds: str  # in words: downloads, generated models
    free_bytes: int | None = None
    is_writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    cache: Path
    has_token: bool = False
    token_looks_wrong: bool = False
    token_variable: str = ""  # that holds it; empty: it lies in a file
    is_offline: bool = False
    client_problem: str = ""  # what its client cannot use of the variables that it reads; empty: it can use them
    gated: tuple[str, ...] = ()  # repositories of the settings whose owners want a licence accepted
    num_partial: int = 0  # downloads that were broken off, and not just now
    partial_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    number: int
    taken_by: str | None = None  # in words; None: it is free, or a server of ours has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    machine: Machine
    tools: Tools
    native: NativePart
    disks: tuple[Disk, ...]
    hub: Hub
    port: Port
    wanted_version: str  # of llama-cpp-python
    trial: Trial | None = None  # None: not tried, for there is nothing to load
    device_files: DeviceFiles | None = None  # None: not known here
    missing_packages: tuple[str, ...] = ()
    missing_extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # extra -> its packages
    config_file: Path = Path("config.toml")
    settings_problem: str = ""  # empty: they can be read
    settings_hint: str = ""
    stale_calibrations: tuple[tuple[Path, str], ...] = ()  # (file, the build it was measured with)
    current_build: str = ""  # as calibrations name it
    stale_announcements: tuple[Path, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

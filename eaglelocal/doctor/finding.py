"""The result of a check: how serious it is, one sentence, and the command that fixes it."""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from eaglelocal.core.records import dataclass
from eaglelocal.doctor.installation import DeviceFiles

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check."""

    check: str  # the name that programs read, such as compiler
    level: Level
    text: str
    command: str = ""  # to paste into a shell; empty: nothing to do, or no command can do it


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, level="ok", text=text)


def warning(check: str, text: str, command: str = "") -> Finding:
    return Finding(check=check, level="warning", text=text, command=command)


def problem(check: str, text: str, command: str = "") -> Finding:
    return Finding(check=check, level="problem", text=text, command=command)


# ---- gpu parts: requirements of GPU builds other than compiler and driver: the parts of Vulkan, and access to device
# files
# llama.cpp uses this extension by name; the headers of Ubuntu 22.04 and Debian 12 are older
REQUIRED_EXTENSION = "VK_EXT_layer_settings"
NEWER_HEADERS = f"Vulkan headers with {REQUIRED_EXTENSION}"


def find_missing_vulkan_parts(
    environ: Mapping[str, str], *, has_glslc: bool, root: Path = Path("/")
) -> tuple[str, ...]:
    """Return what a Vulkan build of llama.cpp lacks here, as it is shown; empty if nothing."""
    roots = [root / "usr", root / "usr/local", *(Path(sdk) for sdk in [environ.get("VULKAN_SDK")] if sdk)]
    headers = [path for each in roots if (path := each / "include/vulkan/vulkan_core.h").is_file()]
    missing = [] if has_glslc else ["glslc"]
    if not headers:
        missing.append("Vulkan headers")
    elif not any(REQUIRED_EXTENSION in path.read_text(errors="replace") for path in headers):
        missing.append(NEWER_HEADERS)
    if not any(_find_spirv_headers(roots)):
        missing.append("SPIR-V headers")
    return tuple(missing)


def _find_spirv_headers(roots: list[Path]) -> Iterator[Path]:
    """Yield the packages of SPIR-V headers in the folders that cmake searches."""
    for root in roots:
        for folders in ("share/cmake", "lib*/cmake", "lib/*/cmake"):
            yield from root.glob(f"{folders}/SPIRV-Headers*")


def find_device_files(root: Path = Path("/")) -> DeviceFiles:
    """Return the device files through which AMD's and Intel's GPUs compute."""
    paths = tuple(path for pattern in ("dri/renderD*", "kfd") for path in sorted((root / "dev").glob(pattern)))
    inaccessible = tuple((path, _read_group(path)) for path in paths if not os.access(path, os.R_OK | os.W_OK))
    return DeviceFiles(paths=paths, inaccessible=inaccessible)


def _read_group(path: Path) -> str:
    number = path.stat().st_gid
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:  # a group of the host, unknown in this container
        return str(number)

"""The operating system, and the WSL or the container that it runs in. Reads only small files and variables."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.probe.machine import System
from eaglelocal.probe.system_files import read_text

CONTAINER_FILES = {".dockerenv": "docker", "run/.containerenv": "podman"}
CONTAINER_GROUPS = ("kubepods", "docker", "libpod", "lxc", "containerd")  # in the path of the cgroup of process 1


def read_system(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> System:
    kernel = platform.release() or None
    if sys.platform == "darwin":
        return System(name=f"macOS {platform.mac_ver()[0]}", kernel=kernel)
    if not sys.platform.startswith("linux"):
        return System(name=platform.system() or None, kernel=kernel)
    return read_linux_system(root, environ)


def read_linux_system(root: Path, environ: Mapping[str, str]) -> System:
    """Read a Linux system from the files below `root`."""
    release = parse_os_release(read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release"))
    kernel = read_text(root / "proc/sys/kernel/osrelease")
    return System(
        name=release.get("PRETTY_NAME") or release.get("NAME") or None,
        kernel=kernel or None,
        distribution=release.get("ID") or None,
        wsl=find_wsl_version(kernel),
        container=_find_container(root, environ),
    )


def parse_os_release(text: str) -> dict[str, str]:
    rows = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, equals, value in rows if equals}


def find_wsl_version(kernel: str) -> int | None:
    """Return 2 for 5.15.167.4-microsoft-standard-WSL2, and 1 for 4.4.0-19041-Microsoft, which is no Linux kernel."""
    if "microsoft" not in kernel.lower():
        return None
    return 2 if "wsl2" in kernel.lower() or "microsoft-standard" in kernel else 1


def _find_container(root: Path, environ: Mapping[str, str]) -> str | None:
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for name, kind in CONTAINER_FILES.items():
        if (root / name).exists():
            return kind
    if environ.get("container"):  # systemd-nspawn, lxc and podman set it
        return environ["container"]
    groups = read_text(root / "proc/1/cgroup")
    found = next((word for word in CONTAINER_GROUPS if f"/{word}" in groups), None)
    return {"kubepods": "kubernetes", "libpod": "podman"}.get(found, found) if found else None

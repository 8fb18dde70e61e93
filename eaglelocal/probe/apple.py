"""What macOS says through sysctl. On other systems every answer is None."""

from __future__ import annotations

import platform
import subprocess
import sys

from eaglelocal.probe.machine import Unified

SYSCTL = "/usr/sbin/sysctl"
TIMEOUT_S = 2.0


def sysctl(key: str) -> str | None:
    """The value of one key; None where there is none."""
    return _ask("-n", key)


def sysctl_tree(key: str) -> str | None:
    """All keys below one, as lines "key: value"."""
    return _ask(key)


def read_unified() -> Unified | None:
    """Apple chips only: an Intel Mac's GPU does not share memory in a way that llama.cpp could use."""
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return None
    return unified_from(sysctl("machdep.cpu.brand_string"), sysctl("hw.memsize"), sysctl("iogpu.wired_limit_mb"))


def unified_from(chip: str | None, memory_bytes: str | None, limit_mib: str | None) -> Unified:
    """From the three values as sysctl prints them; a limit of 0 is the system's default."""
    limit = _number(limit_mib)
    return Unified(
        chip=chip or None,
        total_bytes=_number(memory_bytes),
        gpu_limit_bytes=limit * 1024 * 1024 if limit else None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _ask(*arguments: str) -> str | None:
    if sys.platform != "darwin":
        return None
    try:
        done = subprocess.run([SYSCTL, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None

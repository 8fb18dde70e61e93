"""NVML in a separate process: `ask_gpus` in ours, `main` in the child.

A driver that hangs (a card that fell off the bus, a reset that does not end) leaves its process unkillable; ours must
neither hang with it nor become unkillable. Callers ask `has_driver` first and start nothing without one.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from pathlib import Path

from eaglelocal.probe.machine import Gpu
from eaglelocal.probe.subprocess_calls import NoAnswer, run_module

TIMEOUT_S = 8.0  # a driver that is not kept loaded needs a second or two for each card
_LOOK_S = 0.5  # between looks at whether the parent has ended
MODULE = "eaglelocal.probe.nvml_child"
DRIVER_MARKS = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg", "dev/nvgpu", "dev/nvhost-ctrl")


def has_driver(root: Path = Path("/"), platform: str = sys.platform) -> bool:
    """Return whether NVML could answer here; True where that cannot be told."""
    if platform == "darwin":
        return False
    return not platform.startswith("linux") or any((root / mark).exists() for mark in DRIVER_MARKS)


def ask_gpus(*, timeout_s: float = TIMEOUT_S) -> tuple[Gpu, ...]:
    """Return NVML's GPUs. Raises NoAnswer when the driver hangs, or its library ends the child process."""
    try:
        ran = run_module(MODULE, timeout_s=timeout_s)
    except NoAnswer:
        raise NoAnswer(f"NVIDIA's driver gave no answer in {timeout_s:g} s") from None
    if ran is None or ran.code:
        raise NoAnswer("NVIDIA's library could not be asked" + (f" (code {ran.code})" if ran else ""))
    gpus: tuple[Gpu, ...] = pickle.loads(ran.stdout)  # written by our own child process
    return gpus


def main() -> None:
    from eaglelocal.probe.nvml_gpus import installed_nvml, read_gpus

    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    sys.stdout.buffer.write(pickle.dumps(read_gpus(installed_nvml())))


def _end_with_parent(parent: int) -> None:
    """End with the parent. NVML is called without the GIL, so this thread also runs while the driver hangs."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    main()

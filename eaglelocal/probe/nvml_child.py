"""NVML in a separate process: `ask_gpus` runs in ours, `main` in the child.

A driver that hangs (a GPU that fell off the bus, a reset that does not end) makes its process unkillable, which must
not happen to ours. Callers check `has_driver` first and start no process without one.
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

TIMEOUT_S = 8.0  # a driver that is not kept loaded takes a second or two per GPU
_POLL_S = 0.5  # between checks whether the parent has ended
MODULE = "eaglelocal.probe.nvml_child"
DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg", "dev/nvgpu", "dev/nvhost-ctrl")


def has_driver(root: Path = Path("/"), platform: str = sys.platform) -> bool:
    """Return whether NVML may answer here; True if that cannot be checked."""
    if platform == "darwin":
        return False
    return not platform.startswith("linux") or any((root / file).exists() for file in DRIVER_FILES)


def ask_gpus(*, timeout_s: float = TIMEOUT_S) -> tuple[Gpu, ...]:
    """Return NVML's GPUs. Raises NoAnswer if the driver hangs, or its library crashes the child process."""
    try:
        ran = run_module(MODULE, timeout_s=timeout_s)
    except NoAnswer:
        raise NoAnswer(f"NVIDIA's driver did not answer within {timeout_s:g} s") from None
    if ran is None or ran.code:
        raise NoAnswer("NVIDIA's library could not be used" + (f" (code {ran.code})" if ran else ""))
    gpus: tuple[Gpu, ...] = pickle.loads(ran.stdout)  # written by our own child process
    return gpus


def main() -> None:
    from eaglelocal.probe.nvml_gpus import import_nvml, read_gpus

    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    sys.stdout.buffer.write(pickle.dumps(read_gpus(import_nvml())))


def _end_with_parent(parent: int) -> None:
    """Exit when the parent has ended. NVML runs without the GIL, so this thread also runs while the driver hangs."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os._exit(1)


if __name__ == "__main__":
    main()

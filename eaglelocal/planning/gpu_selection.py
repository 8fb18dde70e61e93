"""Choose the GPUs of a machine that a run may use."""

from __future__ import annotations

import dataclasses

from eaglelocal.core.gpu_split import TENSOR, suggest_split
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import UsageError
from eaglelocal.memory.placement import choose_gpus
from eaglelocal.memory.tensor_split import check_tensor_gpus
from eaglelocal.planning.machine_spec import MachineSpec

PROCESSOR = "CPU"  # as llama.cpp names it


def select_gpus(machine: MachineSpec, options: RunOptions) -> MachineSpec:
    """Return the machine with no more GPUs than the options allow. Raises UsageError where it does not have them."""
    gpus = {gpu.name: gpu for gpu in machine.gpus}
    for name in [] if options.device is None else [part.strip() for part in options.device.split(",")]:
        if name not in gpus and name != PROCESSOR:
            raise UsageError(f"--device: there is no device {name}", hint=f"one of: {', '.join([*gpus, PROCESSOR])}")
    used = choose_gpus(machine.free_memory, device=options.device, split=options.split_mode)
    if options.split_mode == TENSOR:
        check_tensor_gpus(len(used))
    shares = options.shares
    if shares and len(shares) != len(used):
        names = ", ".join(room.device for room in used) or "no GPU"
        raise UsageError(
            f"--split {options.split} gives {len(shares)} shares, but this run uses {names}",
            hint=suggest_split(len(used)),
        )
    return dataclasses.replace(machine, gpus=tuple(gpus[room.device] for room in used))

"""What a person asks of a plan: a goal, sizes, and what they settled themselves, which the search leaves as it is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from eaglelocal.errors import UsageError
from eaglelocal.planner.goals import Goal
from eaglelocal.planner.machine import Rig
from eaglelocal.planner.placement import used_gpus

PROCESSOR = "CPU"  # as llama.cpp names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """None: open.

    ctx              tokens of each slot
    most_ctx         what the search may take where `ctx` is open
    gpu_layers       as llama.cpp counts them, the output is one
    n_cpu_moe        layers whose experts stay in main memory, as in placement.py
    device, split    the GPUs that are used, and how they share, as in core/plan.py
    shares           of each GPU; empty: by what is free there
    mmproj           what makes images readable, as a person wrote it
    named_draft      as a person wrote it: it is taken even where it is predicted not to pay; empty: none was
    """

    goal: Goal
    ctx: int | None = None
    most_ctx: int | None = None
    num_slots: int = 1
    kv_type: str | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    shares: tuple[float, ...] = ()
    flash_attention: str = "auto"
    device: str | None = None
    split: str = "layer"
    named_draft: str = ""
    mmproj: str = "auto"

    @property
    def split_text(self) -> str:
        """As a person writes it."""
        return ",".join(f"{share:g}" for share in self.shares) if self.shares else self.split


def rig_with(rig: Rig, asked: Asked) -> Rig:
    """The rig with no more GPUs than were asked for. Raises UsageError where it does not have them."""
    gpus = {gpu.name: gpu for gpu in rig.gpus}
    for name in [] if asked.device is None else [part.strip() for part in asked.device.split(",")]:
        if name not in gpus and name != PROCESSOR:
            raise UsageError(f"--device: there is no device {name}", hint=f"one of: {', '.join([*gpus, PROCESSOR])}")
    used = used_gpus(rig.rooms, device=asked.device, split=asked.split)
    if asked.shares and len(asked.shares) != len(used):
        names = ", ".join(room.device for room in used) or "no GPU"
        raise UsageError(
            f"--split {asked.split_text} names shares of {len(asked.shares)} GPUs, there is {names}",
            hint="a share for each of them" if len(used) > 1 else "leave --split out",
        )
    return dataclasses.replace(rig, gpus=tuple(gpus[room.device] for room in used))

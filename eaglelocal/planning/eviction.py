"""Compute which models fit into memory together, and which to unload to make room for another. Pure.

estimate.py says what a model needs. Mapped weights count in full although the system could evict them: a model that is
read from disk for each token is too slow to use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eaglelocal.memory.budget import Buffer, FreeMemory, device_load
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec

Needs = Sequence[Buffer]


def fit(needs: Iterable[Needs], free_memory: Sequence[FreeMemory]) -> bool:
    """Return whether these models fit into the devices' memory together."""
    buffers = [buffer for each in needs for buffer in each]
    return all(device_load(room, buffers, free_memory).missing_bytes <= 0 for room in free_memory)


def choose_victims(needed: Needs, held: Mapping[str, Needs], free_memory: Sequence[FreeMemory]) -> list[str]:
    """Return the loaded models to unload so that `needed` fits: no more than necessary, or all if nothing suffices.

    held  the needs of each loaded model by name, the first to unload first
    """
    gone: list[str] = []
    for name in held:
        if fit([needed, *(held[other] for other in held if other not in gone)], free_memory):
            break
        gone.append(name)
    for name in reversed(gone):  # keep models that can stay because a larger one after them is unloaded
        stay = [held[other] for other in held if other not in gone or other == name]
        if fit([needed, *stay], free_memory):
            gone.remove(name)
    return gone


def subtract_other_models(machine: MachineSpec, held: Needs) -> MachineSpec:
    """Reduce the machine's free memory by the memory that other models hold."""

    def left(device: DeviceSpec, room: FreeMemory) -> DeviceSpec:
        if device.free_bytes is None:
            return device
        return replace(
            device, free_bytes=max(device.free_bytes - device_load(room, held, machine.free_memory).total, 0)
        )

    host, *gpus = map(left, (machine.host, *machine.gpus), machine.free_memory)
    return replace(machine, host=host, gpus=tuple(gpus))

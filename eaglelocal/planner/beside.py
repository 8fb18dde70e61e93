"""Several models on one machine: what is left beside one, and who has to leave so that another fits. Pure arithmetic.

What a model needs comes from memory.py; that its file is mapped, and so could be pushed out of memory, does not count:
a model that is read from disk for each token is as good as not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eaglelocal.backend.fit import Buffer, Room, load_of
from eaglelocal.planner.machine import Device, Rig

Needs = Sequence[Buffer]


def fit(needs: Iterable[Needs], rooms: Sequence[Room]) -> bool:
    """Do they fit, together?"""
    buffers = [buffer for each in needs for buffer in each]
    return all(load_of(room, buffers, rooms).missing_bytes <= 0 for room in rooms)


def leavers(needed: Needs, held: Mapping[str, Needs], rooms: Sequence[Room]) -> list[str]:
    """Of those that are held, the one that can be spared most first, as few as make room; where nothing does, all."""
    gone: list[str] = []
    for name in held:
        if fit([needed, *(held[other] for other in held if other not in gone)], rooms):
            break
        gone.append(name)
    for name in reversed(gone):  # who left in vain: a smaller one than those behind it
        stay = [held[other] for other in held if other not in gone or other == name]
        if fit([needed, *stay], rooms):
            gone.remove(name)
    return gone


def rig_beside(rig: Rig, held: Needs) -> Rig:
    """The machine with what is held taken from what is free."""

    def left(device: Device, room: Room) -> Device:
        if device.free_bytes is None:
            return device
        return replace(device, free_bytes=max(device.free_bytes - load_of(room, held, rig.rooms).total, 0))

    host, *gpus = map(left, (rig.host, *rig.gpus), rig.rooms)
    return replace(rig, host=host, gpus=tuple(gpus))

"""The note on a card that is full after loading, where the driver lets it spill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eaglelocal.loading.fit import COMPUTING_BYTES
from eaglelocal.loading.load_notes import explain_full_cards
from eaglelocal.memory.budget import RAM, FreeMemory
from eaglelocal.probe.machine import System
from eaglelocal.probe.probe import probe


@pytest.mark.parametrize(
    ("wsl", "free_bytes", "in_ram", "is_noted"),
    [
        (2, COMPUTING_BYTES - 1, False, True),
        (2, COMPUTING_BYTES, False, False),
        (2, None, False, False),
        (2, 0, True, False),
        (1, 0, False, False),
        (None, 0, False, False),
    ],
)
def test_a_full_card_under_wsl_2(wsl: int | None, free_bytes: int | None, in_ram: bool, is_noted: bool) -> None:
    machine = replace(probe(), system=System(wsl=wsl))
    left = (FreeMemory(RAM, 0), FreeMemory("CUDA0", free_bytes, in_ram=in_ram))
    notes = list(explain_full_cards(machine, left))
    assert [note.startswith("CUDA0 has ") for note in notes] == [True] * is_noted

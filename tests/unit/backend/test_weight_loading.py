"""Which weights are read and which are mapped."""

from __future__ import annotations

import pytest

from eaglelocal.backend.weight_loading import FLOAT_TYPES, REPACKED_TYPES, should_read_weights, types_to_read
from eaglelocal.memory.budget import RAM, FreeMemory


@pytest.mark.parametrize(
    ("huge_pages", "repacks", "is_brief", "types"),
    [
        (True, True, False, {*FLOAT_TYPES, *REPACKED_TYPES}),
        (True, False, False, {*FLOAT_TYPES}),
        (True, True, True, {*REPACKED_TYPES}),
        (True, False, True, set()),
        (False, True, False, set()),
    ],
)
def test_types(huge_pages: bool, repacks: bool, is_brief: bool, types: set[str]) -> None:
    assert set(types_to_read(huge_pages=huge_pages, repacks=repacks, is_brief=is_brief)) == types


@pytest.mark.parametrize(
    ("free", "gpus", "gpu_layers", "fits"),
    [
        (8, (), None, True),
        (7, (), None, False),
        (None, (), None, False),
        (8, ("CUDA0",), None, False),
        (8, ("CUDA0",), 20, False),
        (8, ("CUDA0",), 0, True),
    ],
)
def test_room(free: int | None, gpus: tuple[str, ...], gpu_layers: int | None, fits: bool) -> None:
    rooms = [FreeMemory(RAM, free), *(FreeMemory(gpu, 100) for gpu in gpus)]
    assert should_read_weights(4, rooms, gpu_layers) is fits

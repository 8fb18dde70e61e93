"""Which weights are read, which move into huge pages, and which stay mapped."""

from __future__ import annotations

import pytest

from eaglelocal.backend.weight_loading import FLOAT_TYPES, REPACKED_TYPES, has_plenty, is_moved, is_read
from eaglelocal.memory.budget import RAM, FreeMemory

TYPES = (*FLOAT_TYPES, *REPACKED_TYPES, "Q8_0", "Q6_K")


@pytest.mark.parametrize(
    ("huge_pages", "repacks", "types"),
    [(True, True, {*REPACKED_TYPES}), (True, False, set()), (False, True, set())],
)
def test_types_to_read(huge_pages: bool, repacks: bool, types: set[str]) -> None:
    assert {name for name in TYPES if is_read(name, huge_pages=huge_pages, repacks=repacks)} == types


@pytest.mark.parametrize(
    ("huge_pages", "is_brief", "types"),
    [
        ("always", False, {*FLOAT_TYPES}),
        ("madvise", False, {*FLOAT_TYPES}),
        ("madvise", True, set()),
        ("never", False, set()),
        (None, False, set()),
    ],
)
def test_types_to_move(huge_pages: str | None, is_brief: bool, types: set[str]) -> None:
    assert {name for name in TYPES if is_moved(name, huge_pages=huge_pages, is_brief=is_brief)} == types


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
    assert has_plenty(4, rooms, gpu_layers) is fits

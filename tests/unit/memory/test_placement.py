"""Which layer is on which device, compared with tables made by hand from llama_model_base::load_tensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.memory.budget import RAM, FreeMemory
from eaglelocal.memory.placement import choose_gpus, place_blocks, resolve_shares

TWO = ("CUDA0", "CUDA1")
GIB = 2**30


@pytest.mark.parametrize(
    ("gpus", "shares", "gpu_layers", "expected"),
    [
        ((), (), None, "RRRRR"),
        (TWO[:1], (1.0,), None, "00000"),
        (TWO[:1], (1.0,), 0, "RRRRR"),
        (TWO[:1], (1.0,), 1, "RRRR0"),  # the output is the last layer
        (TWO[:1], (1.0,), 3, "RR000"),
        (TWO[:1], (1.0,), 99, "00000"),
        (TWO, (1.0, 1.0), None, "00011"),
        (TWO, (3.0, 1.0), None, "00001"),
        (TWO, (1.0, 3.0), 4, "R0111"),
        (TWO, (0.0, 1.0), None, "11111"),
        (TWO, (0.0, 0.0), None, "RRRRR"),  # no shares, no GPU
    ],
)
def test_four_blocks_and_the_output(
    gpus: tuple[str, ...], shares: tuple[float, ...], gpu_layers: int | None, expected: str
) -> None:
    found = place_blocks(4, gpus, shares, gpu_layers=gpu_layers)
    assert "".join("R" if where == RAM else where[-1] for where in found) == expected


@given(st.integers(1, 100), st.lists(st.floats(0.1, 100), min_size=1, max_size=4), st.none() | st.integers(0, 120))
def test_every_layer_has_one_place_and_gpus_come_in_order(
    num_blocks: int, shares: list[float], gpu_layers: int | None
) -> None:
    gpus = [f"CUDA{i}" for i in range(len(shares))]
    found = place_blocks(num_blocks, gpus, shares, gpu_layers=gpu_layers)
    assert len(found) == num_blocks + 1
    order = [-1 if where == RAM else int(where[4:]) for where in found]
    assert order == sorted(order)
    offloaded = num_blocks + 1 if gpu_layers is None else min(gpu_layers, num_blocks + 1)
    assert sum(place >= 0 for place in order) == offloaded


def test_only_named_gpus_are_used_and_one_without_a_split() -> None:
    rooms = (FreeMemory(RAM, 64 * GIB), FreeMemory("CUDA0", 24 * GIB), FreeMemory("CUDA1", 12 * GIB))
    assert [room.device for room in choose_gpus(rooms, device=None, split="layer")] == list(TWO)
    assert [room.device for room in choose_gpus(rooms, device="CUDA1", split="layer")] == ["CUDA1"]
    assert [room.device for room in choose_gpus(rooms, device=None, split="none")] == ["CUDA0"]


def test_the_processors_own_gpu_is_used_alone_or_by_name() -> None:
    card, own = FreeMemory("Vulkan0", 8 * GIB), FreeMemory("Vulkan1", 15 * GIB, in_ram=True)
    assert choose_gpus((FreeMemory(RAM, GIB), card, own), device=None, split="layer") == (card,)
    assert choose_gpus((FreeMemory(RAM, GIB), card, own), device="Vulkan1", split="layer") == (own,)
    assert choose_gpus((FreeMemory(RAM, GIB), card, own), device="Vulkan1,Vulkan0", split="layer") == (own, card)
    assert choose_gpus((FreeMemory(RAM, GIB), own), device=None, split="layer") == (own,)


@pytest.mark.parametrize(
    ("free", "asked", "expected"),
    [
        ((24, 12), (), (24 * GIB, 12 * GIB)),
        ((24, None), (), (1.0, 1.0)),  # unknown: evenly
        ((24, 0), (), (24 * GIB, 0)),  # another program fills it
        ((0, 0), (), (1.0, 1.0)),
        ((24, 12), (3.0, 1.0), (3.0, 1.0)),
        ((24, 12), (1.0,), (1.0, 0.0)),
        ((24,), (1.0, 2.0), (1.0,)),
    ],
)
def test_shares_are_as_asked_else_by_what_is_free(
    free: tuple[int | None, ...], asked: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    gpus = [FreeMemory(f"CUDA{i}", None if size is None else size * GIB) for i, size in enumerate(free)]
    assert resolve_shares(gpus, asked) == expected

"""Which models are unloaded so that another fits, and the memory left next to the loaded ones."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind
from eaglelocal.planning.machine_spec import make_known_spec, subtract_other_models
from eaglelocal.preparation.coresidency import choose_victims, fit

CARD = "CUDA0"


def needs(ram: int, card: int = 0) -> tuple[Buffer, ...]:
    return Buffer(RAM, MemoryKind.WEIGHTS, ram), Buffer(CARD, MemoryKind.CACHE, card)


ROOMS = (FreeMemory(RAM, 100), FreeMemory(CARD, 20))
SHARED = (FreeMemory(RAM, 100), FreeMemory(CARD, 60, in_ram=True))


@pytest.mark.parametrize(
    ("needed", "held", "gone"),
    [
        (needs(10, 10), {}, []),
        (needs(10, 10), {"a": needs(10, 10)}, []),
        (needs(10, 11), {"a": needs(10, 10)}, ["a"]),
        (needs(10, 10), {"a": needs(10, 5), "b": needs(10, 8)}, ["a"]),
        (needs(10, 15), {"a": needs(10, 5), "b": needs(10, 8)}, ["b"]),  # a left in vain
        (needs(10, 20), {"a": needs(10, 5), "b": needs(10, 8)}, ["a", "b"]),
        (needs(95, 1), {"a": needs(1, 18), "b": needs(9, 1)}, ["b"]),
        (needs(10, 30), {"a": needs(10, 5), "b": needs(10, 8)}, ["a", "b"]),  # it will not fit at all
    ],
)
def test_as_few_as_make_room(needed: tuple[Buffer, ...], held: dict[str, tuple[Buffer, ...]], gone: list[str]) -> None:
    assert choose_victims(needed, held, ROOMS) == gone


def test_memory_that_is_shared_counts_once_for_both() -> None:
    assert fit([needs(40, 60)], SHARED)
    assert not fit([needs(41, 60)], SHARED)
    assert choose_victims(needs(0, 30), {"a": needs(80, 0)}, SHARED) == ["a"]


def test_unknown_memory_evicts_no_model() -> None:
    assert choose_victims(needs(10**9), {"a": needs(10**9)}, (FreeMemory(RAM, None),)) == []


models = st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda pair: needs(*pair))


@given(models, st.dictionaries(st.sampled_from("abcdef"), models), st.sampled_from([ROOMS, SHARED]))
def test_no_model_is_evicted_in_vain(
    needed: tuple[Buffer, ...], held: dict[str, tuple[Buffer, ...]], free_memory: tuple[FreeMemory, ...]
) -> None:
    gone = choose_victims(needed, held, free_memory)
    stay = [held[name] for name in held if name not in gone]
    if not fit([needed], free_memory):
        assert len(gone) == len(held)
        return
    assert fit([needed, *stay], free_memory)
    assert all(not fit([needed, *stay, held[name]], free_memory) for name in gone)


@pytest.mark.parametrize("name", ["rtx-3090", "2x-rtx-3090", "m2-max-32gb", "strix-halo-64gb", "cpu-ddr5-6000-32gb"])
def test_a_rig_next_to_a_model_has_what_that_leaves(name: str) -> None:
    spec = make_known_spec(load_catalog().machine(name))
    first = spec.gpus[0].name if spec.gpus else RAM
    held = (Buffer(RAM, MemoryKind.WEIGHTS, 10**9), Buffer(first, MemoryKind.CACHE, 2 * 10**9))
    left = subtract_other_models(spec, held)
    for before, after in zip(spec.devices, left.devices, strict=True):
        own = sum(one.num_bytes for one in held if one.device == before.name)
        lent = 0 if before.name != RAM else sum(2 * 10**9 for gpu in spec.gpus[:1] if gpu.shares_ram)
        assert before.free_bytes is not None
        assert after.free_bytes == before.free_bytes - own - lent
    too_much = subtract_other_models(spec, [Buffer(device.name, MemoryKind.WEIGHTS, 10**15) for device in spec.devices])
    assert {device.free_bytes for device in too_much.devices} == {0}


def test_what_is_next_to_nothing_is_as_it_was() -> None:
    for spec in itertools.islice(map(make_known_spec, load_catalog().machines.values()), 60):
        assert subtract_other_models(spec, ()) == spec

"""Memory bandwidth: the arithmetic of windows, a real measurement, and what is kept of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal import locations
from eaglelocal.probe.bandwidth import (
    MAX_BYTES,
    MIN_BYTES_A_THREAD,
    add_bandwidth,
    choose_buffer_bytes,
    compute_quartiles,
    compute_window_rates,
    find_bandwidth,
    load_bandwidth,
    measure_bandwidth,
    save_bandwidth,
)
from eaglelocal.probe.machine import Bandwidth, Cpu, LlamaCpp, Machine, MainMemory

GIB = 1 << 30
MACHINE = Machine(
    gpus=(),
    unified=None,
    cpu=Cpu(name="a processor", usable_threads=1),
    memory=MainMemory(available_bytes=GIB, installed_bytes=4 * GIB),
    cache_free_bytes=None,
    llama_cpp=LlamaCpp(),
)
FIGURE = Bandwidth(
    bytes_s=4e10, low_bytes_s=3.5e10, high_bytes_s=4.2e10, threads=1, measured_at=1.8e9, others_share=0.0
)


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def steady(rate: float, *, begin: float = 0.0, end: float = 2.0, step: float = 0.1) -> list[tuple[float, float]]:
    moments = [begin + i * step for i in range(round((end - begin) / step) + 1)]
    return [(moment, rate * (moment - begin)) for moment in moments]


# ---- arithmetic
def test_threads_are_summed_where_all_of_them_read() -> None:
    rates = compute_window_rates([steady(5.0), steady(7.0, begin=0.3, end=2.5)])
    assert len(rates) == 12
    assert rates == pytest.approx([12.0] * 12)


def test_a_hiccup_moves_the_spread_and_not_the_figure() -> None:
    whole = steady(10.0, end=1.0) + [(1.5, 10.0)] + [(1.5 + 0.1 * i, 10.0 + i) for i in range(1, 16)]
    rates = compute_window_rates([whole])
    assert min(rates) < 5.0
    _, median, high = compute_quartiles(rates)
    assert median == pytest.approx(10.0)
    assert high == pytest.approx(10.0)


@given(st.lists(st.floats(0.5, 50.0), min_size=1, max_size=4), st.floats(0.001, 0.2))
def test_steady_threads_give_their_sum_whatever_the_steps(rates: list[float], step: float) -> None:
    threads = [steady(rate, step=step * (1 + i / 7)) for i, rate in enumerate(rates)]
    assert compute_window_rates(threads) == pytest.approx([sum(rates)] * len(compute_window_rates(threads)), rel=1e-6)


def test_threads_that_never_read_together_have_no_rate() -> None:
    with pytest.raises(RuntimeError):
        compute_window_rates([steady(1.0, end=1.0), steady(1.0, begin=2.0, end=3.0)])


@pytest.mark.parametrize(
    ("threads", "cache", "available", "size"),
    [
        (2, 32 << 20, 16 * GIB, 128 << 20),
        (2, None, None, 128 << 20),
        (2, 480 << 20, 16 * GIB, 480 << 20),
        (1, 8 * GIB, 64 * GIB, MAX_BYTES),
        (64, 256 << 20, 512 * GIB, MIN_BYTES_A_THREAD),
        (2, 480 << 20, GIB, 64 << 20),
    ],
)
def test_buffers_exceed_the_caches_but_not_what_is_free(
    threads: int, cache: int | None, available: int | None, size: int
) -> None:
    assert choose_buffer_bytes(threads=threads, cache_bytes=cache, available_bytes=available) == size


def test_too_little_memory_is_not_measured_with() -> None:
    with pytest.raises(MemoryError):
        choose_buffer_bytes(threads=8, cache_bytes=None, available_bytes=64 << 20)
    poor = dataclasses.replace(MACHINE, memory=MainMemory(available_bytes=1 << 20))
    assert find_bandwidth(poor) is None


# ---- measuring
def test_this_machine_has_a_bandwidth() -> None:
    measured = measure_bandwidth(threads=2, cache_bytes=None, available_bytes=GIB, seconds=0.1)
    assert 1e8 < measured.low_bytes_s <= measured.bytes_s <= measured.high_bytes_s < 2e12
    assert measured.threads == 2
    assert measured.others_share is None or 0 <= measured.others_share <= 1


# ---- keeping
def test_measured_once_and_then_read() -> None:
    first = add_bandwidth(MACHINE)
    assert first.cpu.bandwidth is not None
    assert load_bandwidth(MACHINE) == first.cpu.bandwidth
    remeasure = dataclasses.replace(first, cpu=dataclasses.replace(first.cpu, bandwidth=dataclasses.replace(FIGURE)))
    assert find_bandwidth(remeasure) == FIGURE


def test_again_measures_anyway() -> None:
    known = dataclasses.replace(MACHINE, cpu=dataclasses.replace(MACHINE.cpu, bandwidth=FIGURE))
    measured = find_bandwidth(known, remeasure=True)
    assert measured is not None
    assert measured.measured_at > FIGURE.measured_at or measured.bytes_s != FIGURE.bytes_s
    assert load_bandwidth(MACHINE) == measured


def test_a_figure_of_a_busy_moment_is_measured_again_and_only_bettered() -> None:
    busy = dataclasses.replace(FIGURE, bytes_s=1e15, others_share=0.5)
    known = dataclasses.replace(MACHINE, cpu=dataclasses.replace(MACHINE.cpu, bandwidth=busy))
    assert find_bandwidth(known) == busy
    slow = dataclasses.replace(busy, bytes_s=1.0)
    bettered = find_bandwidth(dataclasses.replace(MACHINE, cpu=dataclasses.replace(MACHINE.cpu, bandwidth=slow)))
    assert bettered is not None
    assert bettered.bytes_s > 1e8


def test_another_machine_has_a_figure_of_its_own() -> None:
    assert save_bandwidth(MACHINE, FIGURE)
    for other in (
        dataclasses.replace(MACHINE, cpu=dataclasses.replace(MACHINE.cpu, usable_threads=2)),
        dataclasses.replace(MACHINE, cpu=dataclasses.replace(MACHINE.cpu, name="another")),
        dataclasses.replace(MACHINE, memory=MainMemory(installed_bytes=8 * GIB)),
    ):
        assert load_bandwidth(other) is None
    assert load_bandwidth(MACHINE) == FIGURE


@pytest.mark.parametrize(
    "change",
    [
        {"bytes_s": -1.0},
        {"bytes_s": "fast"},
        {"bytes_s": True},
        {"bytes_s": float("nan")},
        {"others_share": "x"},
        {"surprise": 1},
    ],
)
def test_a_file_that_is_not_ours_is_as_good_as_none(change: dict[str, object]) -> None:
    save_bandwidth(MACHINE, FIGURE)
    (path,) = locations.bandwidths_dir().glob("*.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"measured": content["measured"] | change}))
    assert load_bandwidth(MACHINE) is None


@given(st.binary(max_size=200))
def test_any_bytes_in_its_place(content: bytes) -> None:
    save_bandwidth(MACHINE, FIGURE)
    (path,) = locations.bandwidths_dir().glob("*.json")
    path.write_bytes(content)
    assert load_bandwidth(MACHINE) is None


def test_a_state_folder_that_cannot_be_written_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    assert not save_bandwidth(MACHINE, FIGURE)
    assert find_bandwidth(MACHINE) is not None

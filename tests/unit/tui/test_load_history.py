"""The load of the machine over the last seconds."""

from __future__ import annotations

from dataclasses import replace

from doubles.monitor_states import MACHINE

from eaglelocal.probe.load_gauges import MachineGauge
from eaglelocal.tui.monitor.machine_text import HELD_S, KEPT_S, LoadHistory

BARE = MachineGauge(cpu_load=0.25)


def test_each_second_has_its_newest_load() -> None:
    history = LoadHistory()
    for now, load in ((100.1, 0.1), (100.9, 0.2), (101.5, 0.3)):
        history.add(replace(BARE, cpu_load=load), now)
    read = history.read(102.0)
    assert (read.label, read.shares[-2:], len(read.shares)) == ("CPU", (0.2, 0.3), KEPT_S)
    assert set(read.shares[:-2]) == {None}


def test_the_busiest_gpu_counts_where_there_is_one() -> None:
    history, gpu = LoadHistory(), MACHINE.gpus[0]
    history.add(MACHINE, 7.0)
    assert (history.read(8.0).label, history.read(8.0).shares[-1]) == ("GPU", 0.87)
    history.add(replace(MACHINE, gpus=(gpu, replace(gpu, load=0.95))), 8.0)
    assert (history.read(9.0).label, history.read(9.0).shares[-1]) == ("busiest GPU", 0.95)


def test_seconds_without_a_frame_are_filled_and_longer_gaps_are_not() -> None:
    history = LoadHistory()
    history.add(BARE, 50.0)
    history.add(None, 51.0)
    history.add(MachineGauge(), 52.0)
    history.add(BARE, 60.0)
    shares = history.read(61.0).shares
    assert shares[-1] == 0.25
    assert list(shares[-11:-1]) == [*[0.25] * HELD_S, *[None] * (10 - HELD_S)]

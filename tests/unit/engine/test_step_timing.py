"""The estimated time of a plain step is never more than the decode took, beside what a step takes without one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaglelocal.engine import step_timing as timing_module
from eaglelocal.engine.step_times import StepTimes
from eaglelocal.engine.step_timing import StepTiming
from eaglelocal.speculation.costs.step_costs import StepCosts

ROOT = Path(__file__).parents[3]


def costs_of(one_s: float, eight_s: float) -> StepCosts:
    """Return the costs of a machine where decodes of one and of eight rows take so long."""
    costs = StepCosts()
    for _ in range(50):
        costs.learn(1, one_s)
        costs.learn(8, eight_s)
    return costs


def measure(costs: StepCosts, monkeypatch: pytest.MonkeyPatch, *, num_rows: int) -> StepTimes:
    """Return the times of a step of one slot with drafts, in which drafting, decoding and sampling took 1 s each."""
    moments = itertools.count(100.0)
    monkeypatch.setattr(timing_module.time, "perf_counter", lambda: next(moments))
    books = StepTiming(costs, lambda: 0.0)
    books.begin()
    for _ in range(3):
        books.mark()
    return books.measure(books.end(), num_slots=1, num_rows=num_rows, num_drafted=num_rows - 1)


@pytest.mark.parametrize(("one_s", "eight_s", "plain_s"), [(0.01, 0.03, 1 / 3), (0.68, 0.29, 1.0)])
def test_fewer_rows_are_never_dearer(
    one_s: float, eight_s: float, plain_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.68 s for one row and 0.29 s for eight: such was measured while other programs came and went."""
    times = measure(costs_of(one_s, eight_s), monkeypatch, num_rows=8)
    assert times.decode_s == 1.0
    assert times.plain_s == pytest.approx(plain_s, rel=0.05)


def test_a_plain_step_too_takes_time_outside_the_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = costs_of(0.01, 0.03)
    costs.learn_overheads(False, [(1, 0.2)] * 8)
    assert measure(costs, monkeypatch, num_rows=8).plain_s == pytest.approx(1 / 3 + 0.2, rel=0.05)


def test_host_time_is_what_the_library_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two steps that follow each other, but not while the engine had nothing to do."""
    now, native_s = 100.0, 7.0
    monkeypatch.setattr(timing_module.time, "perf_counter", lambda: now)
    books = StepTiming(StepCosts(), lambda: native_s)
    host_s = []
    for rests in (False, False, True, False):
        books.begin()
        for _ in range(3):
            books.mark()
        now, native_s = now + 0.5, native_s + 0.375
        host_s.append(books.measure(books.end(), num_slots=1, num_rows=1, num_drafted=0).host_s)
        now, native_s = now + 0.25, native_s + 0.125  # telling, and what a new request's sampler takes
        if rests:
            books.pause()
    assert host_s == [0.125, 0.25, 0.25, 0.125]
    assert books.totals.host_s == 0.75


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count the process alone")
def test_the_memory_of_a_parent_is_not_ours() -> None:
    """Linux's getrusage goes on with the peak of the process that was forked to run this one."""
    report = "from eaglelocal.engine.step_timing import peak_rss_bytes; print(peak_rss_bytes())"
    large = f"import os, sys; b'x' * 400_000_000; os.execv(sys.executable, [sys.executable, '-c', {report!r}])"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", large], capture_output=True, text=True, env=environ, check=True)
    assert 10_000_000 < int(done.stdout) < 300_000_000


@pytest.mark.parametrize("content", ["", "VmPeak: 3 kB\n", "VmHWM:\n", "VmHWM: many kB\n"])
def test_an_unknown_status_has_no_figure(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").write_text(content)
    monkeypatch.setattr(timing_module, "STATUS", str(tmp_path / "status"))
    assert timing_module.read_high_water_mark() is None
    assert timing_module.peak_rss_bytes() > 0

"""The estimated time of a plain step is never more than the step took."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaglelocal.engine import step_timing as timing_module
from eaglelocal.engine.step_timing import StepTiming
from eaglelocal.speculation.costs.step_costs import StepCosts

ROOT = Path(__file__).parents[3]


def timing(cost_of_one: float, cost_of_eight: float) -> StepTiming:
    costs = StepCosts()
    for _ in range(50):
        costs.learn(1, cost_of_one, num_cells=0)
        costs.learn(8, cost_of_eight, num_cells=0)
    return StepTiming(costs, lambda: 0.0)


@pytest.mark.parametrize(("one_s", "eight_s", "is_cheaper"), [(0.01, 0.03, True), (0.68, 0.29, False)])
def test_fewer_rows_are_never_dearer(one_s: float, eight_s: float, is_cheaper: bool) -> None:
    """0.68 s for one row and 0.29 s for eight: such was measured while other programs came and went."""
    books = timing(one_s, eight_s)
    books.begin()
    for _ in range(3):
        books.mark()
    times = books.measure(books.end(), num_rows=8, num_drafted=7)
    assert times.verify_s > 0
    assert times.plain_s <= times.verify_s
    assert (times.plain_s < 0.9 * times.verify_s) is is_cheaper


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
        host_s.append(books.measure(books.end(), num_rows=1, num_drafted=0).host_s)
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

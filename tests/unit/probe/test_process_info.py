"""A process and the next one with its pid are distinguished; nothing raises."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from doubles.timeouts import wait_until

from eaglelocal.probe.process_info import is_alive, start_mark

NOBODY = 2**22 + 12345  # above the largest pid that Linux gives


def test_a_process_keeps_its_mark_and_another_has_another() -> None:
    mine = start_mark(os.getpid())
    assert mine is not None and mine == start_mark(os.getpid())
    assert is_alive(os.getpid(), mine)
    assert not is_alive(os.getpid(), mine + "0")


def test_an_ended_process_has_none_even_before_it_is_reaped() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: start_mark(process.pid) is None, "the process ends")
    process.wait()
    assert start_mark(process.pid) is None


@pytest.mark.parametrize("pid", [NOBODY, -1, 0])
def test_no_process_is_no_error(pid: int) -> None:
    assert start_mark(pid) is None

"""The double that starts programs: under nohup too they can be interrupted, and they end with the test."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from doubles.programs import Programs, ending, interruptible, output_of

SLEEPS = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


def ignored_by(status: str) -> int:
    """The mask that Linux tells."""
    return int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_what_is_ignored_here_is_not_inherited() -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        with interruptible(), Programs() as programs:
            signal.raise_signal(signal.SIGHUP)  # still without effect
            _, proc_status, _ = output_of(programs.start(["cat", "/proc/self/status"]))
        after = {number: signal.getsignal(number) for number in before}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not ignored_by(proc_status.decode()) & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGHUP - 1))
    assert set(after.values()) == {signal.SIG_IGN}


def test_programs_end_with_the_block_and_their_children_with_them() -> None:
    with Programs() as programs:
        shell = programs.start(["sh", "-c", '"$@" & wait', "sh", *SLEEPS])
        assert shell.stdout is not None and shell.stdout.readline()
        pipe = shell.stdout
    assert shell.returncode == -signal.SIGKILL
    assert pipe.closed
    with ending(subprocess.Popen(SLEEPS, stdout=subprocess.DEVNULL)) as program:
        pass
    assert program.returncode == -signal.SIGKILL


def test_a_program_that_does_not_end_is_killed() -> None:
    with Programs() as programs:
        program = programs.start(SLEEPS)
        with pytest.raises(subprocess.TimeoutExpired):
            output_of(program, patience_s=0.1)
        assert program.returncode == -signal.SIGKILL

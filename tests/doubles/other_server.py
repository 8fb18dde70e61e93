"""Servers of other programs, started and ended by a test."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

END_S = 60


@contextmanager
def running_program(
    command: Sequence[str], environ: Mapping[str, str], log: Path, *, health: str, start_s: float
) -> Iterator[None]:
    """Run a program until the block ends; it begins once the address `health` answers well.

    environ  beside the test's own variables, without its PYTHONPATH
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**inherited, **environ}, start_new_session=True
        )
    try:
        wait_until_healthy(health, process, log, start_s)
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(END_S)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            httpx.get(url, timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.5)

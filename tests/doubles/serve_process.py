"""A real `eaglelocal serve` in a process of its own, for tests and measurements that need all of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

LOAD_S = 240.0


@dataclass(frozen=True)
class ServeProcess:
    url: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def snapshot(self) -> dict[str, object]:
        found: dict[str, object] = httpx.get(f"{self.url}/v1/snapshot", timeout=30).json()
        return found

    def engine(self) -> dict[str, float]:
        found = self.snapshot()["engine"]
        assert isinstance(found, dict)
        return found

    @property
    def engine_pid(self) -> int:
        return int(self.engine()["pid"])

    def health(self) -> tuple[int, str]:
        reply = httpx.get(f"{self.url}/health", timeout=30)
        return reply.status_code, reply.json()["status"]


@contextlib.contextmanager
def serve(*arguments: str, log: Path | None = None) -> Iterator[ServeProcess]:
    """Run `serve` with these arguments on a free port; yield it when it is ready, and end it with SIGTERM."""
    port = free_port()
    command = [sys.executable, "-m", "eaglelocal", "serve", "--port", str(port), "--no-tui", *arguments]
    with open(log or os.devnull, "wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
    server = ServeProcess(f"http://127.0.0.1:{port}", process)
    try:
        wait_until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def wait_until_ready(server: ServeProcess, limit_s: float = LOAD_S) -> float:
    """Wait until /health answers 200, and return the seconds that took."""
    started_at = time.monotonic()
    while time.monotonic() - started_at < limit_s:
        with contextlib.suppress(httpx.HTTPError):
            if server.health()[0] == 200:
                return time.monotonic() - started_at
        assert server.process.poll() is None, "the server has ended"
        time.sleep(0.05)
    raise AssertionError(f"the server was not ready within {limit_s:g} s")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def rss_bytes(pid: int) -> int:
    """Return the resident size of a process. Linux only."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def num_files(pid: int) -> int:
    """Return the number of open file descriptors of a process. Linux only."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))

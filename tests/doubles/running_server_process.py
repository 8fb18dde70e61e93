"""The server of running_server.py in a process of its own, so that its memory is measured without the client's.

    with served_process() as server:
        requests.get(f"{server.url}/health")

Run as a program it serves until its input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from .programs import ending

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class RunningServerProcess:
    url: str
    pid: int
    engine_pid: int

    def rss_bytes(self) -> tuple[int, int]:
        """Return the resident sizes of the server and of its engine."""
        return psutil.Process(self.pid).memory_info().rss, psutil.Process(self.engine_pid).memory_info().rss


@contextmanager
def running_server_process() -> Iterator[RunningServerProcess]:
    command = [sys.executable, "-m", "doubles.running_server_process"]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])  # its engine's too
    program = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with ending(program) as process:
        assert process.stdin is not None and process.stdout is not None
        yield RunningServerProcess(pid=process.pid, **json.loads(process.stdout.readline()))
        process.stdin.close()
        assert process.wait(30) == 0


def main() -> None:
    from .running_server import directed, served

    with served(directed()) as server:
        print(json.dumps({"url": server.url, "engine_pid": server.clients[-1].pid}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

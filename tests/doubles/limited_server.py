"""A server as `serve` runs it, with its log, over directed engines: for tests of limits of its process.

    with limited_server(descriptors=128) as server: ...

Run as a program: `python -m doubles.limited_server SOFT HARD MAX_CRASHES`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from .timeouts import PATIENCE_S

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class LimitedServer:
    port: int
    process: subprocess.Popen[str]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine_pid(self) -> int:
        return int(httpx.get(f"{self.url}/v1/snapshot", timeout=PATIENCE_S).json()["engine"]["pid"])

    @property
    def num_descriptors(self) -> int:
        """Return the number of open file descriptors. Linux only."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def ask(self, script: str) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": script}]}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)


@contextmanager
def limited_server(
    log: Path, *, descriptors: tuple[int, int] = (1024, 1024), max_crashes: int = 5
) -> Iterator[LimitedServer]:
    """Run the server for the block. descriptors: the soft and the hard limit of open files."""
    numbers = [str(number) for number in (*descriptors, max_crashes)]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "doubles.limited_server", *numbers],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    try:
        port = process.stdout.readline()
        assert process.stdout.readline() == "ready\n", log.read_text()
        yield LimitedServer(int(port), process, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def main(soft: int, hard: int, max_crashes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    from eaglelocal.cli.output import standard_output
    from eaglelocal.cli.serve_log import log_to
    from eaglelocal.server.app import create_app
    from eaglelocal.server.listening_socket import bind_socket
    from eaglelocal.server.run_server import Runtime, run_until_stopped
    from eaglelocal.worker.supervisor import RestartPolicy

    from .running_server import directed, loader_of, serving_of

    setup = directed(restart=RestartPolicy(first_delay_s=0.05, max_crashes=max_crashes))
    serving = serving_of(setup, loader_of(setup, []))
    log_to(standard_output(colour="never"), None)
    listening = bind_socket("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    runtime = Runtime(on_ready=lambda loaded: print("ready", flush=True), drain_s=1.0)
    run_until_stopped(create_app(serving, setup.access), serving, listening, runtime)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

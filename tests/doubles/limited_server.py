"""A server as `serve` runs it, with its log, over directed engines: for tests of limits of its process.

    with limited_server(descriptors=(128, 128)) as server: ...

Run as a program: `python -m doubles.limited_server SETTINGS`, an object of ServerSettings' fields.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from .serve_process import rss_bytes
from .timeouts import PATIENCE_S

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """descriptors: the soft and the hard limit of open files. keys: by name. certificate: and its key, in PEM."""

    descriptors: tuple[int, int] = (1024, 1024)
    max_crashes: int = 5
    keys: Mapping[str, str] = field(default_factory=dict)
    certificate: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LimitedServer:
    port: int
    process: subprocess.Popen[str]
    log: Path
    settings: ServerSettings

    @property
    def url(self) -> str:
        return f"{'http' if self.settings.certificate is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def trust(self) -> ssl.SSLContext | bool:
        """What httpx takes as `verify`."""
        pair = self.settings.certificate
        return False if pair is None else ssl.create_default_context(cafile=pair[0])

    @property
    def rss_bytes(self) -> int:
        return rss_bytes(self.process.pid)

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
def limited_server(log: Path, settings: ServerSettings) -> Iterator[LimitedServer]:
    """Run the server for the block."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "doubles.limited_server", json.dumps(asdict(settings))],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    try:
        port = process.stdout.readline()
        assert process.stdout.readline() == "ready\n", log.read_text()
        yield LimitedServer(int(port), process, log, settings)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def main(settings: ServerSettings) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(settings.descriptors))
    from eaglelocal.cli.output import standard_output
    from eaglelocal.cli.serve_log import log_to
    from eaglelocal.server.access import Access, ApiKeys
    from eaglelocal.server.app import create_app
    from eaglelocal.server.connections import max_connections, raise_descriptor_limit
    from eaglelocal.server.listening_socket import bind_socket
    from eaglelocal.server.run_server import Runtime, run_until_stopped
    from eaglelocal.server.server_certificate import ServerCertificate
    from eaglelocal.server.server_state import ServerLimits
    from eaglelocal.worker.supervisor import RestartPolicy

    from .running_server import directed, loader_of, serving_of

    setup = directed(
        restart=RestartPolicy(first_delay_s=0.05, max_crashes=settings.max_crashes),
        access=Access(keys=ApiKeys(tuple(settings.keys.items()))),
        limits=ServerLimits(num_connections=max_connections(raise_descriptor_limit())),
        is_shared=len(settings.keys) > 1,
    )
    serving = serving_of(setup, loader_of(setup, []))
    log_to(standard_output(colour="never"), None)
    listening = bind_socket("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    pair = None if settings.certificate is None else ServerCertificate(*map(Path, settings.certificate))
    runtime = Runtime(on_ready=lambda loaded: print("ready", flush=True), drain_s=1.0, certificate=pair)
    run_until_stopped(create_app(serving, setup.access), serving, listening, runtime)


if __name__ == "__main__":
    main(ServerSettings(**json.loads(sys.argv[1])))

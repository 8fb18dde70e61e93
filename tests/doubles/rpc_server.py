"""llama.cpp's own rpc-server on the loopback interface, where one was built: RPC_SERVER names the program."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from eaglelocal.errors import RpcServerError
from eaglelocal.probe.probe import probe
from eaglelocal.probe.rpc_servers import ask_rpc_server

from .serve_process import free_port

PROGRAM = os.environ.get("RPC_SERVER", "")
START_S = 20.0


def why_not() -> str:
    """Return why nothing can run through an rpc-server here; empty if it can."""
    if not PROGRAM:
        return "RPC_SERVER names no rpc-server of llama.cpp"
    has_rpc = "rpc" in probe().llama_cpp.backends
    return "" if has_rpc else "llama.cpp here was built without RPC (LLAMA_CPP_LIB_PATH can name another build)"


@dataclass(frozen=True)
class RpcServerProcess:
    address: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def rpc_server(*, threads: int = 1, port: int | None = None) -> Iterator[RpcServerProcess]:
    """Run a server with these threads; yield it when it answers."""
    port = port or free_port()
    command = [PROGRAM, "-t", str(threads), "-p", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = RpcServerProcess(f"127.0.0.1:{port}", process)
    try:
        wait_until_ready(server)
        yield server
    finally:
        server.kill()


def wait_until_ready(server: RpcServerProcess) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert server.process.poll() is None, "the rpc-server has ended"
        try:
            ask_rpc_server(server.address)
            return
        except RpcServerError:
            assert time.monotonic() < deadline, "the rpc-server does not answer"
            time.sleep(0.1)

"""The server as a foreground process: its socket, its signals, its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from doubles.timeouts import PATIENCE_S

from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.server.listening_socket import bind_socket
from eaglelocal.server.run_server import describe_stop, notify_service_manager

# a first model that is never there, as far as anyone can wait
LOADING = """
import threading
from eaglelocal.server.access import Access
from eaglelocal.server.server_state import AdmissionQueue
from eaglelocal.server.app import create_app
from eaglelocal.server.metrics import Metrics
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.listening_socket import bind_socket
from eaglelocal.server.run_server import Runtime, run_until_stopped
from eaglelocal.server.server_state import ServerState

def load(name):
    print("loading", flush=True)
    threading.Event().wait()

admission = AdmissionQueue(num_slots=1, max_waiting=1, is_shared=False)
state = ServerState(models=ModelManager(["never"], load), admission=admission, metrics=Metrics())
run_until_stopped(create_app(state, Access()), state, bind_socket("127.0.0.1", 0), Runtime(on_ready=print))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_it_while_a_model_loads(number: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", LOADING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_socket_is_bound_before_anything_else() -> None:
    with bind_socket("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), pytest.raises(ResourceError, match="is taken") as caught:
            bind_socket("127.0.0.1", port)
        assert f"--port {port + 1}" in caught.value.hint
    with bind_socket("::1", 0) as listening:
        assert listening.family is socket.AF_INET6


@pytest.mark.parametrize("host", ["no.such.host.invalid", "999.1.1.1", "192.0.2.1"])
def test_an_address_of_another_machine_is_a_usage_error(host: str) -> None:
    with pytest.raises(UsageError, match="cannot be listened on"):
        bind_socket(host, 0)


def test_the_service_manager_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        notify_service_manager("READY=1")
        assert sock.recv(100) == b"READY=1"
    notify_service_manager("READY=1")  # the other end is closed
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify_service_manager("READY=1")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "stopping"),
        (1, "stopping: 1 answer has up to 30 s to finish; ctrl-c or SIGTERM again ends at once"),
        (2, "stopping: 2 answers have up to 30 s to finish; ctrl-c or SIGTERM again ends at once"),
    ],
)
def test_a_server_that_stops_says_what_it_waits_for(number: int, said: str) -> None:
    assert describe_stop(number, 30.0) == said

"""`top` against a real llama-server that the test starts, stops and starts again.

Needs the program and a model: `LLAMA_SERVER=.../llama-server LLAMA_MODEL=x.gguf pytest -m slow tests/tui`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from doubles.serve_process import free_port
from doubles.timeouts import wait_until

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.client.servers.server_watch import ServerWatch

PROGRAM, MODEL = os.environ.get("LLAMA_SERVER", ""), os.environ.get("LLAMA_MODEL", "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (PROGRAM and MODEL), reason="no llama-server is named")]
QUESTION = {"messages": [{"role": "user", "content": "Count from 1 to 30."}], "max_tokens": 40}


@contextlib.contextmanager
def llama_server(port: int, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [PROGRAM, "-m", MODEL, "--port", str(port), "-c", "1024", "-np", "2", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def asked(url: str) -> threading.Thread:
    """A question that is being answered."""
    thread = threading.Thread(target=lambda: httpx.post(f"{url}/v1/chat/completions", json=QUESTION, timeout=120))
    thread.start()
    return thread


def until(watch: ServerWatch, state: str) -> ServerReading:
    wait_until(lambda: watch.read().state == state, f"it is {state}")
    return watch.read()


def test_it_is_read_through_restarts() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    watch = ServerWatch(url, lambda reading: None)
    assert watch.read().state == DISCONNECTED
    with llama_server(port, "--metrics"):
        before = until(watch, "ready")
        assert (before.kind, before.num_slots, before.running, before.missing) == ("llama-server", 2, 0, ())
        asking = asked(url)
        wait_until(lambda: any(row.state == "running" for row in watch.read().requests or ()), "a row of the answer")
        asking.join()
        after = watch.read()
        assert after.totals.generated_tokens is not None and before.totals.generated_tokens is not None
        assert 0 < after.totals.generated_tokens - before.totals.generated_tokens <= 40
        seen = subprocess.run(
            [sys.executable, "-m", "eaglelocal", "top", url, "--json"], capture_output=True, text=True, timeout=60
        )
        report = json.loads(seen.stdout.splitlines()[-1])
        assert (report["kind"], report["state"], report["server"]["model"]) == ("llama-server", "ready", after.model)
        assert "/" not in after.model
    assert until(watch, DISCONNECTED).kind == "llama-server"
    with llama_server(port):
        again = until(watch, "ready")
        assert again.missing == ("--metrics",)
        assert again.totals.drafts is None and again.waiting is None  # not reported, so not zero

"""A server on the loopback interface that speaks OpenAI's chat completions; the test determines its answers.

Keeps the bodies that it received. One thread per connection.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Event = Mapping[str, object]


@dataclass(slots=True)
class Script:
    """The answers of the server. hangs: after the events the stream stays open until the test is over."""

    events: Sequence[Event] = ()
    status: int = 200
    error: object = None
    minds_extensions: bool = False  # as servers that check every field
    pause_s: float = 0.0  # before each event
    hangs: bool = False
    is_cut: bool = False  # no [DONE] at the end
    is_draining: bool = False  # only answers that have begun go on
    models: object = field(default_factory=lambda: {"data": [{"id": "loopback-model"}]})
    snapshot: object = None  # of a server of ours
    health: tuple[int, object] = (200, "")
    bodies: list[dict[str, object]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


SPECULATION = {
    "state": "on",
    "reason": "",
    "drafts": 4,
    "draft_tokens": 12,
    "accepted_tokens": 7,
    "acceptance_rate": 7 / 12,
    "acceptance_length": 2.75,
    "accepted_per_position": [4, 2, 1],
    "speedup_estimate": 1.5,
}
OUR_MODELS = {"data": [{"id": "demo", "owned_by": "eaglelocal"}]}


def our_words(*said: str, drafted: Mapping[int, bool] | None = None) -> list[Event]:
    """Return chunks as an eaglelocal server sends them: with flags, and statistics of speculation at the end."""
    counts = drafted or {}
    chunks: list[Event] = [
        {"choices": [{"delta": {"content": word}}], "drafted": [counts.get(n, False)]} for n, word in enumerate(said)
    ]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    usage = {"prompt_tokens": 7, "completion_tokens": len(said)}
    timings = {"predicted_n": len(said), "predicted_ms": 500.0, "draft_ms": 100.0, "verify_ms": 300.0, "host_ms": 10.0}
    return [*chunks, {"choices": [], "usage": usage, "timings": timings, "speculation": SPECULATION}]


def words(*said: str, timings: Mapping[str, object] | None = None) -> list[Event]:
    """Return the chunks of an answer, as llama-server sends them."""
    chunks: list[Event] = [{"choices": [{"delta": {"role": "assistant", "content": None}}]}]
    chunks += [{"choices": [{"delta": {"content": word}, "finish_reason": None}]} for word in said]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    usage = {"prompt_tokens": 7, "completion_tokens": len(said)}
    return [*chunks, {"choices": [], "usage": usage, **({"timings": timings} if timings else {})}]


class Handler(BaseHTTPRequestHandler):
    script: Script  # set by the class that serves it

    def do_GET(self) -> None:
        self._note()
        if self.script.is_draining:
            self.close_connection = True
        elif self.path == "/health":
            self._reply(*self.script.health)
        elif self.path == "/v1/snapshot":
            self._reply(200 if self.script.snapshot else 404, self.script.snapshot)
        else:
            self._reply(200, self.script.models)

    def do_POST(self) -> None:
        self._note()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.script.bodies.append(body)
        if self.script.minds_extensions and "cache_prompt" in body:
            self._reply(400, {"error": {"message": "unknown field cache_prompt"}})
        elif self.script.status != 200:
            self._reply(self.script.status, self.script.error)
        else:
            self._stream()

    def _note(self) -> None:
        self.script.paths.append(self.path)
        self.script.keys.append(self.headers.get("Authorization", ""))

    def _reply(self, status: int, value: object) -> None:
        said = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in self.script.events:
            time.sleep(self.script.pause_s)
            self.wfile.write(f": a comment\ndata: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        if self.script.hangs:
            self.script.over.wait(20)
        elif not self.script.is_cut:
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving(script: Script, *, port: int = 0) -> Iterator[str]:
    """Run the server for the block and yield its address. port: 0 for any."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Scripted", (Handler,), {"script": script}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        script.over.set()
        server.shutdown()
        server.server_close()
        thread.join()

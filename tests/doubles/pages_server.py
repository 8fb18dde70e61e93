"""A server on the loopback interface that answers GETs with pages that a test may change, and that may restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

METRICS = Path(__file__).parent / "metrics"


@dataclass(slots=True)
class Page:
    body: str | object
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Pages:
    """The pages by path; a missing one is 404. posts: the bodies that were sent."""

    by_path: dict[str, Page]
    port: int = 0
    posts: list[tuple[str, object]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(pages: Pages) -> Iterator[Pages]:
    """Run the server for the block, on `pages.port`, or on a free port that is stored there."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            pages.keys.append(self.headers.get("Authorization", ""))
            self.answer(pages.by_path.get(self.path, Page("none", 404)))

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            pages.posts.append((self.path, json.loads(sent)))
            self.answer(pages.by_path.get(self.path, Page({"ok": True})))

        def answer(self, page: Page) -> None:
            body = (page.body if isinstance(page.body, str) else json.dumps(page.body)).encode()
            self.send_response(page.status)
            for name, value in {**page.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def process_request(self, request: object, address: object) -> None:
            connections.append(request)
            super().process_request(request, address)  # type: ignore[arg-type]

    connections: list[object] = []
    server = Server(("127.0.0.1", pages.port), Handler)
    pages.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield pages
    finally:
        server.shutdown()
        server.server_close()
        for each in connections:  # as when a process ends
            server.shutdown_request(each)  # type: ignore[arg-type]
        thread.join()


def llama_pages() -> Pages:
    return Pages(
        {
            "/v1/models": Page({"data": [{"id": "Qwen3-8B-Q4_K_M.gguf", "owned_by": "llamacpp"}]}),
            "/health": Page({"status": "ok"}),
            "/props": Page((METRICS / "llama_server_props.json").read_text()),
            "/slots": Page((METRICS / "llama_server_slots.json").read_text()),
            "/metrics": Page((METRICS / "llama_server.txt").read_text(), headers={"Process-Start-Time-Unix": "42"}),
        }
    )


def vllm_pages() -> Pages:
    entry = {"id": "Qwen/Qwen3-8B", "owned_by": "vllm", "max_model_len": 40960}
    return Pages(
        {
            "/v1/models": Page({"data": [entry]}),
            "/health": Page(""),
            "/metrics": Page((METRICS / "vllm.txt").read_text()),
        }
    )

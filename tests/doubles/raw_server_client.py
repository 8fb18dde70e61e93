"""Bytes to a server and back, for what no client would send."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .timeouts import PATIENCE_S


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer. status 0: the connection was closed without one."""

    status: int
    head: bytes
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        yield sock


def exchange(port: int, sent: bytes, *, half_closes: bool = False) -> RawAnswer:
    """Send bytes, and read until the server closes or an answer with a stated length is complete."""
    with connected(port) as sock:
        with contextlib.suppress(OSError):  # it may hang up before it has received everything
            sock.sendall(sent)
            if half_closes:
                sock.shutdown(socket.SHUT_WR)
        return read_answer(sock)


def read_answer(sock: socket.socket) -> RawAnswer:
    """Read an answer; what comes after it is lost."""
    got = b""
    while not _is_complete(got):
        try:
            part = sock.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            break
        if not part:
            break
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    return RawAnswer(int(head.split(b" ")[1]) if head else 0, head, body)


def request(path: str, body: bytes = b"", *headers: str, method: str = "POST", host: str = "127.0.0.1") -> bytes:
    """Return a valid request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _is_complete(got: bytes) -> bool:
    head, ends, body = got.partition(b"\r\n\r\n")
    length = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(ends and length) and len(body) >= int(length[0])

"""Check how a request is encoded: no Content-Encoding, and its target either a path or an absolute URL.

Clients that use a proxy send the absolute URL (`GET http://127.0.0.1:8421/v1/models HTTP/1.1`), which every server
must accept (RFC 9112, 3.2.2): its host then replaces the Host header. Does not check hosts itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import Scope

from eaglelocal.server.http_errors import Problem

MAX_QUOTED_CHARS = 40
_ADDRESS = re.compile(rb"https?://([^/]*)", re.IGNORECASE)


def encoding_problem(headers: Headers) -> Problem | None:
    """Return a Problem that names the encoding of a compressed body, which could expand to any size; else None."""
    given = ",".join(headers.getlist("content-encoding"))
    codings = [coding.strip() for coding in given.split(",") if coding.strip()]
    if all(coding.lower() == "identity" for coding in codings):
        return None
    named = ", ".join(codings)[:MAX_QUOTED_CHARS]
    what = f"Content-Encoding {named} is not supported: send the body uncompressed"
    return Problem(415, what, code="unsupported_encoding", headers={"Accept-Encoding": "identity"})


def normalize_target(scope: Scope) -> Scope:
    """Return the scope with an absolute URL as target replaced by its path, and its host as Host header."""
    target: bytes = scope.get("raw_path") or b""
    address = _ADDRESS.match(target)
    if address is None:
        return scope
    raw = target[address.end() :] or b"/"
    return {
        **scope,
        "path": unquote(raw.decode("ascii", "replace")),
        "raw_path": raw,
        "headers": [(b"host", address[1]), *_remove_host(scope["headers"])],
    }


def _remove_host(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Remove the first Host header only: a request with several is refused later."""
    at = next((i for i, (name, _) in enumerate(headers) if name.lower() == b"host"), len(headers))
    return [*headers[:at], *headers[at + 1 :]]

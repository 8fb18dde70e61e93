"""What a request may say about how it was written down: no Content-Encoding, and its target as a path or an address.

Clients that speak to a proxy send the whole address (`GET http://127.0.0.1:8421/v1/models HTTP/1.1`), and every server
must understand that (RFC 9112, 3.2.2): the host in it counts then, and the Host header does not. Decides nothing about
hosts itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import Scope

from eaglelocal.server.errors import Problem

MAX_QUOTED_CHARS = 40
_ADDRESS = re.compile(rb"https?://([^/]*)", re.IGNORECASE)


def encoding_problem(headers: Headers) -> Problem | None:
    """A compressed body is refused by the name of its encoding: a small one could unfold to any size."""
    given = ",".join(headers.getlist("content-encoding"))
    codings = [coding.strip() for coding in given.split(",") if coding.strip()]
    if all(coding.lower() == "identity" for coding in codings):
        return None
    said = ", ".join(codings)[:MAX_QUOTED_CHARS]
    what = f"Content-Encoding {said} is not read here: send the body as it is, without that header"
    return Problem(415, what, code="unsupported_encoding", headers={"Accept-Encoding": "identity"})


def with_plain_target(scope: Scope) -> Scope:
    """The same request with a path for its target, where that was an address, and the host of the address as Host."""
    target: bytes = scope.get("raw_path") or b""
    address = _ADDRESS.match(target)
    if address is None:
        return scope
    raw = target[address.end() :] or b"/"
    return {
        **scope,
        "path": unquote(raw.decode("ascii", "replace")),
        "raw_path": raw,
        "headers": [(b"host", address[1]), *_without_host(scope["headers"])],
    }


def _without_host(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without the first only: who sends several is refused for that."""
    at = next((i for i, (name, _) in enumerate(headers) if name.lower() == b"host"), len(headers))
    return [*headers[:at], *headers[at + 1 :]]

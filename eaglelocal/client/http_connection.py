"""Connections to a server by HTTP or HTTPS, not yet connected, and the error about one that cannot be reached."""

from __future__ import annotations

import http.client
from urllib.parse import SplitResult

from eaglelocal.errors import EngineError

UNREACHABLE_HINT = "is the server running, and this its address?"


def unreachable_error(url: str, error: Exception) -> EngineError:
    """Return the error about a server that cannot be reached, with a way to trust it if that is what is missing."""
    hint = UNREACHABLE_HINT
    if isinstance(error, http.client.RemoteDisconnected):
        hint = "it may speak https:// only"
    if url.startswith("https:"):
        from eaglelocal.client.trusted_certificates import explain

        hint = explain(error, url) or hint
    why = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or error or type(error).__name__
    return EngineError(f"cannot reach {url}: {why}", hint=hint)


def make_connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to a server, not yet connected."""
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    from eaglelocal.client.trusted_certificates import make_context  # most servers at home need none

    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=make_context(host, port or 443))

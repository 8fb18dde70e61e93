"""Connections to a server by HTTP or HTTPS: its address as people type it, and short requests of one thread.

Answers of models go through http_client.py.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from eaglelocal.client.http_stream import mapping, refusal
from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import join_in_json
from eaglelocal.errors import EagleLocalError, EngineAwayError, UsageError

TIMEOUT_S = 4.0  # a server that computes on all cores answers slowly
MAX_BYTES = 8 * 2**20
UNREACHABLE_HINT = "is the server running, and this its address?"


def split_address(text: str) -> SplitResult:
    """Split an address; a bare number is a port of this machine. Raises ValueError.

    >>> split_address("8421").geturl(), split_address("box:8080").geturl()
    ('http://127.0.0.1:8421', 'http://box:8080')
    """
    if text.isascii() and text.isdecimal():
        text = f"127.0.0.1:{text}"
    return urlsplit(text if "://" in text else f"http://{text}")


def parse_url(url: str) -> SplitResult:
    """Parse `http://host:port`, with or without /v1. Raises UsageError."""
    wrong = UsageError(f"{url!r} is not the address of a server", hint="such as http://127.0.0.1:8080")
    try:
        parts = split_address(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or a bracket of an IPv6 address is missing
        raise wrong from None
    if not is_valid or parts.query or parts.fragment or parts.username:
        raise wrong
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith("/v1") else f"{path}/v1")


def unreachable_error(url: str, error: Exception) -> EngineAwayError:
    """Return the error about an unreachable server; the hint trusts its certificate if that is the cause."""
    hint = UNREACHABLE_HINT
    if isinstance(error, http.client.RemoteDisconnected):
        hint = "it may speak https:// only"
    if url.startswith("https:"):
        from eaglelocal.client.trusted_certificates import explain

        hint = explain(error, url) or hint
    why = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or error or type(error).__name__
    return EngineAwayError(f"cannot reach {url}: {why}", hint=hint)


def make_connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to a server, not yet connected."""
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    from eaglelocal.client.trusted_certificates import make_context  # most servers at home need none

    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=make_context(host, port or 443))


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def is_good(self) -> bool:
        return self.status == http.client.OK

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> object:
        """Return the parsed body; None if it is no JSON."""
        try:
            return join_in_json(read_json(self.body))
        except ValueError:
            return None

    def mapping(self) -> Mapping[str, object]:
        """Return the JSON object; empty for anything else."""
        return mapping(self.json())


class KeepAliveConnection:
    """A keep-alive connection to a server, for one thread."""

    def __init__(self, url: str, *, api_key: str = "", timeout_s: float = TIMEOUT_S) -> None:
        """Parse `url`, which may end in /v1. Raises UsageError for an invalid address."""
        parts = parse_url(url)
        self._path = parts.path.removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        try:
            self._http = make_connection(parts, timeout_s)
        except (ValueError, http.client.HTTPException) as error:
            raise UsageError(f"{url!r} is not the address of a server", hint="such as http://127.0.0.1:8080") from error
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def get(self, path: str) -> HttpReply:
        """Return the reply, whatever its status. Raises EngineError when nothing answers."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> HttpReply:
        """Return the reply. Raises EngineError when nothing answers, and the error of a status that is not 200."""
        reply = self._ask("POST", path, json.dumps(body))
        if not reply.is_good:
            raise refusal(self.url, reply.status, reply.body)
        return reply

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, body: str | None) -> HttpReply:
        """Send a request; retry once if the kept-alive connection failed, as the server may have closed it."""
        was_open = self._http.sock is not None
        try:
            return self._exchange(method, path, body)
        except EagleLocalError:
            if not was_open:
                raise
            return self._exchange(method, path, body)

    def _exchange(self, method: str, path: str, body: str | None) -> HttpReply:
        headers = {"Content-Type": "application/json", **self._headers} if body is not None else self._headers
        try:
            self._http.request(method, self._path + path, body, headers)
            response = self._http.getresponse()
            read = response.read(MAX_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            with contextlib.suppress(OSError):
                self._http.close()
            raise unreachable_error(self.url, error) from error
        if response.length:  # longer than MAX_BYTES
            self._http.close()
        return HttpReply(response.status, {name.lower(): value for name, value in response.getheaders()}, read)

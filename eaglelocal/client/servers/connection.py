"""Short requests to a server over one kept-alive connection, for monitors that poll it.

Handles sockets and statuses, independent of what is requested. Answers of models go through http_client.py.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping

from eaglelocal.client.http_client import parse_url
from eaglelocal.client.http_connection import make_connection, unreachable_error
from eaglelocal.client.http_stream import refusal
from eaglelocal.client.json_fields import mapping
from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.surrogates import join_in_json
from eaglelocal.errors import EagleLocalError, UsageError

TIMEOUT_S = 4.0  # a server that computes on all cores answers slowly
MAX_BYTES = 8 * 2**20


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

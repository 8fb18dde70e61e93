"""Log one line for each request."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglelocal.server.access import is_loopback
from eaglelocal.server.middleware.refusal import SAFE_METHODS
from eaglelocal.server.request_record import GONE, RequestRecord, begin_record

MAX_LOGGED_BYTES = 200
MAX_ID_CHARS = 128  # longest request id or user agent that is logged
MAX_PROGRAM_CHARS = 24
ID_HEADER, WARNING_HEADER = b"x-request-id", b"x-eaglelocal-warning"

CountCall = Callable[[RequestRecord, int], None]  # takes the status too

_log = logging.getLogger("eaglelocal.server")


class AccessLogMiddleware:
    """Logs one line a request: method, path, status, owner, seconds, and the fields of its RequestRecord.

    Never the content of request or answer. Every response gets the request's id as x-request-id, the client's own one
    if it sent one, and the record's warnings.
    """

    def __init__(self, app: ASGIApp, count_call: CountCall) -> None:
        """Take `count_call`, which is called at the end of each call except GET, HEAD and OPTIONS."""
        self._app, self._count_call = app, count_call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at, status, is_complete = time.perf_counter(), 0, False
        record, identity = begin_record(), identify_request(scope)
        record.client = describe_client(identity)

        async def send_and_note_status(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                warnings = [(WARNING_HEADER, warning.encode()) for warning in record.warnings]
                request_id = (ID_HEADER, identity["request_id"].encode())
                message = {**message, "headers": [*message["headers"], request_id, *warnings]}
            await send(message)
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, send_and_note_status)
        finally:
            if not is_complete:
                status = GONE
            path, method = encode_path(scope), scope["method"]
            if method not in SAFE_METHODS:
                self._count_call(record, status)
            fields = {
                **identity,
                "method": method,
                "path": path,
                "status": status,
                "owner": scope.get("state", {}).get("owner", ""),
                "seconds": round(time.perf_counter() - started_at, 3),
                **({} if is_complete else {"reason": "the client disconnected"}),
                **record.fields(),
            }
            _log.info("%s %s %s", method, path, status, extra=fields)


def identify_request(scope: Scope) -> dict[str, str]:
    """Return the id of a request, its client's address, and the client's name for itself if that is short."""
    headers = Headers(scope=scope)
    given, agent = headers.get("x-request-id", ""), headers.get("user-agent", "")
    address = (scope.get("client") or ("", 0))[0]
    return {
        "request_id": given if is_short_text(given) else uuid.uuid4().hex,
        "client": address,
        **({"user_agent": agent} if is_short_text(agent) else {}),
    }


def describe_client(identity: Mapping[str, str]) -> str:
    """Return a client's program without its version, `curl`, and its address if it is another machine's."""
    program = identity.get("user_agent", "").partition("/")[0][:MAX_PROGRAM_CHARS]
    address = identity["client"]
    return " ".join(filter(None, [program, "" if is_loopback(address) else address]))


def is_short_text(text: str) -> bool:
    return 0 < len(text) <= MAX_ID_CHARS and text.isascii() and text.isprintable()


def encode_path(scope: Scope) -> str:
    """Return the path percent-encoded, as sent: decoded, it could hold line breaks and terminal escapes."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "backslashreplace")
    return raw[:MAX_LOGGED_BYTES].decode("ascii", "backslashreplace")

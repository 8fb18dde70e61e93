"""The access log: the record of each request, and the middleware that writes it as one line. Never any text.

The middleware begins a record; code further in, which does not know the request, finds it through a context variable.
Tasks of the request share it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglelocal.core.records import dataclass
from eaglelocal.core.stats import sum_stats
from eaglelocal.server.access import SAFE_METHODS, is_loopback
from eaglelocal.server.answer_state import AnswerState, ServedClient
from eaglelocal.server.http_errors import Problem

# logged for an answer; for several answers to one request, sums and the overall rate
GONE = 499  # status in the log of a request whose client disconnected, as in nginx's
ANSWER_FIELDS = ("model", "prompt_tokens", "completion_tokens", "tok_s", "acceptance_rate", "ttft_s", "finish_reason")


@dataclass(slots=True)
class RequestRecord:
    """Facts about a request besides its path and status."""

    problem: Problem | None = None
    is_operator: bool = True  # the sender may read errors with details of this machine
    model: str = ""
    client: ServedClient = ServedClient()
    warnings: list[str] = field(default_factory=list)
    answers: list[AnswerState] = field(default_factory=list)

    def warn(self, warning: str) -> None:
        """Add a warning, which the client gets in a header and the log shows; each only once."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def refuse(self, problem: Problem) -> Problem:
        """Record why the request is refused; return the Problem as its client may read it."""
        self.problem = problem
        is_hidden = problem.public and not self.is_operator
        return problem.change(problem.public, problem.parameter) if is_hidden else problem

    @property
    def has_failed(self) -> bool:
        """Return whether the engine failed to answer, perhaps in the middle of a stream."""
        return any(choice.has_failed for choice in self.answers)

    def add_answer(self, model: str, choice: AnswerState) -> None:
        self.model = model
        self.answers.append(choice)

    def fields(self) -> dict[str, object]:
        """Return what the log adds: reason, param and code of a refusal, and ANSWER_FIELDS as far as they are known."""
        found: dict[str, object] = {}
        if self.problem is not None:
            found |= {"reason": self.problem.message, "param": self.problem.parameter, "code": self.problem.code}
        begun = [choice for choice in self.answers if choice.started is not None or choice.finished is not None]
        unread_calls = [call for choice in begun if choice.finished for call in choice.finished.unread_calls]
        found |= {"model": self.model} if self.model else {}
        found |= {"warnings": self.warnings} if self.warnings else {}
        found |= {"unread_calls": unread_calls} if unread_calls else {}
        return found | (answer_fields(begun) if begun else {})


def answer_fields(answers: Sequence[AnswerState]) -> dict[str, object]:
    stats = sum_stats([choice.stats for choice in answers])
    timed = sum(max(choice.num_tokens - 1, 0) for choice in answers)
    longest_s = max(choice.last_token_at - choice.first_token_at for choice in answers)
    firsts_s = [choice.first_token_at - choice.requested_at for choice in answers if choice.first_token_at]
    reasons = dict.fromkeys(choice.finished.reason for choice in answers if choice.finished is not None)
    return {
        "prompt_tokens": sum(choice.prompt_tokens for choice in answers),
        "completion_tokens": sum(choice.num_tokens for choice in answers),
        "tok_s": round(timed / longest_s, 2) if longest_s > 0 else None,
        "acceptance_rate": round(stats.accepted_tokens / stats.draft_tokens, 4) if stats.draft_tokens else None,
        "ttft_s": round(min(firsts_s), 3) if firsts_s else None,
        "finish_reason": ",".join(reasons) or None,
    }


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def current_record() -> RequestRecord:
    """Return the record of the current request; outside of a request, a record that is discarded."""
    return _current.get() or RequestRecord()


# ---- middleware
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
        identity = identify_request(scope)
        client = ServedClient(describe_client(identity), tuple(scope.get("client") or ("", 0)))
        record = RequestRecord(client=client)
        _current.set(record)

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
            if record.problem is not None and status < 400:  # it came during the answer
                status = record.problem.status
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

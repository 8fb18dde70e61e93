"""The response to one HTTP call, from its requests to the last byte of its answers; a disconnect cancels them.

Status and headers of a stream are sent with the first event, so that refusals get a proper status; later failures
are an event in the stream. The formats of the APIs are in their encoders.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, EmbedRequest
from eaglelocal.errors import EagleLocalError
from eaglelocal.server.active_call import ActiveCall
from eaglelocal.server.answer_state import AnswerEncoder, AnswerState, dump_json
from eaglelocal.server.http_errors import Problem, to_problem
from eaglelocal.server.request_reader import EngineCall
from eaglelocal.server.request_record import current_record
from eaglelocal.server.server_state import ServerLimits, ServerState

EVENT_STREAM = "text/event-stream; charset=utf-8"

_log = logging.getLogger("eaglelocal.server")


class ResponseBody(Protocol):
    """The body of one response: runs the call and sends its output."""

    async def send(self, writer: ResponseWriter) -> None:
        """Submit the requests and send the answers. Raises Problem or EagleLocalError."""

    def encode_refusal(self, problem: Problem) -> Mapping[str, object]:
        """Return the JSON object for a failure before the first byte."""

    def encode_failure(self, problem: Problem) -> str:
        """Return the end of a stream after a failure."""


class AnswerResponse(Response):
    """A Starlette response whose body is produced while it is sent."""

    def __init__(self, body: ResponseBody, limits: ServerLimits) -> None:
        super().__init__()
        self._body, self._limits = body, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(ResponseWriter(send)))
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        limit_s = self._limits.request_s + self._limits.linger_s  # a client that never reads must not keep a place
        try:
            done, _ = await asyncio.wait((sending, disconnect), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                current_record().problem = Problem(504, f"the client did not read its answer in {limit_s:g} s")
        finally:
            disconnect.cancel()
            sending.cancel()
            await asyncio.gather(sending, disconnect, return_exceptions=True)

    async def _send(self, writer: ResponseWriter) -> None:
        try:
            await self._body.send(writer)
        except OSError:  # from the connection, not the engine
            return
        except Exception as error:
            if not isinstance(error, EagleLocalError | Problem):
                _log.exception("a request failed")
            await self._send_problem(to_problem(error), writer)

    async def _send_problem(self, problem: Problem, writer: ResponseWriter) -> None:
        problem = current_record().refuse(problem)
        if writer.has_started:
            await writer.end_stream(self._body.encode_failure(problem))
        else:
            await writer.send_json(problem.status, self._body.encode_refusal(problem), dict(problem.headers))


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A ResponseBody that sends one JSON object, never a stream."""

    make_reply: Callable[[], Awaitable[object]]  # returns the arguments of send_json; raises Problem
    encode_problem: Callable[[Problem], Mapping[str, object]] = Problem.openai_body

    async def send(self, writer: ResponseWriter) -> None:
        await writer.send_json(200, await self.make_reply())

    def encode_refusal(self, problem: Problem) -> Mapping[str, object]:
        return self.encode_problem(problem)

    def encode_failure(self, problem: Problem) -> str:
        return ""


class AnswerBody:
    """A ResponseBody that submits an EngineCall and sends its answers in the format of an encoder."""

    def __init__(
        self,
        server: ServerState,
        call: EngineCall,
        encoder: AnswerEncoder,
        *,
        media_type: str,
        on_end: Callable[[], None],
    ) -> None:
        self._server, self._encoder, self._fields = server, encoder, call.fields
        self._model, self._is_streamed = call.model, call.is_streamed
        self._requests: list[AnyRequest] = [*call.requests]
        self._media_type, self._on_end = media_type, on_end

    async def send(self, writer: ResponseWriter) -> None:
        try:
            async with self._server.submit(self._model, self._requests) as call:
                if self._is_streamed:
                    await self._stream(call, writer)
                else:
                    await writer.send_json(200, self._encoder.encode_whole(await call.complete()))
        finally:
            self._on_end()

    def encode_refusal(self, problem: Problem) -> Mapping[str, object]:
        return self._encoder.encode_refusal(self._translate_back(problem))

    def encode_failure(self, problem: Problem) -> str:
        return self._encoder.encode_failure(self._translate_back(problem))

    def _translate_back(self, problem: Problem) -> Problem:
        """Return the problem with the API's own field names, which the log shows too."""
        current_record().problem = translated = self._fields.translate_back(problem)
        return translated

    async def _stream(self, call: ActiveCall, writer: ResponseWriter) -> None:
        changed = await call.next(self._server.limits.first_event_s)
        first = self._encoder.encode_start(call.choices) + self._encode(changed)
        await writer.start_stream(first, self._media_type)
        ping_s = self._server.limits.ping_s
        while not call.is_over:
            changed = await call.next(max(writer.written_at + ping_s - time.monotonic(), 0.0))
            if text := self._encode(changed):
                await writer.write(text)
            elif time.monotonic() >= writer.written_at + ping_s:  # some events produce no output
                await writer.write(self._encoder.encode_ping())
        await writer.end_stream(self._encoder.encode_end(call.choices))

    def _encode(self, choices: list[AnswerState]) -> str:
        parts = []
        for choice in choices:
            if delta := choice.take_delta():
                parts.append(self._encoder.encode_delta(choice, delta))
            if choice.finished is not None:
                parts.append(self._encoder.encode_choice_end(choice))
        return "".join(parts)


def respond_once(
    server: ServerState,
    model: str,
    request: AnyRequest,
    make_reply: Callable[[AnswerState], object],
    encode_problem: Callable[[Problem], Mapping[str, object]] = Problem.openai_body,
) -> AnswerResponse:
    """Return a response with one JSON object, made from the complete answer to one request. `make_reply` may raise
    Problem.
    """

    async def answer() -> object:
        async with server.submit(model, [request]) as call:
            (choice,) = await call.complete()
            if isinstance(request, EmbedRequest):  # millions of numbers
                return await asyncio.to_thread(lambda: dump_json(make_reply(choice)).encode())
            return make_reply(choice)

    return AnswerResponse(JsonBody(answer, encode_problem), server.limits)


def respond(
    server: ServerState,
    call: EngineCall,
    encoder: AnswerEncoder,
    *,
    media_type: str = EVENT_STREAM,
    on_end: Callable[[], None] = lambda: None,
) -> AnswerResponse:
    """Return the response with the answers to a call; `media_type` is that of a stream.

    `on_end` is called when the answers have ended, also after an error or a disconnect.
    """
    return AnswerResponse(AnswerBody(server, call, encoder, media_type=media_type, on_end=on_end), server.limits)


# ---- response writer: send a response, whole or as a stream, over ASGI's `send`
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ResponseWriter:
    """Sends one response: `send_json`, or `start_stream`, `write` and `end_stream`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False
        self.written_at = 0.0  # monotonic seconds

    async def start_stream(self, text: str, media_type: str) -> None:
        self.has_started = True
        await self._start(200, {"content-type": media_type, **STREAM_HEADERS})
        await self.write(text)

    async def write(self, text: str) -> None:
        self.written_at = time.monotonic()
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def end_stream(self, text: str) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": False})

    async def send_json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        """Send a whole response. `value`: JSON as bytes, or a value to be encoded."""
        body = value if isinstance(value, bytes) else dump_json(value).encode()
        self.has_started = True
        await self._start(
            status, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

"""The response to one HTTP call, from its requests to the last byte of its answers; a disconnect cancels them.

Status and headers of a stream are sent with the first event, so that refusals get a proper status; later failures
are an event in the stream. The formats of the APIs are in their encoders.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eaglelocal.core.request import AnyRequest
from eaglelocal.server.access_log import current_record
from eaglelocal.server.active_call import ActiveCall
from eaglelocal.server.answer_encoder import AnswerEncoder, ReplyEncoder, dump_json
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.http_errors import Problem, to_problem
from eaglelocal.server.json_body import NOT_TRANSLATED, FieldTranslation
from eaglelocal.server.request_reader import EngineCall
from eaglelocal.server.server_state import ServerState

EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def respond(
    server: ServerState,
    call: EngineCall,
    encoder: AnswerEncoder,
    *,
    media_type: str = EVENT_STREAM,
    on_end: Callable[[], None] = lambda: None,
) -> AnswerResponse:
    """Return the response with the answers to a call; `media_type`: of a stream.

    `on_end` is called when the answers have ended, also after an error or a disconnect.
    """
    stream_type = media_type if call.is_streamed else ""
    return AnswerResponse(
        server, call.model, [*call.requests], encoder, fields=call.fields, stream_type=stream_type, on_end=on_end
    )


def respond_once(
    server: ServerState, model: str, request: AnyRequest, make_reply: Callable[[AnswerState], object]
) -> AnswerResponse:
    """Return the JSON response to one request, made from its complete answer. `make_reply` may raise Problem."""
    return AnswerResponse(server, model, [request], ReplyEncoder(make_reply))


class AnswerResponse(Response):
    """A Starlette response whose body is produced while it is sent.

    fields       the API's own names of the fields, for errors
    stream_type  the media type of a stream; "": the answers are sent as one JSON value
    """

    def __init__(
        self,
        server: ServerState,
        model: str,
        requests: list[AnyRequest],
        encoder: AnswerEncoder,
        *,
        fields: FieldTranslation = NOT_TRANSLATED,
        stream_type: str = "",
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.server, self.model, self.requests, self._encoder = server, model, requests, encoder
        self._fields, self._stream_type, self._on_end = fields, stream_type, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(ResponseWriter(send), scope["path"]))
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        limits = self.server.limits
        limit_s = limits.request_s + limits.linger_s  # a client that never reads must not keep a place
        try:
            done, _ = await asyncio.wait((sending, disconnect), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                current_record().problem = Problem(504, f"the client did not read its answer in {limit_s:g} s")
        finally:
            disconnect.cancel()
            sending.cancel()
            await asyncio.gather(sending, disconnect, return_exceptions=True)

    async def answer(self, writer: ResponseWriter) -> None:
        """Submit the requests and send the answers. Raises Problem or EagleLocalError."""
        try:
            async with self.server.submit(self.model, self.requests) as call:
                if self._stream_type:
                    await self._stream(call, writer)
                else:
                    await self.send_whole(await call.complete(), writer)
        finally:
            self._on_end()

    async def send_whole(self, choices: list[AnswerState], writer: ResponseWriter) -> None:
        if choices[0].embeddings is None:
            await writer.send_json(200, self._encode_whole(choices))
        else:  # millions of numbers
            await writer.send_json(200, await asyncio.to_thread(self._encode_whole, choices))

    def _encode_whole(self, choices: list[AnswerState]) -> bytes:
        return dump_json(self._encoder.encode_whole(choices)).encode()

    async def _send(self, writer: ResponseWriter, path: str) -> None:
        try:
            await self.answer(writer)
        except OSError:  # from the connection, not the engine
            pass
        except Exception as error:
            await self._send_problem(to_problem(error), writer, path)

    async def _send_problem(self, problem: Problem, writer: ResponseWriter, path: str) -> None:
        problem = current_record().refuse(self._fields.translate_back(problem))
        if writer.has_started:
            await writer.write(self._encoder.encode_failure(problem), is_end=True)
        else:
            body = dump_json(problem.body(path)).encode()
            await writer.send_json(problem.status, body, problem.headers)

    async def _stream(self, call: ActiveCall, writer: ResponseWriter) -> None:
        changed = await call.next(self.server.limits.first_event_s)
        await writer.start_stream(self._encoder.encode_start(call.choices) + self._encode(changed), self._stream_type)
        ping_s = self.server.limits.ping_s
        while not call.is_over:
            changed = await call.next(max(writer.written_at + ping_s - time.monotonic(), 0.0))
            if text := self._encode(changed):
                await writer.write(text)
            elif time.monotonic() >= writer.written_at + ping_s:  # some events produce no output
                await writer.write(self._encoder.encode_ping())
        await writer.write(self._encoder.encode_end(call.choices), is_end=True)

    def _encode(self, choices: list[AnswerState]) -> str:
        parts = []
        for choice in choices:
            if choice.take_progress() and self._encoder.has_progress:
                parts.append(self._encoder.encode_progress(choice))
            if delta := choice.take_delta():
                parts.append(self._encoder.encode_delta(choice, delta))
            if choice.finished is not None:
                parts.append(self._encoder.encode_choice_end(choice))
        return "".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ResponseWriter:
    """Sends one response over ASGI's `send`: `send_json`, or `start_stream` and `write`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False
        self.written_at = 0.0  # monotonic seconds

    async def start_stream(self, text: str, media_type: str) -> None:
        await self._start(200, {"content-type": media_type, **STREAM_HEADERS})
        await self.write(text)

    async def write(self, text: str, *, is_end: bool = False) -> None:
        self.written_at = time.monotonic()
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": not is_end})

    async def send_json(self, status: int, body: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        await self._start(status, {"content-type": "application/json", "content-length": str(len(body)), **headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.has_started = True
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

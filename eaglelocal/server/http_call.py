"""Run one HTTP call from its request to the last byte of its answers; a disconnect cancels them.

Status and headers of a stream are sent with the first event, so that refusals get a proper status; later failures
are an event in the stream. Handles ASGI and calls, independent of the formats (Teller).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eaglelocal.core.request import AnyRequest
from eaglelocal.errors import EagleLocalError
from eaglelocal.server.answer_encoder import AnswerEncoder, compact
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.dependencies import Call, ServerLimits, ServerState
from eaglelocal.server.http_errors import Problem, problem_of
from eaglelocal.server.openai.request_reader import EngineCall
from eaglelocal.server.translation import Names

CHAT = Names({})
EVENTS = "text/event-stream; charset=utf-8"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

_log = logging.getLogger("eaglelocal.server")


class ResponseBody(Protocol):
    """The content of one HTTP exchange."""

    async def answer(self, wire: Wire) -> None:
        """Submit the requests and send the answers. Raises Problem or EagleLocalError."""

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        """Return the JSON object for a failure before the first byte."""

    def breaking(self, problem: Problem) -> str:
        """Return the end of a stream after a failure."""


class HttpCall(Response):
    """A response whose content is produced while it is sent."""

    def __init__(self, talk: ResponseBody, limits: ServerLimits) -> None:
        super().__init__()
        self._talk, self._limits = talk, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(Wire(send)))
        gone = asyncio.create_task(_until_gone(receive))
        limit_s = self._limits.request_s + self._limits.linger_s  # a client that never reads must not keep a place
        try:
            await asyncio.wait((answering, gone), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answering.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _answer(self, wire: Wire) -> None:
        try:
            await self._talk.answer(wire)
        except OSError:  # from the connection, not the engine
            return
        except Exception as error:
            if not isinstance(error, EagleLocalError | Problem):
                _log.exception("a request failed")
            await self._fail(problem_of(error), wire)

    async def _fail(self, problem: Problem, wire: Wire) -> None:
        if wire.is_open:
            await wire.close(self._talk.breaking(problem))
        else:
            await wire.json(problem.status, self._talk.refusal(problem), dict(problem.headers))


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A Talk that answers with one JSON object, never a stream."""

    made: Callable[[], Awaitable[object]]  # the argument of Wire.json; raises Problem
    shaped: Callable[[Problem], Mapping[str, object]] = Problem.body

    async def answer(self, wire: Wire) -> None:
        await wire.json(200, await self.made())

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        return self.shaped(problem)

    def breaking(self, problem: Problem) -> str:
        return ""


class AnswerBody:
    """A Talk that submits a Question and sends its answers in a Teller's format."""

    def __init__(
        self,
        serving: ServerState,
        question: EngineCall,
        teller: AnswerEncoder,
        names: Names,
        *,
        stream_type: str = EVENTS,
    ) -> None:
        self._serving, self._teller, self._names = serving, teller, names
        self._model, self._is_streamed = question.model, question.is_streamed
        self._requests: list[AnyRequest] = [*question.requests]
        self._stream_type = stream_type

    async def answer(self, wire: Wire) -> None:
        async with self._serving.ask(self._model, self._requests) as call:
            if self._is_streamed:
                await self._stream(call, wire)
            else:
                await wire.json(200, self._teller.whole(await call.complete()))

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        return self._teller.refusal(self._names.own(problem))

    def breaking(self, problem: Problem) -> str:
        return self._teller.breaking(self._names.own(problem))

    async def _stream(self, call: Call, wire: Wire) -> None:
        news = await call.next(self._serving.limits.patience_s)
        await wire.open(self._teller.opening(call.choices) + self._told(news), self._stream_type)
        ping_s = self._serving.limits.ping_s
        while not call.is_over:
            news = await call.next(max(wire.written_at + ping_s - time.monotonic(), 0.0))
            if told := self._told(news):
                await wire.write(told)
            elif time.monotonic() >= wire.written_at + ping_s:  # some events produce no output
                await wire.write(self._teller.ping())
        await wire.close(self._teller.closing(call.choices))

    def _told(self, choices: list[AnswerState]) -> str:
        parts = []
        for choice in choices:
            if new := choice.news():
                parts.append(self._teller.delta(choice, new))
            if choice.finished is not None:
                parts.append(self._teller.ending(choice))
        return "".join(parts)


class Wire:
    """Sends responses over ASGI's `send`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_open = False
        self.written_at = 0.0  # monotonic seconds

    async def open(self, text: str, content_type: str) -> None:
        self.is_open = True
        await self._start(200, {"content-type": content_type, **STREAM_HEADERS})
        await self.write(text)

    async def write(self, text: str) -> None:
        self.written_at = time.monotonic()
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def close(self, text: str) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": False})

    async def json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = value if isinstance(value, bytes) else compact(value).encode()
        self.is_open = True
        await self._start(
            status, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def conversation(serving: ServerState, question: EngineCall, teller: AnswerEncoder, names: Names = CHAT) -> HttpCall:
    """Return the Exchange of a question. `names`: the API's own names of the chat's fields, for errors."""
    return HttpCall(AnswerBody(serving, question, teller, names), serving.limits)

"""The client of a running server with OpenAI's chat completions: llama-server, vLLM, or our own.

One thread and one connection a request; answers are streamed. That protocol has no token ids: pieces carry NO_ID,
and a piece is the text of one chunk. Timings are llama.cpp's `timings` where the server sends them, else computed
from arrival times and OpenAI's `usage`. This module does the I/O; http_stream.py formats and parses.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from eaglelocal.client.client import OnEvent, RequestStream, stream
from eaglelocal.client.http_connection import make_connection, parse_url, unreachable_error
from eaglelocal.client.http_server import choose_model, is_ours, read_info, read_snapshot
from eaglelocal.client.http_stream import (
    Dialect,
    StreamedAnswer,
    build_request,
    count,
    data_lines,
    mapping,
    refusal,
    text,
)
from eaglelocal.client.server_reading import DISCONNECTED, DRAINING
from eaglelocal.core.events import (
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    PromptProgress,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.json_text import read_object
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.terminal_text import join_in_json
from eaglelocal.errors import EagleLocalError, EngineAwayError, EngineError, RequestError

CONNECT_TIMEOUT_S = 10.0
RETRY_S = 0.5  # between two attempts to reach a server that is away
READ_TIMEOUT_S = 600.0  # read timeout: long prompts take minutes on small machines
FIELD_REJECTIONS = (http.client.BAD_REQUEST, http.client.UNPROCESSABLE_ENTITY)  # replies to unknown fields
MAX_REPLY_BYTES = 4 * 2**20
MAX_LINE_BYTES = 2**20


class HttpClient:
    """A Client (client/client.py) over HTTP. `start` chooses the model; requests may come from any thread."""

    def __init__(
        self, url: str, *, api_key: str = "", model: str = "", reuses_prompts: bool = False, wait_s: float = 0.0
    ) -> None:
        """model: the model to use, if not the first. reuses_prompts: benchmarks do not.

        wait_s  how long a request waits for a server that has ended or loads
        """
        self._url, self._parts, self._api_key = url, parse_url(url), api_key
        self._requested_model, self._model = model, ""
        self._dialect = Dialect(reuses_prompts=reuses_prompts)  # until the server rejects fields that are not OpenAI's
        self.restarts = 0  # of the server's engine, as of the last snapshot
        self._lock = threading.Lock()
        self._running: dict[str, _Exchange] = {}
        self._num_generated = 0
        self._is_closed = False
        self._wait_s, self._is_away = wait_s, False  # from a failed connection until the model is chosen again
        self._away_state = DISCONNECTED
        self.info: EngineInfo | None = None  # of the model, as it was when it was chosen

    @property
    def state(self) -> str:
        if self._is_closed:
            return "closed"
        return "loading" if not self._model else self._away_state if self._is_away else "ready"

    def start(self) -> EngineInfo:
        """Choose the model and return its info. Raises EngineError when nothing answers, RequestError on refusal."""
        entry = choose_model(self._get("/models"), self._requested_model, self._url)
        self._dialect = replace(self._dialect, is_ours=is_ours(entry))
        self._model = str(entry["id"])
        self.info = read_info(entry, self._fetch_snapshot(), self._url)
        self._is_away = False
        return self.info

    def _rejoin(self) -> None:
        """Choose the model again, after the server was away. Raises EngineAwayError until it is ready."""
        if state := text(self._fetch_snapshot(), "state"):
            self._away_state = state if state in ("loading", "restarting", DRAINING) else DISCONNECTED
        if state not in ("", "ready", "idle"):
            raise EngineAwayError(f"{self._url} is {state}", hint="the server is busy: try again in a moment")
        self.start()

    @property
    def takes_spec(self) -> bool:
        """Return whether a request may say how to draft: only a server of ours understands it."""
        return self._dialect.is_ours

    def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
        exchange = _Exchange(request, on_event)
        with self._lock:
            if request.id in self._running:
                raise RequestError(f"a request with the id {request.id!r} is still running")
            self._running[request.id] = exchange
        threading.Thread(target=self._run_exchange, args=(exchange,), name=f"http-{request.id}", daemon=True).start()

    def stream(self, request: ChatRequest) -> RequestStream:
        """Submit a request and return an iterator over its events."""
        return stream(self, request)

    def cancel(self, request_id: str) -> None:
        with self._lock:
            exchange = self._running.get(request_id)
        if exchange is not None:
            exchange.disconnect()

    def snapshot(self) -> EngineSnapshot:
        """Return the snapshot of a server of ours; for another one, counts of this client's own requests."""
        snapshot = self._fetch_snapshot()
        self.restarts = count(snapshot, "restarts")
        if self._is_away:
            with contextlib.suppress(EagleLocalError):
                self._rejoin()
        return read_snapshot(snapshot, running=len(self._running), num_generated=self._num_generated)

    def _fetch_snapshot(self) -> Mapping[str, object]:
        """Return /snapshot of a server of ours; empty for another server or on failure."""
        with contextlib.suppress(EagleLocalError):
            return mapping(self._get("/snapshot") if self._dialect.is_ours else None)
        return {}

    def close(self) -> None:
        self._is_closed = True
        with self._lock:
            running = list(self._running.values())
        for exchange in running:
            exchange.disconnect()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- on the thread of a request
    def _run_exchange(self, exchange: _Exchange) -> None:
        last: Finished | Failed
        try:
            last = self._answer_when_ready(exchange)
        except EagleLocalError as error:
            last = Failed(exchange.request.id, error)
        if exchange.is_cancelled:
            last = exchange.answer.make_finished(exchange.request.id, "cancelled")
        with self._lock:
            del self._running[exchange.request.id]
            self._num_generated += exchange.answer.num_tokens
        exchange.on_event(last)

    def _answer_when_ready(self, exchange: _Exchange) -> Finished:
        """Stream the answer; a request that the server could not take is sent again until it can, or `wait_s` ends."""
        give_up_at = time.monotonic() + self._wait_s
        while True:
            try:
                if self._is_away and self._wait_s:
                    self._rejoin()
                return self._stream_answer(exchange)
            except RequestError as error:
                if not self._has_other_model(error):
                    raise
            except EngineError as error:
                if exchange.is_cancelled or not self._is_gone(error):
                    raise
                if exchange.answer.arrivals:
                    what = "the server was stopped before the end of the answer"
                    raise EngineAwayError(what, hint="ask again") from error
                if time.monotonic() >= give_up_at:
                    raise
                self._is_away = True
            exchange.wait(RETRY_S)

    def _is_gone(self, error: EngineError) -> bool:
        """Return whether an answer failed because its server is away, or is being stopped."""
        if not isinstance(error, EngineAwayError):
            self._fetch_snapshot()
        return self._is_away or isinstance(error, EngineAwayError)

    def _has_other_model(self, error: RequestError) -> bool:
        """Return whether the server has another model since it was restarted, and choose that."""
        if error.code != "model_not_found" or self._requested_model or not self._wait_s:
            return False
        before = self._model
        self.start()
        return self._model != before

    def _stream_answer(self, exchange: _Exchange) -> Finished:
        try:
            with contextlib.closing(self._connect()) as connection:
                response = self._send_request(connection, exchange)
                while data := next(response, ""):
                    exchange.emit(exchange.answer.take(data, time.perf_counter()))
                    exchange.emit_progress()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError(f"{self._url} broke the connection: {error or type(error).__name__}") from error
        finally:  # on any end: emit a pending surrogate half
            exchange.emit(exchange.answer.flush(time.perf_counter()))
        if not exchange.answer.finish_reason:
            raise EngineError(f"{self._url} ended the stream before the end of the answer")
        return exchange.answer.make_finished(exchange.request.id)

    def _send_request(self, connection: http.client.HTTPConnection, exchange: _Exchange) -> Iterator[str]:
        """Send a request, again without llama.cpp's fields if they are rejected; return the data lines of the reply."""
        dialect = self._dialect
        response = self._post(connection, exchange, dialect)
        if response.status in FIELD_REJECTIONS and dialect.extensions and not dialect.is_ours:
            response.read()
            connection.close()
            dialect = replace(dialect, extensions=False)
            response = self._post(connection, exchange, dialect)
        if response.status != http.client.OK:
            raise refusal(self._url, response.status, response.read(MAX_REPLY_BYTES))
        self._dialect, self._is_away = dialect, False  # the extensions were what it rejected
        return data_lines(iter(lambda: response.readline(MAX_LINE_BYTES), b""))

    def _post(
        self, connection: http.client.HTTPConnection, exchange: _Exchange, dialect: Dialect
    ) -> http.client.HTTPResponse:
        path, body = build_request(exchange.request, self._model, dialect)
        exchange.answer.requested_at = time.perf_counter()
        headers = {"Content-Type": "application/json", **self._headers}
        connection.request("POST", self._parts.path + path, json.dumps(body), headers)
        exchange.attach(connection.sock)  # now, because the response takes it from the connection
        return connection.getresponse()

    # ---- connections
    def _get(self, path: str) -> Mapping[str, object]:
        with contextlib.closing(self._connect()) as connection:
            try:
                connection.request("GET", self._parts.path + path, headers=self._headers)
                response = connection.getresponse()
                body = response.read(MAX_REPLY_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
        if response.status != http.client.OK:
            raise refusal(self._url, response.status, body)
        try:
            return mapping(join_in_json(read_object(body)))
        except ValueError:
            raise EngineError(f"{self._url}{path} does not answer with a JSON object") from None

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    def _connect(self) -> http.client.HTTPConnection:
        connection = make_connection(self._parts, CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
            raise self._unreachable(error) from error
        connection.timeout = READ_TIMEOUT_S  # in case it reconnects
        connection.sock.settimeout(READ_TIMEOUT_S)
        return connection

    def _unreachable(self, error: Exception) -> EngineError:
        with self._lock:  # a server that is being stopped takes no new connection, and finishes its answers
            is_answering = any(exchange.answer.arrivals for exchange in self._running.values())
        self._is_away, self._away_state = True, DRAINING if is_answering else DISCONNECTED
        return unreachable_error(self._url, error)


class _Exchange:
    """A request in progress on its own thread."""

    def __init__(self, request: ChatRequest, on_event: OnEvent) -> None:
        self.request, self.on_event = request, on_event
        self.answer = StreamedAnswer(is_split=request.is_split)
        self._socket: socket.socket | None = None
        self._has_started = False
        self._cancelled = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def wait(self, seconds: float) -> None:
        """Wait, but no longer than until the request is cancelled."""
        self._cancelled.wait(seconds)

    def attach(self, connected: socket.socket) -> None:
        """Take the socket of the request, to disconnect it; at once if it was cancelled before."""
        self._socket = connected
        if self.is_cancelled:
            self.disconnect()

    def emit_progress(self) -> None:
        if progress := self.answer.progress:
            total, cached = count(progress, "total"), count(progress, "cache")
            if not self._has_started:
                self.on_event(Started(self.request.id, total, cached))
            self._has_started = True
            self.on_event(PromptProgress(self.request.id, count(progress, "processed")))

    def emit(self, pieces: tuple[TextPiece, ...]) -> None:
        if pieces:
            self.on_event(Tokens(self.request.id, pieces))

    def disconnect(self) -> None:
        self._cancelled.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_RDWR)

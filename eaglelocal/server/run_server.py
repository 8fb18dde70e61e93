"""Run a server in the foreground: socket, signals, loading the first model, and shutdown.

The socket is bound first, so that a port in use fails before the load, and /health answers while the model loads. After
SIGTERM, Ctrl-C or a closed terminal the server drains: it refuses new requests, lets running ones finish, and ends. A
second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.types import ASGIApp

from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, EngineError
from eaglelocal.server.connections import (
    MAX_CONNECTIONS,
    MAX_HANDSHAKES,
    Acceptor,
    ConnectionPlaces,
    max_handshakes,
    max_handshakes_of_network,
    num_kept,
)
from eaglelocal.server.http_protocol import Protocol
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.server_state import ServerState

if TYPE_CHECKING:
    from eaglelocal.server.server_certificate import ServerCertificate

KEEP_ALIVE_S = 30
ENGINE_CHECK_S = 1.0
DRAIN_CHECK_S = 0.1  # as uvicorn looks whether it is to exit
CUT_OFF_S = 3  # time to send the ends of answers that were cut off

_log = logging.getLogger("eaglelocal.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Options of the process.

    on_ready     called when the first model can answer
    background   a coroutine function that runs while the server does, such as a status line; cancelled at the end
    drain_s      how long running requests may take to finish
    certificate  for HTTPS; None: plain HTTP
    """

    on_ready: Callable[[LoadedModel], None]
    background: Callable[[], Coroutine[None, None, None]] | None = None
    drain_s: float = 30.0
    certificate: ServerCertificate | None = None


def run_until_stopped(app: ASGIApp, server_state: ServerState, listening: socket.socket, runtime: Runtime) -> None:
    """Serve until a signal comes.

    Raises the EagleLocalError that prevents loading the first model, and EngineError when every engine has failed for
    good: the exit status asks a service manager to restart the server.
    """
    asyncio.run(_run(app, server_state, listening, runtime))


class HttpServer(uvicorn.Server):
    """uvicorn's server with our protocol, acceptor and signal handlers; no logs, no banner."""

    def __init__(
        self,
        app: ASGIApp,
        drain_s: float,
        num_connections: int = MAX_CONNECTIONS,
        certificate: ServerCertificate | None = None,
    ) -> None:
        """Set up the server.

        num_connections  most open connections
        certificate      of HTTPS; None: plain HTTP
        """
        num_opening = max_handshakes(num_connections) if certificate else 0
        num_openings = num_opening or MAX_HANDSHAKES  # without TLS, opening takes no time
        self._openings = ConnectionPlaces(num_openings, max_per_network=max_handshakes_of_network(num_openings))
        num_open = num_connections - num_opening
        places = ConnectionPlaces(num_open, num_kept=num_kept(num_open))
        config = uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], partial(Protocol, places=places)),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_certfile=certificate.certificate if certificate else None,
            ssl_keyfile=certificate.key if certificate else None,
            timeout_graceful_shutdown=int(drain_s) + CUT_OFF_S,  # ServerState.cut_off_answers ends answers before that
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        make_protocol = partial(
            cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        acceptors = [Acceptor(one, make_protocol, self._openings, self.config.ssl) for one in sockets or []]
        self.servers = cast(list[asyncio.Server], acceptors)  # uvicorn only closes them

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(app: ASGIApp, server_state: ServerState, listening: socket.socket, runtime: Runtime) -> None:
    server = HttpServer(app, runtime.drain_s, server_state.limits.num_connections, runtime.certificate)
    loading = asyncio.create_task(_load(server_state, server, runtime))
    engine_watch = asyncio.create_task(_watch_engines(server_state, server))
    ending = [engine_watch, *([asyncio.create_task(runtime.background())] if runtime.background is not None else [])]
    with _signals(server_state, server, runtime.drain_s):
        await server.serve(sockets=[listening])
        if server.force_exit:  # then uvicorn skips the shutdown that closes the engine
            await server.lifespan.shutdown()
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)  # the status line restores the terminal
    if loading.done():
        loading.result()
    if not engine_watch.cancelled():
        engine_watch.result()


async def _load(server_state: ServerState, server: HttpServer, runtime: Runtime) -> None:
    try:
        loaded = await server_state.models.start()
    except EagleLocalError:
        server.should_exit = True
        raise
    runtime.on_ready(loaded)


async def _watch_engines(server_state: ServerState, server: HttpServer) -> None:
    """End the server when all models have failed for good: a process that only answers 503 is useless."""
    while not server_state.models.have_all_failed:
        await asyncio.sleep(ENGINE_CHECK_S)
    trouble = server_state.models.trouble
    server_state.is_draining = True
    server.should_exit = True
    raise EngineError(f"all engines have failed: {trouble}", hint="EAGLELOCAL_ENGINE_LOG=1 shows the engine's messages")


@contextmanager
def _signals(server_state: ServerState, server: HttpServer, drain_s: float) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server_state.is_draining:
            server.force_exit = server.should_exit = True
            return
        notify_service_manager("STOPPING=1")
        _log.info(describe_stop(len(server_state.active), drain_s))
        loop.call_later(drain_s, server_state.cut_off_answers)
        server_state.is_draining = True
        exit_when_idle()

    def exit_when_idle() -> None:
        """Listen until all is answered: the monitor shows what runs, and other clients hear that the server stops."""
        if server_state.active:
            loop.call_later(DRAIN_CHECK_S, exit_when_idle)
        else:
            server.should_exit = True

    signals = ending_signals()
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def describe_stop(num_answers: int, drain_s: float) -> str:
    if not num_answers:
        return "stopping"
    answers = "1 answer has" if num_answers == 1 else f"{num_answers} answers have"
    return f"stopping: {answers} up to {drain_s:g} s to finish; ctrl-c or SIGTERM again ends at once"


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end the server; under nohup without SIGHUP (closed terminal)."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, *([] if is_kept else [signal.SIGHUP])]


def notify_service_manager(message: str) -> None:
    """Send one datagram to systemd's NOTIFY_SOCKET (sd_notify), if it is set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
        notifying.sendto(message.encode(), "\0" + address[1:] if address[0] == "@" else address)

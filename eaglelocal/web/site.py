"""Monitor and chat in a browser: textual-serve's page and WebSocket behind our middlewares, a process per visitor.

A visitor may do what their API key allows: the process sends it to the watched server. Needs no terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

import aiohttp_jinja2
from aiohttp import WSCloseCode, WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import SurrogateJoiner
from eaglelocal.processes.child_process import make_environment
from eaglelocal.server.access import Access
from eaglelocal.server.connections import (
    MAX_HANDSHAKES,
    Acceptor,
    ConnectionPlaces,
    max_connections,
    raise_descriptor_limit,
)
from eaglelocal.server.http_protocol import HEAD_TIMEOUT_S
from eaglelocal.web.monitor_process import KEY_VARIABLE
from eaglelocal.web.web_middleware import KeyCookies, is_https, make_middlewares, remove_stale_folders

DRIVER = "eaglelocal.tui.terminal.piped_driver:PipedDriver"
MAX_VISITORS = 8  # each is a process
MAX_COLUMNS, MAX_ROWS = 500, 200
SHUTDOWN_S = 3.0
CONNECTION_DIVISOR = 4  # the page may have a quarter of the connections that a server may have
FONT_PX = 16
MIN_COLUMNS = 56  # in a narrow window the font shrinks until the screen has that many
SCREENS = {  # path -> its name, and the module that runs it
    "/": ("monitor", "eaglelocal.web.monitor_process"),
    "/chat": ("chat", "eaglelocal.web.chat_process"),
}
SOCKET = "/ws"  # before a screen's path


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamServer:
    """The server that the screens show and chat with. `api_key`: the key to send to it; None: the visitor's own."""

    url: str
    api_key: str | None = None


class ScreenProcess(AppService):
    """The process of one visitor's screen."""

    def __init__(self, site: ScreenSite, websocket: web.WebSocketResponse, command: str, api_key: str) -> None:
        super().__init__(
            command,
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=self._close_websocket,
            download_manager=site.download_manager,
        )
        self._websocket, self._api_key = websocket, api_key

    async def _close_websocket(self) -> None:
        await self._websocket.close()

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        variables = super()._build_environment(width, height)  # all of ours, and some for the screen
        for_screen = {name: value for name, value in variables.items() if os.environ.get(name) != value}
        own = {KEY_VARIABLE: self._api_key, "TEXTUAL_DRIVER": DRIVER}
        return {**make_environment(with_settings=True), **for_screen, **own}

    async def set_terminal_size(self, width: int, height: int) -> None:
        await super().set_terminal_size(_clamp(width, MAX_COLUMNS), _clamp(height, MAX_ROWS))

    async def end(self) -> None:
        """Ask the process to end; kill it if it has not ended after SHUTDOWN_S."""
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(SHUTDOWN_S):
                await self.stop()
                await process.wait()
        except TimeoutError:
            pass
        finally:  # also when this task is cancelled because the site closes
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


class ScreenSite(Server):
    """A site at one address that shows one server to up to MAX_VISITORS visitors.

    async with site.open(listening): ...      # answers until the block ends
    """

    def __init__(self, upstream: UpstreamServer, access: Access) -> None:
        super().__init__(
            make_command("/", upstream.url), title=f"eaglelocal {upstream.url}", templates_path=Path(__file__).parent
        )
        self._upstream, self._access = upstream, access
        self._key_cookies = KeyCookies(access.keys)
        self._sockets: WeakSet[web.WebSocketResponse] = WeakSet()
        self._num_visitors = 0
        self._cookie = ""

    @contextlib.asynccontextmanager
    async def open(self, listening: socket.socket) -> AsyncIterator[None]:
        self._cookie = f"eaglelocal-monitor-{listening.getsockname()[1]}"
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        assert runner.server is not None  # after setup
        places = ConnectionPlaces(max_connections(raise_descriptor_limit()) // CONNECTION_DIVISOR)
        make_protocol = partial(LimitedConnection, runner.server, places)
        acceptor = Acceptor(
            listening, cast(Callable[[], asyncio.Protocol], make_protocol), ConnectionPlaces(MAX_HANDSHAKES)
        )
        try:
            yield
        finally:
            acceptor.close()
            listening.close()
            await runner.cleanup()

    # ---- hooks of textual-serve's Server
    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.router.add_get("/page.js", self.handle_script)
        for path in SCREENS.keys() - {"/"}:
            app.router.add_get(path, self.handle_index)
            app.router.add_get(SOCKET + path, self.handle_websocket)
        app.middlewares.extend(make_middlewares(self._access, self._key_cookies, self._cookie, SCREENS))
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Remove what killed chats left; no banner: the caller of `open` prints the address."""
        remove_stale_folders()

    async def on_shutdown(self, app: web.Application) -> None:
        for websocket in set(self._sockets):
            await websocket.close(code=WSCloseCode.GOING_AWAY)

    async def handle_index(self, request: web.Request) -> web.Response:
        """Return the page, with the WebSocket's URL on the host that the browser used."""
        path = request.path
        socket_path = SOCKET + path.rstrip("/")
        context = {
            "title": f"eaglelocal {SCREENS[path][0]} {self._upstream.url}",
            "path": path,
            "links": [{"path": link, "text": name, "is_current": link == path} for link, (name, _) in SCREENS.items()],
            "websocket_url": f"{'wss' if is_https(request) else 'ws'}://{request.host}{socket_path}",
            "font_size": to_int(request.query.get("fontsize", ""), FONT_PX),
            "min_columns": MIN_COLUMNS,
        }
        return aiohttp_jinja2.render_template("page.html", request, context)

    async def handle_script(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(Path(__file__).with_name("page.js"))

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if self._num_visitors >= MAX_VISITORS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_VISITORS} screens are already open\n")
        self._num_visitors += 1
        try:
            return await self._show(request)
        finally:
            self._num_visitors -= 1

    async def _show(self, request: web.Request) -> web.WebSocketResponse:
        """Run a screen until its visitor leaves or it ends."""
        websocket = web.WebSocketResponse(heartbeat=15)
        await websocket.prepare(request)
        self._sockets.add(websocket)
        command = make_command(request.path.removeprefix(SOCKET) or "/", self._upstream.url)
        process = ScreenProcess(self, websocket, command, self._choose_key(request))
        try:
            columns, rows = to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24)
            await process.start(_clamp(columns, MAX_COLUMNS), _clamp(rows, MAX_ROWS))
            await self._process_messages(websocket, process)
        except (ValueError, TypeError, OverflowError, RecursionError):
            await websocket.close(code=WSCloseCode.PROTOCOL_ERROR)  # our page never sends such a message
        finally:
            await process.end()
        return websocket

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: AppService) -> None:
        """Forward the page's messages. Raises ValueError, TypeError or OverflowError for one our page never sends.

        JavaScript may split an emoji's surrogate pair over two messages; they are joined.
        """
        joiner = SurrogateJoiner()
        async for message in websocket:
            if message.type is not WSMsgType.TEXT:
                continue
            match message.json():
                case ["stdin", str(keys)]:
                    await app_service.send_bytes(joiner.feed(keys).encode())
                case ["resize", {"width": width, "height": height}]:
                    await app_service.set_terminal_size(width, height)
                case ["ping", data]:
                    await websocket.send_json(["pong", data])
                case ["blur", *_]:
                    await app_service.blur()
                case ["focus", *_]:
                    await app_service.focus()
                case message_data:
                    raise ValueError(f"unexpected message {message_data!r}")

    def _choose_key(self, request: web.Request) -> str:
        """Return the key to send to the watched server; empty if there is none."""
        if self._upstream.api_key is not None:
            return self._upstream.api_key
        return self._key_cookies.find_key(request.cookies.get(self._cookie, "")) or ""


def make_command(path: str, url: str) -> str:
    """Return the shell command that runs the screen of a path. With `exec`, killing the shell kills the screen."""
    command = [sys.executable, "-P", "-m", SCREENS[path][1], url]
    return subprocess.list2cmdline(command) if os.name == "nt" else f"exec {shlex.join(command)}"


def _clamp(size: int, maximum: int) -> int:
    return min(max(int(size), 1), maximum)


# ---- connection limit: limit the connections of the browser pages, as server/connections.py limits those of the
# server
#
# aiohttp waits without limit for the first request of a connection, and accepts any number of connections. Here a
# request's head must arrive in time, and when all places are taken a new connection replaces one that has not sent a
# request yet.
HEAD_END = b"\r\n\r\n"


class LimitedConnection:
    """A connection that has a place in `places`: an asyncio.Protocol that forwards everything to aiohttp's `inner`."""

    is_receiving = False  # pages send small requests, so a busy connection is never evicted

    def __init__(self, make_inner: Callable[[], asyncio.Protocol], places: ConnectionPlaces) -> None:
        self._inner, self._places = make_inner(), places
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tail = b""  # the last bytes of the head so far: its end may arrive in two parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        peer = transport.get_extra_info("peername")
        if self._places.enter(self, peer[0] if peer else ""):
            self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self.evict)
        else:
            self.evict()

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            if HEAD_END in self._tail + data:
                self._end_timer()
                self._places.set_busy(self)
            self._tail = (self._tail + data)[-len(HEAD_END) :]
        self._inner.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        self._places.leave(self)
        self._inner.connection_lost(exc)

    def evict(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""The tool servers of a chat: started in parallel, called one at a time, and ended with the chat.

The SDK `mcp` runs here, on an event loop in a thread of its own, and is imported by the first start. Every method of
`ServerPool` may be called from any thread; those that wait take a function that says when to stop waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Any, Literal

from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.tool_servers.pipe_transport import PipeTransport
from eaglelocal.tool_servers.server_list import ServerSpec
from eaglelocal.tool_servers.tool_results import ServerTool, ToolResult, fail_call, read_result, read_tool

if TYPE_CHECKING:
    from mcp import Client

START_TIMEOUT_S = 60.0  # a first start may download the server
CALL_TIMEOUT_S = 120.0
CLOSE_S = 4.0
POLL_S = 0.05
MAX_PAGES, MAX_TOOLS = 50, 2000  # of a server's list of tools
MAX_REASON_CHARS = 300
INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")  # as the SDK does: nothing that may be a secret
SDK_LOGGERS = ("mcp", "client", "httpx2")  # they would write into the screen

State = Literal["not started", "starting", "connected", "failed", "ended"]
IsStopped = Callable[[], bool]


def is_sdk_installed() -> bool:
    """Return whether the extra `mcp` is installed, without loading it."""
    return importlib.util.find_spec("mcp") is not None


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of a server, why it failed, the last lines of its stderr, and its tools."""

    name: str
    state: State = "not started"
    reason: str = ""
    stderr: tuple[str, ...] = ()
    tools: tuple[ServerTool, ...] = ()


class ServerPool:
    """The servers of an mcp.json. Nothing runs before `start`; `close` ends everything."""

    def __init__(self, specs: Sequence[ServerSpec]) -> None:
        self._servers = {spec.name: ToolServer(spec) for spec in specs}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def specs(self) -> Mapping[str, ServerSpec]:
        return {name: server.spec for name, server in self._servers.items()}

    @property
    def statuses(self) -> tuple[ServerStatus, ...]:
        return tuple(server.status for server in self._servers.values())

    def start(self, names: Collection[str], *, again: bool = False) -> None:
        """Start those of the servers that do not run; those that failed only `again`. Returns at once."""
        startable = ("not started", "ended", "failed") if again else ("not started", "ended")
        servers = [each for name, each in self._servers.items() if name in names and each.status.state in startable]
        if not servers:
            return
        loop = self._open_loop()
        for server in servers:
            server.status = ServerStatus(server.spec.name, "starting")
            loop.call_soon_threadsafe(server.start)

    def wait(self, timeout_s: float, is_stopped: IsStopped) -> None:
        """Wait until no server is starting, for at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while any(each.state == "starting" for each in self.statuses):
            if time.monotonic() >= deadline or is_stopped():
                return
            time.sleep(POLL_S)

    def call(self, tool: ServerTool, arguments: dict[str, object], is_stopped: IsStopped) -> ToolResult:
        """Call a tool and wait for its result. A failure is a result too, so that the model can go on."""
        if self._loop is None:
            return fail_call("the server is not running")
        called = self._servers[tool.server].call(tool.name, arguments)
        future = asyncio.run_coroutine_threadsafe(called, self._loop)
        while True:
            try:
                return future.result(POLL_S)
            except CancelledError:
                return fail_call("the call was stopped")
            except NotYet:
                if is_stopped():
                    future.cancel()

    def close(self) -> None:
        """End all servers, and what they have started."""
        if self._loop is None or self._thread is None:
            return
        loop, self._loop = self._loop, None
        with contextlib.suppress(NotYet, CancelledError):
            asyncio.run_coroutine_threadsafe(self._end_all(), loop).result(CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(1.0)
        if not self._thread.is_alive():
            loop.close()
        for server in self._servers.values():
            server.kill()

    async def _end_all(self) -> None:
        await asyncio.gather(*(server.end() for server in self._servers.values()))

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            for name in SDK_LOGGERS:
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="tool-servers", daemon=True)
            self._thread.start()
        return self._loop


class ToolServer:
    """A server with its connection, which a task keeps. All but `status` and `kill` is for the event loop."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.status = ServerStatus(spec.name)
        self._client: Client | None = None
        self._pipes: PipeTransport | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def kill(self) -> None:
        """Kill the process and all that it has started, if they still run. From any thread."""
        if self._pipes is not None:
            self._pipes.send_signal(signal.SIGKILL)

    async def _run(self) -> None:
        """Connect, list the tools, and stay connected until the server ends."""
        self._pipes = None
        problem: Exception | None = None
        was_connected = False
        try:
            import anyio  # as the SDK, which takes a second

            with anyio.fail_after(START_TIMEOUT_S) as limit:
                async with self._make_client() as client:
                    tools = await list_tools(self.spec.name, client)
                    limit.deadline = math.inf
                    self._client, was_connected = client, True
                    self.status = ServerStatus(self.spec.name, "connected", tools=tools)
                    await (asyncio.Event() if self._pipes is None else self._pipes.closed).wait()
        except Exception as error:  # whatever the server made the SDK raise
            problem = error
        finally:
            self._client = None
            self.status = self._describe_end("ended" if was_connected else "failed", problem)

    def _make_client(self) -> Client:
        from mcp import Client
        from mcp.types import Implementation

        about = Implementation(name="eaglelocal", version="1")
        return Client(self._make_transport(), client_info=about, cache=None)

    def _make_transport(self) -> Any:
        if self.spec.url:
            from eaglelocal.tool_servers.http_transport import open_http

            return open_http(self.spec)
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._pipes = PipeTransport(self.spec, {**inherited, **dict(self.spec.env)})
        return self._pipes

    def _describe_end(self, state: State, problem: Exception | None) -> ServerStatus:
        stderr, reason = ((), "") if self._pipes is None else (self._pipes.stderr, self._pipes.ending)
        if not reason and problem is not None:
            is_slow = isinstance(problem, TimeoutError)
            reason = f"no answer in {START_TIMEOUT_S:.0f} s" if is_slow else describe_problem(problem, self.spec)
        return ServerStatus(self.spec.name, state, reason, stderr)

    async def call(self, name: str, arguments: dict[str, object]) -> ToolResult:
        """Call a tool. Without the SDK's check of results against their schema: a server's pattern could hang it."""
        import anyio
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        if self._client is None:
            return fail_call(f"the server {self.spec.name} is not running")
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
        try:
            with anyio.fail_after(CALL_TIMEOUT_S):
                return read_result(await self._client.session.send_request(request, CallToolResult))
        except TimeoutError:
            return fail_call(f"the tool did not answer within {CALL_TIMEOUT_S:.0f} s")
        except Exception as error:  # whatever the server made the SDK raise
            return fail_call(await self._explain_failed_call(error))

    async def _explain_failed_call(self, error: Exception) -> str:
        """Return why a call failed: if the connection has ended, how it did."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if not (isinstance(error, MCPError) and error.code == CONNECTION_CLOSED) or self._task is None:
            return describe_problem(error, self.spec)
        await asyncio.wait([self._task], timeout=CLOSE_S)
        return f"the server ended during the call: {self.status.reason}".removesuffix(": ")


async def list_tools(server: str, client: Client) -> tuple[ServerTool, ...]:
    """Return the tools that a server announces, at most MAX_TOOLS."""
    tools, cursor = list[ServerTool](), None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [read_tool(server, tool) for tool in page.tools[: MAX_TOOLS - len(tools)]]
        cursor = page.next_cursor
        if cursor is None or len(tools) >= MAX_TOOLS:
            break
    return tuple(tools)


def describe_problem(problem: BaseException, spec: ServerSpec) -> str:
    """Return an exception as a reason for people; of a group the first one."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    match problem:
        case FileNotFoundError() | NotADirectoryError() if spec.folder and not os.path.isdir(spec.folder):
            reason = f"there is no folder {spec.folder}"
        case FileNotFoundError():
            reason = f"command not found: {spec.command!r}"
        case OSError(strerror=str(reason)):
            reason = f"{spec.command or spec.url}: {reason}"
        case ValueError():
            reason = "it answered in another form than the protocol has"
        case _:
            reason = str(problem) or type(problem).__name__
    return clean_line(reason)[:MAX_REASON_CHARS]

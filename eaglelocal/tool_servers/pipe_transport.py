"""The pipes to a server's process, for the SDK's client: lines of JSON-RPC, with limits that the SDK does not have.

A server may write anything: a line without an end, gigabytes of garbage, messages that nobody asked for. Then it is
ended, and `failure` says why. Its process leads a session of its own: it has no terminal to write to, and signals
reach all that it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Mapping
from typing import Any

from eaglelocal.core.terminal_text import clean_line
from eaglelocal.tool_servers.server_list import ServerSpec
from eaglelocal.tool_servers.tool_results import MAX_LINE_CHARS

MAX_MESSAGE_BYTES = 16 << 20  # of one line
WINDOW_S = 10.0  # in which a server may write at most so much:
MAX_LINES, MAX_BYTES = 2000, 32 << 20
STDERR_LINES, STDERR_CHUNK = 5, 1 << 16
STDERR_PAUSE_S = 0.01  # between two chunks: a server that floods stderr waits at its full pipe
ENDING_S = 1.0  # after its stdin is closed, and again after SIGTERM


class FloodGuard:
    """Counts what a server writes. Pure: the time comes in."""

    def __init__(self) -> None:
        self._began_at, self._num_lines, self._num_bytes = float("-inf"), 0, 0

    def add(self, num_bytes: int, now: float) -> bool:
        """Add a line. Return whether it is too much for the current window."""
        if now - self._began_at >= WINDOW_S:
            self._began_at, self._num_lines, self._num_bytes = now, 0, 0
        self._num_lines, self._num_bytes = self._num_lines + 1, self._num_bytes + num_bytes
        return self._num_lines > MAX_LINES or self._num_bytes > MAX_BYTES


class PipeTransport:
    """The SDK's `Transport` over a new process. An async context manager; raises OSError if it cannot be started."""

    def __init__(self, spec: ServerSpec, environ: Mapping[str, str]) -> None:
        self._spec, self._environ = spec, environ
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._flood = FloodGuard()
        self.failure = ""  # why we ended it
        self.closed = asyncio.Event()  # it has closed its stdout, or was ended
        self.has_ended = False  # by itself, before we ended it

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines that the server wrote to stderr, cleaned and cut."""
        return tuple(self._stderr)

    @property
    def ending(self) -> str:
        """The way in which the server ended; "" if it was ended with the chat."""
        if self.failure or not self.has_ended or self._process is None:
            return self.failure
        code = self._process.returncode
        return "" if code is None else f"it ended with exit code {code}" if code >= 0 else "it was killed"

    async def __aenter__(self) -> tuple[Any, Any]:
        import anyio

        environ = dict(self._environ)
        self._process = process = await asyncio.create_subprocess_exec(
            self._spec.command,
            *self._spec.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
            cwd=self._spec.folder or None,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        sending, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, receiving = anyio.create_memory_object_stream[Any](0)
        works = (self._read_stdout(process, sending), self._write_stdin(process, receiving), self._read_stderr(process))
        self._tasks = [asyncio.create_task(work) for work in works]
        return incoming, outgoing

    async def __aexit__(self, *exception: object) -> None:
        """End the process and all that it has started: by the end of its stdin, SIGTERM, then SIGKILL."""
        import anyio

        assert self._process is not None
        self.has_ended = self.closed.is_set()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with anyio.CancelScope(shield=True):  # the time for a start may be over
            await self._end(self._process)
        self.closed.set()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), ENDING_S)
            self.send_signal(number)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        process._transport.close()  # type: ignore[attr-defined]  # a child that left the session may hold a pipe

    def send_signal(self, number: int) -> None:
        """Send a signal to the process and all that it has started. From any thread."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.send_signal(signal.SIGKILL)

    # ---- the three pipes, each in a task
    async def _read_stdout(self, process: asyncio.subprocess.Process, sending: Any) -> None:
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        try:
            async with sending:
                while line := await process.stdout.readline():
                    if self._flood.add(len(line), loop.time()):
                        return self._fail(f"it wrote more than {MAX_LINES} lines or {MAX_BYTES >> 20} MB at once")
                    if (message := parse_message(line)) is not None:
                        await sending.send(message)
        except ValueError:
            self._fail(f"it wrote a line of more than {MAX_MESSAGE_BYTES >> 20} MB")
        finally:
            self.closed.set()

    async def _write_stdin(self, process: asyncio.subprocess.Process, receiving: Any) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which its stdout says too
            async with receiving:
                async for message in receiving:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        rest = b""
        while chunk := await process.stderr.read(STDERR_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            self._keep_stderr(lines)
            rest = rest[:STDERR_CHUNK]
            await asyncio.sleep(STDERR_PAUSE_S)
        self._keep_stderr([rest])

    def _keep_stderr(self, lines: list[bytes]) -> None:
        for line in lines[-STDERR_LINES:]:
            text = line[: 4 * MAX_LINE_CHARS].decode("utf-8", "replace").rstrip()
            if text:
                self._stderr.append(clean_line(text)[:MAX_LINE_CHARS])


def parse_message(line: bytes) -> Any:
    """Return the SDK's message of a line; None for one that is no JSON-RPC, such as a greeting."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None

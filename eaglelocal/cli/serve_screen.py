"""The monitor screen of a server in the foreground: when it can be shown, and whether the server outlives it.

It reads the server as `top` does, over loopback with the server's own key, so both show the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TextIO, cast

from eaglelocal.cli.output import Output, colour_environ
from eaglelocal.core.terminal_text import can_move_cursor
from eaglelocal.errors import TRACEBACK_VARIABLE
from eaglelocal.settings import Settings
from eaglelocal.tui.monitor.log_tail import LogTail

if TYPE_CHECKING:
    from eaglelocal.cli.output import Output
    from eaglelocal.client.running_servers import RunningServer
    from eaglelocal.tui.monitor.monitor_app import Monitor, Outcome


_log = logging.getLogger("eaglelocal.server")


def can_show(environ: Mapping[str, str]) -> bool:
    """Return whether stdin, stdout and stderr are a capable terminal and this process is in the foreground."""
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty() and can_move_cursor(environ)):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no job control
        return True


class ServeScreen:
    """The monitor screen of `serve`, with the log that it shows; without the screen the log goes to stderr."""

    def __init__(self, settings: Settings) -> None:
        """Read the display options and the key bindings. Raises UsageError if a key is bound to an unknown action."""
        from eaglelocal.tui.display_options import check_display_options, make_display_options

        self._options = make_display_options(settings)
        check_display_options(self._options)
        self._stream = TailStream(sys.stderr, LogTail())

    def output(self, colour: str) -> Output:
        return Output(stdout=sys.stdout, stderr=cast(TextIO, self._stream), environ=colour_environ(colour))

    async def show(self, server: RunningServer, afterwards: Callable[[], Awaitable[None]]) -> None:
        """Show the screen until the user leaves it.

        Then either send SIGINT to this process, so that the server ends, or await `afterwards` while it continues.
        """
        from eaglelocal.client.servers.server_watch import ServerWatch
        from eaglelocal.probe.load_gauges import GaugeWatch
        from eaglelocal.tui.monitor.monitor_app import Monitor

        open_watch = partial(ServerWatch, server.url, api_key=server.api_key)
        with closing(GaugeWatch()) as gauges, self._stream.hold():
            log = self._stream.tail
            monitor = Monitor(self._options, open_watch, read_machine=gauges.latest, log=log, owns_server=True)
            outcome = await run_monitor(monitor)
        if outcome == "stop":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            await afterwards()


async def run_monitor(monitor: Monitor) -> Outcome | None:
    """Run the monitor and return the user's choice, or None if the screen failed.

    If cancelled, the monitor exits first, which restores the terminal.
    """
    running = asyncio.create_task(monitor.run_async())
    try:
        outcome = await asyncio.shield(running)
    except asyncio.CancelledError:
        monitor.exit()
        await running
        raise
    except Exception as problem:
        _report(problem)
        return None
    if monitor.failure is not None:
        _report(monitor.failure)
    return outcome


def _report(problem: Exception) -> None:
    """Log a failure of the screen in one line: of a traceback the terminal would only get the last lines."""
    shown = problem if os.environ.get(TRACEBACK_VARIABLE) == "1" else None
    what = f"{type(problem).__name__}: {problem}"
    _log.error("this is a bug: the screen failed, the server continues: %s", what, exc_info=shown)


# ---- tail stream: a stderr stream that can be held: while a screen is shown its lines go to a log, of which the
# newest follow later
MAX_REPEATED = 12  # most lines of the time under the screen that are written after it
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TailStream:
    """A stream for cli/output.py, with the methods that it uses. Safe from any thread."""

    def __init__(self, stream: TextIO, tail: LogTail) -> None:
        self._stream, self.tail = stream, tail
        self._lock = threading.Lock()
        self._is_held = False
        self._incomplete = ""  # the beginning of an incomplete line

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Send lines to the tail instead of the terminal, and the newest of them to the terminal afterwards."""
        with self._lock:
            if self._stream.isatty():
                self._stream.write("\r\x1b[K")  # erase a progress bar
                self._stream.flush()
            self._is_held, held_at = True, self.tail.num_lines
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False
                missed = min(self.tail.num_lines - held_at, MAX_REPEATED)
                self._stream.write("".join(f"{line}\n" for line in self.tail.newest(missed)))
                self._stream.flush()

    def write(self, text: str) -> int:
        with self._lock:
            if not self._is_held:
                return self._stream.write(text)
            *whole, self._incomplete = (self._incomplete + _ESCAPES.sub("", text)).split("\n")
            for line in whole:
                self.tail.add(line.rpartition("\r")[2])  # keep only what the last carriage return left visible
            return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return not self._is_held and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

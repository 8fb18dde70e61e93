"""`eaglelocal stop`: end eaglelocal servers on this machine, and report the result.

A server gets SIGTERM and is waited for; it never gets SIGKILL: that decision is left to the user.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli.completion import complete_port
from eaglelocal.cli.output import standard_output
from eaglelocal.core.amounts import match_noun
from eaglelocal.errors import EngineError, UsageError

if TYPE_CHECKING:
    from eaglelocal.client.running_servers import RunningServer

ALL = "all"
PATIENCE_S = 45.0  # running answers may finish first
SNAPSHOT_S = 1.0  # to learn what a server is doing before it is stopped


def stop(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="PORT|URL|all",
            help="Server to stop; unset: the only one.",
            show_default=False,
            autocompletion=complete_port,
        ),
    ] = None,
) -> None:
    """Stop a running server.

    \b
    eaglelocal stop
    eaglelocal stop 8421
    eaglelocal stop all
    """
    from eaglelocal.client.running_servers import find_running_servers

    output = standard_output()
    chosen = choose_servers(find_running_servers(), which)
    for server in chosen:
        if work := describe_work(server):
            output.message(f"{server.url} {work}; `eaglelocal stop {server.port}` again ends it at once")
        request_stop(server)
    for server in chosen:
        wait_for_end(server, PATIENCE_S)
        output.message(f"stopped {server.url} ({server.target}, pid {server.pid})")
    if not chosen:
        output.message("no server is running")


def choose_servers(servers: Sequence[RunningServer], which: str | None) -> list[RunningServer]:
    """Return the servers to stop: all, the one at a port or URL, or the only one if `which` is None.

    Raises EngineError if none runs there, UsageError if several could be meant.
    """
    if which == ALL:
        return list(servers)
    urls = ", ".join(server.url for server in servers)
    found = [server for server in servers if which is None or _is_meant(server, which)]
    if not found:
        where = "" if which is None else f" at {which}"
        hint = f"running: {urls}" if urls else "eaglelocal ps"
        raise EngineError(f"no eaglelocal server is running{where}", hint=hint)
    if len(found) > 1:
        raise UsageError(f"{len(found)} servers are running: {urls}", hint=f"eaglelocal stop {found[0].port}")
    return found


def _is_meant(server: RunningServer, which: str) -> bool:
    return which == str(server.port) if which.isdecimal() else server.is_at(which)


def describe_work(server: RunningServer) -> str:
    """Return what a server will finish before it ends, `finishes 2 running answers first`; "" if there is nothing."""
    from eaglelocal.client.http_connection import KeepAliveConnection
    from eaglelocal.client.servers.eaglelocal_server import EaglelocalServer
    from eaglelocal.errors import EagleLocalError

    connection = KeepAliveConnection(server.url, api_key=server.api_key, timeout_s=SNAPSHOT_S)
    try:
        reading = EaglelocalServer(connection).read()
    except EagleLocalError:  # it is not answering, but may still end
        return ""
    finally:
        connection.close()
    parts = [
        f"{number} {what}" for number, what in ((reading.running, "running"), (reading.waiting, "waiting")) if number
    ]
    number = (reading.running or 0) + (reading.waiting or 0)
    return f"finishes {' and '.join(parts)} {match_noun(number, 'answer')} first" if parts else ""


def request_stop(server: RunningServer) -> None:
    from eaglelocal.probe.process_info import is_alive

    if not is_alive(server.pid, server.birth):  # another process may have got its pid
        return
    try:
        os.kill(server.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except OSError as error:
        raise EngineError(f"cannot stop process {server.pid}: {error.strerror}") from error


def wait_for_end(server: RunningServer, patience_s: float) -> None:
    """Wait until a server has ended. Raises EngineError if it still runs after `patience_s` seconds."""
    from eaglelocal.client.running_servers import find_running_servers
    from eaglelocal.probe.process_info import is_alive

    deadline_s = time.monotonic() + patience_s
    while is_alive(server.pid, server.birth):
        if time.monotonic() > deadline_s:
            what = f"{server.url} still runs {patience_s:g} s after SIGTERM"
            raise EngineError(what, hint=f"kill -9 {server.pid}")
        time.sleep(0.05)
    find_running_servers()  # removes the files of servers that ended without removing them

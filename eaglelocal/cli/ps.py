"""`eaglelocal ps`: list the eaglelocal servers that run on this machine, for people and as JSON. Shows no key."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglelocal.cli import flags
from eaglelocal.cli.output import format_columns, standard_output
from eaglelocal.core.amounts import format_uptime

if TYPE_CHECKING:
    from eaglelocal.client.running_servers import RunningServer


def ps(as_json: flags.AsJson = False) -> None:
    """List the running servers.

    \b
    eaglelocal ps
    eaglelocal ps --json | jq '.servers[].url'
    """
    from eaglelocal.client.running_servers import find_running_servers, request_state

    output = standard_output()
    found = [(server, request_state(server)) for server in find_running_servers()]
    if as_json:
        return output.object({"servers": [server_object(server, state) for server, state in found]})
    if not found:
        output.message("no server is running; `eaglelocal serve` starts one")
    output.lines(server_lines(found, now=time.time(), width=output.columns))
    return None


def server_object(server: RunningServer, state: str) -> dict[str, object]:
    return {
        "url": server.url,
        "port": server.port,
        "pid": server.pid,
        "target": server.target,
        "started_at": server.started_at,
        "state": state,
    }


def server_lines(found: Sequence[tuple[RunningServer, str]], *, now: float, width: int | None) -> list[str]:
    """Return one line a server; if `width` is given, lines are cut to fit: names of targets may be long."""
    rows = [
        (server.url, state, f"pid {server.pid}", f"up {format_uptime(now - server.started_at)}", server.target)
        for server, state in found
    ]
    lines = format_columns(rows)
    return [line if width is None or len(line) < width else f"{line[: width - 2]}…" for line in lines]

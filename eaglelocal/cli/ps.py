"""`eaglelocal ps`: the servers of ours that run on this machine, for people and as JSON. Shows no key."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output

if TYPE_CHECKING:
    from eaglelocal.client.running import RunningServer


def ps(as_json: flags.AsJson = False) -> None:
    """Show the running servers.

    \b
    eaglelocal ps
    eaglelocal ps --json | jq '.servers[].url'
    """
    from eaglelocal.client.running import running_servers, state_of

    output = standard_output()
    found = [(server, state_of(server)) for server in running_servers()]
    if as_json:
        return output.object({"servers": [server_object(server, state) for server, state in found]})
    if not found:
        output.message("no server is running; `eaglelocal serve` starts one")
    for server, state in found:
        output.data(server_line(server, state, now=time.time()))
    return None


def server_object(server: RunningServer, state: str) -> dict[str, object]:
    return {
        "url": server.url,
        "port": server.port,
        "pid": server.pid,
        "target": server.target,
        "state": state,
        "started_at": server.started_at,
    }


def server_line(server: RunningServer, state: str, *, now: float) -> str:
    from eaglelocal.tui.spans import span

    return f"{server.url:<24}  {state:<10}  {server.target}, pid {server.pid}, up {span(now - server.started_at)}"

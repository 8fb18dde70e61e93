"""The eaglelocal servers running on this machine: each announces itself in a file of the state folder.

A file holds address, key and process, and only its owner may read it. It is removed when the server ends. If its
process has ended (checked by pid and birth mark, because pids are reused) it is stale, and a reader removes it.
Reading never raises: invalid files are skipped. Uses files and /health; starts and ends nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, field
from pathlib import Path
from typing import get_type_hints
from urllib.parse import urlsplit

from eaglelocal import locations
from eaglelocal.catalog.reference import DEMO, EMBEDDED_NAMES
from eaglelocal.client.http_connection import KeepAliveConnection, split_address
from eaglelocal.client.http_stream import text
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import list_own, read_own
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.probe.process_info import is_alive, start_mark

NO_ANSWER = "no answer"
_log = logging.getLogger(__name__)

_MAX_BYTES = 64 * 1024
_LOOPBACK = {"localhost": "127.0.0.1"}
_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server and how to reach it from this machine."""

    url: str
    port: int
    machine: str  # host name: several machines may share a home folder
    pid: int
    birth: str  # mark of the process, see probe.processes
    target: str  # label
    started_at: float  # Unix time, s
    reference: str = ""  # of the target, see normalize_reference; "" in the files of older versions
    api_key: str = field(default="", repr=False)  # of the local user, if the server requires one

    def is_at(self, url: str) -> bool:
        """Return whether an address, with or without http://, is this server's."""
        try:
            parts = split_address(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:  # the port is no number
            return False
        there = urlsplit(self.url)
        return (parts.scheme, _LOOPBACK.get(host, host), port) == (there.scheme, there.hostname, there.port)

    def runs(self, target: str) -> bool:
        """Return whether a reference means this server's model; it may leave out the quantization."""
        names = (self.reference, self.target)
        wanted = normalize_reference(target)
        return wanted in names or target in names or any(name.startswith(f"{wanted}:") for name in names)


def normalize_reference(target: str) -> str:
    """Return a reference to a model as every command of this machine compares it: the real path of a file."""
    path = os.path.expanduser(target)
    if os.path.exists(path):
        return os.path.realpath(path)
    name, at, size = target.lower().partition("@")
    return f"{DEMO}{at}{size}" if name in EMBEDDED_NAMES else target.lower()


def describe_this_server(
    host: str, port: int, *, target: str, api_key: str = "", scheme: str = "http"
) -> RunningServer:
    """Return this process as a server. A wildcard host is replaced by the loopback address."""
    address = _WILDCARDS.get(host, host)
    name = f"[{address}]" if ":" in address else address
    pid = os.getpid()
    return RunningServer(
        url=f"{scheme}://{name}:{port}",
        port=port,
        machine=platform.node(),
        pid=pid,
        birth=start_mark(pid) or "",
        target=target,
        reference=normalize_reference(target),
        started_at=time.time(),
        api_key=api_key,
    )


@contextlib.contextmanager
def keep_announced(server: RunningServer) -> Iterator[Path]:
    """Announce a server while the block runs; it serves without, where the state folder cannot be written."""
    path = announce(server)
    try:
        yield path
    finally:
        left = _read(path)
        if left is not None and left.started_at == server.started_at:  # another may have taken over port and file
            with contextlib.suppress(OSError):
                path.unlink()


def announce(server: RunningServer) -> Path:
    """Write or replace a server's announcement; return its path, and warn if it cannot be written."""
    path = _file_path(server)
    try:
        write_atomically(path, json.dumps(asdict(server)))
    except OSError as error:
        _log.warning("`ps`, `stop` and `chat` do not find this server: %s cannot be written: %s", path, error.strerror)
    return path


def find_running_servers(*, remove_stale: bool = True) -> list[RunningServer]:
    """Return the live servers, newest first. Stale files are removed unless `remove_stale` is False."""
    found = []
    for path, server, is_running in _list_local():
        if is_running:
            found.append(server)
        elif remove_stale:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda server: server.started_at, reverse=True)


def find_stale_files() -> list[Path]:
    """Return announcements of ended servers of this machine that were not removed. Removes none."""
    return [path for path, _, is_running in _list_local() if not is_running]


def request_state(server: RunningServer, *, timeout_s: float = 1.0) -> str:
    """Return the state from /health: ready, or another one; NO_ANSWER when no reply comes in time."""
    try:
        with contextlib.closing(KeepAliveConnection(server.url, timeout_s=timeout_s)) as connection:
            reply = connection.get("/health")
    except EagleLocalError:
        return NO_ANSWER
    health = reply.mapping()
    return "ready" if reply.is_good else text(health, "state") or text(health, "status") or f"answers {reply.status}"


def _file_path(server: RunningServer) -> Path:
    """Return the file's path, unique by machine, process and port, because machines may share a home folder."""
    machine = "".join(char if char.isalnum() or char in "-." else "_" for char in server.machine)
    return locations.servers_dir() / f"{machine}-{server.pid}-{server.port}.json"


def _list_local() -> list[tuple[Path, RunningServer, bool]]:
    """Return the announcements of this machine, and whether their servers still run. Others are for their machines."""
    read = [(path, _read(path)) for path in list_own(locations.servers_dir(), "*-*.json")]
    here = [(path, server) for path, server in read if server is not None and server.machine == platform.node()]
    return [(path, server, is_alive(server.pid, server.birth)) for path, server in here]


def _read(path: Path) -> RunningServer | None:
    """Return an announcement; None for any other content (perhaps another version's), which is not removed."""
    try:
        data = read_object(read_own(path, _MAX_BYTES))
    except (OSError, ValueError):
        return None
    kinds = {name: (int, float) if kind is float else kind for name, kind in get_type_hints(RunningServer).items()}
    values = {"reference": ""} | {name: data[name] for name in kinds if name in data}
    if values.keys() != kinds.keys():
        return None
    if not all(isinstance(values[name], kind) for name, kind in kinds.items()):
        return None
    server = RunningServer(**values)  # type: ignore[arg-type]
    try:
        is_address = urlsplit(server.url).port == server.port
    except ValueError:
        return None
    return server if is_address and server.pid > 1 and math.isfinite(server.started_at) else None

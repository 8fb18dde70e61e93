"""The texts of rpc-servers in reports: address, memory, measured link. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eaglelocal.core.byte_sizes import format_memory
from eaglelocal.core.run_options import WARNING
from eaglelocal.probe.rpc_servers import RpcServer


def server_rows(servers: Sequence[RpcServer]) -> list[tuple[str, str]]:
    """Return a name and a text for each server, and the warning if there is any."""
    rows = [("server", describe_server(server)) for server in servers]
    return [*rows, ("warning", WARNING)] if rows else []


def describe_server(server: RpcServer) -> str:
    """Return `box:50052: 22.1 of 24 GiB free, 0.31 ms, 112 MB/s, both measured`, with the memory of each device."""
    devices = server.devices
    memories = (f"{format_memory(each.free_bytes)} of {format_memory(each.total_bytes)} free" for each in devices)
    return f"{server.address}: {', '.join(memories)}; {describe_link(server)}"


def describe_link(server: RpcServer) -> str:
    return f"{server.latency_s * 1e3:.2f} ms, {server.bytes_s / 1e6:.0f} MB/s, both measured"


def link_object(server: RpcServer) -> dict[str, object]:
    return {"address": server.address, "latency_s": server.latency_s, "bytes_s": server.bytes_s}


def server_objects(servers: Iterable[RpcServer]) -> list[dict[str, object]]:
    return [
        link_object(server)
        | {
            "devices": [
                {"free_bytes": device.free_bytes, "total_bytes": device.total_bytes} for device in server.devices
            ]
        }
        for server in servers
    ]

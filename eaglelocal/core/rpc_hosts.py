"""The setting that names llama.cpp's rpc-servers: `HOST:PORT,HOST:PORT`. Also what has to be said about them."""

from __future__ import annotations

MAX_HOSTS, MAX_PORT = 16, 65_535  # llama.cpp's limit of servers
RPC_DEVICE = "RPC"  # llama.cpp numbers their devices over all servers: RPC0, RPC1 ...
WARNING = "RPC is neither encrypted nor authenticated: use it only in a network that you trust, or through a tunnel"


def parse_rpc_hosts(text: str) -> tuple[str, ...]:
    """Return the addresses in order. Raises ValueError; its text says what the setting must be.

    >>> parse_rpc_hosts("192.168.1.20:50052, box:50052")
    ('192.168.1.20:50052', 'box:50052')
    """
    hosts = tuple(part.strip() for part in text.split(","))
    if not all(map(_is_address, hosts)) or len(set(hosts)) < len(hosts) or len(hosts) > MAX_HOSTS:
        raise ValueError(f"at most {MAX_HOSTS} different addresses of rpc-servers, as 192.168.1.20:50052,box:50052")
    return hosts


def _is_address(text: str) -> bool:
    """Return whether llama.cpp can read it: it cuts at the first colon, so that IPv6 needs a name."""
    host, _, port = text.partition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))
    return bool(host) and not any(char.isspace() for char in host) and is_number and 1 <= int(port) <= MAX_PORT


def is_rpc_device(name: str) -> bool:
    """Return True for a device of an rpc-server."""
    return name.startswith(RPC_DEVICE)

"""The tool servers that a user has chosen: mcp.json, in the shape that other programs use.

    {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"TZ": "UTC"}}}}

A server has a `command`, or the `url` of one that runs elsewhere. Keys that only other programs know are ignored.
Nothing is started here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import decode_text, format_place, make_printable
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ResourceError, UsageError

MAX_FILE_BYTES = 1 << 20
MAX_SERVERS = 32
SERVERS = "mcpServers"
EXAMPLE = '{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}'

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A server to start by a command, or to reach by its URL.

    env      variables of its process, beyond those that every server gets
    folder   its working folder; "": that of this process
    headers  of requests to the URL
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Pairs = ()
    folder: str = ""
    url: str = ""
    headers: Pairs = ()

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides what runs: a permission is for this very command."""
        parts = (self.command, self.args, self.env, self.folder, self.url, self.headers)
        return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()


def read_server_list(path: Path) -> tuple[ServerSpec, ...]:
    """Return the enabled servers of a file. Raises UsageError with the file and the key, and ResourceError."""
    try:
        content = read_object(decode_text(read_regular(path, MAX_FILE_BYTES)))
    except OSError as problem:
        raise ResourceError(f"cannot read {path}: {problem.strerror}", hint=f"ls -l {quote_path(path)}") from None
    except ValueError as problem:
        raise UsageError(f"{format_place(path, problem)} is not JSON: {problem}", hint=EXAMPLE) from None
    return parse_server_list(content, str(path))


def parse_server_list(content: Mapping[str, object], place: str) -> tuple[ServerSpec, ...]:
    """Return the servers of the content of an mcp.json. `place` names it in errors. Raises UsageError."""
    servers = content.get(SERVERS)
    if not isinstance(servers, dict):
        what = f"{SERVERS} must be an object" if SERVERS in content else f"it has no {SERVERS}"
        raise UsageError(f"{place}: {what}", hint=EXAMPLE)
    if len(servers) > MAX_SERVERS:
        raise UsageError(f"{place}: {len(servers)} servers are more than {MAX_SERVERS}")
    entries = (
        ServerEntry(name, entry, f"{place}: {SERVERS}.{make_printable(name)}") for name, entry in servers.items()
    )
    return tuple(entry.read() for entry in entries if not entry.is_disabled)


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """The entry of one server, whose keys are checked as they are read. Every method raises UsageError."""

    name: str
    value: object
    place: str

    @property
    def is_disabled(self) -> bool:
        return isinstance(self.value, dict) and self.value.get("disabled") is True

    def read(self) -> ServerSpec:
        if not self.name.strip() or not self.name.isprintable():
            raise UsageError(f"{self.place}: a server needs a name that can be printed")
        if not isinstance(self.value, dict):
            raise self._refuse("", "an object", self.value)
        command, url = self._read_text("command"), self._read_text("url")
        if bool(command) == bool(url):
            raise UsageError(f"{self.place} needs either a command or a url", hint=EXAMPLE)
        if url and not url.startswith(("http://", "https://")):
            raise self._refuse("url", "an address that begins with http:// or https://", url)
        return ServerSpec(
            name=self.name,
            command=command,
            args=self._read_args(),
            env=self._read_pairs("env"),
            folder=self._read_text("cwd"),
            url=url,
            headers=self._read_pairs("headers"),
        )

    def _find(self, key: str) -> object:
        assert isinstance(self.value, dict)
        return self.value.get(key)

    def _read_text(self, key: str) -> str:
        given = self._find(key)
        if given is None:
            return ""
        if not isinstance(given, str) or "\0" in given:
            raise self._refuse(key, "text", given)
        return given

    def _read_args(self) -> tuple[str, ...]:
        given = self._find("args")
        if given is None:
            return ()
        if not isinstance(given, list) or not all(isinstance(one, str) and "\0" not in one for one in given):
            raise self._refuse("args", "a list of texts", given)
        return tuple(given)

    def _read_pairs(self, key: str) -> Pairs:
        given = self._find(key)
        if given is None:
            return ()
        if not isinstance(given, dict) or not all(isinstance(one, str) and "\0" not in one for one in given.values()):
            raise self._refuse(key, "an object of texts", given)
        if any(not name or "=" in name or "\0" in name for name in given):
            raise self._refuse(key, "an object whose names can be those of variables", list(given))
        return tuple(given.items())

    def _refuse(self, key: str, wanted: str, given: object) -> UsageError:
        shown = make_printable(json.dumps(given, ensure_ascii=False))
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        return UsageError(f"{self.place}{key and '.'}{key} must be {wanted}, not {shown}", hint=EXAMPLE)

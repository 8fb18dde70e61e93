"""The tools that the user always allows: a file of ours, with one entry for each tool of a server.

An entry is for the command that the server had then. If mcp.json starts something else under the same name, the user
is asked again. A file that cannot be read allows nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from eaglelocal.core.atomic_file import lock_folder, write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import join_in_json
from eaglelocal.errors import ResourceError
from eaglelocal.tool_servers.server_list import ServerSpec

Entry = tuple[str, str, str]  # server, tool, fingerprint of the server's command


@dataclass(frozen=True, slots=True)
class StoredPermissions:
    """The entries of a file, which is read each time: another chat may have changed it."""

    path: Path

    def read(self) -> frozenset[Entry]:
        try:
            content = read_json(read_own(self.path))
        except (OSError, ValueError):
            return frozenset()
        given = content if isinstance(content, list) else []
        return frozenset((one[0], one[1], one[2]) for one in given if _is_entry(one))

    def is_allowed(self, spec: ServerSpec, tool: str) -> bool:
        return make_entry(spec, tool) in self.read()

    def list_servers(self, specs: Iterable[ServerSpec]) -> frozenset[str]:
        """Return the names of the servers that have an allowed tool."""
        known = {(server, mark) for server, _, mark in self.read()}
        return frozenset(spec.name for spec in specs if (spec.name, spec.fingerprint) in known)

    def add(self, spec: ServerSpec, tool: str) -> None:
        """Raises ResourceError."""
        with lock_folder(self.path.parent):
            self._write(self.read() | {make_entry(spec, tool)})

    def remove(self, server: str, tool: str) -> None:
        """Remove the entries of a tool, whatever the server's command was. Raises ResourceError."""
        with lock_folder(self.path.parent):
            entries = self.read()
            kept = frozenset(entry for entry in entries if entry[:2] != (server, tool))
            if kept != entries:
                self._write(kept)

    def _write(self, entries: frozenset[Entry]) -> None:
        try:
            write_atomically(self.path, json.dumps(join_in_json(list(map(list, sorted(entries)))), indent=1))
        except OSError as problem:
            raise ResourceError(f"cannot write {self.path}: {problem.strerror}") from problem


def make_entry(spec: ServerSpec, tool: str) -> Entry:
    return spec.name, tool, spec.fingerprint


def _is_entry(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(part, str) for part in value)

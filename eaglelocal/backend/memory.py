"""The KV cells of a context, and what llama.cpp says its buffers weigh."""

from __future__ import annotations

import re

from eaglelocal.backend.library import Library, Log
from eaglelocal.errors import EngineError

BUFFER_LINE = re.compile(r"(\S+)\s+(model|KV|compute|output|RS)\s+buffer size\s*=\s*([\d.]+)\s*MiB")


class Cells:
    """Removal and bounds of sequences; implements core.ports.Cache."""

    def __init__(self, library: Library, context: object) -> None:
        self._api = library.api
        self._memory = self._api.llama_get_memory(context)

    def check_open(self) -> None:
        """Raises EngineError when the context is closed: llama.cpp would read freed memory."""
        if self._memory is None:
            raise EngineError("the context is closed")

    def close(self) -> None:
        """To be called when the context is freed."""
        self._memory = None

    def remove(self, sequence: int, first_position: int) -> None:
        self.check_open()
        if sequence < 0 or first_position < 0:  # llama.cpp takes a negative sequence for all of them
            raise EngineError(f"cannot remove sequence {sequence} from position {first_position}")
        if not self._api.llama_memory_seq_rm(self._memory, sequence, first_position, -1):
            raise EngineError(f"this model cannot forget positions from {first_position} on")

    def last_position(self, sequence: int) -> int:
        self.check_open()
        return int(self._api.llama_memory_seq_pos_max(self._memory, sequence))


def buffer_bytes(log: Log) -> dict[str, int]:
    """Bytes by kind of buffer, summed over devices, as llama.cpp logged them since it was loaded."""
    totals: dict[str, int] = {}
    for line in log.buffer_lines:
        if match := BUFFER_LINE.search(line):
            kind = match.group(2)
            totals[kind] = totals.get(kind, 0) + int(float(match.group(3)) * 2**20)
    return totals

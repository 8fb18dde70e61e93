"""Memory for a conversation that is about to be copied to RAM.

The first write to new memory costs more than the copy: the system provides each page when it is written. So the memory
is written in pieces beforehand. Does not know what is copied there.
"""

from __future__ import annotations

import numpy as np

from eaglelocal.core.batch import Bytes
from eaglelocal.core.records import dataclass

PIECE_BYTES = 4 * 2**20  # a few milliseconds


@dataclass(slots=True)
class PendingCopy:
    """The copy of a slot's cells that is being prepared."""

    slot: int
    buffer: Bytes
    num_prepared: int = 0  # bytes

    @classmethod
    def allocate(cls, slot: int, num_bytes: int) -> PendingCopy:
        """Reserve the memory. Raises MemoryError."""
        return cls(slot, np.empty(num_bytes, dtype=np.uint8))

    @property
    def is_prepared(self) -> bool:
        return self.num_prepared >= len(self.buffer)

    def prepare(self) -> None:
        """Write the next piece of the memory."""
        end = self.num_prepared + PIECE_BYTES
        self.buffer[self.num_prepared : end] = 0
        self.num_prepared = min(end, len(self.buffer))

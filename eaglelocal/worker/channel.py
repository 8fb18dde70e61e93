"""Messages over a pair of pipes: four bytes of length, then a pickle.

Parent and child are one program on one machine, and no other process holds the pipes, so pickle is safe here and
needs no schema. The messages are the frozen values of `core`; this module packs the frequent ones in a faster form
and does not interpret them.
"""

from __future__ import annotations

import pickle
import struct
import threading
from typing import BinaryIO

from eaglelocal.errors import EngineError

# Far above any message, and below the number that four bytes of stray text make (0x20202020 and up).
MAX_FRAME_BYTES = 256 * 1024 * 1024

_LENGTH = struct.Struct("<I")


class Channel:
    """An end of the pair of pipes. `send` is safe from any thread, `receive` belongs to one thread."""

    def __init__(self, input: BinaryIO, output: BinaryIO) -> None:
        self._input = input
        self._output = output
        self._send_lock = threading.Lock()

    def send(self, message: object) -> None:
        """Write one message. Raises OSError when the other end is gone, EngineError when it is too large."""
        payload = pickle.dumps(_pack(message), pickle.HIGHEST_PROTOCOL)
        if len(payload) > MAX_FRAME_BYTES:
            raise EngineError(f"a message of {len(payload)} bytes is over the engine's limit of {MAX_FRAME_BYTES}")
        rest = memoryview(_LENGTH.pack(len(payload)) + payload)
        with self._send_lock:
            if self._output.closed:
                raise BrokenPipeError("the channel is closed")
            while rest:
                rest = rest[self._output.write(rest) :]

    def receive(self) -> object:
        """Wait for one message. Raises EOFError at the end of the pipe, EngineError on garbage."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise EngineError(f"the engine's pipe carries something else than messages: {_LENGTH.pack(length)!r}")
        payload = self._read(length)
        try:
            return _unpack(pickle.loads(payload))
        except Exception as error:  # what a broken pickle raises is not limited to UnpicklingError
            raise EngineError(f"the engine's pipe carries an unreadable message of {length} bytes: {error}") from error

    def fileno(self) -> int:
        """Return the descriptor of the pipe that is read."""
        return self._input.fileno()

    def close(self) -> None:
        """Close both pipes. The other end must be gone, or a blocked sender would delay this."""
        with self._send_lock:
            self._output.close()
        self._input.close()

    def _read(self, size: int) -> bytes:
        data = self._input.read(size)
        if len(data) < size:
            raise EOFError
        return data


# Nearly every message is a list of Tokens. Plain tuples are cheaper: pickle looks up each class by its name.
# Imported when the first one is sent: a process is started before the messages are imported.
def _pack(message: object) -> object:
    if not isinstance(message, list):
        return message
    from eaglelocal.core.events import Tokens

    return [(e.request_id, [tuple(p) for p in e.pieces]) if type(e) is Tokens else e for e in message]


def _unpack(message: object) -> object:
    if not isinstance(message, list):
        return message
    from eaglelocal.core.events import TextPiece, Tokens

    return [Tokens(e[0], tuple(map(TextPiece._make, e[1]))) if type(e) is tuple else e for e in message]

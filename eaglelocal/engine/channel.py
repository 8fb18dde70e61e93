"""Messages over a pair of pipes: four bytes of length, then a pickle.

Parent and child are one program on one machine, and no other process holds the pipes, so pickle is
safe here and needs no schema. The messages are the frozen dataclasses of `core`; this file knows how
to write the hot ones fast, and nothing of what they mean.
"""

from __future__ import annotations

import pickle
import struct
import threading
from io import BytesIO
from types import MappingProxyType
from typing import BinaryIO

from eaglelocal.core.events import Piece, Tokens
from eaglelocal.errors import EngineError

# Far above any message, and below the number that four bytes of stray text make (0x20202020 and up).
MAX_FRAME_BYTES = 256 * 1024 * 1024

_LENGTH = struct.Struct("<I")


class Channel:
    """One end of the pair. `send` is safe from any thread, `receive` belongs to one."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self._reading = reading
        self._writing = writing
        self._send_lock = threading.Lock()

    def send(self, message: object) -> None:
        """Write one message. Raises OSError when the other end is gone, EngineError when it is too large."""
        with _frame(message) as buffer, self._send_lock:
            if self._writing.closed:
                raise BrokenPipeError("the channel is closed")
            _write_all(self._writing, buffer.getbuffer())

    def receive(self) -> object:
        """Wait for one message. Raises EOFError at the end of the pipe, EngineError on garbage."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise EngineError(f"the engine's pipe carries something else than messages: {_LENGTH.pack(length)!r}")
        payload = self._read(length)
        try:
            return pickle.loads(payload)
        except Exception as error:  # what a broken pickle raises is not limited to UnpicklingError
            raise EngineError(f"the engine's pipe carries an unreadable message of {length} bytes: {error}") from error

    def close(self) -> None:
        """Close both pipes; the other end must be gone, or a blocked sender would hold this up."""
        with self._send_lock:
            self._writing.close()
        self._reading.close()

    def _read(self, size: int) -> bytes:
        data = self._reading.read(size)
        if len(data) < size:
            raise EOFError
        return data


def _frame(message: object) -> BytesIO:
    buffer = BytesIO(bytes(_LENGTH.size))
    buffer.seek(_LENGTH.size)
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    length = buffer.tell() - _LENGTH.size
    if length > MAX_FRAME_BYTES:
        raise EngineError(f"a message of {length} bytes is over the engine's limit of {MAX_FRAME_BYTES}")
    buffer.seek(0)
    buffer.write(_LENGTH.pack(length))
    return buffer


def _write_all(writing: BinaryIO, view: memoryview) -> None:
    with view:
        sent = 0
        while sent < len(view):
            sent += writing.write(view[sent:])


# Frozen dataclasses with slots pickle through Python loops over their fields; these two make up nearly
# every message, and as plain constructor calls they cost a third of that.
def _reduce_piece(piece: Piece) -> tuple[type[Piece], tuple[object, ...]]:
    return Piece, (piece.token, piece.text, piece.drafted, piece.sampled, piece.reasoning, piece.calls)


def _reduce_tokens(tokens: Tokens) -> tuple[type[Tokens], tuple[object, ...]]:
    return Tokens, (tokens.request_id, tokens.pieces)


class _Pickler(pickle.Pickler):
    dispatch_table = MappingProxyType({Piece: _reduce_piece, Tokens: _reduce_tokens})

"""The target's outputs for conversations that are learned from several times, kept on disk: to read them takes a small
part of the time that the target needs.

Layer inputs are written in bfloat16, as f16 does not reach as far as some models' go. Does not use torch.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eaglelocal.core.own_files import append_own, open_own
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.target_capture import Captured, Floats, Read
from eaglelocal.training.training_folder import PARTIAL, STATES

MAX_BYTES = 16 * 2**30
FREE_SHARE = 0.5  # of the disk's free space, at most

Halves = npt.NDArray[np.uint16]  # bfloat16


class KeptStates:
    """Reads outputs by `read` once, and later from files of the folder, as many as it has room for.

    taps           whose inputs are read: with others, a conversation is read again
    reserve_bytes  of the disk that are left for other files
    """

    def __init__(self, folder: Path, read: Read, taps: tuple[int, ...], *, reserve_bytes: int = 0) -> None:
        self._folder, self._read, self._taps = folder, read, taps
        held_bytes = held_in(folder)
        all_bytes = held_bytes + shutil.disk_usage(folder).free
        most_bytes = min(MAX_BYTES, int(all_bytes * FREE_SHARE), all_bytes - reserve_bytes)
        self._room_bytes = most_bytes - held_bytes

    def read(self, one: TrainingConversation) -> Captured:
        """Return the target's output, with layer inputs in the precision in which they are kept."""
        path = self._path(one)
        try:
            with open_own(path) as file, np.load(file) as arrays:
                return Captured(widen(arrays["taps"]), arrays["tokens"], arrays["logits"])
        except Exception:  # it is not there, or damaged: zipfile raises many kinds of errors
            captured = self._read(one)
        halves = halve(captured.taps)
        if self._room_bytes > 0:
            self._keep(path, halves, captured)
        return replace(captured, taps=widen(halves))

    def drop_others(self, conversations: Iterable[TrainingConversation]) -> None:
        """Delete the files of all other conversations: those of an earlier run, or cut to another context."""
        used = set(map(self._path, conversations))
        for path in set(self._folder.glob(f"*{STATES}")) - used:
            size_bytes = path.stat().st_size
            path.unlink()
            self._room_bytes += size_bytes

    def _path(self, one: TrainingConversation) -> Path:
        text = repr((self._taps, one.num_prompt, one.tokens)).encode()
        return self._folder / f"{hashlib.blake2b(text, digest_size=12).hexdigest()}{STATES}"

    def _keep(self, path: Path, taps: Halves, captured: Captured) -> None:
        """Write outputs; where that fails, nothing more is kept."""
        partial, packed = path.with_suffix(PARTIAL), io.BytesIO()
        np.savez(packed, taps=taps, tokens=captured.tokens, logits=captured.logits)
        try:
            partial.unlink(missing_ok=True)
            with append_own(partial) as file:  # readable to its owner alone, like the answers
                file.write(packed.getbuffer())
            self._room_bytes -= packed.tell()
            partial.replace(path)  # not flushed to disk: what a power cut leaves of it is seen to be damaged
        except OSError:
            self._room_bytes = 0
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def held_in(folder: Path) -> int:
    """Return the bytes of all such files of a folder."""
    return sum(path.stat().st_size for path in folder.glob(f"*{STATES}"))


def halve(values: Floats) -> Halves:
    """Round to bfloat16: the upper halves of the numbers."""
    return ((np.ascontiguousarray(values).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def widen(halves: Halves) -> Floats:
    return (halves.astype(np.uint32) << 16).view(np.float32)

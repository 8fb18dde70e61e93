"""The target's outputs for conversations that are learned from several times, kept on disk: to read them takes a small
part of the time that the target needs.

Layer inputs are written in bfloat16, as f16 does not reach as far as some models' go. Does not use torch.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eaglelocal.core.own_files import append_own, open_own
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.target_capture import Captured, Floats
from eaglelocal.training.training_folder import PARTIAL, STATES

MAX_BYTES = 16 * 2**30
FREE_SHARE = 0.5  # of the disk's free space, at most

Read = Callable[[TrainingConversation], Captured]


class KeptStates:
    """Reads outputs by `read` once, and later from files of the folder, as many as it has room for.

    taps  whose inputs are read: with others, a conversation is read again
    """

    def __init__(self, folder: Path, read: Read, taps: tuple[int, ...]) -> None:
        self._folder, self._read, self._taps = folder, read, taps
        held_bytes = sum(path.stat().st_size for path in folder.glob(f"*{STATES}"))
        free_bytes = int(shutil.disk_usage(folder).free * FREE_SHARE)
        self._room_bytes = min(MAX_BYTES, held_bytes + free_bytes) - held_bytes

    def read(self, one: TrainingConversation) -> Captured:
        path = self._path(one)
        try:
            with open_own(path) as file, np.load(file) as arrays:
                return Captured(widen(arrays["taps"]), arrays["tokens"], arrays["logits"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # it is not there, or damaged
            captured = self._read(one)
        if self._room_bytes > 0:
            self._keep(path, captured)
        return captured

    def _path(self, one: TrainingConversation) -> Path:
        text = repr((self._taps, one.num_prompt, one.tokens)).encode()
        return self._folder / f"{hashlib.blake2b(text, digest_size=12).hexdigest()}{STATES}"

    def _keep(self, path: Path, captured: Captured) -> None:
        """Write outputs; where that fails, nothing more is kept."""
        partial, packed = path.with_suffix(PARTIAL), io.BytesIO()
        np.savez(packed, taps=halve(captured.taps), tokens=captured.tokens, logits=captured.logits)
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


def halve(values: Floats) -> npt.NDArray[np.uint16]:
    """Round to bfloat16: the upper halves of the numbers."""
    return ((np.ascontiguousarray(values).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def widen(halves: npt.NDArray[np.uint16]) -> Floats:
    return (halves.astype(np.uint32) << 16).view(np.float32)

"""Conversations on disk (`--cache-disk`): the target's cells, written after answers and read for later prompts.

    text 1   [system prompt, files, question, answer]     written while the engine is idle
             the server is stopped, and started again
    text 2   [system prompt, files, question, answer, question]    read from disk instead of computed

A file holds a description, the tokens, the cells as llama.cpp copies them, and recurrent states. It is used only if its
checksums are right; a damaged one is removed, and the prompt is read as usual. Drafters start anew. One thread writes;
input threads read (engine/input_queue.py). Each model file, cache layout and build has its own folder, so files of
another are never found. The description names the owner, so a prompt reuses only a shared beginning of another owner's
text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.atomic_file import remove_abandoned, writing_atomically
from eaglelocal.core.batch import Bytes
from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import list_own, open_own
from eaglelocal.core.request import NO_NAMES, Request, stored_owner
from eaglelocal.scheduler.host_swap import StoredText, StoredTexts, SwappedText
from eaglelocal.scheduler.slot import Slot

SUFFIX = ".cells"
MAGIC = b"eaglelocal cells 2\n"
TOKEN_BYTES = 4
HEAD = struct.Struct("<II")  # length and checksum of the description
CHECK = struct.Struct("<I")
MAX_DESCRIPTION = 64 * 1024  # bytes
MAX_TOKENS = 2**24
PIECE_BYTES = 4 * 2**20
CLOSE_WAIT_S = 5.0
MAX_PENDING_BYTES = 2**30  # most bytes of cells that wait for the writer, besides the text being written
NO_STATES: Mapping[int, bytearray] = {}

_log = logging.getLogger(__name__)


class StoredCells(NamedTuple):
    """A text with its cells, as they were read."""

    text: StoredText
    cells: Bytes
    states: dict[int, bytearray]  # recurrent ones, by position
    owner: str = ""  # as requests name it
    adapters: AdapterMix = NO_ADAPTERS


class DamagedFileError(Exception):
    """A file that contradicts its description."""


class ConversationFiles:
    """The files of one model, and their index. After an error nothing is written anymore: answers are worth more.

    folder     of one model and layout; beside it lie those of others, and all share the bound
    max_bytes  of all files; the least recently used go first
    owners     owners' names on disk, by owner (see core.plan.Owners)
    adapters   fingerprints of the adapters' files, by id: ids differ between runs
    """

    def __init__(
        self, folder: Path, max_bytes: int, owners: Mapping[str, str] = NO_NAMES, adapters: Sequence[str] = ()
    ) -> None:
        self.index, self.problem = StoredTexts(), ""
        self._folder, self._max_bytes, self._owners, self._adapters = folder, max_bytes, owners, adapters
        self._read: deque[StoredCells] = deque()
        self._writing: list[StoredText] = []  # texts that are not in the index yet
        self._num_pending = 0  # bytes of their cells
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="cells")
        self._scan = self._writer.submit(self._find_files)

    def _find_files(self) -> None:
        remove_abandoned(self._folder)
        for path in sorted(list_own(self._folder, f"*{SUFFIX}"), key=used_at):
            try:
                with open_own(path) as file:
                    text, *_ = read_text(file, path.name)
            except DamagedFileError:
                self._remove(path)
            except OSError:
                continue
            else:
                self.index.add(dataclasses.replace(text, num_bytes=size_of(path)))

    # ---- writing: called from the engine's thread, but for what the writer does
    def _name(self, mix: AdapterMix) -> str:
        return " ".join(sorted(f"{self._adapters[number]}:{scale!r}" for number, scale in mix))

    def wants(self, held: Slot | SwappedText) -> bool:
        """Return whether a text is worth writing, and the writer is not behind."""
        if self.problem or self._num_pending > MAX_PENDING_BYTES:
            return False
        return self.index.wants(self._describe(held), self._writing)

    def _describe(self, held: Slot | SwappedText) -> StoredText:
        owner = stored_owner(held.owner, self._owners)
        return StoredText("", held.tokens, owner=owner, adapters=self._name(held.adapters))

    def write_later(self, held: SwappedText, cells: Bytes, states: Mapping[int, bytearray] = NO_STATES) -> None:
        """Write a text in the background, unless it is larger than all files may be. Its cells must stay unchanged."""
        num_bytes = len(cells) + sum(map(len, states.values())) + TOKEN_BYTES * len(held.tokens)
        if num_bytes > self._max_bytes:
            return
        text = self._describe(held)
        text = dataclasses.replace(
            text, name=file_name(text), tokens=list(held.tokens), places=held.places, num_bytes=num_bytes
        )
        self._writing = [*self._writing, text]
        self._num_pending += num_bytes
        self._writer.submit(self._write, text, cells, dict(states))

    def _write(self, text: StoredText, cells: Bytes, states: Mapping[int, bytearray]) -> None:
        try:
            self._make_room(text.num_bytes)
            write_file(self._folder / text.name, text, cells, states)
        except OSError as error:
            self.problem = error.strerror or type(error).__name__
            _log.warning("conversations are no longer kept on disk: %s", self.problem)
        else:
            for name in self.index.add(text):
                self._remove(self._folder / name)
        finally:
            self._writing = [one for one in self._writing if one is not text]
            self._num_pending -= text.num_bytes

    def _make_room(self, num_bytes: int) -> None:
        """Remove the least recently used files, of all models, until so many bytes fit."""
        files = {path: size_of(path) for path in self._folder.parent.glob(f"*/*{SUFFIX}")}
        total = sum(files.values())
        for path in sorted(files, key=used_at):
            if total + num_bytes <= self._max_bytes:
                break
            self._remove(path)
            total -= files[path]

    def _remove(self, path: Path) -> None:
        if path.parent == self._folder:
            self.index.drop(path.name)
        with suppress(OSError):
            path.unlink(missing_ok=True)

    # ---- reading: called from input threads
    def fetch(self, request: Request, num_held: int, max_bytes: int) -> None:
        """Read the cells that save a prompt most, if memory holds much less of it. Called from an input thread.

        num_held   tokens of the prompt that memory holds
        max_bytes  of cells that memory takes
        """
        self._scan.result()
        named = dataclasses.replace(request, owner=stored_owner(request.owner, self._owners))
        text = self.index.best(named, num_held, max_bytes, self._name(request.adapters))
        if text is None:
            return
        path = self._folder / text.name
        try:
            owner = request.owner
            if text.owner != named.owner:  # if their key is gone, the name stands for them: no other owner has it
                owner = next((one for one, name in self._owners.items() if name == text.owner), text.owner)
            self._read.append(read_file(path)._replace(owner=owner, adapters=request.adapters))
            os.utime(path)
        except DamagedFileError:
            self._remove(path)
        except FileNotFoundError:
            self.index.drop(text.name)
        except (OSError, MemoryError):
            return  # the prompt is read as usual

    def take_read(self) -> Iterator[StoredCells]:
        """Yield the texts that were read since the last call."""
        while self._read:
            yield self._read.popleft()

    @property
    def num_bytes(self) -> int:
        """Bytes of the files of this model."""
        return sum(map(size_of, self._folder.glob(f"*{SUFFIX}")))

    def wait(self) -> None:
        """Wait until everything is written."""
        self._writer.submit(int).result()

    def close(self) -> None:
        """Wait for the write in progress, for some seconds at most."""
        with suppress(TimeoutError):
            self._writer.submit(int).result(CLOSE_WAIT_S)
        self._writer.shutdown(wait=False, cancel_futures=True)


def file_name(text: StoredText) -> str:
    content = to_bytes(text.tokens) + f"{text.adapters}\0{text.owner}".encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest() + SUFFIX


def to_bytes(tokens: Sequence[int]) -> bytes:
    """Return token ids as little-endian int32."""
    return np.array(tokens, "<i4").tobytes()


def used_at(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def size_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


# ---- the file: MAGIC, HEAD, the description (JSON), tokens, cells, states in order of positions, and the checksum of
# the description and all that follows it
def write_file(path: Path, text: StoredText, cells: Bytes, states: Mapping[int, bytearray]) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    parts = [memoryview(to_bytes(text.tokens)), cells.data, *(memoryview(states[at]) for at in sorted(states))]
    described = Description(
        tokens=len(text.tokens),
        tokens_check=zlib.crc32(parts[0]),
        cells=len(cells),
        states=[(at, len(states[at])) for at in sorted(states)],
        places=text.places,
        owner=text.owner,
        adapters=text.adapters,
    )
    encoded = json.dumps(described._asdict()).encode()
    with writing_atomically(path) as file:
        check = zlib.crc32(encoded)
        file.write(MAGIC + HEAD.pack(len(encoded), check) + encoded)
        for part in parts:
            for piece in pieces_of(part):
                check = zlib.crc32(piece, check)
                file.write(piece)
        file.write(CHECK.pack(check))


def pieces_of(part: memoryview) -> Iterator[memoryview]:
    return (part[at : at + PIECE_BYTES] for at in range(0, len(part), PIECE_BYTES))


class Description(NamedTuple):
    """The description of a file. cells: their bytes; states: (position, bytes) of each."""

    tokens: int
    tokens_check: int
    cells: int
    states: list[tuple[int, int]]
    places: tuple[int, ...] | None
    owner: str
    adapters: str


def read_description(file: BinaryIO) -> tuple[Description, int]:
    """Read a file's description; return it and its checksum. Raises DamagedFileError and OSError."""
    if file.read(len(MAGIC)) != MAGIC:
        raise DamagedFileError
    size, check = HEAD.unpack(read_exactly(file, HEAD.size))
    encoded = read_exactly(file, min(size, MAX_DESCRIPTION))
    if zlib.crc32(encoded) != check:
        raise DamagedFileError
    try:
        described: Any = read_object(encoded)
        places, owner, adapters = described["places"], described["owner"], described["adapters"]
        if not isinstance(owner, str) or not isinstance(adapters, str):
            raise DamagedFileError
        return Description(
            tokens=whole(described["tokens"]),
            tokens_check=whole(described["tokens_check"]),
            cells=whole(described["cells"]),
            states=[(whole(at), whole(num_bytes)) for at, num_bytes in described["states"]],
            places=None if places is None else tuple(map(whole, places)),
            owner=owner,
            adapters=adapters,
        ), check
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedFileError from error


def read_text(file: BinaryIO, name: str) -> tuple[StoredText, Description, int]:
    """Read a file's tokens, its description, and the checksum of both. Raises DamagedFileError and OSError."""
    described, check = read_description(file)
    if not 0 < described.tokens <= MAX_TOKENS:
        raise DamagedFileError
    content = read_exactly(file, TOKEN_BYTES * described.tokens)
    if zlib.crc32(content) != described.tokens_check:
        raise DamagedFileError
    tokens = np.frombuffer(content, "<i4").tolist()
    text = StoredText(name, tokens, described.places, owner=described.owner, adapters=described.adapters)
    return text, described, zlib.crc32(content, check)


def whole(value: object) -> int:
    """Return a number that is not negative. Raises DamagedFileError for anything else."""
    if not isinstance(value, int) or value < 0:
        raise DamagedFileError
    return value


def read_exactly(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise DamagedFileError
    return content


def read_file(path: Path) -> StoredCells:
    """Read a file and check all of it. Raises DamagedFileError, OSError and MemoryError."""
    with open_own(path) as file:
        text, described, check = read_text(file, path.name)
        left = os.fstat(file.fileno()).st_size - file.tell() - CHECK.size
        sizes = [described.cells, *(size for _, size in described.states)]
        if sum(sizes) != left:
            raise DamagedFileError
        parts = []
        for size in sizes:
            part, check = read_part(file, size, check)
            parts.append(part)
        if CHECK.pack(check) != read_exactly(file, CHECK.size):
            raise DamagedFileError
    cells, *others = parts
    states = {at: bytearray(part) for (at, _), part in zip(described.states, others, strict=True)}
    return StoredCells(text, cells, states)


def read_part(file: BinaryIO, size: int, check: int) -> tuple[Bytes, int]:
    """Read `size` bytes. Return them, and the checksum of all bytes so far."""
    part: Bytes = np.empty(size, dtype=np.uint8)
    for piece in pieces_of(part.data):
        if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]  # of BufferedReader
            raise DamagedFileError
        check = zlib.crc32(piece, check)
    return part, check

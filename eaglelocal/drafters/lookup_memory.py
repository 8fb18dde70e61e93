"""The texts of each owner on disk, for lookups that outlive the process (`--lookup-memory`).

A file of token ids per owner, and nothing else: no key, no name, no text. Ids are little-endian int32, and BREAK ends
each text. The folder holds the files of one vocabulary; a file's name is a hash of its owner, by the owner's key if
there is one. Ids that the vocabulary lacks end a text too, so that a damaged file can only lead to drafts that the
target rejects.
"""

from __future__ import annotations

import hashlib
import logging
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from eaglelocal.core.atomic_file import PRIVATE, make_folder, write_atomically
from eaglelocal.core.own_files import append_own, open_own
from eaglelocal.core.request import NO_NAMES, stored_owner

SUFFIX = ".tokens"
BREAK = -1
TOKEN_BYTES = 4
MAX_EXCESS = 2  # a file is cut to its newest tokens when it exceeds the limit by this factor

_log = logging.getLogger(__name__)


class LookupMemory:
    """The files of all owners. After an error nothing is written anymore: remembering is worth less than answers.

    max_tokens  kept for each owner
    n_vocab     number of tokens of the vocabulary
    owners      owners' names on disk, by owner (see core.plan.Owners)
    """

    def __init__(self, folder: Path, max_tokens: int, n_vocab: int, owners: Mapping[str, str] = NO_NAMES) -> None:
        self._folder, self.max_tokens, self._n_vocab, self._owners = folder, max_tokens, n_vocab, owners
        self.has_failed = False

    def read(self, owner: str) -> list[array[int]]:
        """Return the owner's texts, the oldest first, with at most `max_tokens` tokens in all; nothing on an error."""
        try:
            return list(split_texts(read_newest(self._path(owner), self.max_tokens), self._n_vocab))
        except OSError:
            return []

    def append(self, owner: str, text: Sequence[int]) -> None:
        """Add a text of the owner."""
        if self.has_failed or not text:
            return
        path = self._path(owner)
        try:
            make_folder(self._folder, PRIVATE)
            with append_own(path) as file:
                num_bytes = os.fstat(file.fileno()).st_size
                file.truncate(num_bytes - num_bytes % TOKEN_BYTES)  # an earlier write may have been cut off
                num_bytes += file.write(to_bytes([*text, BREAK]))
            if num_bytes > MAX_EXCESS * self.max_tokens * TOKEN_BYTES:
                write_atomically(path, to_bytes(read_newest(path, self.max_tokens)))
        except OSError as problem:
            self.has_failed = True
            _log.warning("texts for lookups are no longer kept on disk: %s", problem.strerror or problem)

    def _path(self, owner: str) -> Path:
        name = stored_owner(owner, self._owners)
        return self._folder / f"{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}{SUFFIX}"


def read_newest(path: Path, max_tokens: int) -> array[int]:
    """Return the newest token ids and breaks of a file. Raises OSError."""
    with open_own(path) as file:
        num_whole = os.fstat(file.fileno()).st_size // TOKEN_BYTES
        file.seek(max(num_whole - max_tokens, 0) * TOKEN_BYTES)
        content = file.read(min(num_whole, max_tokens) * TOKEN_BYTES)
    return array("i", np.frombuffer(content, "<i4").astype(np.intc).tobytes())


def split_texts(tokens: array[int], n_vocab: int) -> Iterator[array[int]]:
    ends = [at for at, token in enumerate(tokens) if not 0 <= token < n_vocab]
    first = 0
    for end in [*ends, len(tokens)]:
        if end > first:
            yield tokens[first:end]
        first = end + 1


def to_bytes(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, "<i4").tobytes()

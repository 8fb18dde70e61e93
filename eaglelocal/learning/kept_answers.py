"""The answers that a draft head may learn from, on disk: token ids of prompt and answer, and neither text nor keys.

    FOLDER/OWNER/TIME-PID-COUNT.tokens
    FOLDER/../target       absolute path of the model file that generated them
    FOLDER/../max_age_s    how old they may become, in seconds

OWNER is a hash of the owner; chats with an engine of their own and servers without keys are one. A file holds answers
one after the other and is written by one process, so that a record that was cut off can only be the last one. The files
of all owners are bounded by bytes and by age. When they are full, the oldest file of the owner with the most bytes goes
first: no owner can displace the answers of others.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
import sys
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from eaglelocal.core.atomic_file import PRIVATE, make_absolute, make_folder, write_atomically
from eaglelocal.core.own_files import append_own, hold_lock, list_own, open_own, read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import LOCAL

SUFFIX, LOCK, TARGET, MAX_AGE = ".tokens", ".lock", "target", "max_age_s"
HEAD = struct.Struct("<IIIIdI")  # MAGIC, checksum of all that follows it, prompt tokens, tokens, time, kind
SUMMED = struct.Struct("<IIdI")
MAGIC = 0x4C4B4145
TOKEN_BYTES = 4
FILES = 64  # about this many files reach the limit of bytes
DAY_S = 86_400.0
MIN_FILE_BYTES = 4096
MAX_READ_TOKENS = 1 << 21  # of each owner, the newest


@dataclass(frozen=True)
class KeptAnswer:
    """An answer. `owner`: a hash; `tokens`: prompt and answer; `kind`: index of a kind of text."""

    owner: str
    tokens: array[int]
    num_prompt: int
    kept_at: float  # seconds since 1970
    kind: int = 0

    @cached_property
    def key(self) -> str:
        """A hash of prompt and answer."""
        return hashlib.blake2b(to_bytes(self.tokens), digest_size=12).hexdigest()

    @cached_property
    def prompt_key(self) -> str:
        """A hash of the prompt: equal for all answers to a question."""
        return hashlib.blake2b(to_bytes(self.tokens[: self.num_prompt]), digest_size=12).hexdigest()

    @property
    def num_answer_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True, slots=True)
class KeptSize:
    num_answers: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _AnswerFile:
    path: Path
    owner: str
    began_at: float
    num_bytes: int


class KeptAnswers:
    """The answers in one folder, which need not exist. Several processes may use it at once.

    max_bytes  of all files together
    max_age_s  an answer is dropped before it is older
    target     file of the model that generates the answers; it and `max_age_s` are noted beside them
    """

    def __init__(self, folder: Path, *, max_bytes: int, max_age_s: float, target: Path | None = None) -> None:
        self.folder, self._max_bytes, self._max_age_s, self._target = folder, max_bytes, max_age_s, target
        self._file_bytes = max(max_bytes // FILES, MIN_FILE_BYTES)
        self._file_age_s = min(DAY_S, max_age_s / 2)
        self._own: dict[str, Path] = {}  # the file of each owner that this process appends to
        self._count = itertools.count()
        self._counted: dict[Path, tuple[int, int]] = {}  # bytes and answers of each file, when they were counted

    def append(self, owner: str, answer: KeptAnswer) -> None:
        """Keep an answer under the hash of its owner's name; `answer.owner` is not used.

        Raises OSError, and leaves the answers as they were, if the disk is full or cannot be written.
        """
        record = encode(answer)
        if len(record) > self._max_bytes:
            return
        digest = hash_owner(owner)
        with hold_lock(self.folder / LOCK):
            files = self._prune(answer.kept_at, room=len(record))
            path = self._choose_file(digest, answer.kept_at, files)
            make_folder(path.parent, PRIVATE)
            if self._target is not None and not path.exists():
                note_target(self.folder.parent, self._target, self._max_age_s)
            append_whole(path, record)

    def prune(self, now: float) -> None:
        """Delete answers that are too old or exceed the size limit. Raises OSError."""
        if self.folder.is_dir():
            with hold_lock(self.folder / LOCK):
                self._prune(now, room=0)

    def read(self, *, max_tokens: int = MAX_READ_TOKENS) -> list[KeptAnswer]:
        """Return each owner's newest answers, of about `max_tokens` tokens at most, all by time. Raises OSError."""
        found: list[KeptAnswer] = []
        left: dict[str, int] = {}
        for file in sorted(self._list_files(), key=lambda each: each.began_at, reverse=True):
            if left.setdefault(file.owner, max_tokens) > 0:
                answers = read_file(file.path, file.owner)
                left[file.owner] -= sum(len(answer.tokens) for answer in answers)
                found += answers
        return sorted(found, key=lambda answer: answer.kept_at)

    def size(self) -> KeptSize:
        """Return how much is kept. Only files that changed since the last call are counted again."""
        files = self._list_files()
        counted = {file.path: self._count_answers(file) for file in files}
        self._counted = counted
        return KeptSize(sum(num for _, num in counted.values()), sum(file.num_bytes for file in files))

    def _count_answers(self, file: _AnswerFile) -> tuple[int, int]:
        known = self._counted.get(file.path)
        return known if known and known[0] == file.num_bytes else (file.num_bytes, count_records(file.path))

    def _choose_file(self, owner: str, now: float, files: list[_AnswerFile]) -> Path:
        """Return this process's file of the owner: the one in use, or a new one if that is gone, full or old."""
        own = next((file for file in files if file.path == self._own.get(owner)), None)
        if own and own.num_bytes < self._file_bytes and 0 <= now - own.began_at < self._file_age_s:
            return own.path
        name = f"{int(now * 1000):014d}-{os.getpid()}-{next(self._count)}-{os.urandom(3).hex()}{SUFFIX}"
        self._own[owner] = path = self.folder / owner / name
        return path

    def _prune(self, now: float, *, room: int) -> list[_AnswerFile]:
        """Delete old files, and more until num_bytes fit; return the remaining files."""
        files = []
        for file in self._list_files():
            if now - file.began_at >= self._max_age_s:
                file.path.unlink(missing_ok=True)
            else:
                files.append(file)
        while sum(file.num_bytes for file in files) + room > self._max_bytes and files:
            by_owner: Counter[str] = Counter()
            for file in files:
                by_owner[file.owner] += file.num_bytes
            largest = max(by_owner, key=lambda owner: (by_owner[owner], owner))
            oldest = min((file for file in files if file.owner == largest), key=lambda file: file.began_at)
            oldest.path.unlink(missing_ok=True)
            files.remove(oldest)
        return files

    def _list_files(self) -> list[_AnswerFile]:
        found = []
        for path in list_own(self.folder, f"*/*{SUFFIX}"):
            with suppress(OSError, ValueError):  # deleted meanwhile, or not ours
                began_at = int(path.name.partition("-")[0]) / 1000
                found.append(_AnswerFile(path, path.parent.name, began_at, path.stat().st_size))
        return found


def hash_owner(owner: str) -> str:
    """Return the name of an owner's folder; requests without an owner belong to this machine's user."""
    return hashlib.blake2b((owner or LOCAL).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def note_target(folder: Path, target: Path, max_age_s: float) -> None:
    """Record beside a folder which model file generated its answers, and their maximum age. Raises OSError."""
    path = str(make_absolute(target))
    if read_target(folder) != path:
        write_atomically(folder / TARGET, path)
    if read_max_age_s(folder) != max_age_s:
        write_atomically(folder / MAX_AGE, str(max_age_s))


def read_target(folder: Path) -> str:
    """Return the path of the model file that generated the answers in a folder; "" if it was not recorded."""
    try:
        return read_own(folder / TARGET).decode(errors="replace")
    except OSError:
        return ""


def read_max_age_s(folder: Path) -> float | None:
    """Return the maximum age of the answers in a folder; None if it was not recorded."""
    try:
        max_age_s = float(read_own(folder / MAX_AGE))
    except (OSError, ValueError):
        return None
    return max_age_s if max_age_s > 0 else None


def prune_noted(folder: Path, now: float) -> None:
    """Delete a folder's answers that are older than the age recorded beside them, if any. Raises OSError."""
    max_age_s = read_max_age_s(folder.parent)
    if max_age_s is not None:
        KeptAnswers(folder, max_bytes=sys.maxsize, max_age_s=max_age_s).prune(now)


def append_whole(path: Path, record: bytes) -> None:
    """Append a record, or nothing. Raises OSError."""
    with append_own(path) as file:
        handle = file.fileno()
        size = os.fstat(handle).st_size
        try:
            if os.write(handle, record) < len(record):
                raise OSError(28, os.strerror(28), str(path))
        except OSError:
            with suppress(OSError):
                os.ftruncate(handle, size)
            raise


def encode(answer: KeptAnswer) -> bytes:
    """Return the record of an answer."""
    body = to_bytes(answer.tokens)
    rest = SUMMED.pack(answer.num_prompt, len(answer.tokens), answer.kept_at, answer.kind)
    return HEAD.pack(MAGIC, zlib.crc32(rest + body), *SUMMED.unpack(rest)) + body


def read_file(path: Path, owner: str) -> list[KeptAnswer]:
    """Return the answers of a file up to the first damaged record; none if it is gone."""
    try:
        with open_own(path) as file:
            return list(_read_records(file, owner))
    except FileNotFoundError:
        return []


def _read_records(file: BinaryIO, owner: str) -> Iterator[KeptAnswer]:
    num_bytes = os.fstat(file.fileno()).st_size
    while len(head := file.read(HEAD.size)) == HEAD.size:
        magic, checksum, num_prompt, num_tokens, kept_at, kind = HEAD.unpack(head)
        is_ours = magic == MAGIC and num_tokens * TOKEN_BYTES <= num_bytes
        body = file.read(num_tokens * TOKEN_BYTES) if is_ours else b""
        is_ours = is_ours and zlib.crc32(head[HEAD.size - SUMMED.size :] + body) == checksum
        if not is_ours or not 0 < num_prompt <= num_tokens:
            return
        yield KeptAnswer(owner, array("i", struct.unpack(f"<{num_tokens}i", body)), num_prompt, kept_at, kind)


def count_records(path: Path) -> int:
    """Return the number of records by their heads alone; 0 for a file that cannot be read."""
    num = 0
    with suppress(OSError), open_own(path) as file:
        size = os.fstat(file.fileno()).st_size
        while len(head := file.read(HEAD.size)) == HEAD.size:
            magic, _, _, num_tokens, _, _ = HEAD.unpack(head)
            if magic != MAGIC or file.seek(num_tokens * TOKEN_BYTES, os.SEEK_CUR) > size:
                break
            num += 1
    return num


def to_bytes(tokens: array[int]) -> bytes:
    """Return token ids as little-endian int32."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def make_answer(tokens: tuple[int, ...], num_prompt: int, *, kind: int = 0, now: float | None = None) -> KeptAnswer:
    """Return an answer to append."""
    return KeptAnswer("", array("i", tokens), num_prompt, time.time() if now is None else now, kind)


# ---- text kinds: the kinds of text by which learning is judged, guessed by simple rules from an answer's beginning
KINDS = ("prose", "code", "data", "other letters")  # an index is stored: append only
PROSE, CODE, DATA, OTHER = range(len(KINDS))
MAX_CHARS = 2000  # of an answer that are looked at
CODE_MARKS = ("```", "def ", "return ", "import ", "#include", "function ", "const ", "SELECT ", "};", ");\n", "->")
MIN_CODE_MARKS = 2
MIN_OTHER_SHARE = 0.04  # of the letters


def name_kind(kind: int) -> str:
    """Return the name of a kind, which a later version of this program may have stored."""
    return KINDS[kind] if kind < len(KINDS) else "other"


def guess_kind(text: str, *, has_calls: bool = False) -> int:
    """Return the kind of an answer; an answer that calls tools counts as data.

    >>> [KINDS[guess_kind(text)] for text in ("Paris.", '{"city": "Paris"}', "```python\\nimport os", "Schöne Grüße")]
    ['prose', 'data', 'code', 'other letters']
    """
    start = text[:MAX_CHARS].lstrip()
    if has_calls or start.startswith(("{", "[", "```json")):
        return DATA
    if sum(mark in start for mark in CODE_MARKS) >= MIN_CODE_MARKS:
        return CODE
    letters = [char for char in start if char.isalpha()]
    num_other = sum(not char.isascii() for char in letters)
    return OTHER if letters and num_other >= MIN_OTHER_SHARE * len(letters) else PROSE

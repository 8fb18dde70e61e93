"""Training data of a draft head: conversations as token ids, whose last message the head's own target has generated.

The target answers through a client, several requests at once, with the sampling that users will use. Each answer is
written to disk when it ends, so that a resumed run asks no question twice. Does not use torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import FileIO
from itertools import takewhile
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, cast

from eaglelocal import locations
from eaglelocal.client.client import Client
from eaglelocal.core.atomic_file import PRIVATE, make_folder
from eaglelocal.core.events import Failed, Finished, RequestEvent, Tokens
from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import append_own, read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest
from eaglelocal.errors import EagleLocalError, RequestError, ResourceError

MIN_ANSWER_TOKENS = 4  # a shorter answer holds no draft worth learning


@dataclass(frozen=True, slots=True)
class TrainingConversation:
    """A conversation in which the target generated `tokens[num_prompt:]`.

    key      of the question, by `question_key`
    num_own  tokens at the end of the prompt that the target generated too, as it asked itself
    """

    key: str
    tokens: tuple[int, ...]
    num_prompt: int
    num_own: int = 0

    @property
    def num_answer_tokens(self) -> int:
        return max(len(self.tokens) - self.num_prompt, 0)

    @property
    def is_short(self) -> bool:
        return self.num_answer_tokens < MIN_ANSWER_TOKENS

    @property
    def num_learned(self) -> int:
        """The tokens to learn from: none if the answer is too short."""
        return 0 if self.is_short else self.num_answer_tokens + self.num_own

    @property
    def entry(self) -> dict[str, object]:
        """The conversation as it is written, see `read_conversations`."""
        own = {"num_own": self.num_own} if self.num_own else {}
        return {"key": self.key, "num_prompt": self.num_prompt, **own, "tokens": self.tokens}

    @property
    def whole(self) -> TrainingConversation:
        """The conversation whose answer begins where the target's own question does."""
        return replace(self, num_prompt=self.num_prompt - self.num_own, num_own=0)

    def cut(self, max_tokens: int | None) -> TrainingConversation:
        return self if max_tokens is None else replace(self, tokens=self.tokens[:max_tokens])


@dataclass(frozen=True, slots=True)
class Collected:
    """The conversations to learn from, and the numbers of those left out."""

    conversations: tuple[TrainingConversation, ...]
    num_refused: int  # refused requests, for example too long for the context
    num_short: int  # answers too short to learn from

    @property
    def num_tokens(self) -> int:
        """The tokens to learn from."""
        return sum([one.num_learned for one in self.conversations])


def question_key(request: ChatRequest) -> str:
    """Return a key that is the same for equal questions, in whatever order they are asked."""
    question = repr((request.messages, request.text, request.tokens))
    return hashlib.blake2b(question.encode(), digest_size=12).hexdigest()


def read_conversations(path: Path) -> dict[str, TrainingConversation]:
    """Read a file's conversations, by key, and skip incomplete or damaged lines. Raises ResourceError."""
    found = {}
    for line in read_lines(path):
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            entry = read_object(line)
            conversation = TrainingConversation(
                str(entry["key"]),
                tuple(map(int, cast("list[int]", entry["tokens"]))),
                int(cast(int, entry["num_prompt"])),
                int(cast(int, entry.get("num_own", 0))),
            )
            if 0 <= conversation.num_own < conversation.num_prompt <= len(conversation.tokens):
                found[conversation.key] = conversation
    return found


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, none if there is none. Raises ResourceError."""
    try:
        return read_own(path, path.stat().st_size).decode(errors="replace").split("\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}", hint=f"--work {suggest_folder()}") from error


class AnswerPieces(NamedTuple):
    """An answer: ids and texts of its tokens, without reasoning if the request splits it; prompt and answer as ids."""

    pieces: tuple[tuple[int, str], ...]
    tokens: tuple[int, ...]
    num_prompt: int

    def text(self, end: int | None = None) -> str:
        """Return the text, at most to a token `end` that has none: a control token."""
        before = takewhile(lambda piece: piece != (end, ""), self.pieces)
        return "".join([text for _, text in before])


def generate_texts(
    client: Client, next_request: Callable[[], ChatRequest | None], *, concurrency: int
) -> Iterator[tuple[str, AnswerPieces | None]]:
    """Yield ids of requests and their answers as they end; None for one that was refused. Raises all other failures.

    next_request  returns None if there is none for now; what was yielded may bring some
    """
    ended: SimpleQueue[tuple[str, AnswerPieces | EagleLocalError]] = SimpleQueue()
    running = 0
    while True:
        while running < concurrency and (request := next_request()) is not None:
            client.submit(replace(request, tells_tokens=True), partial(_collect, request.id, ended, []))
            running += 1
        if not running:
            return
        key, outcome = ended.get()
        running -= 1
        if isinstance(outcome, RequestError):
            yield key, None
        elif isinstance(outcome, EagleLocalError):
            raise outcome
        else:
            yield key, outcome


def _collect(
    key: str,
    ended: SimpleQueue[tuple[str, AnswerPieces | EagleLocalError]],
    pieces: list[tuple[int, str]],
    event: RequestEvent,
) -> None:
    """Collect the texts of a request, and put its end into the queue. Called on the client's thread."""
    if isinstance(event, Tokens):
        pieces += [(piece.token, piece.text) for piece in event.pieces]
    elif isinstance(event, Finished):
        every = (*pieces, (-1, event.text))
        ended.put((key, AnswerPieces(every, event.tokens, len(event.tokens) - event.completion_tokens)))
    elif isinstance(event, Failed):
        ended.put((key, event.error))


def open_to_append(path: Path) -> FileIO:
    """Open the file to append to. Only its owner may read it: answers are private."""
    try:
        make_folder(path.parent, PRIVATE)
        return cast("FileIO", append_own(path).detach())
    except OSError as error:
        raise make_write_error(path, error) from error


def append_line(file: FileIO, path: Path, entry: Mapping[str, object]) -> None:
    """Write an entry on a line of its own, even after a crash. Unbuffered, so that closing cannot fail."""
    try:
        encoded = f"\n{json.dumps(entry)}\n".encode()
        if file.write(encoded) < len(encoded):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise make_write_error(path, error) from error


def suggest_folder() -> str:
    """Return a folder for --work that the user can certainly write to, for a hint."""
    return locations.suggest_path("eaglelocal-training")


def make_write_error(path: Path, error: OSError) -> ResourceError:
    return ResourceError(
        f"cannot write {path}: {error.strerror}", hint=f"free some space, or `--work {suggest_folder()}`"
    )

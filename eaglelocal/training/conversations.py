"""What a head learns from: conversations as token ids, the last part of each said by the very target it will draft for.

The target is asked through a client, several answers at once, drawn as people will have it draw them; each answer is
on disk as soon as it ends, so that a run that was stopped asks no question twice. Knows files and clients; knows
nothing of torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import cast

from eaglelocal.client.port import Client
from eaglelocal.core.events import Failed, Finished, Prompted, RequestEvent, Tokens
from eaglelocal.core.folders import PRIVATE, make_folder
from eaglelocal.core.json_text import read_object
from eaglelocal.core.request import ChatRequest
from eaglelocal.errors import EagleLocalError, RequestError, ResourceError

LEAST_ANSWER = 4  # tokens; what is shorter holds no draft worth learning

OpenClient = Callable[[], AbstractContextManager[Client]]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The target said `tokens[num_prompt:]`."""

    key: str  # of the question
    tokens: tuple[int, ...]
    num_prompt: int

    @property
    def num_said(self) -> int:
        return max(len(self.tokens) - self.num_prompt, 0)

    @property
    def is_short(self) -> bool:
        return self.num_said < LEAST_ANSWER

    def cut(self, max_tokens: int) -> Conversation:
        return replace(self, tokens=self.tokens[:max_tokens])


@dataclass(frozen=True, slots=True)
class Collected:
    conversations: tuple[Conversation, ...]
    num_refused: int  # questions that could not be asked, as those that do not fit the context
    num_short: int  # answers of which nothing can be learned


def key_of(request: ChatRequest) -> str:
    """The same for equal questions, in whatever order they are asked."""
    asked = repr((request.messages, request.text, request.tokens))
    return hashlib.blake2b(asked.encode(), digest_size=12).hexdigest()


def read(path: Path) -> dict[str, Conversation]:
    """By key. A line that was cut short by a crash, or is damaged, is passed over. Raises ResourceError."""
    found = {}
    for line in _lines(path):
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            entry = read_object(line)
            said = Conversation(
                str(entry["key"]),
                tuple(map(int, cast("list[int]", entry["tokens"]))),
                int(cast(int, entry["num_prompt"])),
            )
            if 0 < said.num_prompt <= len(said.tokens):
                found[said.key] = said
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}", hint="`--work` elsewhere") from error


def collect(
    requests: Sequence[ChatRequest],
    path: Path,
    open_client: OpenClient,
    *,
    at_once: int,
    most_tokens: int,
    on_tokens: Callable[[int], None],
) -> Collected:
    """What `path` knows of these questions, then, until there are `most_tokens` answer tokens, what the target says.

    In the order of asking, whichever answer ended first: the next run finds the same. The client is opened only if
    something is to be asked. Raises what ends the engine, and ResourceError where answers cannot be kept.
    """
    known, asked = read(path), {key_of(request): request for request in requests}
    unknown = [replace(request, id=key) for key, request in asked.items() if key not in known]
    num_tokens, num_refused = sum(known[key].num_said for key in asked if key in known), 0
    on_tokens(num_tokens)
    if num_tokens < most_tokens and unknown:
        with _appended(path) as file, open_client() as client:
            for heard in answers(client, unknown, at_once=at_once):
                if heard is None:
                    num_refused += 1
                    continue
                _append(file, path, heard)
                known[heard.key] = heard
                num_tokens += heard.num_said
                on_tokens(num_tokens)
                if num_tokens >= most_tokens:
                    break
    found = list(_up_to((known[key] for key in asked if key in known), most_tokens))
    told = tuple(one for one in found if not one.is_short)
    return Collected(told, num_refused, len(found) - len(told))


def answers(client: Client, requests: Iterable[ChatRequest], *, at_once: int) -> Iterator[Conversation | None]:
    """As they end; None for a question that was refused. Raises every other failure."""
    ended: SimpleQueue[Conversation | EagleLocalError] = SimpleQueue()
    waiting, running = iter(requests), 0
    while True:
        for request in islice(waiting, at_once - running):
            client.submit(replace(request, tells_prompt=True), _Listener(request.id, ended))
            running += 1
        if not running:
            return
        heard = ended.get()
        running -= 1
        if isinstance(heard, RequestError):
            yield None
        elif isinstance(heard, EagleLocalError):
            raise heard
        else:
            yield heard


class _Listener:
    """Puts together what is told of one request. Called on the client's thread."""

    def __init__(self, key: str, ended: SimpleQueue[Conversation | EagleLocalError]) -> None:
        self._key, self._ended = key, ended
        self._prompt: tuple[int, ...] = ()
        self._said: list[int] = []

    def __call__(self, event: RequestEvent) -> None:
        match event:
            case Prompted():
                self._prompt = event.tokens
            case Tokens():
                self._said += [piece.token for piece in event.pieces]
            case Finished():
                self._ended.put(Conversation(self._key, (*self._prompt, *self._said), len(self._prompt)))
            case Failed():
                self._ended.put(event.error)


def _up_to(conversations: Iterable[Conversation], most_tokens: int) -> Iterator[Conversation]:
    num_tokens = 0
    for one in conversations:
        if num_tokens >= most_tokens:
            return
        num_tokens += one.num_said
        yield one


def _appended(path: Path) -> FileIO:
    """For the owner's eyes alone: answers are as private as what was asked."""
    try:
        make_folder(path.parent, PRIVATE)
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0)
    except OSError as error:
        raise unwritable(path, error) from error


def _append(file: FileIO, path: Path, said: Conversation) -> None:
    """On a line of its own, whatever a crash left before it. No buffer is there to fail once more at its end."""
    line = json.dumps({"key": said.key, "num_prompt": said.num_prompt, "tokens": said.tokens})
    try:
        told = f"\n{line}\n".encode()
        if file.write(told) < len(told):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> ResourceError:
    return ResourceError(f"cannot write {path}: {error.strerror}", hint="free some space, or `--work` elsewhere")

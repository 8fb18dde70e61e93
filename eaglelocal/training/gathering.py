"""Gathering of training data: the target answers the questions it is given, and then its own, several at once.

Each question and answer is written to disk when it ends, so that a resumed run asks nothing twice. Does not use torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from eaglelocal.client.client import Client
from eaglelocal.core.request import ChatRequest
from eaglelocal.training.conversations import (
    AnswerPieces,
    Collected,
    TrainingConversation,
    append_line,
    generate_texts,
    open_to_append,
    question_key,
    read_conversations,
)
from eaglelocal.training.self_questions import SelfQuestions, is_own

OpenClient = Callable[[], AbstractContextManager[Client]]


def gather_answers(
    requests: Sequence[ChatRequest],
    path: Path,
    open_client: OpenClient,
    *,
    concurrency: int,
    max_answer_tokens: int,
    on_tokens: Callable[[int], None],
    own: SelfQuestions | None = None,
    least: int = 0,
) -> Collected:
    """Return the answers to these questions in `path`, and generate more until they have `max_answer_tokens` tokens.

    They are in the order of the file, so that later ones follow those of an earlier run. The client is opened only if
    answers are missing. Raises the engine's errors, and ResourceError if answers cannot be written.

    own    the target goes on with its own questions, once the requests are answered
    least  answers to learn from, even if they have more tokens
    """
    gathering = _Gathering(requests, own, read_conversations(path), max_answer_tokens, least)
    on_tokens(gathering.num_tokens)
    if not gathering.is_enough and (gathering.waiting or own):
        with open_to_append(path) as file, open_client() as client:
            if own:
                own.open(client)
            for key, said in generate_texts(client, gathering.next_request, concurrency=concurrency):
                if (found := gathering.take(key, said)) is not None:
                    append_line(file, path, found.entry)
                    on_tokens(gathering.num_tokens)
                if gathering.is_enough:
                    break
    return gathering.collected()


class _Gathering:
    """The questions that are to be answered, and the answers so far."""

    def __init__(
        self,
        requests: Sequence[ChatRequest],
        own: SelfQuestions | None,
        known: dict[str, TrainingConversation],
        max_answer_tokens: int,
        least: int,
    ) -> None:
        self._own, self._known, self._max_answer_tokens, self._least = own, known, max_answer_tokens, least
        given = [replace(request, id=question_key(request)) for request in requests]
        asked = {request.id: request for request in (*given, *(own.requests if own else ()))}
        self._keys = set(asked)
        self.waiting: deque[ChatRequest] = deque(request for key, request in asked.items() if key not in known)
        done = [known[key] for key in asked if key in known]
        self.num_tokens = sum(one.num_learned for one in done)
        self._num_useful, self._num_refused = sum(not one.is_short for one in done), 0

    @property
    def is_enough(self) -> bool:
        return self.num_tokens >= self._max_answer_tokens and self._num_useful >= self._least

    def next_request(self) -> ChatRequest | None:
        if self.waiting:
            return self.waiting.popleft()
        return self._own.begin() if self._own and self._own.has_more else None

    def take(self, key: str, said: AnswerPieces | None) -> TrainingConversation | None:
        """Take the outcome of a request. Return a conversation to learn from, if it is one."""
        if self._own and is_own(key):
            following = self._own.go_on(key, said)
            if following is not None:
                self._keys.add(following.id)
            if following is not None and following.id not in self._known:
                self.waiting.appendleft(following)
            return None
        if said is None:
            self._num_refused += 1
            return None
        found = self._known[key] = TrainingConversation(key, said.tokens, said.num_prompt)
        self.num_tokens += found.num_learned
        self._num_useful += not found.is_short
        return found

    def collected(self) -> Collected:
        """Return the first answers that are enough, in the order in which they came."""
        found, num_tokens, useful = 0, 0, list[TrainingConversation]()
        for one in (one for key, one in self._known.items() if key in self._keys):
            if num_tokens >= self._max_answer_tokens and len(useful) >= self._least:
                break
            found, num_tokens = found + 1, num_tokens + one.num_learned
            useful += [] if one.is_short else [one]
        return Collected(tuple(useful), self._num_refused, found - len(useful))

"""Gathering of training data: the target answers the questions it is given and its own, several at once.

Each question and answer is written to disk when it ends, so that a resumed run asks nothing twice. Does not use torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from eaglelocal.client.client import Client
from eaglelocal.core.records import dataclass
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

MAX_USELESS = 256  # requests in a row that bring nothing to learn from: then the target has no more questions

OpenClient = Callable[[], AbstractContextManager[Client]]


@dataclass(frozen=True, slots=True)
class AnswerGoal:
    """An amount of answers to gather.

    num_tokens         to learn from: of answers, and of questions that the target asks itself
    min_conversations  to learn from, even if fewer have enough tokens
    ctx                to which conversations are cut; None: they are whole
    """

    num_tokens: int
    min_conversations: int = 0
    ctx: int | None = None

    def is_reached(self, num_tokens: int, num_conversations: int) -> bool:
        return num_tokens >= self.num_tokens and num_conversations >= self.min_conversations


def gather_answers(
    requests: Sequence[ChatRequest],
    path: Path,
    open_client: OpenClient,
    *,
    concurrency: int,
    goal: AnswerGoal,
    on_progress: Callable[[int, int], None],
    own: SelfQuestions | None = None,
) -> Collected:
    """Return the answers to these questions in `path`, and generate more until they reach the goal.

    They are in the order of the file, so that later ones follow those of an earlier run. The client is opened only if
    answers are missing. Raises the engine's errors, and ResourceError if answers cannot be written.

    on_progress  receives the numbers of tokens and of conversations to learn from, so far
    own          the target answers its own questions too
    """
    gathering = _Gathering(requests, own, read_conversations(path), goal)
    on_progress(gathering.num_tokens, gathering.num_useful)
    if not gathering.is_enough and gathering.has_more:
        with open_to_append(path) as file, open_client() as client:
            if own:
                own.open(client)
            for key, said in generate_texts(client, gathering.next_request, concurrency=concurrency):
                if (found := gathering.receive(key, said)) is not None:
                    append_line(file, path, found.entry)
                    on_progress(gathering.num_tokens, gathering.num_useful)
                if gathering.is_enough:
                    break
    return gathering.result()


class _Gathering:
    """The questions that are to be answered, and the answers so far."""

    def __init__(
        self,
        requests: Sequence[ChatRequest],
        own: SelfQuestions | None,
        known: dict[str, TrainingConversation],
        goal: AnswerGoal,
    ) -> None:
        self._own, self._goal, self._known = own, goal, {key: one.cut(goal.ctx) for key, one in known.items()}
        given = [replace(request, id=question_key(request)) for request in requests]
        asked = {request.id: request for request in (*given, *(own.requests if own else ()))}
        self._keys = set(asked)  # of questions whose answers count
        self._waiting = deque[ChatRequest](request for key, request in asked.items() if key not in known)
        self._following = deque[ChatRequest]()  # requests that go on with the target's own conversations
        self._num_own_tokens = 0  # of the target's own conversations
        self.num_tokens = self.num_useful = self._num_refused = self._num_useless = 0
        for key in self._keys & self._known.keys():
            self._count(self._known[key])

    def _count(self, one: TrainingConversation) -> None:
        self.num_tokens += one.num_learned
        self._num_own_tokens += one.num_learned if one.num_own else 0
        self.num_useful += not one.is_short

    @property
    def is_enough(self) -> bool:
        return self._goal.is_reached(self.num_tokens, self.num_useful)

    @property
    def has_more(self) -> bool:
        return bool(self._waiting) or self._asks_itself

    @property
    def _asks_itself(self) -> bool:
        return self._own is not None and self._num_useless < MAX_USELESS

    def next_request(self) -> ChatRequest | None:
        """Return the next request, so that half of the tokens are of given questions, and half of the target's own."""
        if self._following:
            return self._following.popleft()
        has_few_own = self._num_own_tokens < self.num_tokens / 2
        if self._waiting and not (has_few_own and self._asks_itself):
            return self._waiting.popleft()
        return self._own.begin() if self._own and self._asks_itself else None

    def receive(self, key: str, said: AnswerPieces | None) -> TrainingConversation | None:
        """Take the outcome of a request. Return a conversation to write, if it is one."""
        self._num_useless += 1
        if self._own and is_own(key):
            self._go_on(self._own, key, said)
            return None
        if said is None:
            self._num_refused += 1
            return None
        num_own = self._own.count_own(key, said.num_prompt) if self._own else 0
        found = TrainingConversation(key, said.tokens, said.num_prompt, num_own)
        self._known[key] = found.cut(self._goal.ctx)
        self._count(self._known[key])
        self._num_useless = self._num_useless if self._known[key].is_short else 0
        return found

    def _go_on(self, own: SelfQuestions, key: str, said: AnswerPieces | None) -> None:
        following = own.go_on(key, said)
        if following is None:
            return
        if is_own(following.id) or following.id not in self._known:
            self._following.append(following)
        elif following.id not in self._keys:
            self._count(self._known[following.id])
        if not is_own(following.id):
            self._keys.add(following.id)

    def result(self) -> Collected:
        """Return the first answers that are enough, in the order in which they came."""
        found, num_tokens, useful = 0, 0, list[TrainingConversation]()
        for one in (one for key, one in self._known.items() if key in self._keys):
            if self._goal.is_reached(num_tokens, len(useful)):
                break
            found, num_tokens = found + 1, num_tokens + one.num_learned
            useful += [] if one.is_short else [one]
        return Collected(tuple(useful), self._num_refused, found - len(useful))

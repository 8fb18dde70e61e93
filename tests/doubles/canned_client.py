"""A client that reports tokens: each request has its answer or its failure, and later ones may be answered first.

Fails loudly if it gets more requests at once than it was set up for, or any after its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from eaglelocal.client.client import Client, OnEvent
from eaglelocal.core.events import EngineInfo, EngineSnapshot, Failed, Finished, Started, TextPiece, Tokens
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EagleLocalError

Answer = tuple[tuple[int, ...], tuple[int, ...]] | EagleLocalError  # prompt and what was said


@dataclass(slots=True)
class CannedClient:
    """A client that answers the newest request when `block_size` wait, and all of them after `num_questions`."""

    answer: Callable[[ChatRequest], Answer]
    block_size: int
    num_questions: int
    asked: list[ChatRequest] = field(default_factory=list)
    state: str = "ready"
    _waiting: list[tuple[ChatRequest, OnEvent]] = field(default_factory=list)

    def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
        assert self.state == "ready", "a closed client was asked"
        assert request.tells_tokens
        assert request.id not in [other.id for other in self.asked]
        self.asked.append(request)
        self._waiting.append((request, on_event))
        assert len(self._waiting) <= self.block_size
        is_last = len(self.asked) == self.num_questions
        while self._waiting and (is_last or len(self._waiting) == self.block_size):
            self._emit(*self._waiting.pop())

    def _emit(self, request: ChatRequest, on_event: OnEvent) -> None:
        answer = self.answer(request)
        if isinstance(answer, EagleLocalError):
            on_event(Failed(request.id, answer))
            return
        prompt, said = answer
        on_event(Started(request.id, len(prompt), 0))
        for first in range(0, len(said), 2):  # a step may tell several
            on_event(Tokens(request.id, tuple(TextPiece(token, "?", True) for token in said[first : first + 2])))
        tokens = (*prompt, *said)
        on_event(Finished(request.id, "stop", "", len(prompt), len(said), Timings(), SpeculationStats(), tokens=tokens))

    def cancel(self, request_id: str) -> None:
        raise AssertionError("nobody cancels")

    def start(self) -> EngineInfo:
        raise AssertionError("it runs")

    def snapshot(self) -> EngineSnapshot:
        raise AssertionError("nobody looks")

    def close(self) -> None:
        self.state = "closed"

    @contextmanager
    def opened(self) -> Iterator[Client]:
        try:
            yield self
        finally:
            self.close()

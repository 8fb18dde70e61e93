"""A client for measurements: a function determines its answers, and how fast it says it was.

Answers at once, on the calling thread. Keeps its requests and the cancelled ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eaglelocal.client.client import OnEvent
from eaglelocal.core.events import EngineInfo, EngineSnapshot, Failed, Finished, Started, TextPiece, Tokens
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import Sampled, TokenLogprob
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EagleLocalError


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """An answer. `gaps` gives the logit gap to the second best token, by index; elsewhere it is wide."""

    tokens: Sequence[int]
    decode_s: float = 1.0
    prompt_tokens: int = 10
    cached_tokens: int = 0
    gaps: dict[int, tuple[int, float]] = field(default_factory=dict)  # index -> (second best, gap)
    fails: EagleLocalError | None = None


class UncontrolledClient:
    """The calls of a client that a measurement does not make."""

    def start(self) -> EngineInfo:
        raise AssertionError("a measurement does not start its clients")

    def snapshot(self) -> EngineSnapshot:
        raise AssertionError("a measurement needs no snapshot")

    def close(self) -> None:
        raise AssertionError("a measurement does not close its clients")


@dataclass(slots=True)
class TimedClient(UncontrolledClient):
    answer: Callable[[ChatRequest], TimedAnswer]
    requests: list[ChatRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    state: str = "ready"

    def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
        self.requests.append(request)
        planned_answer = self.answer(request)
        if planned_answer.fails is not None:
            on_event(Failed(request.id, planned_answer.fails))
            return
        on_event(Started(request.id, planned_answer.prompt_tokens, planned_answer.cached_tokens))
        tokens = list(planned_answer.tokens)[: request.params.max_tokens]
        for index, token in enumerate(tokens):
            on_event(
                Tokens(request.id, (TextPiece(token, f"<{token}>", False, sampled(planned_answer, index, token)),))
            )
        timings = Timings(ttft_s=0.5, decode_s=planned_answer.decode_s)
        stats = SpeculationStats(state="on", drafts=4, draft_tokens=8, accepted_tokens=4, emitted_tokens=8)
        on_event(Finished(request.id, "length", "", planned_answer.prompt_tokens, len(tokens), timings, stats))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


def sampled(planned_answer: TimedAnswer, index: int, token: int) -> Sampled:
    second, gap = planned_answer.gaps.get(index, (token + 1, 5.0))
    return Sampled(token, -0.1, top=(TokenLogprob(token, -0.1), TokenLogprob(second, -0.1 - gap)))

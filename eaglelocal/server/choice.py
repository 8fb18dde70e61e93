"""One answer as the server sees it come: what is new since it was last told, and the figures of the whole.

Fed with the engine's events; knows no HTTP and none of the shapes in which answers are told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglelocal.core.events import (
    Embedded,
    Failed,
    Finished,
    RequestEvent,
    SpeculationChanged,
    Started,
    Tokens,
    ToolCalled,
)
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.core.sampling import Sampled, SamplingParams
from eaglelocal.core.tools import ToolCall
from eaglelocal.errors import EagleLocalError


@dataclass(slots=True)
class Delta:
    """What came since the last one was taken."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[int, ToolCall]] = field(default_factory=list)  # with their places in the answer
    sampled: list[Sampled] = field(default_factory=list)  # one a token, when logprobs were asked for
    runs: list[tuple[str, int, bool]] = field(default_factory=list)  # the text cut where drafted tokens begin and end

    def say(self, text: str, *, drafted: bool) -> None:
        """A token's text. Each run has its text, its number of tokens, and whether they came from a draft."""
        self.text += text
        if self.runs and self.runs[-1][2] == drafted:
            before, count, _ = self.runs.pop()
            self.runs.append((before + text, count + 1, drafted))
        else:
            self.runs.append((text, 1, drafted))

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.sampled)


@dataclass(slots=True)
class Choice:
    """A request and what has come of it. Times are of one monotonic clock, in seconds."""

    index: int
    request: AnyRequest
    asked_at: float
    started: Started | None = None
    finished: Finished | None = None
    error: EagleLocalError | None = None
    num_tokens: int = 0
    num_reasoning: int = 0  # tokens
    num_accepted: int = 0  # of them from drafts
    num_calls: int = 0
    state: str = "waiting"  # of its drafting: on, asleep; waiting before it starts
    first_at: float = 0.0
    last_at: float = 0.0  # of its newest token
    ended_at: float = 0.0
    gaps: list[float] = field(default_factory=list)  # between arrivals, until somebody takes them
    embedded: Embedded | None = None
    _new: Delta = field(default_factory=Delta)

    @property
    def is_over(self) -> bool:
        return self.finished is not None or self.error is not None

    @property
    def is_counted(self) -> bool:
        """Nothing is answered, so there is nothing to remember."""
        return isinstance(self.request, ChatRequest) and self.request.is_counted

    @property
    def params(self) -> SamplingParams:
        """How it is sampled."""
        assert isinstance(self.request, ChatRequest)
        return self.request.params

    @property
    def prompt_tokens(self) -> int:
        return self.finished.prompt_tokens if self.finished else self.started.prompt_tokens if self.started else 0

    @property
    def cached_tokens(self) -> int:
        return self.started.cached_tokens if self.started else 0

    @property
    def tok_s(self) -> float:
        """From the first to the newest token."""
        seconds = self.last_at - self.first_at
        return (self.num_tokens - 1) / seconds if seconds > 0 else 0.0

    def take(self, event: RequestEvent, now: float) -> None:
        match event:
            case Tokens():
                self._take_tokens(event, now)
            case ToolCalled(_, index, call):
                self._new.calls.append((index, call))
                self.num_calls += 1
            case Finished():
                self.finished, self.ended_at = event, now
                self.num_tokens = event.completion_tokens
                self._new.text += event.text
                self._new.reasoning += event.reasoning
            case Embedded():
                self.embedded = event
            case Failed(_, error):
                self.error = error
            case Started():
                self.started, self.state = event, "on"
            case SpeculationChanged():
                self.state = event.state

    def _take_tokens(self, event: Tokens, now: float) -> None:
        if self.num_tokens:
            self.gaps.append(now - self.last_at)
        else:
            self.first_at = now
        self.last_at = now
        for piece in event.pieces:
            self._new.say(piece.text, drafted=piece.drafted)
            if piece.reasoning:
                self._new.reasoning += piece.reasoning
                self.num_reasoning += 1
            if piece.sampled is not None:
                self._new.sampled.append(piece.sampled)
            self.num_accepted += piece.drafted
        self.num_tokens += len(event.pieces)

    def forget(self) -> None:
        """The answer was told: what remains are figures. No text stays in memory."""
        self.request = ChatRequest(id=self.request.id, owner=self.request.owner)
        self.gaps, self.embedded, self._new = [], None, Delta()

    def news(self) -> Delta:
        """What is new; the next call begins behind it."""
        new, self._new = self._new, Delta()
        return new

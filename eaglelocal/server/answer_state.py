"""The state of one answer as its events arrive: the unsent part (Delta) and the figures of the whole.

Fed with the engine's events; independent of HTTP and of the formats of the APIs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from eaglelocal.core.events import (
    Embeddings,
    Failed,
    Finished,
    Prompted,
    RequestEvent,
    SpeculationChanged,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.core.sampling import Sampled, SamplingParams
from eaglelocal.core.tools import CallPart, ToolCall, join_calls
from eaglelocal.errors import EagleLocalError


@dataclass(slots=True)
class TextRun:
    """A run of text."""

    text: str = ""
    sampled: list[Sampled] = field(default_factory=list)  # logprobs of its tokens, if they were requested
    runs: list[tuple[str, int, bool]] = field(default_factory=list)  # split where drafted tokens begin and end

    def add(self, text: str, *, drafted: bool) -> None:
        """Append a token's text. `runs` holds (text, number of tokens, whether they came from a draft)."""
        self.text += text
        if self.runs and self.runs[-1][2] == drafted:
            before, count, _ = self.runs.pop()
            self.runs.append((before + text, count + 1, drafted))
        else:
            self.runs.append((text, 1, drafted))


@dataclass(slots=True)
class ReasoningRun:
    """A run of reasoning text."""

    text: str = ""


News = TextRun | ReasoningRun | CallPart


@dataclass(slots=True)
class Delta:
    """The parts that arrived since the last Delta was taken, in order."""

    parts: list[News] = field(default_factory=list)

    def said(self) -> TextRun:
        """Return the Said at the end of the parts, appending one if needed."""
        if not self.parts or not isinstance(self.parts[-1], TextRun):
            self.parts.append(TextRun())
        last = self.parts[-1]
        assert isinstance(last, TextRun)
        return last

    def think(self, text: str) -> None:
        last = self.parts[-1] if self.parts else None
        if isinstance(last, ReasoningRun):
            last.text += text
        elif text:
            self.parts.append(ReasoningRun(text))

    def call(self, part: CallPart) -> None:
        last = self.parts[-1] if self.parts else None
        if isinstance(last, CallPart) and last.index == part.index:
            self.parts[-1] = replace(last, arguments=last.arguments + part.arguments)
        else:
            self.parts.append(part)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextRun))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningRun))

    @property
    def calls(self) -> list[ToolCall]:
        """Return the tool calls, for a Delta that holds the whole answer."""
        return join_calls(part for part in self.parts if isinstance(part, CallPart))

    @property
    def sampled(self) -> list[Sampled]:
        return [one for part in self.parts if isinstance(part, TextRun) for one in part.sampled]

    def __bool__(self) -> bool:
        return any(not isinstance(part, TextRun) or part.text or part.sampled for part in self.parts)


@dataclass(slots=True)
class AnswerState:
    """A request and the state of its answer. Times are of one monotonic clock, in seconds."""

    index: int
    request: AnyRequest
    asked_at: float
    started: Started | None = None
    finished: Finished | None = None
    error: EagleLocalError | None = None
    is_refused: bool = False  # it was never submitted
    num_tokens: int = 0
    num_reasoning: int = 0  # tokens
    num_accepted: int = 0  # tokens that came from drafts
    state: str = ""  # of its drafting: on, asleep, off; "" before it starts
    first_at: float = 0.0
    last_at: float = 0.0  # when its newest token arrived
    ended_at: float = 0.0
    gaps: list[float] = field(default_factory=list)  # between arrivals, s; for the latency histogram
    embedded: Embeddings | None = None
    prompted: Prompted | None = None
    tokens: list[int] = field(default_factory=list)  # of the answer
    _new: Delta = field(default_factory=Delta)
    _held: list[Sampled] = field(default_factory=list)  # logprobs of tokens whose text has not arrived

    @property
    def is_over(self) -> bool:
        return self.finished is not None or self.error is not None

    @property
    def is_counted(self) -> bool:
        """Return whether the request only counts prompt tokens, so that there is no answer to record."""
        return isinstance(self.request, ChatRequest) and self.request.is_counted

    @property
    def was_cut(self) -> bool:
        """Return whether the answer was cut off (finish reason `length`), be it within text, reasoning or a call."""
        return self.finished is not None and self.finished.reason == "length"

    @property
    def params(self) -> SamplingParams:
        """Return its sampling parameters."""
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
        """Return tokens/s from the first to the newest token."""
        seconds = self.last_at - self.first_at
        return (self.num_tokens - 1) / seconds if seconds > 0 else 0.0

    def take(self, event: RequestEvent, now: float) -> None:
        match event:
            case Tokens():
                self._take_tokens(event, now)
            case Finished():
                self.finished, self.ended_at = event, now
                self.num_tokens = event.completion_tokens
                self.state = event.speculation.state if self.started else ""
                self._new.think(event.reasoning)
                if event.text:
                    self._new.said().text += event.text
                self._weigh(event.text)
            case Embeddings():
                self.embedded = event
            case Prompted():
                self.prompted = event
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
            self._take_piece(piece)
        self.num_tokens += len(event.pieces)

    def _take_piece(self, piece: TextPiece) -> None:
        self.num_accepted += piece.drafted
        self.tokens.append(piece.token)
        if piece.sampled is not None:
            self._held.append(piece.sampled)
        if piece.reasoning:
            self._new.think(piece.reasoning)
            self.num_reasoning += 1
            self._held = self._held[-1:] if piece.text else []
        if piece.text or not (piece.reasoning or piece.calls):
            self._new.said().add(piece.text, drafted=piece.drafted)
            self._weigh(piece.text)
        for part in piece.calls:
            self._new.call(part)
            self._held = []

    def _weigh(self, text: str) -> None:
        """Pass on the logprobs of this text's tokens: of those held back, the last ones whose bytes cover the text.

        Earlier ones belong to markers or white space around them. If the answer is not split, every token counts.
        """
        if not self._held:
            return
        is_split = isinstance(self.request, ChatRequest) and self.request.is_split
        first, left = len(self._held) if is_split else 0, len(text.encode())
        while first and left > 0:
            first -= 1
            left -= len(self._held[first].piece)
        if first < len(self._held):
            self._new.said().sampled += self._held[first:]
        self._held = self._held if is_split and not text else []

    def forget(self) -> None:
        """Drop all text once the answer was sent, so that only the figures stay in memory."""
        self.request = ChatRequest(id=self.request.id, owner=self.request.owner)
        self.gaps, self.tokens, self.embedded, self.prompted = [], [], None, None
        self._new, self._held = Delta(), []

    def news(self) -> Delta:
        """Return what is new since the last call."""
        new, self._new = self._new, Delta()
        return new

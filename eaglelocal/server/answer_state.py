"""The state of one answer as its events arrive: the unsent part (Delta), and the statistics of the whole.

Knows the engine's events; nothing of HTTP and the formats of the APIs.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import field, replace
from typing import NamedTuple, TypeVar

from eaglelocal.core.events import (
    Embeddings,
    Failed,
    Finished,
    Prompted,
    PromptProgress,
    RequestEvent,
    SpeculationChanged,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.core.sampling import Sampled, SamplingParams
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.core.tools import CallPart, ToolCall, join_calls
from eaglelocal.errors import EagleLocalError, EngineAwayError, RequestError, UsageError
from eaglelocal.learning.kept_answers import MAX_CHARS

WAITING, READING = "waiting", "reading"  # states of an answer; the others occur in `AnswerState.state` only


class ServedClient(NamedTuple):
    """The sender of a request: its program or address ("" if it is not known), and the connection.

    number  tells it from others of its name (server_state.number_client)
    """

    name: str = ""
    connection: tuple[str, int] = ("", 0)
    number: int = 1


@dataclass(slots=True)
class TextRun:
    """A run of text."""

    text: str = ""
    sampled: list[Sampled] = field(default_factory=list)  # logprobs of its tokens, if they were requested
    runs: list[tuple[str, int, bool]] = field(default_factory=list)  # split where drafted tokens begin and end

    def add_token(self, text: str, *, drafted: bool) -> None:
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
    drafted: list[bool] = field(default_factory=list)  # of each token with text


DeltaPart = TextRun | ReasoningRun | CallPart
RunT = TypeVar("RunT", TextRun, ReasoningRun)


@dataclass(slots=True)
class Delta:
    """The parts that arrived since the last Delta was taken, in order."""

    parts: list[DeltaPart] = field(default_factory=list)

    def last_run(self, kind: type[RunT]) -> RunT:
        """Return the last part if it is of this kind, else a new one after it."""
        last = self.parts[-1] if self.parts else None
        if not isinstance(last, kind):
            last = kind()
            self.parts.append(last)
        return last

    def add_reasoning(self, text: str, drafted: Sequence[bool] = ()) -> None:
        if text:
            last = self.last_run(ReasoningRun)
            last.text += text
            last.drafted += drafted

    def add_call(self, part: CallPart) -> None:
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
    requested_at: float
    system_hash: str = ""  # of the request's system prompt, whose text is not kept
    started: Started | None = None
    finished: Finished | None = None
    error: EagleLocalError | None = None
    is_refused: bool = False  # it was never submitted
    client: ServedClient = ServedClient()
    num_tokens: int = 0
    num_accepted: int = 0  # tokens that came from drafts
    drafting_state: str = ""  # on, asleep, off; "" before it starts
    num_read: int = 0  # tokens of the prompt so far, reused ones too
    started_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0  # when its newest token arrived
    ended_at: float = 0.0
    token_gaps_s: list[float] = field(default_factory=list)  # between arrivals; for the latency histogram
    embeddings: Embeddings | None = None
    prompted: Prompted | None = None
    tokens: list[int] = field(default_factory=list)  # of the answer
    opening: str = ""  # the first characters of its text, by which its kind is guessed
    has_calls: bool = False
    _has_read_more: bool = False  # since `take_progress`
    _delta: Delta = field(default_factory=Delta)
    _held_logprobs: list[Sampled] = field(default_factory=list)  # logprobs of tokens whose text has not arrived
    _is_in_text: bool = True  # the newest part is text, not reasoning or a call

    @property
    def state(self) -> str:
        """Return the state in words, as monitors show it. A request that has not begun is waiting."""
        if self.finished is not None:
            return self.finished.reason
        if self.error is not None:
            return "failed" if self.has_failed else "refused"
        if self.ended_at:
            return "refused" if self.is_refused else "gone"
        if self.started is None:
            return WAITING
        return "running" if self.num_tokens else READING

    @property
    def is_over(self) -> bool:
        return self.finished is not None or self.error is not None

    @property
    def has_failed(self) -> bool:
        """Return whether the engine failed to answer.

        An unanswerable request is not the engine's fault, and a request that it never began can be sent again.
        """
        excused = RequestError | UsageError if self.started is not None else RequestError | UsageError | EngineAwayError
        return self.error is not None and not isinstance(self.error, excused)

    @property
    def is_counted(self) -> bool:
        """Return whether the request only counts prompt tokens, so that it has no answer to record."""
        return isinstance(self.request, ChatRequest) and self.request.is_counted

    @property
    def is_cut_off(self) -> bool:
        return self.finished is not None and self.finished.reason == "length"

    @property
    def params(self) -> SamplingParams:
        assert isinstance(self.request, ChatRequest)
        return self.request.params

    @property
    def finish_reason(self) -> str:
        return self.finished.reason if self.finished else "stop"

    @property
    def timings(self) -> Timings:
        return self.finished.timings if self.finished else Timings()

    @property
    def stats(self) -> SpeculationStats:
        return self.finished.speculation if self.finished else SpeculationStats()

    @property
    def prompt_tokens(self) -> int:
        return self.finished.prompt_tokens if self.finished else self.started.prompt_tokens if self.started else 0

    @property
    def reasoning_tokens(self) -> int:
        return self.finished.reasoning_tokens if self.finished else 0

    @property
    def cached_tokens(self) -> int:
        return self.started.cached_tokens if self.started else 0

    @property
    def tok_s(self) -> float:
        seconds = self.last_token_at - self.first_token_at
        return (self.num_tokens - 1) / seconds if seconds > 0 else 0.0

    def apply(self, event: RequestEvent, now: float) -> None:
        """Update the state by an event that arrived at `now`."""
        match event:
            case Tokens():
                self._apply_tokens(event, now)
            case Finished():
                self.finished, self.ended_at = event, now
                self.num_tokens = event.completion_tokens
                self.drafting_state = event.speculation.state if self.started else ""
                self._delta.add_reasoning(event.reasoning)
                if event.text:
                    self._delta.last_run(TextRun).text += event.text
                self._release_logprobs(event.text, num_cut=0 if event.stop else self._count_cut_bytes(event.text))
            case Embeddings():
                self.embeddings = event
            case Prompted():
                self.prompted = event
            case Failed(_, error):
                self.error = error
            case Started():
                self.started, self.drafting_state, self.started_at = event, "on", now
                self._read(event.cached_tokens)
            case PromptProgress(_, num_read):
                self._read(num_read)
            case SpeculationChanged():
                self.drafting_state = event.state

    def _read(self, num_read: int) -> None:
        self.num_read, self._has_read_more = num_read, True

    def _apply_tokens(self, event: Tokens, now: float) -> None:
        if self.num_tokens:
            self.token_gaps_s.append(now - self.last_token_at)
        else:
            self.first_token_at, self.num_read = now, self.prompt_tokens
        self.last_token_at = now
        for piece in event.pieces:
            self._apply_piece(piece)
        self.num_tokens += len(event.pieces)

    def _apply_piece(self, piece: TextPiece) -> None:
        self.num_accepted += piece.drafted
        if piece.text or piece.reasoning or piece.calls:
            self._is_in_text = bool(piece.text) and not piece.calls
        self.tokens.append(piece.token)
        if piece.sampled is not None:
            self._held_logprobs.append(piece.sampled)
        if piece.reasoning:
            self._delta.add_reasoning(piece.reasoning, [piece.drafted])
            self._held_logprobs = self._held_logprobs[-1:] if piece.text else []
        self.has_calls = self.has_calls or bool(piece.calls)
        if len(self.opening) < MAX_CHARS:
            self.opening += piece.text
        if piece.text or not (piece.reasoning or piece.calls):
            self._delta.last_run(TextRun).add_token(piece.text, drafted=piece.drafted)
            self._release_logprobs(piece.text)
        for part in piece.calls:
            self._delta.add_call(part)
            self._held_logprobs = []

    def _release_logprobs(self, text: str, num_cut: int = 0) -> None:
        """Move the logprobs of this text's tokens into the delta: the last held ones whose bytes cover the text.

        Earlier ones belong to markers or to white space around them. If the answer is not split, all are moved.

        num_cut  bytes of an incomplete character after the text
        """
        if not self._held_logprobs:
            return
        is_split = isinstance(self.request, ChatRequest) and self.request.is_split
        first, left = len(self._held_logprobs) if is_split else 0, len(text.encode()) + num_cut
        while first and left > 0:
            first -= 1
            left -= len(self._held_logprobs[first].piece)
        if first < len(self._held_logprobs):
            self._delta.last_run(TextRun).sampled += self._held_logprobs[first:]
        self._held_logprobs = self._held_logprobs if is_split and not text else []

    def _count_cut_bytes(self, text: str) -> int:
        """Return how many bytes of an incomplete character end the answer; 0 if it does not end in text."""
        if not (self._is_in_text or text):
            return 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join([sampled.piece for sampled in self._held_logprobs]))
        return len(decoder.getstate()[0])

    def close(self, now: float) -> None:
        """End the answer, unless it has ended, and drop all text, so that only statistics stay in memory."""
        self.ended_at = self.ended_at or now
        self.request = ChatRequest(id=self.request.id, owner=self.request.owner)
        self.token_gaps_s, self.tokens, self.embeddings, self.prompted = [], [], None, None
        self.opening = ""
        self._delta, self._held_logprobs = Delta(), []

    def take_progress(self) -> bool:
        """Return whether more of the prompt has been read since the last call, and the answer has not begun."""
        has_read_more, self._has_read_more = self._has_read_more, False
        return has_read_more and not self.num_tokens

    def take_delta(self) -> Delta:
        """Return the parts that arrived since the last call."""
        new, self._delta = self._delta, Delta()
        return new

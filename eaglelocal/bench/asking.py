"""Asking a side: so many prompts at once, when what arrived, and what that makes in tokens per second.

Prompts are asked with nothing cached. A slot keeps the cache of its last request, so the side that is
asked second would find its prompt there: its time to the first token would measure that, and a drafter
would begin without the rows that it never saw. So before each ask every slot of the engine is given one
token of its own to hold (Freshness). What was reused all the same is counted and told; times to the first
token are taken from answers that reused next to nothing. And each ask has an owner of its own, so that no
side drafts from what another has just answered.

One request alone has the speed that the engine tells: from its first to its last token. Several at once
have the tokens that came after every one of them had its first, by the time until the last: prefill is
left out, and that answers end one after the other is not. Where the beginning of answers is not to count
(`skip` tokens: what it takes to learn that drafting does not pay), both begin behind it instead, by when tokens
arrived here. What is told of acceptance is of whole answers all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from queue import SimpleQueue

from eaglelocal.bench.prompts import Prompt
from eaglelocal.client.http_stream import NO_ID
from eaglelocal.client.port import Client
from eaglelocal.core.events import Failed, Finished, Piece, RequestEvent, Started, Tokens
from eaglelocal.core.request import OFF, ChatRequest, Spec
from eaglelocal.core.sampling import GREEDY, SamplingParams
from eaglelocal.core.stats import SpeculationStats
from eaglelocal.errors import EngineError

MIN_TOKENS = 8  # of an answer that has a speed: a few steps are no rate, and one more draft would halve or double it
MOST_TOK_S = 20_000.0  # of one answer: more only comes from a proxy that kept the stream back
MAX_REUSED = 0.1  # share of a prompt found in the cache, up to which the time to the first token counts


def nothing() -> None:
    """A server is asked not to reuse anything (HttpClient); there is nothing to restore."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is compared: a client, and how it is asked to draft (None: as it was started).

    `restore` is called before each ask: it makes the client forget the prompts before.
    """

    label: str
    client: Client
    spec: Spec | None = None
    restore: Callable[[], None] = nothing


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer, as far as a measurement is concerned."""

    pieces: tuple[Piece, ...]
    text: str
    num_tokens: int
    prompt_tokens: int
    cached_tokens: int
    tok_s: float  # 0 where the answer is too short to have a speed
    ttft_s: float
    speculation: SpeculationStats

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(piece.token for piece in self.pieces)

    def is_same_as(self, other: Answered) -> bool:
        """By token ids; by text where a server does not tell them."""
        if NO_ID in (*self.tokens, *other.tokens):
            return self.text == other.text
        return self.tokens == other.tokens

    @property
    def is_fresh(self) -> bool:
        return self.cached_tokens <= MAX_REUSED * self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Phase:
    """A side's answers to prompts that it was asked at once, and their tokens per second together."""

    tok_s: float
    answers: tuple[Answered, ...]


@dataclass(slots=True)
class Arrivals:
    """The events of one request with their moments; filled by a client's thread, read by one other."""

    request: ChatRequest
    events: list[tuple[float, RequestEvent]] = field(default_factory=list)
    _queue: SimpleQueue[tuple[float, RequestEvent]] = field(default_factory=SimpleQueue)

    def arrive(self, event: RequestEvent) -> None:
        self._queue.put((time.perf_counter(), event))

    def wait(self) -> Finished:
        """The end of the answer. Raises the error of a failure."""
        while True:
            self.events.append(self._queue.get())
            match self.events[-1][1]:
                case Failed(error=error):
                    raise error
                case Finished() as finished:
                    return finished

    @property
    def tokens(self) -> list[tuple[float, Tokens]]:
        return [(moment, event) for moment, event in self.events if isinstance(event, Tokens) and event.pieces]

    def moment_of(self, number: int) -> float | None:
        """When token `number` was there, from 0; None: never."""
        told = 0
        for moment, event in self.tokens:
            told += len(event.pieces)
            if told > number:
                return moment
        return None

    def num_tokens_after(self, moment_s: float) -> float:
        """A server may tell several tokens as one piece: each piece counts as its share of all."""
        last = self.events[-1][1]
        num_pieces = len(self.pieces)
        per_piece = last.completion_tokens / num_pieces if isinstance(last, Finished) and num_pieces else 1.0
        return per_piece * sum(len(event.pieces) for moment, event in self.tokens if moment > moment_s)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for _, event in self.tokens for piece in event.pieces)


def ask(side: Side, prompts: Sequence[Prompt], params: Sequence[SamplingParams], *, name: str, skip: int = 0) -> Phase:
    """Ask all at once and wait for all. Raises what failed; whoever interrupts leaves nothing running.

    skip  tokens at the beginning of each answer that have no part in its speed
    """
    requests = [
        request_of(f"{name}-{i}", prompt, how, side.spec)
        for i, (prompt, how) in enumerate(zip(prompts, params, strict=True))
    ]
    arrivals = [Arrivals(request) for request in requests]
    with ExitStack() as running:
        for one in arrivals:
            running.callback(side.client.cancel, one.request.id)
            side.client.submit(one.request, one.arrive)
        answers = tuple(answered(one, one.wait(), skip) for one in arrivals)
        running.pop_all()
    return Phase(answers[0].tok_s if len(answers) == 1 else joint_tok_s(arrivals, skip), answers)


def request_of(name: str, prompt: Prompt, params: SamplingParams, spec: Spec | None) -> ChatRequest:
    """Asked by somebody new: lookup in recent answers would find what another side has just said to this prompt."""
    return ChatRequest(id=name, messages=prompt.messages, tokens=prompt.tokens, params=params, spec=spec, owner=name)


def answered(arrivals: Arrivals, finished: Finished, skip: int) -> Answered:
    if finished.reason == "cancelled":
        raise EngineError("an answer was cancelled that nobody wanted to end")
    started = next((event for _, event in arrivals.events if isinstance(event, Started)), None)
    pieces = arrivals.pieces
    return Answered(
        pieces=pieces,
        text="".join(piece.text for piece in pieces) + finished.text,
        num_tokens=finished.completion_tokens,
        prompt_tokens=finished.prompt_tokens,
        cached_tokens=started.cached_tokens if started else 0,
        tok_s=joint_tok_s([arrivals], skip) if skip else tok_s(finished),
        ttft_s=finished.timings.ttft_s,
        speculation=finished.speculation,
    )


def tok_s(finished: Finished) -> float:
    """Of an answer that ran alone, as its engine tells it; 0 where it is too short to have a speed, or came at once."""
    num_tokens, timings = finished.completion_tokens, finished.timings
    if num_tokens < MIN_TOKENS or timings.decode_s <= 0:
        return 0.0
    speed = timings.decode_tok_s or (num_tokens - 1) / timings.decode_s
    return speed if speed <= MOST_TOK_S else 0.0


def joint_tok_s(arrivals: Sequence[Arrivals], skip: int = 0) -> float:
    """Tokens a second of requests that ran at once; 0 where they have too few tokens to tell."""
    begun = [one.moment_of(skip) for one in arrivals]
    moments = [moment for moment in begun if moment is not None]
    if len(moments) < len(arrivals):
        return 0.0
    first_s = max(moments)
    last_s = max(one.tokens[-1][0] for one in arrivals)
    num_tokens = sum(one.num_tokens_after(first_s) for one in arrivals)
    return num_tokens / (last_s - first_s) if num_tokens >= MIN_TOKENS else 0.0


class Freshness:
    """Makes an engine forget what it was asked last: every slot gets one token, another one each time."""

    def __init__(self, client: Client, *, num_slots: int, n_vocab: int) -> None:
        self._side = Side("fresh", client, OFF)
        self._num_slots, self._n_vocab = num_slots, n_vocab
        self._numbers: Iterator[int] = count()

    def restore(self) -> None:
        taken = [next(self._numbers) for _ in range(self._num_slots)]
        prompts = [Prompt("", tokens=(number % self._n_vocab,)) for number in taken]
        once = replace(GREEDY, max_tokens=1)
        ask(self._side, prompts, [once] * len(prompts), name=f"fresh-{taken[0]}")

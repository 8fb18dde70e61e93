"""Send prompts to a side at the same time, record when each token arrives, and compute tokens per second.

Every prompt must miss the prefix cache. A slot keeps the KV cache of its last request, so the side that is
asked second would find its prompt there: that would falsify its time to the first token, and its drafter
would lack the rows of the cached prefix. So every slot gets another prompt of one token before each measured
request (CacheClearer). Answers that still reused cached tokens are counted, and left out of the times to the
first token. Each request has its own owner, so that no side drafts from another side's answer.

The speed of a request that runs alone is the one that the engine reports, from its first to its last token. The
speed of concurrent requests is the number of tokens that arrived after each request had its first token, divided
by the time until the last token: it excludes prefill, and includes the phase in which only some answers still run.
With `skip` > 0 (to leave out tokens before speculation has adapted) both speeds start after that many tokens, by
their arrival times here. Acceptance statistics always cover the whole answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from itertools import count
from queue import SimpleQueue

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.client.client import Client
from eaglelocal.client.http_stream import NO_ID
from eaglelocal.core.events import Failed, Finished, RequestEvent, Started, TextPiece, Tokens
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import OFF, ChatRequest, Spec
from eaglelocal.core.sampling import GREEDY, SamplingParams
from eaglelocal.core.stats import SpeculationStats
from eaglelocal.errors import EngineError

MIN_TOKENS = 8  # shorter answers have no speed: in a few steps one more draft would halve or double it
MOST_TOK_S = 20_000.0  # of one answer: a higher rate means that a proxy buffered the stream
MAX_REUSED = 0.1  # largest cached share of a prompt for which the time to the first token counts


@dataclass(frozen=True, slots=True)
class Side:
    """A side of a comparison: a client, and how it is asked to draft (`spec` None: as it was started).

    `clear_cache` is called before each request: it makes the client drop the cached prompts.
    """

    label: str
    client: Client
    spec: Spec | None = None
    clear_cache: Callable[[], None] = lambda: None  # servers that HttpClient asks not to reuse a cache


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """The measured facts of one answer: its tokens, its timings and its speculation statistics."""

    pieces: tuple[TextPiece, ...]
    text: str
    num_tokens: int
    prompt_tokens: int
    cached_tokens: int
    tok_s: float  # 0: the answer is too short to have a speed
    ttft_s: float
    speculation: SpeculationStats

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(piece.token for piece in self.pieces)

    def equals(self, other: AnswerRecord) -> bool:
        """Return whether both answers have the same token ids, or the same text if a server sends no ids."""
        if NO_ID in (*self.tokens, *other.tokens):
            return self.text == other.text
        return self.tokens == other.tokens

    @property
    def is_fresh(self) -> bool:
        return self.cached_tokens <= MAX_REUSED * self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Phase:
    """A side's answers to prompts that were sent at once, and their joint tokens per second (0: too short)."""

    tok_s: float
    answers: tuple[AnswerRecord, ...]


@dataclass(slots=True)
class Arrivals:
    """The events of one request with their arrival times; filled by a client's thread, read by one other."""

    request: ChatRequest
    events: list[tuple[float, RequestEvent]] = field(default_factory=list)
    _queue: SimpleQueue[tuple[float, RequestEvent]] = field(default_factory=SimpleQueue)

    def arrive(self, event: RequestEvent) -> None:
        self._queue.put((time.perf_counter(), event))

    def wait(self) -> Finished:
        """Collect events until the answer ends and return its `Finished`. Raises the error of a `Failed`."""
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

    def arrival_time(self, number: int) -> float | None:
        """Return the arrival time of token `number`, counted from 0, or None if it never arrived."""
        num_arrived = 0
        for moment, event in self.tokens:
            num_arrived += len(event.pieces)
            if num_arrived > number:
                return moment
        return None

    def num_tokens_after(self, moment_s: float) -> float:
        """Return how many tokens arrived after `moment_s`.

        A server may send several tokens as one piece, so each piece counts as completion tokens / pieces.
        """
        last = self.events[-1][1]
        num_pieces = len(self.pieces)
        per_piece = last.completion_tokens / num_pieces if isinstance(last, Finished) and num_pieces else 1.0
        return per_piece * sum(len(event.pieces) for moment, event in self.tokens if moment > moment_s)

    @property
    def pieces(self) -> tuple[TextPiece, ...]:
        return tuple(piece for _, event in self.tokens for piece in event.pieces)


def ask(
    side: Side, prompts: Sequence[BenchPrompt], params: Sequence[SamplingParams], *, name: str, skip: int = 0
) -> Phase:
    """Send all prompts at once and wait for all answers. Raises the error of one that failed.

    On any exception, KeyboardInterrupt included, all requests are cancelled.

    skip  number of tokens at the beginning of each answer that its speed leaves out
    """
    arrivals = []
    for number, (prompt, sampling) in enumerate(zip(prompts, params, strict=True)):
        id = f"{name}-{number}"  # also its owner, so that no lookup drafts from another side's answer to this prompt
        messages, tokens = prompt.messages, prompt.tokens
        request = ChatRequest(id=id, messages=messages, tokens=tokens, params=sampling, spec=side.spec, owner=id)
        arrivals.append(Arrivals(request))
    with ExitStack() as running:
        for one in arrivals:
            running.callback(side.client.cancel, one.request.id)
            side.client.submit(one.request, one.arrive)
        answers = tuple(record_answer(one, one.wait(), skip) for one in arrivals)
        running.pop_all()
    return Phase(answers[0].tok_s if len(answers) == 1 else joint_tok_s(arrivals, skip), answers)


def record_answer(arrivals: Arrivals, finished: Finished, skip: int) -> AnswerRecord:
    """Collect the measured facts of a finished answer. Raises EngineError if it was cancelled."""
    if finished.reason == "cancelled":
        raise EngineError("an answer was cancelled during the measurement")
    started = next((event for _, event in arrivals.events if isinstance(event, Started)), None)
    pieces = arrivals.pieces
    return AnswerRecord(
        pieces=pieces,
        text="".join(piece.text for piece in pieces) + finished.text,
        num_tokens=finished.completion_tokens,
        prompt_tokens=finished.prompt_tokens,
        cached_tokens=started.cached_tokens if started else 0,
        tok_s=joint_tok_s([arrivals], skip) if skip else alone_tok_s(finished),
        ttft_s=finished.timings.ttft_s,
        speculation=finished.speculation,
    )


def alone_tok_s(finished: Finished) -> float:
    """Return the speed of an answer that ran alone, as its engine reports it.

    0 if it is shorter than MIN_TOKENS, has no decode time, or is faster than MOST_TOK_S.
    """
    num_tokens, timings = finished.completion_tokens, finished.timings
    if num_tokens < MIN_TOKENS or timings.decode_s <= 0:
        return 0.0
    speed = timings.decode_tok_s or (num_tokens - 1) / timings.decode_s
    return speed if speed <= MOST_TOK_S else 0.0


def joint_tok_s(arrivals: Sequence[Arrivals], skip: int = 0) -> float:
    """Return the tokens per second of requests that ran at once; 0 if they have too few tokens to measure."""
    starts = [one.arrival_time(skip) for one in arrivals]
    moments = [moment for moment in starts if moment is not None]
    if len(moments) < len(arrivals):
        return 0.0
    first_s = max(moments)
    last_s = max(one.tokens[-1][0] for one in arrivals)
    num_tokens = sum(one.num_tokens_after(first_s) for one in arrivals)
    return num_tokens / (last_s - first_s) if num_tokens >= MIN_TOKENS else 0.0


class CacheClearer:
    """A way to clear the cache of every slot: each gets a prompt of one token, another one each time."""

    def __init__(self, client: Client, *, num_slots: int, n_vocab: int) -> None:
        self._side = Side("fresh", client, OFF)
        self._num_slots, self._n_vocab = num_slots, n_vocab
        self._numbers: Iterator[int] = count()

    def clear_cache(self) -> None:
        numbers = [next(self._numbers) for _ in range(self._num_slots)]
        prompts = [BenchPrompt("", tokens=(number % self._n_vocab,)) for number in numbers]
        params = replace(GREEDY, max_tokens=1)
        ask(self._side, prompts, [params] * len(prompts), name=f"fresh-{numbers[0]}")

"""The engine of an embedding model or a reranker: batches the texts of all requests into passes, in fair turns.

Implements worker.process.EngineLoop over an Embedder and a vocabulary. Vectors are normalized, scores are converted to
probabilities; a request's results are emitted together, in input order, when the last one is done.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol

import numpy as np

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.batch import Floats
from eaglelocal.core.events import (
    Begun,
    Embeddings,
    EmitEvents,
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    RequestEvent,
    Started,
)
from eaglelocal.core.ports import Vocabulary
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, EmbedRequest, Ranking, Spec
from eaglelocal.core.run_options import suggest_ctx
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.drafters.head_holder import Exchange
from eaglelocal.engine.input_queue import INLINE, INPUT_WAIT_S, InputExecutors, InputQueue
from eaglelocal.engine.prompt_tokens import SURE_TOKEN_BYTES, choose_embed_executor
from eaglelocal.engine.running_answer import make_never_started
from eaglelocal.engine.step_timing import peak_rss_bytes
from eaglelocal.errors import EagleLocalError, EngineError, IncompatibleError, RequestError
from eaglelocal.text.templates.rerank_pairs import Pairs, truncate_pair

NO_DRAFTS = SpeculationStats(reason="embeddings are not drafted")


class Embedder(Protocol):
    """A model that computes one vector per text."""

    @property
    def n_batch(self) -> int:
        """The most tokens in a pass, and so in one text."""

    @property
    def num_texts(self) -> int:
        """The most texts in a pass."""

    @property
    def native_s(self) -> float: ...

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Return the raw vectors of the model, [texts, n_embd]."""


@dataclass(slots=True)
class RunningEmbedding:
    """A request and the vectors computed so far."""

    id: str
    texts: list[list[int]]
    submitted_at: float
    ranking: Ranking | None
    num_taken: int = 0  # texts that are in a pass or done
    vectors: list[Floats] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.texts))


class EmbeddingEngine:
    """An engine without drafting: one step is one pass of the model over texts of several requests."""

    def __init__(
        self,
        embedder: Embedder,
        vocabulary: Vocabulary,
        info: EngineInfo,
        close: Callable[[], None],
        *,
        pairs: Pairs | None = None,
        gives_probabilities: bool = False,
        input_executors: InputExecutors = INLINE,
    ) -> None:
        """Take ownership of the model.

        close                closes what the builder opened, in reverse order
        pairs                of a reranker, which gives scores; None: the model gives vectors
        gives_probabilities  the model's scores are probabilities already
        input_executors      executors that tokenize, see input_queue.py
        """
        self.info = info
        self._embedder, self._vocabulary, self._close = embedder, vocabulary, close
        self._pairs, self._gives_probabilities = pairs, gives_probabilities
        self._inputs = InputQueue(self._read, input_executors, choose_executor=choose_embed_executor)
        self._report = input_executors.report
        self._running: dict[str, RunningEmbedding] = {}
        self._turns: deque[RunningEmbedding] = deque()  # with texts that wait for a pass
        self._outbox: list[RequestEvent] = []
        self.emit: EmitEvents | None = None
        self._num_steps = self._num_tokens = 0
        self._step_s = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._outbox or len(self._inputs))

    def work_ahead(self) -> bool:
        return False

    def submit(self, request: AnyRequest) -> None:
        """Queue a request. Errors in its texts come out of a later step as Failed.

        Raises RequestError for another kind of request, and if the id is in use.
        """
        if not isinstance(request, EmbedRequest) or (request.ranking is None) != (self._pairs is None):
            raise RequestError(f"{self.info.target} {self.info.task.description}", code="model_not_supported")
        if request.id in self._running or request.id in self._inputs:
            raise RequestError(f"a request with the id {request.id} is still running")
        self._inputs.submit(request)

    def _read(self, request: EmbedRequest) -> list[list[int]]:
        """Return the tokens of each text. Raises RequestError. Runs on any executor."""
        if not request.inputs:
            raise RequestError("there is no input", parameter="input")
        return [self._tokenize(each, request) for each in request.inputs]

    def _receive(self) -> None:
        """Take over requests that have been tokenized. If there is no other work, wait up to INPUT_WAIT_S for one."""
        if len(self._inputs) and not (self._running or self._outbox):
            self._inputs.wait(INPUT_WAIT_S)
        for prepared in self._inputs.take():
            request = prepared.request
            if prepared.result is None:
                assert prepared.error is not None
                self._outbox.append(Failed(request.id, prepared.error))
                continue
            running = RunningEmbedding(request.id, prepared.result, prepared.submitted_at_s, request.ranking)
            self._running[request.id] = running
            self._turns.append(running)
            self._outbox.append(Started(request.id, running.prompt_tokens, cached_tokens=0))

    def cancel(self, request_id: str) -> None:
        if self._inputs.withdraw(request_id):
            self._outbox.append(make_never_started(request_id))
        running = self._running.pop(request_id, None)
        if running is not None:
            if running in self._turns:
                self._turns.remove(running)
            self._outbox.append(self._make_finished(running, "cancelled"))

    def set_spec(self, spec: Spec) -> None:
        """Do nothing: embedding models have no drafts."""

    def set_adapters(self, mix: AdapterMix) -> None:
        """Do nothing: embedding models are loaded without adapters."""

    def prepare_head(self, path: Path, version: int) -> Exchange:
        """Raise IncompatibleError: embedding models have no drafts."""
        raise IncompatibleError(f"{path.name} cannot draft: {NO_DRAFTS.reason}")

    def step(self) -> list[RequestEvent]:
        self._receive()
        began_at = time.perf_counter()
        chosen = self._next_pass()
        if chosen:
            self._run(chosen)
        events, self._outbox = self._outbox, []
        self._num_steps += bool(chosen)
        self._step_s += time.perf_counter() - began_at
        return events

    def snapshot(self) -> EngineSnapshot:
        native_s = self._embedder.native_s
        return EngineSnapshot(
            running=len(self._running),
            waiting=len(self._inputs),
            steps=self._num_steps,
            prompt_tokens=self._num_tokens,
            generated_tokens=0,
            speculation=NO_DRAFTS,
            host_s=max(self._step_s - native_s, 0.0),
            native_s=native_s,
            peak_rss_bytes=peak_rss_bytes(),
            engine_pid=os.getpid(),
        )

    def close(self) -> None:
        self._inputs.close()
        self._close()

    def _tokenize(self, text: str | tuple[int, ...], request: EmbedRequest) -> list[int]:
        if request.ranking is not None and self._pairs is not None and isinstance(text, str):
            return truncate_pair(self._pairs, request.ranking, text, self._embedder.n_batch)
        if not isinstance(text, str):
            return self._check_tokens(list(text))
        if request.truncates:
            return self._check_tokens(self._truncate(text))
        self._check_length(len(text))
        return self._check_tokens(self._vocabulary.tokenize(text, add_special=True, parse_special=False))

    def _truncate(self, text: str) -> list[int]:
        """Return as many first tokens of a text as fit, and the tokens that the vocabulary adds to each text."""
        limit, max_bytes = self._embedder.n_batch, self._vocabulary.max_token_bytes
        if max_bytes is not None:
            text = text[: limit * max_bytes]  # no more can be needed, and millions of characters would take seconds
        tokens = self._vocabulary.tokenize(text, add_special=True, parse_special=False)
        if len(tokens) <= limit:
            return tokens
        plain = self._vocabulary.tokenize(text, add_special=False, parse_special=False)
        starts = range(len(tokens) - len(plain) + 1)
        start = next((i for i in starts if tokens[i : i + len(plain)] == plain), 0)
        after = tokens[start + len(plain) :]
        return [*tokens[: limit - len(after)], *after]

    def _check_tokens(self, tokens: list[int]) -> list[int]:
        limit, n_vocab = self._embedder.n_batch, self._vocabulary.n_tokens
        if not tokens:
            raise RequestError("an input is empty", parameter="input")
        if len(tokens) > limit:
            raise make_too_long(len(tokens), limit, trained_ctx=self.info.trained_ctx)
        for token in tokens:
            if not 0 <= token < n_vocab:
                raise RequestError(f"token {token} is not in the vocabulary of {n_vocab}", parameter="input")
        return tokens

    def _check_length(self, num_chars: int) -> None:
        """Refuse a text that is too long before it is tokenized: millions of characters would take seconds."""
        limit = self._embedder.n_batch
        if num_chars <= limit * SURE_TOKEN_BYTES:
            return
        max_bytes = self._vocabulary.max_token_bytes
        if max_bytes is not None and num_chars > limit * max_bytes:
            trained_ctx = self.info.trained_ctx
            raise make_too_long(num_chars // max_bytes, limit, trained_ctx=trained_ctx, is_lower_bound=True)

    def _next_pass(self) -> list[tuple[RunningEmbedding, list[int]]]:
        """Choose the texts of the next pass, one per request in turn: a long list does not delay a short one."""
        chosen: list[tuple[RunningEmbedding, list[int]]] = []
        num_free = self._embedder.n_batch
        while self._turns and len(chosen) < self._embedder.num_texts:
            running = self._turns[0]
            text = running.texts[running.num_taken]
            if len(text) > num_free:
                break
            num_free -= len(text)
            chosen.append((running, text))
            self._turns.popleft()
            running.num_taken += 1
            if running.num_taken < len(running.texts):
                self._turns.append(running)
        return chosen

    def _run(self, chosen: list[tuple[RunningEmbedding, list[int]]]) -> None:
        for request_id in {running.id for running, _ in chosen if not running.vectors}:
            self._report(Begun(request_id))
        vectors = self._embedder.embed([text for _, text in chosen])
        self._num_tokens += sum(len(text) for _, text in chosen)
        for (running, _), vector in zip(chosen, vectors, strict=True):
            running.vectors.append(vector)
        for running in {running.id: running for running, _ in chosen}.values():
            if len(running.vectors) == len(running.texts):
                del self._running[running.id]
                self._outbox += self._make_results(running)

    def _make_results(self, running: RunningEmbedding) -> list[RequestEvent]:
        try:
            vectors = np.stack(running.vectors)
            vectors = normalize(vectors) if running.ranking is None else self._read_scores(vectors, running.ranking)
        except EagleLocalError as error:
            return [Failed(running.id, error)]
        embeddings = Embeddings(running.id, vectors.tobytes(), vectors.shape[1], running.prompt_tokens)
        return [embeddings, self._make_finished(running, "stop")]

    def _read_scores(self, classes: Floats, ranking: Ranking) -> Floats:
        """Return scores [documents, 1] from the model's class logits. Raises EngineError if one is not finite."""
        scores = classes[:, :1]
        if not np.isfinite(scores).all():
            raise EngineError("the model returned a score that is not a number", hint="its file may be damaged")
        if ranking.is_raw or self._gives_probabilities:
            return scores
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * scores)), np.float32)  # the logistic function, without overflow

    def _make_finished(self, running: RunningEmbedding, reason: str) -> Finished:
        seconds = time.perf_counter() - running.submitted_at
        return Finished(running.id, reason, "", running.prompt_tokens, 0, Timings(prefill_s=seconds), NO_DRAFTS)


def make_too_long(num_tokens: int, limit: int, *, trained_ctx: int, is_lower_bound: bool = False) -> RequestError:
    shown = f"more than {num_tokens}" if is_lower_bound else f"{num_tokens}"
    what = f"an input of {shown} tokens exceeds the context of {limit}"
    hint = suggest_ctx(num_tokens, trained_ctx=trained_ctx, answer_tokens=0, is_lower_bound=is_lower_bound)
    return RequestError(what, hint=hint, parameter="input", code="context_length_exceeded")


def normalize(vectors: Floats) -> Floats:
    """Return the vectors [rows, n_embd] scaled to length 1. Raises EngineError if one is zero or not finite."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not (lengths > 0).all():
        raise EngineError("the model returned a vector that is zero or not finite", hint="its file may be damaged")
    return np.asarray(vectors / lengths, np.float32)

"""The loop of an embedding engine over a double: passes, fairness, order, refusals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.batch import Floats
from eaglelocal.core.events import Begun, Embeddings, EngineInfo, Failed, Finished, RequestEvent, Rested, Started
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.request import ChatRequest, EmbedRequest
from eaglelocal.engine.embedding_engine import EmbeddingEngine
from eaglelocal.engine.input_queue import InputExecutors
from eaglelocal.errors import RequestError

INFO = EngineInfo(
    target="table",
    draft="none",
    draft_reason="",
    n_ctx=16,
    num_slots=4,
    n_vocab=100,
    chat_template=False,
    threads=1,
    model_bytes=0,
    load_s=0.0,
    library="none",
    task=ModelTask.EMBEDDING,
    embedding_size=2,
)


@dataclass(slots=True)
class TableEmbedder:
    """The vector of a text says its first token and its length; a pass that is too large fails loudly."""

    n_batch: int = 16
    num_texts: int = 4
    native_s: float = 0.0
    passes: list[list[list[int]]] = field(default_factory=list)

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        assert 0 < len(texts) <= self.num_texts and sum(map(len, texts)) <= self.n_batch and all(texts)
        self.passes.append([list(text) for text in texts])
        return np.array([(text[0], len(text)) for text in texts], np.float32)


class Letters:
    """A letter is a token; special tokens frame a text. What of a vocabulary is needed here."""

    n_tokens = 100
    chat_template = None
    max_token_bytes: int | None = None
    bos_text = eos_text = ""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not parse_special
        letters = [10 + ord(letter) % 80 for letter in text]
        return [1, *letters, 2] if text and add_special else letters

    def piece(self, token: int) -> bytes:
        return b""

    def is_end(self, token: int) -> bool:
        return token == 2


def opened(embedder: TableEmbedder | None = None) -> EmbeddingEngine:
    return EmbeddingEngine(embedder or TableEmbedder(), Letters(), INFO, lambda: None)


def run(engine: EmbeddingEngine) -> list[RequestEvent]:
    events: list[RequestEvent] = []
    while engine.has_work:
        events += engine.step()
    return events


def vectors_of(event: Embeddings) -> Floats:
    return np.frombuffer(event.vectors, np.float32).reshape(-1, event.size)


def expected(*texts: tuple[int, ...]) -> Floats:
    raw = np.array([(text[0], len(text)) for text in texts], np.float32)
    return np.asarray(raw / np.linalg.norm(raw, axis=1, keepdims=True), np.float32)


def test_vectors_come_together_in_order_and_then_the_end() -> None:
    engine, texts = opened(), tuple((n, 5, 6)[: 1 + n % 3] for n in range(3, 12))
    engine.submit(EmbedRequest(id="r", inputs=texts))
    started, embedded, finished = run(engine)
    assert isinstance(started, Started) and isinstance(embedded, Embeddings) and isinstance(finished, Finished)
    np.testing.assert_allclose(vectors_of(embedded), expected(*texts), rtol=1e-6)
    num_tokens = sum(map(len, texts))
    assert started.prompt_tokens == embedded.prompt_tokens == finished.prompt_tokens == num_tokens
    assert (finished.reason, finished.completion_tokens) == ("stop", 0)
    assert engine.snapshot().prompt_tokens == num_tokens


def test_work_on_a_request_is_reported_before_its_first_pass() -> None:
    reported: list[tuple[object, int]] = []
    embedder = TableEmbedder()
    input_executors = InputExecutors(report=lambda event: reported.append((event, len(embedder.passes))))
    engine = EmbeddingEngine(embedder, Letters(), INFO, lambda: None, input_executors=input_executors)
    for name, length in (("long", embedder.n_batch), ("next", 1)):
        engine.submit(EmbedRequest(id=name, inputs=((7,) * length, (8,) * length)))
    run(engine)
    read = [(event, 0) for name in ("long", "next") for event in (Begun(name, is_reading=True), Rested(name))]
    assert reported == [*read, (Begun("long"), 0), (Begun("next"), 1)]


def test_text_is_tokenized_with_its_special_tokens() -> None:
    embedder = TableEmbedder()
    engine = opened(embedder)
    engine.submit(EmbedRequest(id="r", inputs=("ab", (7,))))
    run(engine)
    assert embedder.passes == [[[1, 10 + ord("a") % 80, 10 + ord("b") % 80, 2], [7]]]


def test_a_long_list_does_not_hold_up_a_short_one() -> None:
    engine = opened()
    engine.submit(EmbedRequest(id="long", inputs=((3, 4),) * 100))
    engine.step()
    engine.submit(EmbedRequest(id="short", inputs=((5,),)))
    ends = [event.request_id for event in run(engine) if isinstance(event, Finished)]
    assert ends == ["short", "long"]


text = st.lists(st.integers(0, 99), min_size=1, max_size=16).map(tuple)


@given(st.lists(st.lists(text, min_size=1, max_size=8), min_size=1, max_size=5))
def test_every_request_gets_its_own_vectors(requests: list[list[tuple[int, ...]]]) -> None:
    engine = opened()
    for number, texts in enumerate(requests):
        engine.submit(EmbedRequest(id=str(number), inputs=tuple(texts)))
    made = {event.request_id: event for event in run(engine) if isinstance(event, Embeddings)}
    assert made.keys() == {str(number) for number in range(len(requests))}
    for number, texts in enumerate(requests):
        np.testing.assert_allclose(vectors_of(made[str(number)]), expected(*texts), rtol=1e-5, atol=1e-7)


def test_a_cancelled_request_takes_no_more_passes() -> None:
    embedder = TableEmbedder()
    engine = opened(embedder)
    engine.submit(EmbedRequest(id="r", inputs=((3,),) * 100))
    engine.step()
    engine.cancel("r")
    engine.cancel("unknown")
    assert [event.reason for event in run(engine) if isinstance(event, Finished)] == ["cancelled"]
    assert len(embedder.passes) == 1
    engine.submit(EmbedRequest(id="r", inputs=((3,),)))  # the id is free again
    assert any(isinstance(event, Embeddings) for event in run(engine))


@pytest.mark.parametrize(
    ("inputs", "said", "code"),
    [
        (((1,) * 17,), "an input of 17 tokens exceeds the context of 16", "context_length_exceeded"),
        (("x" * 15,), "an input of 17 tokens exceeds the context of 16", "context_length_exceeded"),
        (((),), "an input is empty", ""),
        (("",), "an input is empty", ""),
        ((), "there is no input", ""),
        (((100,),), "token 100 is not in the vocabulary", ""),
        (((-1,),), "token -1 is not in the vocabulary", ""),
    ],
)
def test_what_cannot_be_embedded_is_refused(inputs: tuple[str | tuple[int, ...], ...], said: str, code: str) -> None:
    engine = opened()
    engine.submit(EmbedRequest(id="r", inputs=inputs))
    (failed,) = run(engine)
    assert isinstance(failed, Failed) and isinstance(failed.error, RequestError)
    assert re.search(said, failed.error.message)
    assert (failed.error.parameter, failed.error.code) == ("input", code)


def test_the_end_of_a_long_text_is_cut_where_the_request_allows_it() -> None:
    """The vocabulary's own tokens stay, what was read is counted, and tokens are never cut."""
    embedder = TableEmbedder()
    engine = opened(embedder)
    engine.submit(EmbedRequest(id="r", inputs=("x" * 15, "short", "y" * 14), truncates=True))
    events = run(engine)
    letters = {letter: 10 + ord(letter) % 80 for letter in "xyshort"}
    passed = [text for texts in embedder.passes for text in texts]
    assert passed == [
        [1, *[letters["x"]] * 14, 2],
        [1, *(letters[letter] for letter in "short"), 2],
        [1, *[letters["y"]] * 14, 2],
    ]
    assert isinstance(events[-1], Finished) and events[-1].prompt_tokens == 16 + 7 + 16
    engine.submit(EmbedRequest(id="r", inputs=((3,) * 17,), truncates=True))
    (failed,) = run(engine)
    assert isinstance(failed, Failed) and "17 tokens exceeds" in failed.error.message


def test_of_a_text_that_is_cut_only_what_may_fit_is_tokenized() -> None:
    class Counting(Letters):
        max_token_bytes = 20
        most_chars = 0

        def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            self.most_chars = max(self.most_chars, len(text))
            return super().tokenize(text, add_special=add_special, parse_special=parse_special)

    vocabulary = Counting()
    engine = EmbeddingEngine(TableEmbedder(), vocabulary, INFO, lambda: None)
    engine.submit(EmbedRequest(id="r", inputs=("x" * 10**6,), truncates=True))
    assert isinstance(run(engine)[-1], Finished) and vocabulary.most_chars == 16 * 20


def test_a_text_that_cannot_fit_is_not_even_tokenized() -> None:
    class Counting(Letters):
        max_token_bytes = 20

        def __init__(self) -> None:
            self.tokenized: list[str] = []

        def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            self.tokenized.append(text)
            return super().tokenize(text, add_special=add_special, parse_special=parse_special)

    vocabulary = Counting()
    engine = EmbeddingEngine(TableEmbedder(), vocabulary, INFO, lambda: None)
    engine.submit(EmbedRequest(id="r", inputs=("x" * (16 * 20 + 1),)))
    (failed,) = run(engine)
    assert isinstance(failed, Failed) and "more than 16 tokens exceeds the context of 16" in failed.error.message
    assert vocabulary.tokenized == []


def test_it_answers_no_chats_and_no_id_twice() -> None:
    engine = opened()
    with pytest.raises(RequestError, match="makes embeddings and nothing else"):
        engine.submit(ChatRequest(id="r", text="hi"))
    engine.submit(EmbedRequest(id="r", inputs=((3,),)))
    with pytest.raises(RequestError, match="still running"):
        engine.submit(EmbedRequest(id="r", inputs=((3,),)))


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_vector_without_direction_fails_the_request(value: float) -> None:
    class Broken(TableEmbedder):
        def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
            return np.full((len(texts), 2), value, np.float32)

    engine = opened(Broken())
    engine.submit(EmbedRequest(id="r", inputs=((3,),)))
    last = run(engine)[-1]
    assert isinstance(last, Failed) and "zero or not finite" in last.error.message

"""Sampling parameters on the real llama.cpp, with and without drafts, against plain numpy formulas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import AnswerResult, drive
from doubles.random_models import write_agreeing_head, write_target
from doubles.real_engine import TINY, RawLogits, ask, real_engine
from doubles.scripted_context import penalized

from eaglelocal.core.events import Tokens
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import Sampled
from eaglelocal.engine.engine import Engine

SHAPE = replace(TINY, layer_gain=0.1)
END = SHAPE.n_vocab - 1
PROMPT = (33, 60, 97, 33, 61)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("sampling") / "target.gguf", SHAPE)


@pytest.fixture(scope="module")
def head(target: Path) -> Path:
    return write_agreeing_head(target.with_name("head.gguf"), target, SHAPE)


@pytest.fixture(scope="module")
def engines(target: Path, head: Path) -> Iterator[dict[str, Engine]]:
    made = {"plain": real_engine(target), "drafted": real_engine(target, "eagle3", head, num_slots=2)}
    yield made
    for engine in made.values():
        engine.close()


@pytest.fixture(scope="module")
def logits(target: Path) -> Iterator[RawLogits]:
    raw = RawLogits(target)
    yield raw
    raw.close()


def greedy_text(logits: RawLogits, request: ChatRequest, count: int) -> list[int]:
    """Argmax behind bias and penalties, one whole decode a token."""
    tokens = list(request.tokens)
    for _ in range(count):
        tokens.append(int(penalized(logits.after(tokens), request.params, tokens).argmax()))
    return tokens[len(request.tokens) :]


def test_what_was_left_open_is_as_the_file_recommends(tmp_path: Path, logits: RawLogits) -> None:
    """The same weights in a file that recommends to take the likeliest token."""
    engine = real_engine(write_target(tmp_path / "target.gguf", replace(SHAPE, temperature=0.0)))
    native_step = ask("open", PROMPT, temperature=2.0, seed=1, left_open=frozenset({"temperature"}))
    closed = ask("said", PROMPT, temperature=2.0, seed=1)
    assert engine.info.sampling == {"temperature": 0.0}
    assert say(engine, native_step).tokens == greedy_text(logits, native_step, 24) != say(engine, closed).tokens
    engine.close()


def say(engine: Engine, request: ChatRequest) -> AnswerResult:
    return drive(engine, [request])[request.id]


# ---- seeds
def seeded() -> list[ChatRequest]:
    return [
        ask(str(i), (*PROMPT[: 1 + i % 5], 40 + i), temperature=0.8, top_p=0.95, top_k=top_k, seed=i, max_tokens=16)
        for i, top_k in enumerate([40, 0, 40, 0, 3, 0, 40])
    ]


@pytest.fixture(scope="module")
def seeded_texts(target: Path) -> dict[str, list[int]]:
    engine = real_engine(target)
    result = {name: answer.tokens for name, answer in drive(engine, seeded()).items()}
    engine.close()
    return result


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 4, 8])
def test_a_seed_gives_one_text_at_any_concurrency_and_draft_length(
    target: Path, head: Path, seeded_texts: dict[str, list[int]], length: int, slots: int
) -> None:
    engine = real_engine(target, "eagle3", head, num_draft_tokens=length, num_slots=slots)
    result = drive(engine, seeded())
    engine.close()
    assert {name: answer.tokens for name, answer in result.items()} == seeded_texts


def test_seeds_differ_and_no_seed_is_a_new_one(engines: dict[str, Engine]) -> None:
    fields = {"temperature": 1.5, "max_tokens": 16}
    texts = [tuple(say(engines["plain"], ask(f"s{s}", PROMPT, seed=s, **fields)).tokens) for s in range(3)]
    texts += [tuple(say(engines["plain"], ask(f"n{i}", PROMPT, **fields)).tokens) for i in range(3)]
    assert len(set(texts)) == 6


def test_a_seed_may_be_any_number(engines: dict[str, Engine]) -> None:
    for seed in (-1, 0, 2**32 - 1, 2**63, 10**30):
        one, two = (say(engines["plain"], ask("a", PROMPT, temperature=1.0, seed=seed)).tokens for _ in range(2))
        assert one == two


# ---- penalties and bias
PENALTIES: dict[str, dict[str, object]] = {
    "repeat": {"repeat_penalty": 1.5},
    "repeat, short memory": {"repeat_penalty": 1.8, "repeat_last_n": 3},
    "frequency": {"frequency_penalty": 0.7, "repeat_last_n": 1000},
    "presence": {"presence_penalty": 1.5, "repeat_last_n": 10},
    "all": {"repeat_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.4},
    "no memory": {"repeat_penalty": 1.9, "presence_penalty": 2.0, "repeat_last_n": 0},
    "bias": {"logit_bias": ((5, 3.0), (106, -50.0))},
    "bias and penalty": {"logit_bias": ((5, 6.0),), "repeat_penalty": 1.5, "frequency_penalty": 1.0},
}


@pytest.mark.parametrize("how", ["plain", "drafted"])
@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_and_bias(engines: dict[str, Engine], logits: RawLogits, name: str, how: str) -> None:
    request = ask("a", PROMPT, max_tokens=20, **PENALTIES[name])
    assert say(engines[how], request).tokens == greedy_text(logits, request, 20)


def test_a_bias_that_bans_and_one_that_forces(engines: dict[str, Engine]) -> None:
    forced = say(engines["drafted"], ask("a", PROMPT, temperature=1.0, seed=1, logit_bias=((7, 1000.0),)))
    assert set(forced.tokens) == {7}
    free = say(engines["drafted"], ask("b", PROMPT))
    banned = say(engines["drafted"], ask("c", PROMPT, logit_bias=((free.tokens[0], -1000.0),)))
    assert free.tokens[0] not in banned.tokens


@pytest.mark.parametrize("token", [-1, SHAPE.n_vocab])
def test_a_bias_for_no_token_is_refused(engines: dict[str, Engine], token: int) -> None:
    result = say(engines["plain"], ask("a", PROMPT, logit_bias=((token, 1.0),)))
    assert result.failed is not None
    assert result.failed.error.message == f"token {token} is not in the vocabulary of 300"


# ---- logprobs
def sampled_of(engine: Engine, request: ChatRequest) -> list[Sampled]:
    engine.submit(request)
    pieces = [p for e in drain(engine) if isinstance(e, Tokens) for p in e.pieces]
    return [p.sampled for p in pieces if p.sampled is not None]


def drain(engine: Engine) -> list[object]:
    events: list[object] = []
    while engine.has_work:
        events.extend(engine.step())
    return events


@pytest.mark.parametrize("how", ["plain", "drafted"])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.7, "top_k": 5, "repeat_penalty": 1.3}])
def test_logprobs_are_those_of_the_model_itself(
    engines: dict[str, Engine], logits: RawLogits, params: dict[str, float], how: str
) -> None:
    request = ask("a", PROMPT, seed=3, max_tokens=10, logprobs=4, **params)
    text = list(PROMPT)
    for sampled in sampled_of(engines[how], request):
        raw = logits.after(text).astype(np.float64)
        expected = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
        assert sampled.logprob == pytest.approx(
            expected[sampled.token], abs=1e-3
        )  # llama.cpp's attention adds in 16 bits
        assert [t.token for t in sampled.top] == np.argsort(-expected, kind="stable")[:4].tolist()
        np.testing.assert_allclose([t.logprob for t in sampled.top], np.sort(expected)[::-1][:4], atol=1e-3)
        text.append(sampled.token)
    assert len(text) == len(PROMPT) + 10


def test_logprobs_of_the_token_alone_and_none_at_all(engines: dict[str, Engine]) -> None:
    alone = sampled_of(engines["drafted"], ask("a", PROMPT, logprobs=0))
    assert len(alone) == 24 and all(s.logprob is not None and s.top == () for s in alone)
    assert sampled_of(engines["drafted"], ask("b", PROMPT)) == []


# ---- ends
@pytest.mark.parametrize("how", ["plain", "drafted"])
def test_stop_strings_across_token_borders(engines: dict[str, Engine], how: str) -> None:
    engine = engines[how]
    whole = say(engine, ask("a", PROMPT, max_tokens=40)).text
    for start in range(3, 20, 4):
        stop = whole[start : start + 3]
        result = say(engine, ask("b", PROMPT, max_tokens=40, stop=("never said", stop)))
        assert result.text == whole[: whole.index(stop)]
        assert result.finished is not None and result.finished.reason == "stop"
        assert result.finished.completion_tokens == len(result.tokens) <= 40
        onward = say(engine, ask("c", (*PROMPT, *result.tokens, 45), max_tokens=12))
        assert onward.tokens == say(engines["plain"], ask("d", (*PROMPT, *result.tokens, 45), max_tokens=12)).tokens


@pytest.mark.parametrize("how", ["plain", "drafted"])
def test_the_end_token_ends_unless_it_is_ignored(engines: dict[str, Engine], how: str) -> None:
    always = {"logit_bias": ((END, 1000.0),), "max_tokens": 5}
    result = say(engines[how], ask("a", PROMPT, ignore_eos=False, **always))
    assert (result.tokens, result.text) == ([END], "")
    assert result.finished is not None and result.finished.reason == "stop"
    result = say(engines[how], ask("b", PROMPT, ignore_eos=True, **always))
    assert (result.tokens, result.text) == ([END] * 5, "")
    assert result.finished is not None and result.finished.reason == "length"


@pytest.mark.parametrize("how", ["plain", "drafted"])
def test_a_likely_end_comes_where_it_would_without_drafts(engines: dict[str, Engine], how: str) -> None:
    lengths = set()
    for i in range(8):
        fields = {"max_tokens": 30, "ignore_eos": False, "logit_bias": ((END, 2.2),)}
        request = ask("a", (*PROMPT, 50 + i), **fields)
        result = say(engines[how], request).tokens
        assert result == say(engines["plain"], request).tokens
        assert END not in result[:-1]
        lengths.add(len(result) if result[-1] == END else None)
    assert len(lengths) > 2


@pytest.mark.parametrize("how", ["plain", "drafted"])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 251, 252, 10**7, None])
def test_max_tokens(engines: dict[str, Engine], max_tokens: int | None, how: str) -> None:
    result = say(engines[how], ask("a", PROMPT, max_tokens=max_tokens))
    room = 256 - len(PROMPT)
    assert len(result.tokens) == min(max_tokens or room, room)
    assert result.finished is not None and result.finished.reason == "length"


def test_a_prompt_that_leaves_no_room_is_refused(engines: dict[str, Engine]) -> None:
    for request in (ask("b", [1] * 256, max_tokens=None), ask("c", (), max_tokens=1)):
        result = say(engines["plain"], request)
        assert result.failed is not None
    assert say(engines["plain"], ask("d", [1] * 255, max_tokens=None)).finished is not None

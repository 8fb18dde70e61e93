"""The target's answers are stored unchanged and in the order of the questions; no question is asked twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from doubles.canned_client import Answer, CannedClient
from doubles.engine_harness import drive
from doubles.random_models import TargetShape, write_target
from doubles.real_engine import ask, real_engine
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.client.client import Client, OnEvent
from eaglelocal.core.request import OFF, ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import EngineError, RequestError, ResourceError
from eaglelocal.training import conversations
from eaglelocal.training.conversations import (
    MIN_ANSWER_TOKENS,
    Collected,
    TrainingConversation,
    generate_texts,
    question_key,
    read_conversations,
)
from eaglelocal.training.gathering import AnswerGoal, gather_answers

pytestmark = pytest.mark.full

AT_ONCE = 3
PLENTY = 10_000
ENDS = TargetShape().n_vocab - 1


def question(number: int) -> ChatRequest:
    return ChatRequest(id="", text=f"question {number}", params=SamplingParams(temperature=1.0))


def number_of(request: ChatRequest) -> int:
    assert request.text is not None
    return int(request.text.split()[1])


def answer_to(request: ChatRequest) -> Answer:
    """Ten tokens, but to every fifth question two; every seventh is refused."""
    number = number_of(request)
    if number % 7 == 6:
        return RequestError("it does not fit")
    return (1, number, 2), tuple(range(100, 100 + (2 if number % 5 == 4 else 10)))


@dataclass
class Asking:
    """Runs over one file, each with a client of its own."""

    path: Path
    answer: Callable[[ChatRequest], Answer] = answer_to
    clients: list[CannedClient] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    def collect(self, numbers: range | list[int], max_answer_tokens: int = PLENTY, **goal: int) -> Collected:
        requests = [question(number) for number in numbers]

        def open_client() -> AbstractContextManager[Client]:
            new = {question_key(request) for request in requests} - read_conversations(self.path).keys()
            self.clients.append(CannedClient(self.answer, AT_ONCE, len(new)))
            return self.clients[-1].opened()

        return gather_answers(
            requests,
            self.path,
            open_client,
            concurrency=AT_ONCE,
            goal=AnswerGoal(max_answer_tokens, **goal),
            on_progress=lambda num_tokens, num_conversations: self.order.append(num_tokens),
        )

    @property
    def asked(self) -> list[int]:
        """By the last client."""
        return [number_of(request) for request in self.clients[-1].asked]


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path / "work" / "answers.jsonl")


def numbers_in(collected: Collected) -> list[int]:
    return [one.tokens[1] for one in collected.conversations]


def test_answers_come_in_the_order_of_the_file(asking: Asking) -> None:
    """Later ones follow, whatever is asked first then."""
    collected = asking.collect(range(10))
    order = [one.tokens[1] for one in read_conversations(asking.path).values() if not one.is_short]
    assert numbers_in(collected) == order and sorted(order) == [0, 1, 2, 3, 5, 7, 8]
    assert (collected.num_refused, collected.num_short) == (1, 2)
    assert [one.num_prompt for one in collected.conversations] == [3] * 7
    assert all(one.tokens[3:] == tuple(range(100, 110)) for one in collected.conversations)
    assert asking.order == sorted(asking.order)
    assert (asking.order[0], asking.order[-1], len(asking.order)) == (0, 70, 10)
    assert asking.clients[-1].state == "closed"


def test_a_second_run_finds_what_the_first_did(asking: Asking) -> None:
    """Whichever answers ended first: what is learned from is the same, and so is what is held out."""
    for max_answer_tokens in (25, 55, PLENTY):
        first = asking.collect(range(20), max_answer_tokens)
        again = asking.collect(range(20), max_answer_tokens)
        assert again.conversations == first.conversations


def test_a_smaller_context_leaves_out_answers_of_which_it_holds_too_little(asking: Asking) -> None:
    """And asks for more in their place."""
    asking.collect([0, 1, 2])
    cut = asking.collect(range(10), 18, ctx=9)
    assert all(len(one.tokens) == 9 for one in cut.conversations) and len(cut.conversations) == 3
    none = asking.collect(range(10), 18, ctx=3 + MIN_ANSWER_TOKENS - 1)
    assert none.conversations == () and none.num_short == 9


def test_it_goes_on_until_there_are_some_conversations(asking: Asking) -> None:
    assert len(asking.collect(range(10), 10).conversations) == 1
    assert len(asking.collect(range(10), 10, min_conversations=5).conversations) == 5


def test_no_question_is_asked_twice(asking: Asking) -> None:
    asking.collect([0, 1, 2])
    collected = asking.collect([5, 2, 0, 3])
    assert asking.asked == [5, 3]
    assert sorted(numbers_in(collected)) == [0, 2, 3, 5]
    asking.collect([3, 1])
    assert len(asking.clients) == 2  # nothing is to be asked: no engine is started


def test_equal_questions_are_one(asking: Asking) -> None:
    assert sorted(numbers_in(asking.collect([1, 0, 1, 1]))) == [0, 1]
    assert asking.asked == [1, 0]


@pytest.mark.parametrize("max_answer_tokens", [1, 10, 11, 39])
def test_it_ends_when_there_is_enough(max_answer_tokens: int, asking: Asking) -> None:
    collected = asking.collect([0, 1, 2, 3, 5, 7, 8], max_answer_tokens)
    num_tokens = sum(one.num_answer_tokens for one in collected.conversations)
    assert max_answer_tokens <= num_tokens < max_answer_tokens + 10
    num_asked = len(asking.asked)
    assert num_asked <= num_tokens // 10 + AT_ONCE
    assert numbers_in(asking.collect([0, 1, 2, 3, 5, 7, 8], max_answer_tokens)) == numbers_in(collected)


def test_what_was_said_stays_when_the_engine_fails(asking: Asking) -> None:
    def failing(request: ChatRequest) -> Answer:
        return EngineError("it ended") if number_of(request) == 3 else answer_to(request)

    asking.answer = failing
    with pytest.raises(EngineError, match="it ended"):
        asking.collect([0, 1, 2, 3, 5, 7])
    assert asking.clients[-1].state == "closed"
    known = [said.tokens[1] for said in read_conversations(asking.path).values()]
    assert known
    asking.answer = answer_to
    assert sorted(numbers_in(asking.collect([0, 1, 2, 3, 5, 7]))) == [0, 1, 2, 3, 5, 7]
    assert set(asking.asked).isdisjoint(known)


DAMAGE = {
    "cut short": lambda raw: raw[:-9],
    "cut within the first line": lambda raw: raw[:20],
    "garbage before": lambda raw: b"\xff\xfe\x00 {\n[]\n1\nnull\n" + raw,
    "garbage within": lambda raw: raw.replace(b'"tokens"', b'"to\xc3\x28kens"', 1),
    "odd numbers": lambda raw: raw + b'{"key": "x", "tokens": [1e999, 3], "num_prompt": 1}\n',
    "no answer at all": lambda raw: raw + b'{"key": "x", "tokens": [1, 3], "num_prompt": 5}\n',
    "zeros": lambda raw: raw + bytes(64),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_lines_are_passed_over(damage: str, asking: Asking) -> None:
    before = asking.collect([0, 1, 2])
    asking.path.write_bytes(DAMAGE[damage](asking.path.read_bytes()))
    assert "x" not in read_conversations(asking.path)
    assert set(asking.collect([0, 1, 2]).conversations) == set(before.conversations)
    assert len(read_conversations(asking.path)) == 3


def test_only_the_owner_reads_what_was_said(asking: Asking) -> None:
    asking.collect([0])
    assert asking.path.stat().st_mode & 0o777 == 0o600
    assert asking.path.parent.stat().st_mode & 0o777 == 0o700


UNKEPT = {"file/answers": "cannot read", "folder": "cannot read", "dangling": "cannot write"}


@pytest.mark.parametrize("place", UNKEPT)
def test_answers_that_cannot_be_kept(place: str, tmp_path: Path) -> None:
    """No engine is started for them."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at all")
    asking = Asking(tmp_path / place)
    with pytest.raises(ResourceError, match=UNKEPT[place]):
        asking.collect([0])
    assert not asking.clients


CONVERSATIONS = st.builds(
    lambda key, tokens, num_prompt: TrainingConversation(key, tuple(tokens), 1 + num_prompt % len(tokens)),
    st.text(max_size=8),
    st.lists(st.integers(0, 2**31), min_size=1, max_size=20),
    st.integers(0, 100),
)


@given(st.lists(CONVERSATIONS, max_size=6))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, said: list[TrainingConversation]) -> None:
    path = tmp_path_factory.mktemp("said") / "answers.jsonl"
    with conversations.open_to_append(path) as file:
        for one in said:
            conversations.append_line(file, path, one.entry)
    assert read_conversations(path) == {one.key: one for one in said}


@given(CONVERSATIONS, st.integers(1, 25))
def test_a_conversation_that_is_cut(said: TrainingConversation, most: int) -> None:
    cut = said.cut(most)
    assert cut.tokens == said.tokens[:most]
    assert cut.num_answer_tokens == max(0, min(len(said.tokens), most) - said.num_prompt)
    assert cut.is_short == (cut.num_answer_tokens < MIN_ANSWER_TOKENS)


def test_keys_tell_questions_apart() -> None:
    requests = [
        ChatRequest(id="", text="a"),
        ChatRequest(id="", tokens=(1, 2)),
        ChatRequest(id="", messages=(Message("user", "a"),)),
        ChatRequest(id="", messages=(Message("system", "a"),)),
        ChatRequest(id="", messages=(Message("user", "a"), Message("assistant", "b"), Message("user", "a"))),
    ]
    assert len({question_key(request) for request in requests}) == len(requests)
    assert question_key(requests[0]) == question_key(
        replace(requests[0], id="other", params=SamplingParams(temperature=0.3))
    )


@dataclass
class InProcess:
    """Steps a real engine until a question is answered; nothing else of a client is asked for."""

    engine: Engine

    def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
        self.engine.submit(request)
        while self.engine.has_work:
            for event in self.engine.step():
                on_event(event)


def test_of_a_real_engine_it_is_prompt_and_answer_to_the_token(tmp_path: Path) -> None:
    """However it was drafted, and the token that ends it included."""
    engine = real_engine(write_target(tmp_path / "target.gguf", TargetShape(n_embd=64, n_ff=64)), "ngram")
    requests = [ask(str(number), [3, 5, number], max_tokens=12, ignore_eos=False) for number in range(6)]
    plain = {name: order.tokens for name, order in drive(engine, requests).items()}
    said = dict(generate_texts(cast(Client, InProcess(engine)), partial(next, iter(requests), None), concurrency=2))
    engine.close()
    assert {key: list(one.tokens) for key, one in said.items() if one} == {
        request.id: [*request.tokens, *plain[request.id]] for request in requests
    }
    assert [one.num_prompt for one in said.values() if one] == [3] * 6


def test_an_answer_that_ended_by_itself_keeps_its_end(tmp_path: Path) -> None:
    path = write_target(tmp_path / "target.gguf", TargetShape(n_embd=64, n_ff=64))
    engine = real_engine(path, "none", spec=OFF)
    request = ask("a", [3, 5], max_tokens=12, ignore_eos=False, logit_bias=((ENDS, 1000.0),))
    [(_, said)] = generate_texts(cast(Client, InProcess(engine)), partial(next, iter([request]), None), concurrency=1)
    engine.close()
    assert said and (said.tokens, said.num_prompt) == ((3, 5, ENDS), 2)

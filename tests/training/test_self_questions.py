"""Questions that a target asks itself: what is kept of them, and that a resumed run goes on with the same ones."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.client.client import Client, OnEvent
from eaglelocal.core.events import Failed, Finished, Prompted, TextPiece, Tokens
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError, RequestError
from eaglelocal.training.conversations import Collected, generate_texts, question_key
from eaglelocal.training.gathering import MAX_USELESS, AnswerGoal, gather_answers
from eaglelocal.training.self_questions import KINDS, Asking, Seen, SelfQuestions, Talk, is_own, is_sound

pytestmark = pytest.mark.full

NUM = 16  # conversations
END = 9  # the control token that the template writes after a question
WORDS = [f"w{number}" for number in range(500)]


def random_words(request: ChatRequest) -> str:
    chance = random.Random(f"{request.params.seed}{request.messages}")
    return " " + " ".join(chance.choices(WORDS, k=12))


@dataclass
class Speaker:
    """A client that answers at once. `say`: returns the text of an answer; None: it is refused. Words are tokens."""

    say: Callable[[ChatRequest], str | None] = random_words
    goes_on: bool = False  # after the end of the question
    asked: list[ChatRequest] = field(default_factory=list)

    def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
        if request.is_counted:
            done = Finished(request.id, "stop", "", 1, 0, Timings(), SpeculationStats())
            tokens = (1, 2) if request.asks else (1, 2, END, 3)
            on_event(Prompted(request.id, tokens, (b"",) * len(tokens)))
            on_event(done)
            return
        self.asked.append(request)
        said = self.say(request)
        if said is None:
            on_event(Failed(request.id, RequestError("it does not fit")))
            return
        pieces = [TextPiece(5, each, False) for each in (said[:3], said[3:])]
        if self.goes_on and request.asks:
            pieces += [TextPiece(END, "", False), TextPiece(5, " and the answer", False)]
        on_event(Tokens(request.id, tuple(pieces)))
        num_prompt, num = 1 + count_words(request.messages), len(said.split())
        tokens = tuple(range(num_prompt + num))
        on_event(Finished(request.id, "stop", "", num_prompt, num, Timings(), SpeculationStats(), tokens=tokens))


def count_words(messages: Iterable[Message]) -> int:
    return sum(len(message.content.split()) for message in messages)


def make_request(talk: Talk) -> ChatRequest:
    return ChatRequest(id="", messages=talk)


def ask(path: Path, speaker: Speaker, *, num: int = NUM, seed: int = 1, has_template: bool = True) -> list[Talk]:
    """Make so many conversations, several at once; return those of the file."""
    questions = SelfQuestions(path, seed=seed, has_template=has_template, make_request=make_request)
    client, begun, waiting = cast(Client, speaker), 0, deque[ChatRequest]()
    questions.open(client)

    def next_request() -> ChatRequest | None:
        nonlocal begun
        if waiting:
            return waiting.popleft()
        begun += 1
        return questions.begin() if begun <= num else None

    for id, said in generate_texts(client, next_request, concurrency=4):
        following = questions.go_on(id, said)
        if following is not None and is_own(following.id):
            waiting.append(following)
        elif following is not None:
            assert following.id == question_key(following)
    return questions.talks


def test_each_kind_is_asked_and_conversations_end_with_a_question(tmp_path: Path) -> None:
    talks = ask(tmp_path / "questions.jsonl", Speaker())
    assert len(talks) == NUM
    for number, talk in enumerate(talks):
        kind = KINDS[number % len(KINDS)]
        roles = [message.role for message in talk]
        turns = roles[1:] if kind.system else roles
        assert [message.content for message in talk if message.role == "system"] == [kind.system][: bool(kind.system)]
        assert turns == ["user", "assistant"] * (len(turns) // 2) + ["user"]
        assert talk[bool(kind.system)].content.startswith(tuple(opening.strip() for opening in kind.openings))
    lengths = [sum(message.role == "user" for message in talk) for talk in talks]
    assert (lengths.count(2), lengths.count(3)) == (2, 2)


def test_a_model_that_goes_on_after_its_question_is_cut_there(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    talks = ask(path, Speaker(goes_on=True))
    assert talks and not any("and the answer" in message.content for talk in talks for message in talk)


@pytest.mark.parametrize("said", ["", "   \n", "hm", "so " * 100, None])
def test_what_is_no_question_is_left_out(tmp_path: Path, said: str | None) -> None:
    speaker = Speaker(lambda request: said if int(request.id.split()[-1]) % 2 else random_words(request))
    talks = ask(tmp_path / "questions.jsonl", speaker)
    assert len(talks) <= NUM // 2 + 4, "openings of several words may be a question already"
    assert len(talks) >= NUM // 2


def test_near_equal_questions_are_asked_once(tmp_path: Path) -> None:
    speaker = Speaker(lambda request: " is the capital of the country in the north of the continent of Africa?")
    talks = ask(tmp_path / "questions.jsonl", speaker, num=128)
    assert 0 < len(talks) < 64


def test_a_resumed_run_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    expected = ask(whole, Speaker(), num=48)
    first = ask(path, Speaker())
    with path.open("a") as file:
        file.write('\n{"seed": 1, "number": 16, "talk": [["user", "cut o')  # by a power cut
    assert ask(path, Speaker(), num=0) == first
    assert ask(path, Speaker(), num=32) == expected
    assert path.stat().st_mode & 0o077 == 0


def test_another_seed_asks_other_questions(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    one = ask(path, Speaker(), seed=1)
    other = ask(path, Speaker(), seed=2)
    assert one and other and not {*one} & {*other}
    assert ask(path, Speaker(), num=0, seed=1) == one


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"seed": 1, "number": 0, "talk": [[]]}',
        b'{"seed": 1, "number": 0, "talk": 7}',
        b'{"seed": 1, "number": 0, "talk": [["user"]]}',
        b'{"seed": 1, "number": "x", "talk": [["user", "a b c"]]}',
    ],
)
def test_damaged_lines_are_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(line + b"\n")
    assert ask(path, Speaker(), num=0) == []
    assert len(ask(path, Speaker())) == NUM


def test_a_failing_engine_is_an_error_and_loses_nothing_before(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    first = ask(path, Speaker())

    class Dying(Speaker):
        def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
            on_event(Failed(request.id, EngineError("it ended")))

    with pytest.raises(EngineError):
        ask(path, Dying())
    assert ask(path, Speaker(), num=0) == first


def test_a_base_model_begins_texts(tmp_path: Path) -> None:
    speaker = Speaker()
    talks = ask(tmp_path / "questions.jsonl", speaker, has_template=False)
    assert talks and all(len(talk) == 1 for talk in talks)
    assert all(request.text and not request.messages for request in speaker.asked)


def test_draws_follow_from_seed_and_number() -> None:
    one, same, other = (Asking.draw(7, seed, has_template=True) for seed in (1, 1, 2))
    assert one == same and one.seed != other.seed


@examples(200)
@given(st.lists(st.text("abcdefgh ", min_size=12, max_size=80), min_size=1, max_size=20))
def test_an_equal_question_is_never_new(texts: list[str]) -> None:
    seen = Seen()
    for text in texts:
        seen.add(text)
    assert not any(seen.add(text) for text in texts)


def test_questions_are_judged_by_their_words() -> None:
    seen = Seen()
    text = "please write a short story about a dog that learns how to open the door of the kitchen by itself"
    assert seen.add(text)
    assert not seen.add(text.replace("dog", "dog,"))
    assert seen.add("please write a python function that returns the largest of three numbers without using max")


@given(st.text())
def test_any_text_can_be_judged(text: str) -> None:
    assert isinstance(is_sound(text), bool) and isinstance(Seen().add(text), bool)


def test_messages_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    speaker = Speaker(lambda request: f' "quoted" \\ \n line é 漢 {request.id} one two')
    assert ask(path, speaker) == ask(path, speaker, num=0)
    assert all(isinstance(message, Message) for talk in ask(path, speaker, num=0) for message in talk)


def gather(folder: Path, speaker: Speaker, *, num_tokens: int, requests: Sequence[ChatRequest] = ()) -> Collected:
    return gather_answers(
        requests,
        folder / "answers.jsonl",
        lambda: nullcontext(cast(Client, speaker)),
        concurrency=4,
        goal=AnswerGoal(num_tokens),
        on_progress=lambda num_tokens, num_conversations: None,
        own=SelfQuestions(folder / "questions.jsonl", seed=1, has_template=True, make_request=make_request),
    )


def test_what_the_target_asked_is_learned_from_too(tmp_path: Path) -> None:
    found = gather(tmp_path, Speaker(), num_tokens=2000)
    talks = SelfQuestions(tmp_path / "questions.jsonl", seed=1, has_template=True, make_request=make_request).talks
    by_key = {question_key(make_request(talk)): talk for talk in talks}
    assert found.num_tokens >= 2000
    for one in found.conversations:
        first, *_ = (message for message in by_key[one.key] if message.role == "user")
        openings = {len(text.split()) for kind in KINDS for text in kind.openings if first.content.startswith(text)}
        num_system = count_words(message for message in by_key[one.key] if message.role == "system")
        assert one.num_prompt - one.num_own in {1 + num_system + num for num in openings}
        assert one.num_learned == one.whole.num_answer_tokens > one.num_answer_tokens
    (tmp_path / "answers.jsonl").unlink()
    again = gather(tmp_path, Speaker(), num_tokens=2000)
    same = set(found.conversations) & set(again.conversations)
    assert {one.key for one in same} == {one.key for one in found.conversations} & {
        one.key for one in again.conversations
    }
    assert len(same) > len(found.conversations) // 4, "unanswered questions are asked in turn with new ones"


def test_gathering_ends_where_answers_are_of_no_use(tmp_path: Path) -> None:
    """The target asks well, but says nothing."""
    speaker = Speaker(lambda request: random_words(request) if is_own(request.id) else "")
    found = gather(tmp_path, speaker, num_tokens=1000)
    assert found.conversations == () and found.num_short > 50
    assert MAX_USELESS <= len(speaker.asked) < MAX_USELESS + 16


def test_half_is_of_given_questions_and_half_of_its_own(tmp_path: Path) -> None:
    """So that the first round, and what is held out of it, has both kinds."""
    given = [make_request((Message("user", f"a given question {n}"),)) for n in range(100)]
    found = gather(tmp_path, Speaker(), num_tokens=1000, requests=given)
    num_own = sum(one.num_learned for one in found.conversations if one.num_own)
    assert 0.35 < num_own / found.num_tokens < 0.65

"""Which answers are kept, whose, and what their listeners see of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.client.client import OnEvent
from eaglelocal.core.events import Failed, Finished, RequestEvent, TextPiece, Tokens
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest, Image, Message
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError, RequestError
from eaglelocal.learning.answer_keeper import MIN_CANCELLED_TOKENS, AnswerKeeper, RequestActivity
from eaglelocal.learning.kept_answers import (
    CODE,
    DATA,
    KINDS,
    OTHER,
    PROSE,
    KeptAnswers,
    guess_kind,
    hash_owner,
    name_kind,
)

PROMPT = (7, 8, 9)


class AnsweringEngine:
    """An engine that answers at once with as many tokens as the test says."""

    def __init__(self, num: int = 20, reason: str = "stop", text: str = "Hello.") -> None:
        self.num, self.reason, self.text = num, reason, text
        self.asked: list[AnyRequest] = []
        self.prompt: tuple[int, ...] = PROMPT

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None:
        self.asked.append(request)
        tells = isinstance(request, ChatRequest) and request.tells_tokens
        tokens = (*self.prompt, *range(100, 100 + self.num)) if tells else ()
        on_event(Tokens(request.id, (TextPiece(100, self.text, False),)))
        stats = SpeculationStats()
        on_event(Finished(request.id, self.reason, "", len(self.prompt), self.num, Timings(), stats, tokens=tokens))


def make_keeper(folder: Path, owners: frozenset[str] = frozenset({"ann"})) -> AnswerKeeper:
    answers = KeptAnswers(folder, max_bytes=10**6, max_age_s=1e9)
    return AnswerKeeper(answers, owners, RequestActivity(lambda: None, lambda: 0.0))


def ask(keeper: AnswerKeeper, engine: AnsweringEngine, request: AnyRequest) -> list[RequestEvent]:
    events: list[RequestEvent] = []
    keeper.submit(engine.submit, request, events.append)
    return events


def kept_after(folder: Path, engine: AnsweringEngine, request: AnyRequest) -> list[tuple[int, ...]]:
    keeper = make_keeper(folder)
    ask(keeper, engine, request)
    keeper.close()
    return [tuple(answer.tokens) for answer in KeptAnswers(folder, max_bytes=10**6, max_age_s=1e9).read()]


def test_an_answer_is_kept_with_its_prompt_and_listeners_see_no_tokens(tmp_path: Path) -> None:
    keeper, engine = make_keeper(tmp_path), AnsweringEngine()
    events = ask(keeper, engine, ChatRequest(id="1", text="hi", owner="ann"))
    keeper.close()
    (answer,) = KeptAnswers(tmp_path, max_bytes=10**6, max_age_s=1e9).read()
    assert tuple(answer.tokens) == (*PROMPT, *range(100, 120)) and answer.num_prompt == 3
    assert answer.owner == hash_owner("ann")
    assert isinstance(events[-1], Finished) and events[-1].tokens == ()
    assert keeper.num_kept == 1 and keeper.size.num_answers == 1


@pytest.mark.parametrize(
    ("request_", "num", "reason"),
    [
        (ChatRequest(id="1", text="hi", owner="bob"), 20, "stop"),
        (ChatRequest(id="1", text="hi", owner="ann", is_private=True), 20, "stop"),
        (ChatRequest(id="1", text="hi", owner="ann", is_counted=True), 20, "stop"),
        (ChatRequest(id="1", owner="ann", messages=(Message("user", "?", images=(Image(b""),)),)), 20, "stop"),
        (EmbedRequest(id="1", inputs=("hi",), owner="ann"), 20, "stop"),
        (ChatRequest(id="1", text="hi", owner="ann"), 3, "stop"),
        (ChatRequest(id="1", text="hi", owner="ann"), MIN_CANCELLED_TOKENS - 1, "cancelled"),
    ],
)
def test_answers_without_consent_or_use_are_not_kept(
    tmp_path: Path, request_: AnyRequest, num: int, reason: str
) -> None:
    engine = AnsweringEngine(num, reason)
    assert kept_after(tmp_path, engine, request_) == []
    if num == 20:
        assert engine.asked == [request_]  # not even asked to tell its tokens


def test_a_long_answer_is_kept_though_it_was_cancelled(tmp_path: Path) -> None:
    request = ChatRequest(id="1", text="hi", owner="ann")
    assert len(kept_after(tmp_path, AnsweringEngine(MIN_CANCELLED_TOKENS, "cancelled"), request)) == 1


def test_a_prompt_with_stand_ins_for_images_is_not_kept(tmp_path: Path) -> None:
    engine = AnsweringEngine()
    engine.prompt = (7, -1, 9)
    assert kept_after(tmp_path, engine, ChatRequest(id="1", text="hi", owner="ann")) == []


def test_an_unwritable_folder_does_not_stop_answers_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    keeper, engine = make_keeper(tmp_path / "file" / "folder"), AnsweringEngine()
    for number in range(3):
        assert ask(keeper, engine, ChatRequest(id=str(number), text="hi", owner="ann"))
    keeper.close()
    assert keeper.trouble and keeper.num_kept == 0
    assert len([record for record in caplog.records if "no more answers are kept" in record.message]) == 1
    assert ask(keeper, engine, ChatRequest(id="9", text="hi", owner="ann"))
    assert not engine.asked[-1].tells_tokens  # type: ignore[union-attr]


def test_requests_that_run_are_counted_whatever_becomes_of_them(tmp_path: Path) -> None:
    begun: list[int] = []
    activity = RequestActivity(lambda: begun.append(1), lambda: 50.0)
    keeper = AnswerKeeper(KeptAnswers(tmp_path, max_bytes=10**6, max_age_s=1e9), frozenset(), activity)
    waiting: list[OnEvent] = []
    request = ChatRequest(id="1", text="hi")
    keeper.submit(lambda _, on_event: waiting.append(on_event), request, lambda event: None)
    assert activity.num_running == 1 and begun == [1] and activity.idle_s() == 0.0
    waiting[0](Failed("1", EngineError("gone")))
    assert activity.num_running == 0

    def refuse(request: AnyRequest, on_event: OnEvent) -> None:
        raise RequestError("in use")

    with pytest.raises(RequestError):
        keeper.submit(refuse, request, lambda event: None)
    assert activity.num_running == 0 and begun == [1, 1]
    keeper.close()


@pytest.mark.parametrize("request_", [ChatRequest(id="1", text="hi"), EmbedRequest(id="1", inputs=("hi",))])
def test_a_request_ends_once_though_its_listener_fails_at_every_event(request_: AnyRequest) -> None:
    activity = RequestActivity(lambda: None, lambda: 50.0)

    def fail(event: RequestEvent) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        activity.submit(AnsweringEngine().submit, request_, fail)
    assert activity.num_running == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The capital of France is Paris.", PROSE),
        ("", PROSE),
        ('{"city": "Paris", "country": "France"}', DATA),
        ('[{"a": 1}]', DATA),
        ("```json\n{}\n```", DATA),
        ("```python\ndef f(x):\n    return x\n```", CODE),
        ("import os\n\ndef main():\n    return os.getcwd()", CODE),
        ("Grüße aus Köln, schöne Wörter überall", OTHER),
        ("Привет, как дела?", OTHER),
        ("東京は日本の首都です。", OTHER),
    ],
)
def test_kinds_of_text(text: str, kind: int) -> None:
    assert guess_kind(text) == kind


def test_calls_are_data_and_unknown_kinds_have_a_name() -> None:
    assert guess_kind("Let me look.", has_calls=True) == DATA
    assert name_kind(len(KINDS)) == "other" and name_kind(CODE) == "code"

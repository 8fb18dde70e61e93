"""The task queue and the chat controller: tasks run in order, none is lost, and none is left running."""

from __future__ import annotations

import queue
import threading
import time
from itertools import chain
from pathlib import Path

import pytest
from doubles.scripted_client import Script, ScriptedClient, join_nothing, says, scripted_plan
from doubles.timeouts import wait_until

from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.sampling_form import FIELDS, format_field, parse_fields
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams, fill_recommended
from eaglelocal.errors import EagleLocalError, RequestError, UsageError
from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_events import AnswerEnded, ChatEvent, QuestionSent, TaskFailed
from eaglelocal.tui.chat.chat_tasks import TaskQueue
from eaglelocal.tui.panel.feed import Feed

PATIENCE_S = 20.0


def test_tasks_run_in_order_and_failures_are_reported() -> None:
    done: list[str] = []
    events: queue.Queue[EagleLocalError] = queue.Queue()
    tasks = TaskQueue(events.put, "tasks")

    def fails() -> None:
        raise UsageError("no")

    def breaks() -> None:
        raise ZeroDivisionError("oh")

    tasks.send(lambda: done.append("one"))
    tasks.send(fails)
    tasks.send(breaks)
    tasks.send(lambda: done.append("two"))
    tasks.start()
    assert events.get(timeout=PATIENCE_S).message == "no"
    assert "this is a bug: ZeroDivisionError: oh" in events.get(timeout=PATIENCE_S).message
    wait_until(lambda: done == ["one", "two"] and not tasks.is_busy, "both tasks")
    assert tasks.close(PATIENCE_S)


def test_what_has_not_begun_can_be_taken_back() -> None:
    gate, done = threading.Event(), []
    tasks = TaskQueue(lambda error: None, "tasks")
    tasks.send(lambda: gate.wait(PATIENCE_S) and None)
    tasks.start()
    tasks.send(lambda: done.append("asked"), question="why?")
    tasks.send(lambda: done.append("kept"))
    assert tasks.waiting == ("why?",)
    assert tasks.cancel_waiting() == ("why?",)
    gate.set()
    wait_until(lambda: done == ["kept"], "what was not taken back")
    assert tasks.close(PATIENCE_S)


class ControllerHarness:
    def __init__(self, folder: Path, *scripts: Script) -> None:
        self.events: queue.Queue[ChatEvent] = queue.Queue()
        self.client = ScriptedClient(scripts)
        self.controller = ChatController(self._open, self.events.put, Feed(by_events=True), folder, saves=False)
        self.controller.start()

    def _open(self, output: MessageOutput, choice: ModelChoice) -> Session:
        return Session(
            ModelLoader(lambda choice: scripted_plan("m"), self._load, join_nothing),
            self._load(scripted_plan("m")),
            SamplingParams(),
        )

    def _load(self, plan: Plan) -> ActiveModel:
        return ActiveModel(self.client, plan, self.client.info)

    def next(self, kind: type[ChatEvent]) -> ChatEvent:
        while not isinstance(event := self.events.get(timeout=PATIENCE_S), kind):
            pass
        return event


def test_each_answer_grows_in_its_own_place(tmp_path: Path) -> None:
    """The next question may begin before anybody has looked at the last answer."""
    harness = ControllerHarness(tmp_path, says("first"), says("second"))
    harness.controller.ask("one")
    harness.controller.ask("two")
    lives = []
    for _ in range(2):
        asking = harness.next(QuestionSent)
        assert isinstance(asking, QuestionSent)
        lives.append(asking.live)
        harness.next(AnswerEnded)
    said = [[entry.text for entry in chain(*live.advance())] for live in lives]
    assert said == [["first"], ["second"]]
    harness.controller.close()


def test_closing_ends_an_answer_that_hangs(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path, Script(("half",), hangs=True))
    harness.controller.ask("one")
    harness.next(QuestionSent)
    harness.controller.close()
    assert harness.client.num_closed
    assert not harness.client.busy


def test_a_mistyped_command_changes_nothing(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path, says("x"))
    harness.controller.run_command("/spek 3")
    failure = harness.next(TaskFailed)
    assert isinstance(failure, TaskFailed)
    assert failure.error.hint.startswith("/spec")
    harness.controller.close()


@pytest.mark.parametrize("is_server", [True, False])
def test_an_answer_has_its_own_speed_wherever_it_comes_from(tmp_path: Path, is_server: bool) -> None:
    client, events, feed = ScriptedClient((says("a b c d"),)), queue.Queue[ChatEvent](), Feed(by_events=True)
    plan = scripted_plan("m")
    model = ActiveModel(client, None if is_server else plan, client.info)

    def opened(output: MessageOutput, choice: ModelChoice) -> Session:
        return Session(ModelLoader(lambda choice: plan, lambda plan: model, join_nothing), model, SamplingParams())

    controller = ChatController(opened, events.put, feed, tmp_path, saves=False)
    controller.start()
    controller.ask("one")
    while not isinstance(events.get(timeout=PATIENCE_S), AnswerEnded):
        pass
    frame = feed.make_frame(time.monotonic())
    assert (frame.tok_s, frame.tok_s_window) == (41.2, "last answer")
    controller.close()


# ---- the form of sampling
def test_an_unchanged_form_changes_nothing() -> None:
    params = SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05, seed=None, max_tokens=12)
    assert parse_fields(params, {field.name: format_field(params, field) for field in FIELDS}, params) == params


def test_only_a_field_that_was_changed_is_said() -> None:
    params = SamplingParams(temperature=0.7, top_k=40, left_open=frozenset({"temperature", "top_k"}))
    shown = fill_recommended(params, {"temperature": 0.6, "top_k": 20})
    said = {field.name: format_field(shown, field) for field in FIELDS}
    assert parse_fields(params, said, shown) == params
    changed = parse_fields(params, said | {"temperature": "0.7"}, shown)
    assert (changed.temperature, changed.top_k, changed.left_open) == (0.7, 40, {"top_k"})


@pytest.mark.parametrize(
    ("name", "said", "error"),
    [
        ("top_k", "1.5", UsageError),
        ("temperature", "", UsageError),
        ("top_p", "2", RequestError),
        ("max_tokens", "0", UsageError),
    ],
)
def test_a_form_says_what_is_wrong(name: str, said: str, error: type[EagleLocalError]) -> None:
    params = SamplingParams()
    with pytest.raises(error):
        parse_fields(params, {field.name: format_field(params, field) for field in FIELDS} | {name: said}, params)

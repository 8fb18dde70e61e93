"""The state of one answer that a server builds from the engine's events."""

from __future__ import annotations

from doubles.directed_server_engine import TIMINGS

from eaglelocal.core.events import Finished, RequestEvent, SpeculationChanged, Started
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.stats import SpeculationStats
from eaglelocal.server.answer_state import AnswerState

STARTED = Started("a", 3, 0)


def finished(state: str) -> Finished:
    return Finished("a", "stop", "", 3, 1, TIMINGS, SpeculationStats(state=state))


def states(*events: RequestEvent) -> list[str]:
    choice = AnswerState(0, ChatRequest(id="a"), 0.0)
    seen = [choice.state]
    for event in events:
        choice.take(event, 1.0)
        seen.append(choice.state)
    return seen


def test_the_state_of_drafting_is_the_engine_s_last_word() -> None:
    off, asleep, on = (SpeculationChanged("a", state, "why") for state in ("off", "asleep", "on"))
    assert states(STARTED, off, finished("off")) == ["", "on", "off", "off"]
    assert states(STARTED, asleep, on, off, finished("asleep")) == ["", "on", "asleep", "on", "off", "asleep"]


def test_what_never_started_was_never_drafted_for_or_not() -> None:
    assert states(finished("off")) == ["", ""]

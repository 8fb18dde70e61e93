"""Statistics over several answers."""

from __future__ import annotations

import pytest

from eaglelocal.core.events import Finished
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.server.answer_encoder import add_stats
from eaglelocal.server.answer_state import AnswerState

OFF = SpeculationStats(reason="as asked")
ASLEEP = SpeculationStats("asleep", "plain is faster", 1, 4, 0, (), 0.9, 1)
ON = SpeculationStats("on", "", 2, 8, 5, (2, 2, 1), 1.5, 7)


def answered(stats: SpeculationStats, decode_s: float = 1.0) -> AnswerState:
    choice = AnswerState(0, ChatRequest(id="x"), 0.0)
    choice.apply(Finished("x", "stop", "", 1, 9, Timings(decode_s=decode_s), stats), 1.0)
    return choice


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([answered(ON)], ON),
        ([answered(OFF)], OFF),
        ([answered(ON), answered(ON, 3.0)], SpeculationStats("on", "", 4, 16, 10, (4, 4, 2), 1.5, 14)),
        ([answered(ASLEEP, 1.0), answered(ON, 2.0)], SpeculationStats("on", "", 3, 12, 5, (2, 2, 1), 1.3, 8)),
        ([answered(OFF), answered(ASLEEP)], SpeculationStats("off", "as asked", 1, 4, 0, (), 0.9, 1)),
        ([answered(ON, 0.0), answered(OFF)], SpeculationStats("on", "", 2, 8, 5, (2, 2, 1), None, 7)),
    ],
)
def test_counters_of_several_answers_are_added(choices: list[AnswerState], expected: SpeculationStats) -> None:
    joint = add_stats(choices)
    assert joint.speedup_estimate == pytest.approx(expected.speedup_estimate)
    for name in (
        "state",
        "reason",
        "drafts",
        "draft_tokens",
        "accepted_tokens",
        "accepted_per_position",
        "emitted_tokens",
    ):
        assert getattr(joint, name) == getattr(expected, name), name

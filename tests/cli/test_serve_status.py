"""The status line of `serve` without a screen: figures only of what has happened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from eaglelocal.cli.serve_log import STATUS_GAP_S, status_text
from eaglelocal.core.events import NOTHING_YET, EngineSnapshot
from eaglelocal.core.stats import LEARNING_OFF, LearningStatus, SpeculationStats


@dataclass
class IdleServing:
    """The part of a ServerState that the status line reads."""

    state: str = "ready"
    num_answered: int = 21
    num_refused: int = 0
    num_failed: int = 0
    learning: LearningStatus = LEARNING_OFF

    def count_active(self) -> tuple[int, int]:
        return 0, 0

    def read_learning(self) -> LearningStatus:
        return self.learning


def counted(tokens: int, **more: Any) -> EngineSnapshot:
    return replace(NOTHING_YET, engine_pid=7, generated_tokens=tokens, **more)


@pytest.mark.parametrize(
    ("before", "now", "figures"),
    [
        (counted(100), counted(100), ""),
        (counted(100), counted(100 + round(41 * STATUS_GAP_S)), " · 41.0 tok/s"),
        (replace(counted(100), engine_pid=6), counted(0), ""),  # it was restarted
        (
            counted(100),
            counted(100, speculation=SpeculationStats("on", "", 10, 30, 20, emitted_tokens=30)),
            " · acceptance length 3.00",
        ),
    ],
)
def test_there_is_no_speed_without_tokens_and_no_length_without_drafts(
    before: EngineSnapshot, now: EngineSnapshot, figures: str
) -> None:
    text = status_text(IdleServing(), [now], [before])  # type: ignore[arg-type]
    assert text == f"ready · 0 running, 0 waiting{figures} · 21 answered"


@pytest.mark.parametrize(("state", "is_shown"), [("learning", True), ("judging", True), ("idle", False)])
def test_learning_is_shown_while_it_computes(state: str, is_shown: bool) -> None:
    text = status_text(IdleServing(learning=LearningStatus(state=state)), [], [])  # type: ignore[arg-type]
    assert (f" · {state} · " in text) == is_shown


def test_what_was_not_answered_is_counted_apart() -> None:
    serving = IdleServing(num_refused=3, num_failed=1)
    assert status_text(serving, [], []).endswith("21 answered, 3 refused, 1 failed")  # type: ignore[arg-type]

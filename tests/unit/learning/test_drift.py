"""Acceptance against its own history: what is a drift, what is chance, what changed, and what a file may hold."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal import locations
from eaglelocal.learning.drift import (
    MIN_HISTORY,
    DriftWatch,
    KindHistory,
    Level,
    TargetHistory,
    find_file,
    read_history,
    read_reports,
)

BEFORE, AFTER = {"draft": "a", "system prompt": "1"}, {"draft": "a", "system prompt": "2"}


def answer(history: TargetHistory, share: float, draw: random.Random, conditions: dict[str, str]) -> None:
    drafts = draw.randint(5, 30)
    own = min(max(share + draw.gauss(0, 0.1), 0.0), 1.0)  # answers differ
    history.add("code", drafts, sum(draw.random() < own for _ in range(drafts)), conditions)


def after(shares: list[tuple[int, float]], seed: int = 0) -> TargetHistory:
    """Return the history after so many answers of each share; the last ones under other conditions."""
    history, draw = TargetHistory("model"), random.Random(seed)
    for index, (count, share) in enumerate(shares):
        for _ in range(count):
            answer(history, share, draw, AFTER if index == len(shares) - 1 and index else BEFORE)
    return history


@pytest.mark.parametrize(
    ("shares", "level"),
    [
        ([(100, 0.7), (60, 0.7)], Level.NONE),
        ([(100, 0.7), (60, 0.6)], Level.NONE),
        ([(100, 0.7), (60, 0.3)], Level.NOTICE),
        ([(100, 0.7), (60, 0.2)], Level.ALARM),
        ([(100, 0.4), (60, 0.7)], Level.NONE),
        ([(10, 0.7), (20, 0.2)], Level.NONE),  # too little is known of before
        ([(100, 0.7), (3, 0.0)], Level.NONE),  # of now
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_levels(shares: list[tuple[int, float]], level: Level, seed: int) -> None:
    (kind,) = after(shares, seed).kinds.values()
    assert kind.level is level or {kind.level, level} == {Level.NOTICE, Level.ALARM}


def test_what_changed_is_named_and_a_drift_that_stays_becomes_the_past() -> None:
    history = after([(100, 0.7), (30, 0.2)])
    (report,) = history.reports()
    assert report.changed == ("system prompt",)
    assert "changed: system prompt" in report.text and "model, code:" in report.text
    assert report.ratio < 0.6
    draw = random.Random(5)
    for _ in range(2000):
        answer(history, 0.2, draw, AFTER)
    assert list(history.reports()) == []


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 600)), max_size=60))
def test_counts_stay_sound(answers: list[tuple[int, int]]) -> None:
    history = TargetHistory("model")
    for drafts, accepted in answers:
        history.add("code", drafts, accepted, BEFORE)
    stored = json.dumps(history.to_object()).encode()
    again = TargetHistory.from_json(stored)
    assert again == history
    for kind in history.kinds.values():
        assert 0 <= kind.history.share <= 1.0001 and 0 <= kind.recent.share <= 1.0001


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"format": 1}', b'{"format": 1, "target": "m", "kinds": {"a": 1}}']
    + [b'{"format": 1, "target": ["m"], "kinds": {}}', b"\xff" * 9]
    + [
        json.dumps(
            {"format": 1, "target": "m", "kinds": {"a": {"history": counts, "recent": {}, "before": {}}}}
        ).encode()
        for counts in ({}, {"drafts": -1, "accepted": 0}, {"drafts": 1e99, "accepted": 1}, {"drafts": "x"}, None)
    ],
)
def test_damaged_files_count_as_missing(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError):
        TargetHistory.from_json(content)
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert read_history(path) is None


def test_a_watch_goes_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "drift_dir", lambda: tmp_path / "drift")
    first = DriftWatch()
    for _ in range(60):
        first.add("model", "code", 20, 14, BEFORE)
    first.save()
    assert (find_file("model").stat().st_mode & 0o777, list(read_reports())) == (0o600, [])
    second = DriftWatch()
    for _ in range(30):
        second.add("model", "code", 20, 2, AFTER)
    second.save()
    (report,) = read_reports()
    assert (report.level, report.changed) == (Level.ALARM, ("system prompt",))
    assert second.shares()[0][:2] == ("model", "code") and second.shares()[0][2] < 0.6


def test_a_kind_without_a_past_has_no_level() -> None:
    kind = KindHistory()
    kind.add(int(MIN_HISTORY), 300, BEFORE)
    assert kind.level is Level.NONE

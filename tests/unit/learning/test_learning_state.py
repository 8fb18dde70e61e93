"""The state of learning on disk: whole or none, and one process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.stats import LEARNING_OFF, STATES, LearningStatus, describe_learning
from eaglelocal.errors import ResourceError
from eaglelocal.learning.learning_round import (
    CHECKPOINT,
    STATE,
    LearningRound,
    LearningState,
    VersionWatch,
    delete_checkpoints,
    hold_folder,
    read_state,
    write_state,
)

FULL = LearningState(5.0, LearningRound(2, ("a", "b"), 9.5), 3, VersionWatch(2, 1, 7.25))


@pytest.mark.parametrize("state", [FULL, LearningState(), LearningState(1.0, candidate=4)])
def test_a_state_comes_back(tmp_path: Path, state: LearningState) -> None:
    write_state(tmp_path / "new", state)
    assert read_state(tmp_path / "new") == state
    assert (tmp_path / "new" / STATE).stat().st_mode & 0o777 == 0o600


@given(st.binary(max_size=60))
def test_a_damaged_state_counts_as_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / STATE).write_bytes(content)
    assert read_state(folder) == LearningState()


@pytest.mark.parametrize("name", ["round", "watch", "candidate", "learned_until"])
@pytest.mark.parametrize("value", ['"x"', "[1]", '{"a": 1}', "true and false"])
def test_a_state_with_foreign_values_counts_as_none(tmp_path: Path, name: str, value: str) -> None:
    fields = {"learned_until": "1.0", "round": "null", "candidate": "null", "watch": "null"} | {name: value}
    (tmp_path / STATE).write_text("{" + ", ".join(f'"{key}": {text}' for key, text in fields.items()) + "}")
    assert read_state(tmp_path) == LearningState()


def test_one_process_learns_at_a_time(tmp_path: Path) -> None:
    with (
        hold_folder(tmp_path / "work"),
        pytest.raises(ResourceError, match="another process learns"),
        hold_folder(tmp_path / "work"),
    ):
        pass
    with hold_folder(tmp_path / "work"):
        pass


def test_only_checkpoints_are_deleted_with_a_round(tmp_path: Path) -> None:
    write_state(tmp_path, FULL)
    for name in (f"a{CHECKPOINT}", "a.partial"):
        (tmp_path / name).write_bytes(b"")
    delete_checkpoints(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


@pytest.mark.parametrize("state", STATES)
def test_learning_is_described_in_a_few_words(state: str) -> None:
    status = LearningStatus(kept_answers=12, kept_bytes=40_000, state=state, version=3, note="why")
    words = describe_learning(status)
    assert "12 answers kept (40.0 kB), version 3" in words
    assert "1 answer kept" in describe_learning(LearningStatus(kept_answers=1))
    assert ("why" in words) == (state == "paused")
    assert describe_learning(LEARNING_OFF) == ""

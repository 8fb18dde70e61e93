"""Outputs of the target on disk: read once, and again where they are damaged, missing or do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eaglelocal.training import target_capture
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.target_capture import MAX_LOGIT, NUM_TOP, Captured, KeptStates, find_top, halve, held_in, widen

ONE = TrainingConversation("a", (1, 2, 3, 4), 2)


class Reader:
    def __init__(self) -> None:
        self.read: list[TrainingConversation] = []

    def __call__(self, one: TrainingConversation) -> Captured:
        self.read.append(one)
        rng = np.random.default_rng(len(one.tokens))
        taps = rng.normal(size=(3, 2, 8), scale=1e5).astype(np.float32)
        tokens = rng.integers(0, 9, (1, NUM_TOP)).astype(np.int32)
        return Captured(taps, tokens, rng.normal(size=(1, NUM_TOP)).astype(np.float16))


def test_what_was_read_once_is_not_read_again(tmp_path: Path) -> None:
    reader = Reader()
    first, again = (KeptStates(tmp_path, reader, (1, 2)).read(ONE) for _ in range(2))
    assert len(reader.read) == 1
    assert np.array_equal(again.taps, first.taps), "a resumed step reads what the first one read"
    np.testing.assert_allclose(first.taps, Reader()(ONE).taps, rtol=2**-8)
    assert np.array_equal(again.tokens, first.tokens) and np.array_equal(again.logits, first.logits)
    (path,) = tmp_path.iterdir()
    assert path.suffix == ".states" and path.stat().st_mode & 0o077 == 0


def test_other_taps_and_other_answers_are_read(tmp_path: Path) -> None:
    reader = Reader()
    KeptStates(tmp_path, reader, (1, 2)).read(ONE)
    KeptStates(tmp_path, reader, (1, 3)).read(ONE)
    KeptStates(tmp_path, reader, (1, 2)).read(TrainingConversation("a", (1, 2, 3, 5), 2))
    KeptStates(tmp_path, reader, (1, 2)).read(TrainingConversation("a", (1, 2, 3, 4), 1))
    assert len(reader.read) == 4


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "flipped"])
def test_a_damaged_file_is_read_and_written_anew(damage: str, tmp_path: Path) -> None:
    reader = Reader()
    kept = KeptStates(tmp_path, reader, (1,))
    kept.read(ONE)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    path.write_bytes({"cut": data[:-200], "empty": b"", "other": b"hello" * 99, "flipped": bytes(flipped)}[damage])
    kept.read(ONE)
    kept.read(ONE)
    assert len(reader.read) == 2 and path.read_bytes() == data


def test_no_more_is_kept_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    monkeypatch.setattr(target_capture, "MAX_BYTES", 1)
    kept = KeptStates(tmp_path, reader, (1,))
    others = [TrainingConversation(str(n), (1, 2, 3, 4, n), 2) for n in range(3)]
    for one in (*others, *others):
        kept.read(one)
    assert len(list(tmp_path.iterdir())) == 1 and len(reader.read) == 5


def test_some_of_the_disk_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a run is resumed."""
    reader, others = Reader(), [TrainingConversation(str(n), (1, 2, 3, 4, n), 2) for n in range(40)]
    total = 40_000

    class Usage:
        @property
        def free(self) -> int:
            return total - sum(path.stat().st_size for path in tmp_path.iterdir())

    monkeypatch.setattr(target_capture.shutil, "disk_usage", lambda folder: Usage())
    for _ in range(5):
        kept = KeptStates(tmp_path, reader, (1,))
        for one in others:
            kept.read(one)
    assert 0.3 * total < held_in(tmp_path) < 0.6 * total
    KeptStates(tmp_path, reader, (1,), reserve_bytes=total).read(ONE)
    assert len(set(map(str, tmp_path.iterdir()))) < 40


def test_files_of_other_runs_are_deleted(tmp_path: Path) -> None:
    reader = Reader()
    other = TrainingConversation("b", (5, 6, 7, 8), 2)
    kept = KeptStates(tmp_path, reader, (1,))
    kept.read(ONE)
    kept.read(other)
    (tmp_path / "answers.jsonl").touch()
    kept.drop_others([other])
    kept.read(other)
    assert len(reader.read) == 2 and len(list(tmp_path.iterdir())) == 2


def test_a_disk_that_takes_nothing_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    kept = KeptStates(tmp_path, reader, (1,))

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(target_capture, "append_own", full)
    for _ in range(2):
        kept.read(ONE)
    assert len(reader.read) == 2 and not list(tmp_path.iterdir())


def test_halves_are_rounded_and_reach_as_far_as_numbers_do() -> None:
    values = np.array([0.0, 1.0, -3.5, 1e-30, 7e4, -3e38, 1 + 2**-8 + 2**-20], np.float32)
    np.testing.assert_allclose(widen(halve(values)), values, rtol=2**-8)
    assert widen(halve(values))[-1] == 1 + 2**-7


def test_the_likeliest_tokens_are_found_in_order() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=1000, scale=2.0).astype(np.float32)
    tokens, top = find_top(logits)
    assert tokens.tolist() == np.argsort(-logits)[:NUM_TOP].tolist()
    np.testing.assert_allclose(top, logits[tokens], rtol=1e-3)
    sure = np.full(1000, -50.0, np.float32)
    sure[7], sure[3] = 1e9, 1e9 - 64
    tokens, top = find_top(sure)
    assert tokens[0] == 7 and top[0] == np.float16(MAX_LOGIT) and (top[2:] == np.float16(-MAX_LOGIT)).all()
    sure[9] = np.nan
    assert np.isnan(find_top(sure)[1]).all(), "so that the step is skipped"

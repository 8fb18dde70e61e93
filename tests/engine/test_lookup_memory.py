"""Lookups that remember, in real engines: texts stay, drafts come from the texts of an earlier process, per owner."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.random_models import write_target
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal import locations

PROMPT = np.random.default_rng(3).integers(0, 256, 40).tolist()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(locations, "state_dir", lambda: tmp_path / "state")
    return write_target(tmp_path / "tiny.gguf", dataclasses.replace(TINY, layer_gain=0.2))


def answer(target: Path, owner: str, *, lookup_memory: int) -> tuple[list[int], int]:
    """Answer in a new engine; return the answer's tokens and how many of them were drafted and accepted."""
    engine = real_engine(target, "ngram", lookup_memory=lookup_memory)
    request = dataclasses.replace(ask("a", PROMPT, max_tokens=60), owner=owner)
    tokens = drive(engine, [request])["a"].tokens
    accepted = engine.snapshot().speculation.accepted_tokens
    notes = engine.info.notes
    engine.close()
    assert any("eaglelocal forget" in note for note in notes) == bool(lookup_memory)
    return list(tokens), accepted


def test_a_new_process_drafts_what_an_earlier_one_wrote(target: Path) -> None:
    text, _ = answer(target, "ann", lookup_memory=1000)
    again, accepted = answer(target, "ann", lookup_memory=1000)
    assert again == text and accepted > 40
    other, accepted_by_other = answer(target, "bob", lookup_memory=1000)
    assert other == text and accepted_by_other < accepted / 2


def test_nothing_is_written_unless_asked_for(target: Path) -> None:
    answer(target, "ann", lookup_memory=0)
    assert not locations.lookups_dir().exists()

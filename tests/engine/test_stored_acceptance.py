"""Acceptance that an engine learned is passed on to the next engine with the same files, and to no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.engine_harness import drive
from doubles.random_models import HeadShape, write_head, write_target
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal.core.request import AUTO_SPEC
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.calibration_store import folder

HEAD = HeadShape(width=64, fc_norm=True, norm_output=True)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def learned(engine: Engine) -> dict[str, object]:
    state = engine.controller.acceptance.state()["drafters"]
    assert isinstance(state, dict)
    return state


def test_a_fresh_engine_knows_what_the_last_one_learned(tmp_path: Path) -> None:
    target, head = write_target(tmp_path / "target.gguf", TINY), write_head(tmp_path / "head.gguf", HEAD, TINY)
    other = write_head(tmp_path / "other.gguf", replace(HEAD, seed=5), TINY)
    first = real_engine(target, "eagle3", head, spec=AUTO_SPEC)
    assert learned(first) == {}
    drive(first, [ask("a", range(10, 30), max_tokens=60)])
    assert "eagle3" in learned(first)
    first.close()
    second = real_engine(target, "eagle3", head, spec=AUTO_SPEC)
    assert set(learned(second)) == set(learned(first))
    second.close()
    other_engine = real_engine(target, "eagle3", other, spec=AUTO_SPEC)
    assert learned(other_engine) == {}
    other_engine.close()


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    target, head = write_target(tmp_path / "target.gguf", TINY), write_head(tmp_path / "head.gguf", HEAD, TINY)
    first = real_engine(target, "eagle3", head, spec=AUTO_SPEC)
    drive(first, [ask("a", range(10, 30), max_tokens=40)])
    first.close()
    for path in folder().iterdir():
        path.write_bytes(path.read_bytes().replace(b"0.", b"-9e99"))
    second = real_engine(target, "eagle3", head, spec=AUTO_SPEC)
    assert learned(second) == {}
    answer = drive(second, [ask("a", range(10, 30), max_tokens=40)])["a"]
    assert answer.finished is not None and answer.finished.completion_tokens == 40
    second.close()

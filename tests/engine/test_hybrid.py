"""Targets with recurrent state run plainly: a conversation goes on where it can, and starts anew where it must."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.hybrid_model import write_hybrid
from doubles.real_engine import ask, real_engine
from doubles.rig import drive

from eaglelocal.core.request import ChatRequest
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import IncompatibleError

PROMPT = tuple(range(30, 60))
LENGTHS = {"a": 12, "b": 3, "c": 12}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("hybrid") / "hybrid.gguf")


def fresh_text(target: Path, request: ChatRequest) -> list[int]:
    engine = real_engine(target)
    tokens = drive(engine, [request])[request.id].tokens
    engine.close()
    return tokens


def say(engine: Engine, request: ChatRequest) -> tuple[list[int], int]:
    """(tokens, prompt tokens found in the cache)."""
    told = drive(engine, [request])[request.id]
    assert told.started is not None and told.failed is None
    return told.tokens, told.started.cached_tokens


@pytest.mark.parametrize("slots", [1, 2])
def test_what_goes_on_is_reused_and_what_was_changed_is_not(target: Path, slots: int) -> None:
    engine = real_engine(target, num_slots=slots, n_batch=16)
    first = ask("first", PROMPT)
    said, cached = say(engine, first)
    assert (said, cached) == (fresh_text(target, first), 0)
    onward = ask("onward", (*PROMPT, *said, 7, 8, 9))
    again, cached = say(engine, onward)
    assert (again, cached) == (fresh_text(target, onward), len(PROMPT) + len(said) - 1)
    changed = ask("changed", (*PROMPT, *said[:5], 9, 9))
    other, cached = say(engine, changed)
    assert (other, cached) == (fresh_text(target, changed), 0)
    engine.close()


def test_a_cancelled_prompt_is_continued_rightly(target: Path) -> None:
    engine = real_engine(target, n_batch=16)
    request = ask("a", [1 + i % 200 for i in range(90)])
    engine.submit(request)
    engine.step()
    engine.step()
    engine.cancel("a")
    assert say(engine, ask("b", request.tokens)) == (fresh_text(target, request), 32)
    engine.close()


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_drafting_is_refused_before_the_model_is_loaded(target: Path, kind: str) -> None:
    with pytest.raises(IncompatibleError, match="lfm2 keeps recurrent state, which cannot be rolled back yet"):
        real_engine(target, kind, target)


def test_an_idle_slot_between_two_that_answer_gets_no_rows(target: Path) -> None:
    """Rows that nobody asked for would spare a pass, and could not be taken back."""
    engine = real_engine(target, num_slots=3)
    engine._controller.costs.calibrate({rows: [1.0 + rows / 100] for rows in range(1, 9)})
    requests = [ask(name, (*PROMPT, place), max_tokens=count) for place, (name, count) in enumerate(LENGTHS.items())]
    told = drive(engine, requests)
    assert {name: (each.failed, len(each.tokens)) for name, each in told.items()} == {
        name: (None, count) for name, count in LENGTHS.items()
    }
    engine.close()

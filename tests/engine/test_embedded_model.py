"""The embedded files on the real engine: right answers, real acceptance, and the same text however it is drafted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from doubles.rig import drive

from eaglelocal.assembly import build
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.hub.resolve import resolve
from eaglelocal.hub.wish import Wish

QUESTIONS = {
    "length": ("What is acceptance length?", "bonus token"),
    "port": ("Which port does the server use?", "8421"),
    "sum": ("What is 347 + 285?", "632"),
    "stop": ("Which command stops a running server?", "eaglelocal stop"),
}


def engine_of(spec: str | int, *, parallel: int = 1) -> Engine:
    plan = resolve(Wish(target="demo@native", spec=spec, parallel=parallel), on_progress=lambda fraction, what: None)
    return build(plan, lambda _: None)


def asked() -> list[ChatRequest]:
    params = SamplingParams(temperature=0.0, max_tokens=200)
    return [
        ChatRequest(id=name, messages=(Message("user", question),), params=params)
        for name, (question, _) in QUESTIONS.items()
    ]


@pytest.fixture(scope="module")
def plain() -> Iterator[dict[str, str]]:
    engine = engine_of("off")
    yield {name: told.text for name, told in drive(engine, asked()).items()}
    engine.close()


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_guide_answers(plain: dict[str, str], name: str) -> None:
    assert QUESTIONS[name][1].lower() in plain[name].lower()


@pytest.mark.parametrize(("spec", "parallel"), [(1, 1), (4, 1), (8, 1), (4, 4), (2, 3)])
def test_drafting_changes_no_text(plain: dict[str, str], spec: int, parallel: int) -> None:
    engine = engine_of(spec, parallel=parallel)
    told = drive(engine, asked())
    engine.close()
    assert {name: one.text for name, one in told.items()} == plain
    finished = [one.finished.speculation for one in told.values() if one.finished]
    assert sum(s.accepted_tokens for s in finished) > 0.5 * sum(s.drafts for s in finished)

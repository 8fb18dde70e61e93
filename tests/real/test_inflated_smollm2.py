"""A real model inflated: the same choices, up to rounding; and drafts from copies of it in fewer layers or bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.real_engine import RawLogits

from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve

pytestmark = [pytest.mark.full, pytest.mark.real]

QUESTIONS = (
    "What is the capital of France, and which river flows through it?",
    "Write a Python function that returns the sum of a list of numbers.",
    "List three things that people take to the beach.",
)
MAX_TOKENS = 24
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Path:
    try:
        path = request.getfixturevalue("smollm2")
    except pytest.FixtureLookupError:
        pytest.skip("nothing fetches the model yet")
    assert isinstance(path, Path)
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def plan_of(target: str, draft: str = "none") -> Plan:
    plan = resolve(RunOptions(target=target, draft=draft, spec=3, ctx=512), on_progress=lambda fraction, what: None)
    return dataclasses.replace(plan, threads=1, n_batch=128)


def ask_all(engine: Engine) -> list[ChatRequest]:
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    return [
        ChatRequest(id=str(number), messages=(Message("user", question),), params=params)
        for number, question in enumerate(QUESTIONS)
    ]


@pytest.mark.slow
def test_an_inflated_model_chooses_the_same_tokens(model: Path, record_property: Record) -> None:
    """Both in f16, so that they hold the same numbers; sums over other widths round otherwise."""
    engine = build(plan_of(f"{model}@f16"), lambda _: None)
    requests = ask_all(engine)
    result = drive(engine, requests)
    prompts = [engine.input_processor.make_prompt(one).tokens for one in requests]
    engine.close()
    texts = [(*prompt, *result[one.id].tokens) for prompt, one in zip(prompts, requests, strict=True)]
    small, large = (RawLogits(plan_of(f"{model}@{recipe}").target) for recipe in ("f16", "300m:f16"))
    theirs = np.concatenate([small.along(text, len(text) - MAX_TOKENS) for text in texts])
    ours = np.concatenate([large.along(text, len(text) - MAX_TOKENS) for text in texts])
    small.close()
    large.close()
    equal = ours.argmax(1) == theirs.argmax(1)
    gaps = theirs.max(1) - np.take_along_axis(theirs, ours.argmax(1)[:, None], 1)[:, 0]
    largest = float(np.abs(ours - theirs).max() / theirs.std())
    record_property("largest difference in standard deviations", largest)
    record_property("equal choices", f"{int(equal.sum())} of {len(equal)}")
    assert largest < 0.05
    assert gaps.max() < 0.1, "only near-ties are chosen otherwise"


@pytest.mark.parametrize(("recipe", "shortest"), [("drop3", 1.5), ("q8_0", 3.0)])
def test_copies_draft_for_the_model(model: Path, recipe: str, shortest: float, record_property: Record) -> None:
    engine = build(plan_of(str(model), f"{model}@{recipe}"), lambda _: None)
    requests = ask_all(engine)
    result = drive(engine, requests)
    length = engine.snapshot().speculation.acceptance_length
    engine.close()
    record_property("acceptance length", length)
    assert all(result[one.id].text.strip() for one in requests)
    assert length > shortest

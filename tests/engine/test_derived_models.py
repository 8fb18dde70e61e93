"""Models made of the embedded one's files on the real engine: the same texts inflated, and copies that draft for it.

Here they are made of paths, as any GGUF is; `demo@SIZE` makes its pair in one go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from doubles.engine_harness import drive
from doubles.margin import margin_differences
from guide.corpus.mixture import KINDS, render_prompt, tasks_of

from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve

pytestmark = pytest.mark.full

BOUND = 0.05  # of the logits' gap, bfloat16 weights
TARGET, HEAD = demo_sources()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def plan_of(target: str, draft: str) -> Plan:
    plan = resolve(RunOptions(target=target, draft=draft, spec=4), on_progress=lambda fraction, what: None)
    return dataclasses.replace(plan, threads=1, n_batch=128)


def ask_held_out(engine: Engine) -> list[ChatRequest]:
    """Return a held-out question of each kind of work, as tokens."""
    requests = []
    for kind in KINDS:
        prompt = render_prompt(next(tasks_of(kind, 7, "held_out")))
        tokens = tuple(engine.input_processor.vocabulary.tokenize(prompt, add_special=False, parse_special=True))
        requests.append(ChatRequest(id=kind, tokens=tokens, params=SamplingParams(temperature=0.0, max_tokens=48)))
    return requests


def check_texts(plan: Plan) -> float:
    """Compare the plan's texts with the small model's; return the acceptance length of its drafts."""
    plain = build(plan_of("demo@native", "none"), lambda _: None)
    engine = build(plan, lambda _: None)
    requests = ask_held_out(engine)
    result = drive(engine, requests)
    for one in requests:
        margin_differences(plain, one, result[one.id].tokens, BOUND)  # fails where no near-tie explains it
    length = engine.snapshot().speculation.acceptance_length
    engine.close()
    plain.close()
    return length


def test_an_inflated_file_gives_the_same_texts_and_drafts() -> None:
    plan = plan_of(f"{TARGET}@100m:bf16", str(HEAD))
    assert plan.target_label == "guide-target at the cost of a 100 M model (bf16)"
    assert plan.draft_kind == "eagle3" and plan.draft_label.startswith("EAGLE-3.1 head") and "100 M" in plan.draft_label
    small = check_texts(plan_of(str(TARGET), str(HEAD)))
    assert check_texts(plan) > 0.9 * small > 1.8


@pytest.mark.parametrize("recipe", ["drop2", "q8_0"])
def test_a_copy_drafts_for_the_inflated_model(recipe: str) -> None:
    plan = plan_of(f"{TARGET}@100m:bf16", f"{TARGET}@{recipe}")
    assert (plan.draft_kind, plan.draft is not None and plan.draft.exists()) == ("draft_model", True)
    length = check_texts(plan)
    assert length > (3.0 if recipe == "q8_0" else 1.0), "the same model in 8 bits is nearly always right"

"""Cells that a slot copies from another on the real llama.cpp: logits as if computed, same texts, right cell counts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import AnswerResult
from doubles.hybrid_model import write_hybrid
from doubles.margin import margin_differences
from doubles.random_models import write_agreeing_pairs, write_target
from doubles.real_engine import TINY, ask, read, real_engine

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Floats
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.errors import EngineError
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve

SHAPE = dataclasses.replace(TINY, layer_gain=0.2)
TEXT = [int(token) for token in np.random.default_rng(0).integers(0, 256, 200)]
STEM = TEXT[:100]
BOUND = 0.05  # of the logits' gap, bfloat16 weights
TOLERANCES = {
    "f16": 2e-3,
    "f32": 2e-3,
    "q8_0": 2e-2,
    "q8_0,q5_1": 6e-2,
}  # of logits up to about 4: rows decoded in other pieces
DRAFTS = {"none": None, "eagle3": "F32-head.gguf", "draft_model": "F32.gguf", "ngram": None}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forks")
    write_agreeing_pairs(folder, ("F32",), SHAPE)
    write_hybrid(folder / "hybrid.gguf")
    write_target(folder / "tiny.gguf", TINY)
    return folder


@pytest.fixture(scope="module")
def model(files: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(load_library(), files / "tiny.gguf", Placement(repack=False))
    yield model
    model.close()


@pytest.mark.parametrize(("kv_type", "flash"), [*((kv_type, "auto") for kv_type in TOLERANCES), ("f16", "off")])
@pytest.mark.parametrize("unified", [False, True])
def test_logits_after_a_copied_prefix_are_those_after_a_computed_one(
    model: LlamaModel, kv_type: str, unified: bool, flash: str
) -> None:
    params = ContextParams(n_ctx=256, num_sequences=4, unified=unified, n_batch=256, kv_type=kv_type, flash_attn=flash)
    context = LlamaContext(model, params)
    computed = read(context, 3, 0, TEXT[:130])
    read(context, 0, 0, TEXT[:110])
    read(context, 2, 0, TEXT[150:190])
    context.remove(2, 0)
    context.share(0, 2, 0, 100)
    assert (context.last_position(0), context.last_position(2)) == (109, 99)
    context.remove(0, 40)  # the copy is made by the next decode, but what is copied is what was there
    read(context, 0, 40, TEXT[130:180])
    np.testing.assert_allclose(read(context, 2, 100, TEXT[100:130]), computed, atol=TOLERANCES[kv_type])
    np.testing.assert_allclose(
        read(context, 3, 130, [9]), read_alone(model, [*TEXT[:130], 9]), atol=TOLERANCES[kv_type]
    )
    np.testing.assert_allclose(
        read(context, 0, 90, [9]), read_alone(model, [*TEXT[:40], *TEXT[130:180], 9]), atol=TOLERANCES[kv_type]
    )
    context.close()


def read_alone(model: LlamaModel, tokens: list[int]) -> Floats:
    context = LlamaContext(model, ContextParams(n_ctx=256, n_batch=256))
    logits = read(context, 0, 0, tokens)
    context.close()
    return logits


def test_caches_of_their_own_are_copied_from_the_beginning_or_not_at_all(model: LlamaModel) -> None:
    context = LlamaContext(model, ContextParams(n_ctx=64, num_sequences=3, unified=False))
    read(context, 0, 0, TEXT[:20])
    with pytest.raises(EngineError, match="from position 0"):
        context.share(0, 1, 5, 10)
    with pytest.raises(EngineError, match="cannot copy"):
        context.share(0, 0, 0, 10)
    assert (context.last_position(0), context.last_position(1)) == (19, -1)
    context.close()


def run(engine: Engine, asked: list[ChatRequest], cancel_at: dict[str, int]) -> dict[str, AnswerResult]:
    result: dict[str, AnswerResult] = {one.id: AnswerResult() for one in asked}
    for one in asked:
        engine.submit(one)
    for number in range(5000):
        if not engine.has_work:
            return result
        for name in [name for name, when in cancel_at.items() if when == number]:
            engine.cancel(name)
        for event in engine.step():
            result[event.request_id].add(event)
        assert engine.miscounted_slots() == []
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize(("slots", "unified"), [(2, True), (2, False), (4, None), (7, None)])
def test_texts_after_copied_prefixes_are_the_plain_texts(
    files: Path, kind: str, slots: int, unified: bool | None
) -> None:
    rng = random.Random(slots)
    asked = [
        ask(str(i), [*STEM[: rng.choice([60, 90, 100])], *TEXT[100 + i : 103 + i]], max_tokens=rng.randint(1, 20))
        for i in range(3 * slots)
    ]
    cancels = {str(i): rng.randint(1, 8) for i in range(0, 3 * slots, 4)}
    draft = DRAFTS[kind]
    changes = {"num_slots": slots, "unified": unified, "n_batch": 48, "num_draft_tokens": 3}
    engine = real_engine(files / "F32.gguf", kind, files / draft if draft else None, **changes)
    result = run(engine, asked, cancels)
    speculation = engine.snapshot().speculation
    engine.close()
    plain = real_engine(files / "F32.gguf")
    for one in asked:
        assert one.id in cancels or len(result[one.id].tokens) == one.params.max_tokens
        assert margin_differences(plain, one, result[one.id].tokens, 1e-3) == []
    plain.close()
    reused = [answer.started.cached_tokens for answer in result.values() if answer.started]
    assert sum(count >= 59 for count in reused) >= len(reused) - 2  # some were cancelled while they read
    if kind == "draft_model":
        assert speculation.accepted_tokens == speculation.draft_tokens > 0


def test_recurrent_state_is_not_copied(files: Path) -> None:
    engine = real_engine(files / "hybrid.gguf", num_slots=3)
    result = run(engine, [ask(str(i), [*STEM, i], max_tokens=3) for i in range(3)], {})
    engine.close()
    assert [answer.started.cached_tokens for answer in result.values() if answer.started] == [0, 0, 0]


def chats(engine: Engine, system: str, questions: Sequence[str]) -> list[ChatRequest]:
    """As tokens, so that a replay can go on behind any of them."""
    intake, asked = InputProcessor(engine.input_processor.vocabulary, 2048), []
    for question in questions:
        messages = (Message("system", system), Message("user", question))
        tokens = intake.read(ChatRequest(id=question, messages=messages)).prompt
        params = SamplingParams(temperature=0.0, max_tokens=40)
        asked.append(ChatRequest(id=question, tokens=tokens, params=params))
    return asked


@pytest.mark.parametrize("slots", [2, 3])
def test_the_embedded_model_reads_a_system_prompt_once(slots: int) -> None:
    """With its head, which drafts behind what was copied as well as behind what it computed."""
    plan = resolve(RunOptions(target="demo@native", spec=4), on_progress=lambda fraction, what: None)
    plan = dataclasses.replace(plan, threads=1, n_batch=128)
    questions = ("What is acceptance length?", "Which port does the server use?", "What is 347 + 285?")[:slots]
    engine = build(dataclasses.replace(plan, num_slots=slots), lambda _: None)
    asked = chats(engine, "You answer questions about this tool in one short sentence. " * 8, questions)
    together = run(engine, asked, {})
    engine.close()
    alone, plain = (build(dataclasses.replace(plan, **less), lambda _: None) for less in ({}, {"draft_kind": "none"}))
    for one in asked:
        said, fresh = together[one.id].finished, run(alone, [one], {})[one.id].finished
        assert said is not None and fresh is not None
        if not margin_differences(plain, one, together[one.id].tokens, BOUND):
            assert said.speculation.acceptance_length >= fresh.speculation.acceptance_length - 0.5
    alone.close()
    plain.close()
    reused = [answer.started.cached_tokens for answer in together.values() if answer.started]
    assert reused[0] == 0
    assert min(reused[1:]) > 60

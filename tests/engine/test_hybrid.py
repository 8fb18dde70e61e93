"""Targets with recurrent state: a conversation continues from a saved state where there is one, else from the start.

Rejected drafts are undone by returning to an earlier state, so with any drafts the texts are those of plain decoding.
Tried with drafts that are right for a while and then wrong, at every length and in several slots.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from doubles.block_models import BlockShape, write_block_head
from doubles.engine_harness import drive
from doubles.hybrid_model import write_hybrid
from doubles.mixed_traffic import MixedTraffic
from doubles.random_models import HeadShape, TargetShape, write_head, write_target
from doubles.real_engine import ask, real_engine
from doubles.rendered_here import RenderedHere
from doubles.runnable_models import N_VOCAB, write_runnable
from doubles.season_models import SEASON, write_season
from doubles.tiers import some_of

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import NO_EXTRA_LEVELS, Batch, ExtraLevels
from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Message, Spec, fixed_spec
from eaglelocal.core.run_options import LOOKUPS
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.thinking import Thinking
from eaglelocal.drafters.drafter import Continuation, Node
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import IncompatibleError
from eaglelocal.loading.engine_builder import count_checkpoints
from eaglelocal.probe.probe import probe
from eaglelocal.scheduler.slot import BEFORE_END
from eaglelocal.text.templates.chat_template import ChatTemplate

pytestmark = pytest.mark.full

PROMPT = tuple(range(30, 60))
LENGTHS = {"a": 12, "b": 3, "c": 12}
# nemotron_h's sketch has no layers that a head's three taps could tell apart; of the others llama.cpp gives no layers
HEADLESS = ("nemotron_h", *SEASON)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("hybrid") / "hybrid.gguf")


def fresh_text(target: Path, request: ChatRequest, **changes: object) -> list[int]:
    engine = real_engine(target, **changes)
    tokens = drive(engine, [request])[request.id].tokens
    engine.close()
    return tokens


def say(engine: Engine, request: ChatRequest) -> tuple[list[int], int]:
    """(tokens, prompt tokens found in the cache)."""
    result = drive(engine, [request])[request.id]
    assert result.started is not None and result.failed is None
    return result.tokens, result.started.cached_tokens


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


@pytest.mark.parametrize("kind", ["ngram", "eagle3", "draft_model"])
def test_drafting_is_refused_where_llama_cpp_keeps_no_states(tmp_path: Path, kind: str) -> None:
    target = write_runnable(tmp_path / "mamba2.gguf", "mamba2")
    with pytest.raises(IncompatibleError, match="mamba2 keeps recurrent state, whose rollback"):
        real_engine(target, kind, None if kind == "ngram" else target)


def test_a_draft_model_with_states_is_refused(target: Path) -> None:
    with pytest.raises(IncompatibleError, match="lfm2 keeps recurrent state, which drafting cannot cut"):
        real_engine(target, "draft_model", target)


def test_an_idle_slot_between_two_that_answer_gets_no_rows(target: Path) -> None:
    """Padding rows would save a pass, but could not be removed again."""
    engine = real_engine(target, num_slots=3)
    engine.controller.costs.calibrate({rows: [1.0 + rows / 100] for rows in range(1, 9)})
    requests = [ask(name, (*PROMPT, place), max_tokens=count) for place, (name, count) in enumerate(LENGTHS.items())]
    result = drive(engine, requests)
    assert {name: (each.failed, len(each.tokens)) for name, each in result.items()} == {
        name: (None, count) for name, count in LENGTHS.items()
    }
    engine.close()


@pytest.mark.parametrize("kind", ["none", "ngram"])
def test_words_that_end_the_thinking_are_read_like_any_others(target: Path, kind: str) -> None:
    """They come in one step, as a draft that needs no saved state."""
    engine = real_engine(target, kind, n_ctx=512)
    engine.input_processor.template = ChatTemplate("{{ messages[0].content }}<think>", process=RenderedHere())
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, thinking=Thinking(budget=9))
    request = ChatRequest(id="a", messages=(Message("user", "Why?"),), is_split=True, params=params)
    prompt, limit = engine.input_processor.make_prompt(request).tokens, engine.input_processor.read(request)
    said = drive(engine, [request])["a"].tokens
    engine.close()
    assert limit.reasoning_limit is not None
    closing = list(limit.reasoning_limit.closings[0])
    end = next(n for n in range(9 + len(closing), 200) if said[n - len(closing) : n] == closing)
    after = ask("after", (*prompt, *said[:end]), max_tokens=200 - end)
    assert said[end:] == fresh_text(target, after, n_ctx=512)


# ---- drafts
class Knowing:
    """Drafts what is known to come, each token wrong one time in five."""

    def __init__(self, texts: dict[int, list[int]], seed: int) -> None:
        self._texts, self._random = texts, random.Random(seed)

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return [self._continuation(self._texts[node.slot][node.position + 1 :][:depth]) for node in nodes]

    def _continuation(self, coming: list[int]) -> Continuation:
        tokens = [token if self._random.random() < 0.8 else (token + 1) % N_VOCAB for token in coming]
        return Continuation(tokens, [0.5] * len(tokens))


def drafting(target: Path, requests: Sequence[ChatRequest], plain: dict[str, list[int]], **changes: object) -> Engine:
    """An engine whose lookups know these answers, by slots in the order of the requests."""
    engine = real_engine(target, "ngram", num_slots=len(requests), **changes)
    texts = {slot: [*request.tokens, *plain[request.id]] for slot, request in enumerate(requests)}
    knowing = Knowing(texts, seed=len(texts))
    engine.drafters[0].draft = knowing.draft  # type: ignore[method-assign]
    engine.drafters[0].estimate = lambda root: 1.0  # type: ignore[attr-defined]
    return engine


def texts_of(engine: Engine, requests: Sequence[ChatRequest]) -> dict[str, list[int]]:
    result = drive(engine, list(requests))
    assert [each.failed for each in result.values()] == [None] * len(requests)
    assert engine.miscounted_slots() == []
    return {name: each.tokens for name, each in result.items()}


@pytest.fixture(
    scope="module", params=["bailingmoe3", "deepseek4", "lfm2", "nemotron_h", "qwen35", "qwen35moe", *SEASON]
)
def living(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write = write_season if request.param in SEASON else write_runnable
    return write(tmp_path_factory.mktemp(request.param) / f"{request.param}.gguf", request.param)


@pytest.mark.parametrize("spec", [fixed_spec(4), AUTO_SPEC], ids=str)
@pytest.mark.parametrize("num_slots", [1, 3])
def test_drafted_texts_are_the_plain_ones(living: Path, num_slots: int, spec: Spec) -> None:
    requests = [ask(f"r{i}", (*PROMPT, *range(40 + i, 50)), max_tokens=40 + 10 * i) for i in range(num_slots)]
    alone = real_engine(living, num_slots=num_slots)
    plain = texts_of(alone, requests)
    alone.close()
    engine = drafting(living, requests, plain, spec=spec)
    assert texts_of(engine, requests) == plain
    stats = engine.snapshot().speculation
    if spec is not AUTO_SPEC:  # which drafts nothing if a busy machine makes it expensive
        assert 0 < stats.accepted_tokens < stats.draft_tokens
    assert engine.context.num_branches == 0
    engine.close()


def test_a_conversation_goes_on_after_a_draft_that_was_taken_back(living: Path) -> None:
    request = ask("first", PROMPT, max_tokens=30)
    first = fresh_text(living, request)
    engine = drafting(living, [request], {"first": first}, spec=fixed_spec(8))
    said, _ = say(engine, request)
    assert said == first
    onward = ask("onward", (*PROMPT, *said, 7, 8, 9))
    assert say(engine, onward) == (fresh_text(living, onward), len(PROMPT) + len(said) - 1)
    engine.submit(ask("cancelled", (*onward.tokens, 5, 5)))
    for _ in range(4):
        engine.step()
    engine.cancel("cancelled")
    other = ask("other", (*PROMPT[:9], 3, 4))
    assert say(engine, other) == (fresh_text(living, other), 0)
    assert engine.miscounted_slots() == []
    engine.close()


def test_no_more_is_drafted_than_there_are_states_to_go_back_to(living: Path) -> None:
    request = ask("a", PROMPT, max_tokens=30)
    plain = {"a": fresh_text(living, request)}
    engine = drafting(living, [request], plain, spec=fixed_spec(16), rollback=2)
    assert texts_of(engine, [request]) == plain
    assert "at most 2 tokens are drafted: each needs a copy of this model's state" in engine.info.notes
    assert engine.info.max_draft == 2
    assert engine.controller.state(0)[1] == "2 tokens"
    assert len(engine.snapshot().speculation.accepted_per_position) == 2
    engine.close()


def test_heads_and_draft_models_draft_for_them(living: Path, tmp_path: Path) -> None:
    shape = TargetShape(n_vocab=N_VOCAB, n_embd=256)
    drafts = {
        "eagle3": write_head(tmp_path / "head.gguf", HeadShape(width=256, fc_norm=True, norm_output=True), shape),
        "dflash": write_block_head(tmp_path / "block.gguf", BlockShape(taps=(1,), sections=True), shape),
        "draft_model": write_target(tmp_path / "small.gguf", TargetShape(n_vocab=N_VOCAB)),
    }
    requests = [ask("a", PROMPT), ask("b", PROMPT[4:])]
    alone = real_engine(living, num_slots=2)
    plain = texts_of(alone, requests)
    alone.close()
    for kind, draft in drafts.items():
        if kind in ("eagle3", "dflash") and living.stem in HEADLESS:
            continue
        engine = real_engine(living, kind, draft, num_slots=2)
        assert texts_of(engine, requests) == plain
        assert engine.snapshot().speculation.draft_tokens > 0
        engine.close()


def context_of(target: Path) -> LlamaContext:
    params = ContextParams(n_ctx=512, num_sequences=3, unified=False, num_snapshots=4, flash_attn="off", kv_type="f32")
    return LlamaContext(LlamaModel(load_library(), target, Placement(repack=False)), params)


def decode(context: LlamaContext, **rows: tuple[int, list[int]]) -> None:
    """Rows by sequence, as `s0=(first position, tokens)`."""
    batch = Batch([], [], [], [])
    for name, (first, tokens) in rows.items():
        batch.tokens.extend(tokens)
        batch.positions.extend(range(first, first + len(tokens)))
        batch.sequences.extend([(int(name[1:]),)] * len(tokens))
        batch.outputs.extend([True] * len(tokens))
    context.decode(batch)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_a_draft_is_taken_back_whoever_came_first(living: Path, order: tuple[int, ...]) -> None:
    """llama.cpp moves the states of sequences that do not lie in their order, but not those kept behind them."""
    prompt = [5, 6, 7, 8, 9, 10]
    alone = context_of(living)
    decode(alone, s0=(0, [*prompt, 20, 21, 50]))
    expected = alone.logits(8).copy()
    alone.close()
    context = context_of(living)
    for number in order:
        decode(context, **{f"s{number}": (0, [token + number for token in prompt])})
    context.remove(1, 0)  # a conversation ends, and another begins there before anything is decoded
    decode(context, s0=(6, [20, 21, 22, 23]), s1=(0, [30, 31]), s2=(6, [40, 41]))
    context.remove(2, 0)
    context.remove(0, 8)
    assert (context.last_position(0), context.last_position(1), context.last_position(2)) == (7, 1, -1)
    decode(context, s1=(2, [9]))
    decode(context, s0=(8, [50]), s2=(0, [3]))
    assert np.abs(context.logits(0) - expected).max() < 1e-3
    context.close()


@pytest.mark.parametrize("num_slots", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_mixed_traffic_gets_the_plain_texts(living: Path, num_slots: int) -> None:
    traffic = MixedTraffic(
        living, real_engine(living, "ngram", lookups=tuple(LOOKUPS), num_slots=num_slots, n_ctx=512), seed=num_slots
    )
    engine = traffic.engine
    knowing = Knowing(traffic.texts, seed=num_slots)
    engine.drafters[0].draft = knowing.draft  # type: ignore[method-assign]
    engine.drafters[0].estimate = lambda root: 1.0  # type: ignore[attr-defined]
    traffic.run(25)
    traffic.close()


# ---- conversations that do not go on just behind their last answer
@pytest.mark.parametrize("draft", some_of(["head", "none"], rest=pytest.mark.slow))
def test_a_changed_conversation_goes_back_to_a_saved_state(living: Path, tmp_path: Path, draft: str) -> None:
    """As chats do whose templates leave thoughts out: the next prompt has not the answer that was given."""
    head = write_head(tmp_path / "head.gguf", HeadShape(width=256), TargetShape(n_vocab=N_VOCAB, n_embd=256))
    drafted = draft == "head" and living.stem not in HEADLESS
    engine = real_engine(living, "eagle3" if drafted else "none", head if drafted else None, n_ctx=1024, num_slots=2)
    history, place = list(range(20, 260)), 240 - BEFORE_END
    asked = ask("question", history)
    said, cached = say(engine, asked)
    assert (said, cached) == (fresh_text(living, asked, n_ctx=1024), 0)
    for turn in range(3):
        again = ask(f"another answer {turn}", history)
        assert say(engine, again) == (said, place)
        history += [*said[3:9], *range(30 + turn, 200)]  # what was said, shortened, and the next question
        asked = ask(f"question {turn}", history)
        said, cached = say(engine, asked)
        assert (said, cached) == (fresh_text(living, asked, n_ctx=1024), place)
        place = len(history) - BEFORE_END
    other = ask("other", list(range(60, 90)))
    assert say(engine, other) == (fresh_text(living, other, n_ctx=1024), 0)
    assert engine.miscounted_slots() == []
    engine.close()


def test_states_are_as_many_as_there_is_room_for() -> None:
    machine = probe()
    roomy = replace(machine, memory=replace(machine.memory, available_bytes=64 * 2**30))
    tight = replace(machine, memory=replace(machine.memory, available_bytes=2**30))
    state = 150 * 2**20
    assert [count_checkpoints(state, slots, roomy) for slots in (1, 2, 4)] == [2, 4, 6]
    assert count_checkpoints(state, 4, tight) == 0
    assert count_checkpoints(0, 4, roomy) == 0

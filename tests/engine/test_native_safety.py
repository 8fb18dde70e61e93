"""Memory of llama.cpp is never read after it was freed: copies, closed contexts, rows that do not exist."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.hybrid_model import write_hybrid
from doubles.random_models import write_agreeing_head, write_target
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import LlamaHeadContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, PairBatch
from eaglelocal.core.sampling import GREEDY, SamplingParams
from eaglelocal.errors import EngineError, ResourceError

CHAIN = SamplingParams(temperature=0.8, seed=1, top_k=10)
PLAIN = ContextParams(n_ctx=256, n_batch=32, num_sequences=2, unified=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("safety")
    shape = replace(TINY, layer_gain=0.1)
    target = write_target(folder / "target.gguf", shape)
    return target, write_agreeing_head(folder / "head.gguf", target, shape)


@pytest.fixture
def model(files: tuple[Path, Path]) -> Iterator[LlamaModel]:
    opened = LlamaModel(load_library(), files[0], Placement(repack=False))
    yield opened
    opened.close()


@pytest.fixture
def context(model: LlamaModel) -> Iterator[LlamaContext]:
    opened = LlamaContext(model, PLAIN, taps=(1, 2, 3))
    yield opened
    opened.close()


def rows(tokens: list[int], first: int = 0, outputs: list[bool] | None = None) -> Batch:
    n = len(tokens)
    return Batch(tokens, list(range(first, first + n)), [(0,)] * n, outputs or [True] * n)


def test_copies_outlive_the_next_decode_and_the_context(model: LlamaModel) -> None:
    context = LlamaContext(model, PLAIN, taps=(1, 2, 3))
    tapped = context.decode(rows([5, 6, 7])).features([0, 2])
    assert tapped is not None
    features = tapped.copied()
    assert features.flags.owndata
    before = features.copy()
    context.decode(rows([40, 41, 42], 3))
    context.close()
    gc.collect()
    np.testing.assert_array_equal(features, before)


def test_features_are_refused_once_the_context_has_moved_on(model: LlamaModel) -> None:
    context = LlamaContext(model, PLAIN, taps=(1, 2, 3))
    first = context.decode(rows([5, 6, 7]))
    kept = first.features([0])
    second = context.decode(rows([40, 41, 42], 3))
    assert kept is not None
    with pytest.raises(EngineError, match="after the next decode"):
        first.features([0])
    with pytest.raises(EngineError, match="after the next decode"):
        kept.copied()
    with pytest.raises(EngineError, match=r"the decode had 3 rows; there are no features of rows \[0, 3\]"):
        second.features([0, 3])
    context.close()
    with pytest.raises(EngineError, match="after the next decode"):
        second.features([0])


def test_ranking_choices_leaves_the_logits_as_they_were(context: LlamaContext) -> None:
    context.decode(rows([5, 6, 7]))
    first = context.propose([0, 1, 2], 3, confident=True)
    second = context.propose([0, 1, 2], 4, confident=True)
    assert [ranked[:3] for ranked in second.tokens] == first.tokens
    for row, (tokens, result) in enumerate(zip(second.tokens, second.confidences, strict=True)):
        logits = np.sort(context.logits(row))[::-1][:5].astype(np.float64)  # one more than is reported
        weights = np.exp(logits - logits[0])
        np.testing.assert_allclose(context.logits(row)[tokens], logits[:4], rtol=1e-6)
        np.testing.assert_allclose(result, (weights / np.cumsum(weights[::-1])[::-1])[:4], rtol=1e-4)


def test_references_may_be_dropped_between_decodes(context: LlamaContext) -> None:
    tapped = context.decode(rows([5, 6, 7])).features([0, 1, 2])
    assert tapped is not None
    expected = tapped.copied()
    for _ in range(4):  # each collects all that a whole run of tests has left
        context.remove(0, 0)
        again = context.decode(rows([5, 6, 7])).features([0, 1, 2])
        sampler = context.sampler(CHAIN)
        sampler.accept([1, 2, 3])
        sampler.sample(2)
        assert again is not None
        np.testing.assert_allclose(again.copied(), expected, atol=1e-5)
        sampler.close()
        del again, sampler
        gc.collect()


def test_logprobs_are_owned(context: LlamaContext) -> None:
    context.decode(rows([5, 6, 7]))
    sampled = context.sampler(replace(GREEDY, logprobs=3)).sample(2)
    before = [(t.token, t.logprob) for t in sampled.top]
    context.decode(rows([9, 9, 9], 3))
    assert [(t.token, t.logprob) for t in sampled.top] == before


@pytest.mark.parametrize("params", [GREEDY, CHAIN])
@pytest.mark.parametrize("row", [0, 1, 3, 31, 32, 10_000, -5])
def test_a_row_without_logits_is_refused(context: LlamaContext, params: SamplingParams, row: int) -> None:
    context.decode(rows([5, 6, 7], outputs=[False, False, True]))
    sampler = context.sampler(params)
    with pytest.raises(EngineError, match=f"row {row} of the last decode has no logits"):
        sampler.sample(row)
    assert 0 <= sampler.sample(2).token < 300
    sampler.close()


@pytest.mark.parametrize("params", [GREEDY, CHAIN])
def test_a_sampler_of_an_earlier_and_larger_decode(context: LlamaContext, params: SamplingParams) -> None:
    context.decode(rows([5, 6, 7]))
    sampler = context.sampler(params)
    context.decode(rows([8], 3))
    with pytest.raises(EngineError, match="row 2"):
        sampler.sample(2)
    sampler.close()


@pytest.mark.parametrize("params", [GREEDY, CHAIN])
def test_nothing_works_on_a_closed_context(model: LlamaModel, params: SamplingParams) -> None:
    context = LlamaContext(model, PLAIN)
    context.decode(rows([5, 6, 7]))
    sampler = context.sampler(params)
    context.close()
    context.close()
    for call in (
        lambda: sampler.sample(2),
        lambda: context.decode(rows([5])),
        lambda: context.propose([0], 1, confident=False),
        lambda: context.remove(0, 0),
        lambda: context.last_position(0),
        lambda: context.sampler(params).sample(0),
    ):
        with pytest.raises(EngineError, match="closed"):
            call()
    sampler.close()
    sampler.close()


def test_a_closed_sampler_is_refused(context: LlamaContext) -> None:
    context.decode(rows([5]))
    sampler = context.sampler(CHAIN)
    sampler.close()
    with pytest.raises(EngineError, match="the sampler is closed"):
        sampler.sample(0)


def test_batches_that_do_not_fit(context: LlamaContext) -> None:
    for size in (0, 33):
        with pytest.raises(EngineError, match=f"a batch of {size} rows does not fit 32"):
            context.decode(rows([5] * size))
    with pytest.raises(EngineError, match="cannot remove sequence -1"):
        context.remove(-1, 0)


def test_a_full_cache_is_unchanged_by_the_decode_that_finds_no_room(context: LlamaContext) -> None:
    for first in range(0, 256, 32):
        context.decode(rows([7] * 32, first))
    with pytest.raises(ResourceError, match="1 more rows do not fit"):
        context.decode(rows([7], 256))
    assert context.last_position(0) == 255
    context.remove(0, 255)
    context.decode(rows([7], 255))


def test_a_head_closes_before_its_target_and_twice(files: tuple[Path, Path], model: LlamaModel) -> None:
    target, head_file = LlamaContext(model, PLAIN, taps=(1, 2, 3)), files[1]
    draft = LlamaModel(load_library(), head_file, Placement(repack=False))
    head = LlamaHeadContext(draft, PLAIN, target=target)
    features = target.decode(rows([5, 6, 7])).features([0, 2])
    assert features is not None
    states = head.encode([features, features])
    assert [len(state) for state in states] == [64 * 4] * 4
    head.decode(PairBatch([5], states[:1], [0], [0], [0]), 1, confident=False)
    for _ in range(2):
        head.close()
        target.close()
        draft.close()
    for call in (
        lambda: head.encode([features]),
        lambda: head.decode(PairBatch([5], states[:1], [0], [0], [0]), 1, confident=False),
        lambda: head.remove(0, 0),
        lambda: head.last_position(0),
    ):
        with pytest.raises(EngineError, match="closed"):
            call()


def test_an_engine_closes_in_the_middle_of_answers_and_twice(files: tuple[Path, Path]) -> None:
    for _ in range(3):
        engine = real_engine(files[0], "eagle3", files[1], num_slots=2)
        for i in range(4):
            engine.submit(ask(str(i), (5, 6, 7 + i), temperature=0.9, seed=i))
        for _ in range(3):
            engine.step()
        engine.close()
        engine.close()
        with pytest.raises(EngineError, match="closed"):
            engine.context.last_position(0)
        del engine
        gc.collect()


def test_two_engines_live_side_by_side(files: tuple[Path, Path]) -> None:
    one, two = real_engine(files[0]), real_engine(files[0], "eagle3", files[1])
    asked = [ask("a", (33, 60, 97))]
    assert drive(one, asked)["a"].tokens == drive(two, asked)["a"].tokens
    one.close()
    assert drive(two, asked)["a"].finished is not None
    two.close()


def test_tokens_found_along_with_a_decode_are_those_of_its_rows(context: LlamaContext) -> None:
    """Whether drafts agree with them or not, and however many of them were read before."""
    rng = np.random.default_rng(5)
    greedy, with_logprobs = context.sampler(GREEDY), context.sampler(replace(GREEDY, logprobs=1))
    tokens, first = [5], 0
    for _ in range(120):
        context.remove(0, first)
        context.decode(rows(tokens, first))
        best = [context.propose([row], 1, confident=False).tokens[0][0] for row in range(len(tokens))]
        num_read = int(rng.integers(0, len(tokens) + 1))
        sampler = greedy if rng.random() < 0.9 else with_logprobs
        assert [sampler.sample(row).token for row in range(num_read)] == best[:num_read]
        if len(tokens) < 8 and rng.random() < 0.7:
            tokens = [*tokens, best[-1]]  # the next draft agrees that far
        else:
            first, tokens = first + 1, [int(rng.integers(1, 200)), *best[1:3]]


def test_rows_that_are_not_there_have_no_best_token(context: LlamaContext) -> None:
    greedy = context.sampler(GREEDY)
    context.decode(rows([5, 6, 7]))
    assert [greedy.sample(row).token for row in range(3)]
    context.remove(0, 0)
    context.decode(rows([5], outputs=[True]))
    greedy.sample(0)
    for row in (1, 2, 31, 32, -33):
        with pytest.raises(EngineError, match="no logits"):
            greedy.sample(row)


def test_a_target_that_cannot_forget_says_what(tmp_path: Path) -> None:
    opened = LlamaModel(load_library(), write_hybrid(tmp_path / "hybrid.gguf"), Placement(repack=False))
    context = LlamaContext(opened, PLAIN)
    context.decode(rows([5, 6, 7, 8]))
    context.remove(0, 3)
    with pytest.raises(EngineError, match="cannot remove sequence 0 from position 3 on"):
        context.decode(rows([9], 3))
    context.close()
    opened.close()

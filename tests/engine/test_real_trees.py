"""Trees on the real llama.cpp: a path has the logits of the chain, texts stay the same, cells are freed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.margin import BOUNDS, margin_differences
from doubles.random_models import write_agreeing_pairs, write_target
from doubles.real_engine import TINY, ask, real_engine, use_controller
from doubles.steady_costs import FreeController, FreeRows

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, Floats
from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.plan import MAX_BRANCHES
from eaglelocal.core.request import AUTO_SPEC, ChatRequest
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.sequence_ids import SequenceIds
from eaglelocal.errors import EngineError
from eaglelocal.speculation.policy.slot_policy import DrafterSet

SHAPE = replace(TINY, layer_gain=0.3)
PREFIX = [5, 6, 7, 8, 9]
ROOT_TOKEN = 40
#  root ── 0 ── 1 ── 2 ── 3
#   │      │     └── 6
#   │      └── 5
#   └── 4
COMB = Draft((41, 42, 43, 44, 51, 52, 53), (ROOT, 0, 1, 2, ROOT, 0, 1), (0.5,) * 7)
#  root ── 0 ── 2
#   │      └── 3 ── 5
#   └── 1 ── 4
BUSHY = Draft((41, 42, 43, 44, 45, 46), (ROOT, ROOT, 0, 0, 1, 3), (0.5,) * 6)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    write_agreeing_pairs(folder, BOUNDS, SHAPE)
    write_target(folder / "other.gguf", replace(SHAPE, layer_gain=0.5))  # much the same
    return folder


TOLERANCES = {"f32": 1e-4, "f16": 2e-3, "q8_0": 2e-3}  # of logits: cells lie in another order, and are summed up in it


@pytest.fixture(params=TOLERANCES)
def kv_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def context(files: Path, kv_type: str) -> Iterator[LlamaContext]:
    model = LlamaModel(load_library(), files / "F32.gguf", Placement(repack=False))
    params = ContextParams(n_ctx=64, num_sequences=2, num_branches=6, n_batch=64, kv_type=kv_type)
    exact = replace(params, flash_attn="off") if kv_type == "f32" else params
    opened = LlamaContext(model, exact, taps=(1, 2, 3))
    yield opened
    opened.close()
    model.close()


def decode(context: LlamaContext, slot: int, first: int, tokens: Sequence[int]) -> tuple[Floats, Floats]:
    """Logits and features of a chain of rows."""
    n = len(tokens)
    outputs = context.decode(Batch(list(tokens), list(range(first, first + n)), [(slot,)] * n, [True] * n))
    features = outputs.features(list(range(n)))
    assert features is not None
    return np.array([context.logits(row) for row in range(n)]), features.copied()


def decode_tree(
    context: LlamaContext, branches: SequenceIds, slot: int, draft: Draft, root: int
) -> tuple[Floats, Floats]:
    """Logits and features of the root and the nodes; the other slot has nothing to do."""
    tokens, positions = [ROOT_TOKEN, *draft.tokens], [root, *(root + depth for depth in draft.depths)]
    outputs = context.decode(Batch(tokens, positions, branches.grow(slot, draft, root), [True] * len(tokens)))
    features = outputs.features(list(range(len(tokens))))
    assert features is not None
    return np.array([context.logits(row) for row in range(len(tokens))]), features.copied()


@pytest.mark.parametrize("draft", [COMB, BUSHY], ids=["comb", "bushy"])
@pytest.mark.parametrize("slot", [0, 1])
def test_every_path_of_a_tree_says_what_the_chain_says(context: LlamaContext, draft: Draft, slot: int) -> None:
    branches = SequenceIds(context, 2)
    decode(context, 1 - slot, 0, [90, 91, 92])  # another text in the same cache
    decode(context, slot, 0, PREFIX)
    logits, features = decode_tree(context, branches, slot, draft, len(PREFIX))
    branches.keep(slot, draft, (), len(PREFIX))
    for leaf in draft.leaves:
        path = draft.path_to(leaf)
        context.remove(slot, len(PREFIX))
        alone = decode(context, slot, len(PREFIX), [ROOT_TOKEN, *(draft.tokens[node] for node in path)])
        rows = [0, *(node + 1 for node in path)]
        np.testing.assert_allclose(logits[rows], alone[0], atol=2e-5)
        np.testing.assert_allclose(features[rows], alone[1], atol=2e-5)


@pytest.mark.parametrize("draft", [COMB, BUSHY], ids=["comb", "bushy"])
def test_after_any_accepted_path_the_text_goes_on_as_if_there_had_been_no_tree(
    context: LlamaContext, kv_type: str, draft: Draft
) -> None:
    """Tree after tree in one slot, their paths as chains in the other; branches hold nothing else."""
    branches = SequenceIds(context, 2)
    text = list(PREFIX)
    decode(context, 0, 0, text)
    decode(context, 1, 0, text)
    for last in (*range(len(draft)), ROOT):
        path = draft.path_to(last)
        decode_tree(context, branches, 0, draft, len(text))
        branches.keep(0, draft, path, len(text))
        new = [ROOT_TOKEN, *(draft.tokens[node] for node in path)]
        decode(context, 1, len(text), new)
        text += new
        assert context.last_position(0) == len(text) - 1
        assert all(context.last_position(branch) < len(text) for branch in range(2, 8))
    onward, _ = decode(context, 0, len(text), [60, 61])
    alone, _ = decode(context, 1, len(text), [60, 61])
    np.testing.assert_allclose(onward, alone, atol=TOLERANCES[kv_type])
    branches.cut(0, 0)
    assert all(context.last_position(sequence) == -1 for sequence in (0, *range(2, 8)))


def test_a_full_cache_takes_trees_without_end(files: Path) -> None:
    """Rejected cells are given back: more trees than the cache has cells, at its very end."""
    model = LlamaModel(load_library(), files / "F32.gguf", Placement(repack=False))
    context = LlamaContext(model, ContextParams(n_ctx=256, num_branches=3, n_batch=64))
    branches = SequenceIds(context, 1)
    rows = 1 + len(COMB)
    text = [1 + i % 200 for i in range(256 - rows)]
    for i in range(0, len(text), 64):
        part = text[i : i + 64]
        context.decode(Batch(part, list(range(i, i + len(part))), [(0,)] * len(part), [False] * len(part)))
    for _ in range(100):
        sequences = branches.grow(0, COMB, len(text))
        positions = [len(text), *(len(text) + depth for depth in COMB.depths)]
        context.decode(Batch([ROOT_TOKEN, *COMB.tokens], positions, sequences, [True] * rows))
        branches.keep(0, COMB, (), len(text))
        branches.cut(0, len(text))
        assert context.last_position(0) == len(text) - 1
    context.close()
    model.close()


def test_sequences_with_caches_of_their_own_share_no_part_and_nothing_when_closed(files: Path) -> None:
    model = LlamaModel(load_library(), files / "F32.gguf", Placement(repack=False))
    context = LlamaContext(model, ContextParams(n_ctx=64, num_sequences=2, unified=False, n_batch=64))
    with pytest.raises(EngineError, match="copied from position 0"):
        context.share(0, 1, 1, 2)
    context.close()
    for first in (0, 1):
        with pytest.raises(EngineError, match=r"closed|from position 0"):
            context.share(0, 1, first, 2)
    model.close()


def test_more_sequences_than_output_rows_are_refused_before_llama_cpp_aborts() -> None:
    for changes in ({"max_outputs": 4}, {"n_batch": 4}):
        with pytest.raises(EngineError, match="5 sequences need as many output rows, not 4"):
            ContextParams(n_ctx=64, num_branches=4, **changes)


# ---- the engine
def tree_engine(files: Path, name: str, kind: str = "eagle3", **changes: object) -> Engine:
    """Every row is free, so that every second choice is sent."""
    draft = files / ("other.gguf" if kind == "draft_model" else f"{name}-head.gguf")
    engine = real_engine(files / f"{name}.gguf", kind, draft, spec=AUTO_SPEC, unified=True, **changes)
    controller = FreeController(
        AUTO_SPEC, DrafterSet(kind, ("ngram",), num_branches=MAX_BRANCHES), FreeRows(), max_siblings=MAX_BRANCHES
    )
    use_controller(engine, controller)
    return engine


def questions(rng_seed: int, count: int, **params: object) -> list[ChatRequest]:
    rng = random.Random(rng_seed)
    stem = [rng.randrange(256) for _ in range(60)]
    prompts = [[*stem[: rng.randint(1, 60)], rng.randrange(256)] for _ in range(count)]
    return [ask(str(i), prompt, **({"max_tokens": rng.randint(1, 40)} | params)) for i, prompt in enumerate(prompts)]


def check_cells(engine: Engine) -> None:
    context, scheduler = engine.context, engine.scheduler
    for slot in range(engine.info.num_slots):
        assert context.last_position(slot) == scheduler.prefix_cache.num_cached(slot) - 1


class Counted:
    """Counts second choices that were accepted."""

    def __init__(self, engine: Engine) -> None:
        self.trees = self.leaves = 0
        self._keep = engine.caches.sequence_ids.keep
        engine.caches.sequence_ids.keep = self.keep  # type: ignore[method-assign]

    def keep(self, slot: int, draft: Draft, path: Sequence[int], position: int) -> None:
        self.trees += not draft.is_chain
        self.leaves += bool(path) and path[-1] != len(path) - 1
        self._keep(slot, draft, path, position)


@pytest.mark.parametrize(("name", "kind"), [*((name, "eagle3") for name in BOUNDS), ("F32", "draft_model")])
@pytest.mark.parametrize("slots", [1, 2])
def test_greedy_texts_with_forced_trees(files: Path, name: str, kind: str, slots: int) -> None:
    asked = questions(slots, 8)
    rng = random.Random(slots)
    cancels = {one.id: rng.randrange(20) for one in asked if rng.random() < 0.3}
    engine = tree_engine(files, name, kind, num_slots=slots, n_batch=48)
    counted = Counted(engine)
    result = drive(engine, asked, cancel_at=cancels)
    check_cells(engine)
    engine.close()
    assert counted.trees > 10 and counted.leaves > 2
    plain = real_engine(files / f"{name}.gguf", n_batch=48)
    flips = [flip for one in asked for flip in margin_differences(plain, one, result[one.id].tokens, BOUNDS[name])]
    plain.close()
    assert len(flips) <= (0 if name == "F32" else sum(len(answer.tokens) for answer in result.values()) / 50)
    for one in asked:
        assert one.id in cancels or len(result[one.id].tokens) == one.params.max_tokens


@pytest.mark.parametrize("slots", [1, 2])
def test_seeded_texts_with_forced_trees(files: Path, slots: int) -> None:
    asked = [
        *questions(3, 4, temperature=0.8, seed=5, top_k=20),
        *questions(4, 4, temperature=0.7, seed=6, repeat_penalty=1.2),
    ]
    asked = [replace(one, id=str(i)) for i, one in enumerate(asked)]
    exact = {"kv_type": "f32", "flash_attn": "off"}  # a draw may flip where a cell is rounded, chains or not
    engine = tree_engine(files, "F32", num_slots=slots, **exact)
    counted = Counted(engine)
    result = drive(engine, asked)
    engine.close()
    plain = real_engine(files / "F32.gguf", **exact)  # type: ignore[arg-type]
    expected = drive(plain, asked)
    plain.close()
    assert counted.trees > 20
    assert {name: answer.tokens for name, answer in result.items()} == {n: a.tokens for n, a in expected.items()}


def test_a_small_batch_has_fewer_branches(files: Path) -> None:
    changes = {"num_slots": 2, "unified": True, "n_batch": 7}
    engine = real_engine(files / "F32.gguf", "eagle3", files / "F32-head.gguf", spec=AUTO_SPEC, **changes)
    assert engine.context.num_branches == 4
    asked = questions(1, 4)
    result = drive(engine, asked)
    engine.close()
    plain = real_engine(files / "F32.gguf", n_batch=7)
    assert not [flip for one in asked for flip in margin_differences(plain, one, result[one.id].tokens, BOUNDS["F32"])]
    plain.close()


def test_trees_are_for_one_slot_on_a_processor(files: Path) -> None:
    for slots, branches in ((1, MAX_BRANCHES), (2, 0), (3, 0)):
        engine = real_engine(files / "F32.gguf", "eagle3", files / "F32-head.gguf", spec=AUTO_SPEC, num_slots=slots)
        assert engine.context.num_branches == branches
        assert not any("drafts are chains" in note for note in engine.info.notes)  # the user cannot change it
        engine.close()

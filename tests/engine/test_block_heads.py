"""Heads that draft a block at a time, on the real llama.cpp: their logits, texts equal to plain decoding, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.block_models import BlockShape, Reference, write_bigram_head, write_block_head
from doubles.engine_harness import drive
from doubles.random_models import TargetShape, write_target
from doubles.real_engine import TINY, ask, real_engine
from doubles.runnable_models import N_VOCAB, write_runnable
from doubles.weightless_models import SKETCHES

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import BlockFormat, LlamaBlockContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.backend.top_tokens import MIN_RANKED
from eaglelocal.core.batch import FeatureRows, Roots
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import fixed_spec
from eaglelocal.errors import EngineError, IncompatibleError, ModelFileError
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices
from eaglelocal.loading.engine_builder import build

PARAMS = ContextParams(n_ctx=128, num_sequences=3, n_batch=64, kv_type="f32", flash_attn="off")
SHAPES = {
    "DFlash": BlockShape(),
    "a reduced vocabulary": BlockShape(draft_vocab=200, own_output=True),
    "a window": BlockShape(window=12),
    "positions of several parts": BlockShape(sections=True),
    "causal": BlockShape(is_causal=True),
    "DSpark": BlockShape(markov_rank=16),
    "DFlash2": BlockShape(candidates=6),
    "DSpark behind a bonus token": BlockShape(markov_rank=16, sample_from_anchor=False),
}


@contextmanager
def opened(tmp_path: Path, shape: BlockShape) -> Iterator[LlamaBlockContext]:
    target = LlamaModel(load_library(), tmp_path / "target.gguf", Placement(repack=False))
    head = LlamaModel(load_library(), tmp_path / "head.gguf", Placement(repack=False))
    context = LlamaContext(target, PARAMS, taps=shape.taps)
    skips_root = shape.markov_rank is None or not shape.sample_from_anchor
    trained = BlockFormat(shape.mask or 0, skips_root, shape.is_causal, shape.candidates or 0)
    block = LlamaBlockContext(head, PARAMS, trained, target=context)
    yield block
    block.close()
    context.close()
    head.close()
    target.close()


@pytest.mark.parametrize("name", SHAPES)
def test_it_says_what_the_arithmetic_says(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    target_file, head_file = write_target(tmp_path / "target.gguf", TINY), tmp_path / "head.gguf"
    reference = Reference(write_block_head(head_file, shape, TINY), target_file, shape)
    rng = np.random.default_rng(3)
    texts = [rng.normal(size=(length, len(shape.taps), TINY.n_embd)).astype(np.float32) for length in (20, 7, 90)]
    tokens, firsts = [5, 17, 101], [0, 3, 0]
    with opened(tmp_path, shape) as head:
        for slot, text in enumerate(texts):
            head.show([FeatureRows(slot, firsts[slot], text[:6]), FeatureRows(slot, firsts[slot] + 6, text[6:])])
        roots = Roots(tokens, [first + len(text) for first, text in zip(firsts, texts, strict=True)], [0, 1, 2])
        for depth in (7, 3):
            said = head.fill(roots, depth, 1)
            for slot, text in enumerate(texts):
                logits = reference.logits(text, firsts[slot], tokens[slot], depth)
                assert [row[0] for row in said.tokens[slot::3]] == target_tokens(head_file, logits.argmax(axis=1))
                top = np.sort(logits, axis=1)[:, -MIN_RANKED:]
                shares = 1 / np.exp(top - top[:, -1:]).sum(axis=1)
                assert [row[0] for row in said.confidences[slot::3]] == pytest.approx(shares, abs=2e-3)


def target_tokens(head: Path, rows: np.ndarray) -> list[int]:
    """Of a reduced vocabulary."""
    header = read_header(head)
    return (read_indices(header, "d2t")[rows] if "d2t" in header.tensors else rows).tolist()


def test_more_rows_than_a_call_takes_are_refused(tmp_path: Path) -> None:
    write_target(tmp_path / "target.gguf", TINY)
    write_block_head(tmp_path / "head.gguf", BlockShape(), TINY)
    with opened(tmp_path, BlockShape()) as head, pytest.raises(EngineError, match="3 blocks of 31 rows do not fit 64"):
        head.fill(Roots([1, 2, 3], [0, 0, 0], [0, 1, 2]), 30, 1)


# ---- in the engine
def test_tokens_of_a_block_are_accepted_and_texts_stay(tmp_path: Path) -> None:
    shape = replace(TINY, layer_gain=0.02)
    target = write_target(tmp_path / "target.gguf", shape)
    head = write_bigram_head(tmp_path / "head.gguf", target, shape)
    requests = [ask(str(n), range(10 + n, 40), max_tokens=60) for n in range(5)]
    plain = real_engine(target)
    expected = {name: answer.tokens for name, answer in drive(plain, requests).items()}
    plain.close()
    for slots, changes in ((1, {}), (3, {}), (3, {"unified": False})):
        engine = real_engine(target, kind="dflash", draft=head, num_draft_tokens=6, num_slots=slots, **changes)
        result = drive(engine, requests)
        speculation = engine.snapshot().speculation
        engine.close()
        assert {name: answer.tokens for name, answer in result.items()} == expected
        assert speculation.accepted_tokens > 0.9 * speculation.draft_tokens > 0
        assert speculation.accepted_per_position[5] > 0


def test_a_window_is_all_that_is_kept_and_texts_stay(tmp_path: Path) -> None:
    """Behind it cells are taken again; cut further back, the head goes on from what there is."""
    target = write_target(tmp_path / "target.gguf", replace(TINY, layer_gain=0.02))
    head = write_block_head(tmp_path / "head.gguf", BlockShape(window=24), replace(TINY, layer_gain=0.02))
    stem = list(range(20, 220))
    requests = [ask(str(n), [*stem[: 150 - 40 * n], 5 + n], max_tokens=70) for n in range(4)]
    plain = real_engine(target, num_slots=2)
    expected = {name: answer.tokens for name, answer in drive(plain, requests).items()}
    plain.close()
    engine = real_engine(target, kind="dflash", draft=head, num_draft_tokens=7, num_slots=2)
    for _ in range(2):  # the second time prompts are there, and caches are cut far back
        assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == expected
    assert engine.snapshot().speculation.draft_tokens > 500
    assert engine.miscounted_slots() == []
    engine.close()


@pytest.mark.parametrize("room", [0, 1, 3])
def test_blocks_at_the_end_of_the_context(tmp_path: Path, room: int) -> None:
    target = write_target(tmp_path / "target.gguf", TINY)
    head = write_block_head(tmp_path / "head.gguf", BlockShape(), TINY)
    requests = [ask(str(n), range(10, 10 + 256 - 20 - room), max_tokens=20 + room) for n in range(4)]
    engine = real_engine(target, kind="dflash", draft=head, num_draft_tokens=7, num_slots=4, n_ctx=256)
    result = drive(engine, requests)
    assert {len(answer.tokens) for answer in result.values()} == {20 + room}
    engine.close()


@pytest.mark.parametrize(
    ("head", "made_for", "says"),
    [
        (BlockShape(), TargetShape(n_embd=192), "hidden size 192, the target has 128"),
        (BlockShape(taps=(1, 9)), TargetShape(), "taps layer 9, the target has layers 0 to 3"),
        (BlockShape(), TargetShape(n_vocab=310), "vocabulary has 310 tokens, the target's 300"),
        (BlockShape(mask=None), TargetShape(), "its mask is the token None of 300"),
        (BlockShape(mask=300), TargetShape(), "its mask is the token 300 of 300"),
        (BlockShape(block_size=2), TargetShape(), "its blocks have 2 rows; they need two that predict"),
        (BlockShape(block_size=None, markov_rank=8), TargetShape(), "lacks the key dflash.block_size"),
        (BlockShape(block_size=None, candidates=6), TargetShape(), "lacks the key dflash.block_size"),
        (BlockShape(candidates=6, base_type=np.float16), TargetShape(), "_conv_base is F16, expected F32"),
        (BlockShape(draft_vocab=200, own_output=True, id_type=np.int32), TargetShape(), "its d2t is I32"),
        (BlockShape(draft_vocab=200), TargetShape(), "200 tokens with the target's output over 300"),
    ],
)
def test_what_does_not_fit_is_refused_with_figures(
    tmp_path: Path, head: BlockShape, made_for: TargetShape, says: str
) -> None:
    target = write_target(tmp_path / "target.gguf", TargetShape())
    draft = write_block_head(tmp_path / "head.gguf", head, made_for)
    plan = Plan(target=target, target_label="t", draft_kind="dflash", draft=draft, spec=fixed_spec(4), n_ctx=256)
    with pytest.raises((IncompatibleError, ModelFileError)) as caught:
        build(plan, lambda _: None)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_head_cannot_answer(tmp_path: Path) -> None:
    head = write_block_head(tmp_path / "head.gguf")
    with pytest.raises(ModelFileError, match=r"is a draft head \(dflash\), not a model"):
        build(Plan(target=head, target_label="h", n_ctx=256), lambda _: None)


@pytest.mark.parametrize("head", ["DFlash", "DFlash2"])
@pytest.mark.parametrize("pattern", [4, [layer % 4 < 3 for layer in range(8)]], ids=["a number", "a list"])
def test_muse_glimmer_says_what_it_says_without_a_head(tmp_path: Path, pattern: object, head: str) -> None:
    """Its files tell windows in two ways; heads for it have a window of their own, and read inputs of layers."""
    sketch = SKETCHES["muse-glimmer"]
    shape = TargetShape(n_embd=sketch.n_embd, n_vocab=N_VOCAB)
    windows = {"attention__sliding_window": 64, "attention__sliding_window_pattern": pattern}
    target = write_runnable(tmp_path / "muse.gguf", "muse-glimmer", **windows)
    block = write_block_head(tmp_path / "head.gguf", replace(SHAPES[head], taps=(1, 4, 7), window=32), shape)
    requests = [ask("a", [7, 40, 8, 99] * 30, max_tokens=60), ask("b", range(20, 90), max_tokens=60)]
    plain = real_engine(target, num_slots=2)
    expected = {name: answer.tokens for name, answer in drive(plain, requests).items()}
    plain.close()
    engine = real_engine(target, "dflash", block, num_slots=2)
    result = drive(engine, requests)
    assert {name: answer.tokens for name, answer in result.items()} == expected
    assert all(answer.finished and answer.finished.speculation.draft_tokens > 0 for answer in result.values())
    engine.close()


def test_a_head_of_deepseeks_shape_is_refused(tmp_path: Path) -> None:
    """Its blocks have parallel states and experts of their own."""
    target = ModelInfo.from_header(read_header(write_target(tmp_path / "target.gguf", TINY)))
    header = read_header(write_block_head(tmp_path / "head.gguf", BlockShape(markov_rank=16), TINY))
    check_head(BlockInfo.from_header(header), target)
    parallel = replace(header, metadata={**header.metadata, "dflash.hyper_connection.count": 4})
    with pytest.raises(IncompatibleError, match="heads of DeepSeek's shape are not supported yet"):
        check_head(BlockInfo.from_header(parallel), target)

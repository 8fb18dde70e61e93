"""Steps that are collected late, over llama.cpp: the same tokens as steps that are collected at once.

llama.cpp computes on the processor here, so a decode is done when it is submitted; but nothing is read before
`collect`, as on a GPU.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from doubles.block_models import BlockShape, write_block_head
from doubles.engine_harness import drive
from doubles.random_models import HeadShape, write_head, write_target
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch
from eaglelocal.core.request import ChatRequest
from eaglelocal.errors import EngineError, ResourceError

KINDS = ("none", "eagle3", "draft_model", "dflash", "ngram")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("asynchronous")
    target = write_target(folder / "target.gguf", TINY)
    head = HeadShape(width=64, n_ff=64, fc_norm=True, norm_output=True)
    return {
        "target": target,
        "eagle3": write_head(folder / "head.gguf", head, TINY),
        "draft_model": target,
        "dflash": write_block_head(folder / "block.gguf", BlockShape(n_ff=64, block_size=5), TINY),
    }


def traffic(seed: int) -> tuple[list[ChatRequest], dict[str, int]]:
    """Return requests with shared prefixes, half of them seeded, and the steps at which some are cancelled."""
    rng = random.Random(seed)
    stem = [rng.randrange(256) for _ in range(90)]
    requests = []
    for number in range(8):
        params = {"temperature": 1.0, "seed": number} if number % 2 else {}
        prompt = [*stem[: rng.randint(1, 90)], rng.randrange(256)]
        requests.append(ask(str(number), prompt, max_tokens=rng.randint(1, 30), **params))
    return requests, {one.id: rng.randrange(20) for one in requests if rng.random() < 0.3}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_slots", [1, 3])
def test_texts_are_those_of_steps_collected_at_once(files: dict[str, Path], kind: str, num_slots: int) -> None:
    requests, cancels = traffic(seed=num_slots)
    tokens = []
    for is_asynchronous in (False, True):
        engine = real_engine(files["target"], kind, files.get(kind), n_batch=48, num_slots=num_slots)
        engine.context.is_asynchronous = is_asynchronous  # type: ignore[misc]
        result = drive(engine, requests, cancel_at=cancels)
        assert engine.miscounted_slots() == []
        engine.close()
        tokens.append({name: answer.tokens for name, answer in result.items()})
    assert tokens[0] == tokens[1]


def test_a_decode_is_collected_once_and_a_failed_one_never(files: dict[str, Path]) -> None:
    model = LlamaModel(load_library(), files["target"], Placement(repack=False))
    context = LlamaContext(model, ContextParams(n_ctx=256, n_batch=256), taps=(1, 2), is_asynchronous=True)
    rows = Batch([5, 6, 7], [0, 1, 2], [(0,)] * 3, [True] * 3)
    before = context.native_s
    context.submit(rows)
    outputs = context.collect()
    assert context.native_s > before
    late = context.logits(2)
    features = outputs.features([0, 2])
    assert features is not None and len(features.copied()) == 2
    context.remove(0, 0)
    context.decode(rows)
    assert context.logits(2).tolist() == late.tolist()
    with pytest.raises(EngineError, match="no decode to collect"):
        context.collect()
    with pytest.raises(ResourceError, match="the cache is full"):
        context.submit(Batch([5] * 256, list(range(3, 259)), [(0,)] * 256, [False] * 256))
    with pytest.raises(EngineError, match="no decode to collect"):
        context.collect()
    context.close()
    model.close()

"""A thousand requests in a row leave the process as large as the first hundred."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from doubles.engine_harness import drive
from doubles.random_models import write_agreeing_head, write_target
from doubles.real_engine import TINY, ask, real_engine

SHAPE = replace(TINY, layer_gain=0.1)


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "eagle3", "draft_model"])
def test_a_thousand_requests_do_not_grow(
    tmp_path: Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_agreeing_head(tmp_path / "head.gguf", target, SHAPE)
    draft = {"none": None, "eagle3": head, "draft_model": target}[kind]
    engine = real_engine(target, kind, draft, num_slots=4)
    rng = random.Random(1)
    after_100 = 0
    for hundred in range(10):
        asked = []
        for i in range(100):
            prompt = [rng.randrange(256) for _ in range(rng.randint(1, 120))]
            fields = {"temperature": rng.choice([0.0, 0.8]), "repeat_penalty": rng.choice([1.0, 1.2]), "seed": i}
            asked.append(ask(f"{hundred}-{i}", prompt, max_tokens=rng.randint(1, 40), stop=("w1", "w2"), **fields))
        result = drive(engine, asked, cancel_at={asked[5].id: 3, asked[50].id: 40})
        assert all(answer.finished for answer in result.values())
        if hundred == 0:
            after_100 = resident_bytes()
    grown = resident_bytes() / after_100 - 1
    engine.close()
    record_property("growth", grown)
    assert grown < 0.02

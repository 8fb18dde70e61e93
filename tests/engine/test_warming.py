"""Steps before the first request: everything that a step runs has run, and nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.random_models import write_agreeing_pairs
from doubles.real_engine import TINY, ask, real_engine
from doubles.rig import Told, drive

from eaglelocal.backend.head import LlamaHeadContext
from eaglelocal.core.batch import PairBatch, Proposals
from eaglelocal.core.request import AUTO
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.warming import Warming

SIZES = (1, 2, 5, 17, 30)
KINDS = {"eagle3": "F32-head.gguf", "draft_model": "F32.gguf", "ngram": None, "none": None}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warming")
    write_agreeing_pairs(folder, ["F32"], TINY)
    return folder


@pytest.fixture(params=[(kind, slots) for kind in KINDS for slots in (1, 3)], ids=lambda p: f"{p[0]}-{p[1]}")
def engines(request: pytest.FixtureRequest, files: Path) -> Iterator[tuple[Engine, Engine]]:
    """Two alike."""
    kind, num_slots = request.param
    draft = files / name if (name := KINDS[kind]) else None
    made = [real_engine(files / "F32.gguf", kind, draft, spec=AUTO, num_slots=num_slots) for _ in range(2)]
    yield made[0], made[1]
    for engine in made:
        engine.close()


def told(engine: Engine) -> dict[str, Told]:
    return drive(engine, [ask(str(i), [7 + i, *range(20, 50)], temperature=0.7, seed=3) for i in range(3)])


def test_nothing_of_it_is_left(engines: tuple[Engine, Engine]) -> None:
    warmed, fresh = engines
    warming = Warming(warmed._context, warmed._drafters, max_outputs=17 if warmed._drafters else 1)
    for size in SIZES:
        warming.prepare(size)
    assert warmed.miscounted_slots() == []
    assert warmed._context.last_position(0) == -1
    for drafter in warmed._drafters:
        if isinstance(drafter, Ngram):
            assert drafter.num_indexed == 0
        else:
            cache = getattr(drafter, "_head", None) or drafter._context  # type: ignore[attr-defined]
            assert cache.last_position(0) == -1
    answers = told(warmed), told(fresh)
    assert {name: one.tokens for name, one in answers[0].items()} == {n: one.tokens for n, one in answers[1].items()}


def test_a_head_runs_every_size_and_one_row_behind_it(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []  # rows, levels
    decode = LlamaHeadContext.decode

    def watched(
        head: LlamaHeadContext, batch: PairBatch, branches: int, *, confident: bool, depth: int = 1
    ) -> Proposals:
        ran.append((len(batch.tokens), depth))
        return decode(head, batch, branches, confident=confident, depth=depth)

    engine = real_engine(files / "F32.gguf", "eagle3", files / "F32-head.gguf", spec=AUTO)
    monkeypatch.setattr(LlamaHeadContext, "decode", watched)
    engine.warm_up(max_rows=17, makes_kernels=True)
    assert {rows for rows, depth in ran if depth == 2} == set(range(1, 18))
    head = engine._drafters[-1]._head._struct  # type: ignore[attr-defined]
    assert not head.was_asked  # or a decode that is timed would encode as well
    engine.close()


def test_on_a_processor_no_draft_is_made_before_the_first_request(files: Path) -> None:
    engine = real_engine(files / "F32.gguf", "eagle3", files / "F32-head.gguf", spec=AUTO)
    assert engine._drafters[-1].native_s == 0.0
    engine.close()

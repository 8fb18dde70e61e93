"""Chi-square tests that speculation never changes the distribution of outputs, and the errors that they detect.

The first three tokens of many seeded requests are counted together and compared with the product of
the exact conditional distributions, computed in numpy from the target's logits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.chi_square import p_value, upper_gamma
from doubles.drafters import NoDrafter
from doubles.engine_harness import INFO, EngineHarness, drive, fixed_controller
from doubles.medusa_checkpoints import write_agreeing_medusa
from doubles.random_models import write_agreeing_head, write_target
from doubles.real_engine import TINY, RawLogits, real_engine
from doubles.scripted_context import (
    LetterVocabulary,
    ScriptedContext,
    ScriptedHead,
    ScriptedMedusa,
    ScriptedParallelHead,
    ScriptedSampler,
    Table,
    distribution,
)
from doubles.tiers import some_of

from eaglelocal.core.batch import Batch, Floats
from eaglelocal.core.constraint import Constraint
from eaglelocal.core.request import AUTO_SPEC, ChatRequest
from eaglelocal.core.sampling import Sampled, SamplingParams
from eaglelocal.drafters.block_drafter import Medusa, PEagle
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.lookahead import Lookahead
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import Scheduler

pytestmark = pytest.mark.full

LEAST_P = 1e-4  # fixed seeds: a right sampler passes for good, a wrong one has p values far below
NUM_TOKENS = 3
NUM_REQUESTS = 500
TABLE = Table(n_vocab=12, seed=5, sharpness=1.5)
PROMPT = (3, 4, 5)
PARAMS = {
    "T 0.7, top-k": {"temperature": 0.7, "top_k": 5},
    "T 1.0, top-p": {"temperature": 1.0, "top_p": 0.8},
    "T 1.0, top-k and top-p": {"temperature": 1.0, "top_k": 6, "top_p": 0.9},
    "T 0.7, min-p": {"temperature": 0.7, "min_p": 0.1, "top_k": 8},
    "T 1.0, typical": {"temperature": 1.0, "typical_p": 0.7, "top_k": 8},
}


def requests(count: int, prompt: Sequence[int], params: dict[str, float]) -> list[ChatRequest]:
    fields = {"max_tokens": NUM_TOKENS, "ignore_eos": True} | params
    return [
        ChatRequest(id=str(seed), tokens=tuple(prompt), params=SamplingParams(seed=seed, **fields))  # type: ignore[arg-type]
        for seed in range(count)
    ]


def exact(
    logits_after: Callable[[Sequence[int]], Floats], prompt: Sequence[int], params: SamplingParams
) -> dict[tuple[int, ...], float]:
    """Outcome of the first tokens -> probability."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(NUM_TOKENS):
        grown: dict[tuple[int, ...], float] = {}
        for said, chance in chances.items():
            seen = [*prompt, *said]
            following = distribution(logits_after(seen), params, seen)
            grown |= {(*said, int(token)): chance * following[token] for token in np.flatnonzero(following)}
        chances = grown
    return chances


def counted(engine: Engine, asked: list[ChatRequest]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(answer.tokens[:NUM_TOKENS]) for answer in drive(engine, asked).values())


# ---- over scripted models
def scripted_drafter(kind: str) -> Drafter:
    if kind == "none":
        return NoDrafter()
    if kind == "model":
        return DraftModel(ScriptedContext(Table(n_vocab=12, seed=6, sharpness=1.5), gives_features=False))
    if kind == "medusa":
        return Medusa(ScriptedMedusa(TABLE), 0, block_size=4)
    if kind == "p-eagle":
        return PEagle(ScriptedParallelHead(TABLE), (0,), ScriptedParallelHead.mask)
    if kind == "lookahead":
        return Lookahead()
    return Eagle3(ScriptedHead(TABLE), (0,))


def scripted_engine(context: ScriptedContext, drafter: Drafter, length: int) -> Engine:
    margin, vocabulary = drafter.traits.reuse_margin, LetterVocabulary(TABLE.n_vocab)
    return Engine(
        context=context,
        input_processor=InputProcessor(vocabulary, context.n_ctx),
        drafters=(drafter,),
        controller=fixed_controller(drafter, length),
        scheduler=Scheduler(
            n_ctx=context.n_ctx, n_batch=context.n_batch, prefix_cache=PrefixCache(4, reuse_margin=margin)
        ),
        info=replace(INFO, num_slots=4),
    )


@pytest.mark.parametrize("name", some_of(PARAMS, 3, rest=pytest.mark.slow))
@pytest.mark.parametrize(
    ("kind", "length"),
    [("none", 0), ("eagle3", 1), ("eagle3", 2), ("model", 2), ("p-eagle", 2), ("medusa", 2), ("lookahead", 2)],
)
def test_draws_follow_the_exact_distribution(name: str, kind: str, length: int) -> None:
    asked = requests(NUM_REQUESTS, PROMPT, PARAMS[name])
    seen = counted(scripted_engine(ScriptedContext(TABLE), scripted_drafter(kind), length), asked)
    assert p_value(seen, exact(TABLE.after, PROMPT, asked[0].params)) > LEAST_P


@pytest.mark.parametrize("name", some_of(PARAMS, 2, rest=pytest.mark.slow))
@pytest.mark.parametrize("table", [TABLE, Table(n_vocab=12, seed=6, sharpness=1.5)], ids=["right head", "other head"])
def test_draws_next_to_second_choices_follow_it_too(name: str, table: Table) -> None:
    """Every second choice is sent, and often drawn: the head knows the logits, and the draws are hot."""
    asked = requests(NUM_REQUESTS, PROMPT, PARAMS[name] | {"max_tokens": NUM_TOKENS + 3})  # room for trees
    parallel = PEagle(ScriptedParallelHead(table), (0,), ScriptedParallelHead.mask, num_choices=2)
    medusa = Medusa(ScriptedMedusa(table), 0, block_size=6, num_choices=2)
    for head in (Eagle3(ScriptedHead(table), (0,), num_choices=2), parallel, medusa):
        harness = EngineHarness(TABLE, head, spec=AUTO_SPEC, num_slots=2, branches=4)
        seen = counted(harness.engine, asked)
        assert p_value(seen, exact(TABLE.after, PROMPT, asked[0].params)) > LEAST_P
        assert harness.context.tree_rows > NUM_REQUESTS


class EagerSampler(ScriptedSampler):
    """Wrong on purpose: takes what was drafted nine times out of ten, whatever the target says."""

    def sample(self, row: int) -> Sampled:
        assert isinstance(self.context, EagerContext)
        drafted = self.context.drafted_behind(row)
        if drafted is None or self.random.random() > 0.9:
            return super().sample(row)
        return Sampled(drafted)


class EagerContext(ScriptedContext):
    """Tells its samplers what was drafted behind a row."""

    def submit(self, batch: Batch) -> None:
        self._batch = batch
        super().submit(batch)

    def drafted_behind(self, row: int) -> int | None:
        batch = self._batch
        if row + 1 >= len(batch) or batch.sequences[row + 1] != batch.sequences[row]:
            return None
        return batch.tokens[row + 1]

    def sampler(self, params: SamplingParams, constraint: Constraint | None = None) -> EagerSampler:
        return EagerSampler(self, params)


@pytest.mark.parametrize("name", PARAMS)
def test_a_sampler_that_favours_drafts_is_caught(name: str) -> None:
    asked = requests(NUM_REQUESTS, PROMPT, PARAMS[name])
    seen = counted(scripted_engine(EagerContext(TABLE), scripted_drafter("eagle3"), 2), asked)
    assert p_value(seen, exact(TABLE.after, PROMPT, asked[0].params)) < LEAST_P / 100


# ---- over llama.cpp
@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("distribution")
    shape = replace(TINY, layer_gain=0.1)
    target = write_target(folder / "target.gguf", shape)
    write_agreeing_head(folder / "p-eagle.gguf", target, shape, num_depths=4)
    write_agreeing_medusa(folder / "medusa.gguf", target)
    return target, write_agreeing_head(folder / "head.gguf", target, shape)


REAL_PARAMS = {
    "T 0.7, top-k and top-p": {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
    "T 1.0, top-k and min-p": {"temperature": 1.0, "top_k": 5, "min_p": 0.2},
}
SLOW_PARAMS = {
    "T 1.0, typical": {"temperature": 1.0, "top_k": 6, "typical_p": 0.7},
    "T 0.7, repeat penalty": {"temperature": 0.7, "top_k": 5, "repeat_penalty": 1.4, "presence_penalty": 0.3},
    "T 1.0, top-k and top-p": {"temperature": 1.0, "top_k": 8, "top_p": 0.8},
}


def check_real(models: tuple[Path, Path], params: dict[str, float], length: int, count: int) -> float:
    """p value of the engine's draws; fails when the head was of no use, for then nothing was tested."""
    target, head = models
    prompt = (33, 60, 97)
    asked = requests(count, prompt, params)
    logits = RawLogits(target)
    chances = exact(logits.after, prompt, asked[0].params)
    logits.close()
    drafting = {"kind": "eagle3", "draft": head, "num_draft_tokens": length} if length else {}
    engine = real_engine(target, num_slots=64, n_batch=256, **drafting)  # type: ignore[arg-type]
    seen = counted(engine, asked)
    accepted = engine.snapshot().speculation.accepted_tokens
    engine.close()
    assert length == 0 or accepted > count / 20
    return p_value(seen, chances)


@pytest.mark.parametrize("name", REAL_PARAMS)
@pytest.mark.parametrize("length", [0, 2])
def test_llama_cpp_draws_follow_the_exact_distribution(models: tuple[Path, Path], name: str, length: int) -> None:
    assert check_real(models, REAL_PARAMS[name], length, 800) > LEAST_P


@pytest.mark.parametrize("name", REAL_PARAMS)
@pytest.mark.parametrize("kind", ["p-eagle", "medusa"])
def test_draws_next_to_parallel_drafts_follow_it_too(models: tuple[Path, Path], kind: str, name: str) -> None:
    target, head = models
    assert check_real((target, head.with_name(f"{kind}.gguf")), REAL_PARAMS[name], 2, 800) > LEAST_P


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REAL_PARAMS, *SLOW_PARAMS])
@pytest.mark.parametrize("length", [0, 1, 2, 4])
def test_llama_cpp_draws_follow_the_exact_distribution_at_length(
    models: tuple[Path, Path], name: str, length: int
) -> None:
    assert check_real(models, (REAL_PARAMS | SLOW_PARAMS)[name], length, 6000) > LEAST_P


# ---- the test's own arithmetic
@pytest.mark.parametrize(
    ("degrees", "statistic", "p"),
    [(1, 3.841459, 0.05), (10, 18.307038, 0.05), (10, 3.940299, 0.95), (4, 23.51274, 1e-4)],
)
def test_p_values_are_those_of_the_tables(degrees: int, statistic: float, p: float) -> None:
    assert upper_gamma(degrees / 2, statistic / 2) == pytest.approx(p, rel=1e-4)


def test_an_impossible_outcome_has_no_chance() -> None:
    assert p_value(Counter({"a": 50, "b": 1}), {"a": 1.0}) == 0.0
    assert p_value(Counter({"a": 50, "b": 50}), {"a": 0.5, "b": 0.5}) == 1.0

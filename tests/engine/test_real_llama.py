"""The engine on the real llama.cpp, with random models: every dialect of head, any slots, cancels, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.random_models import HeadShape, write_head, write_target
from doubles.rig import drive

from eaglelocal.assembly import build
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, fixed
from eaglelocal.core.sampling import SamplingParams

DIALECTS = {
    "plain": HeadShape(),
    "3.1": HeadShape(fc_norm=True, norm_output=True),
    "norm_before_fc": HeadShape(norm_before_fc=True, norm_output=True),
    "norm_before_residual": HeadShape(norm_before_residual=True),
    "own embeddings, other width": HeadShape(width=64, own_embeddings=True, own_output=True),
    "reduced vocabulary": HeadShape(draft_vocab=200, own_output=True),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("models") / "target.gguf")


def plan_of(target: Path, head: Path | None = None, **changes: object) -> Plan:
    fields: dict[str, object] = {"n_ctx": 256, "n_batch": 64, "threads": 1}
    if head is not None:
        fields |= {"draft_kind": "eagle3", "draft": head, "spec": fixed(4)}
    return Plan(target=target, target_label="random", **(fields | changes))  # type: ignore[arg-type]


def ask(name: str, prompt: range, **params: object) -> ChatRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True} | params
    return ChatRequest(id=name, tokens=tuple(prompt), params=SamplingParams(**fields))  # type: ignore[arg-type]


ASKED = [ask("a", range(10, 30)), ask("b", range(10, 150)), ask("c", range(40, 44)), ask("d", range(10, 60))]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_of_head_gives_the_plain_text(target: Path, tmp_path: Path, dialect: str) -> None:
    head = write_head(tmp_path / "head.gguf", DIALECTS[dialect])
    plain = drive(build(plan_of(target), lambda _: None), ASKED)
    drafted = drive(build(plan_of(target, head, num_slots=2), lambda _: None), ASKED)
    for name, answer in plain.items():
        assert drafted[name].tokens == answer.tokens
    assert all(one.finished and one.finished.speculation.draft_tokens > 0 for one in drafted.values())

"""The engine on the real llama.cpp, with random models: every dialect of head, any slots, cancels, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.engine_harness import drive
from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, Infill, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.loading.engine_builder import build

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
        fields |= {"draft_kind": "eagle3", "draft": head, "spec": fixed_spec(4)}
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


# ---- prompts as they are sent
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.mark.parametrize("controls", [FIM, ()])
def test_tokens_to_fill_in_are_found_where_the_vocabulary_has_them(tmp_path: Path, controls: tuple[str, ...]) -> None:
    """A prompt that spells them and one that leaves them to us are the same; others may ask for the first only."""
    shape = TargetShape(controls=controls)
    engine = build(plan_of(write_target(tmp_path / "fim.gguf", shape)), lambda _: None)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    filled = ChatRequest(id="filled", text="def f(", suffix=")<|end|>", params=params)
    spelled = ChatRequest(id="spelled", text=f"{FIM[0]}def f({FIM[1]})x{FIM[2]}", params=params)
    result = drive(engine, [filled, spelled])
    assert result["spelled"].started is not None
    if not controls:
        assert result["filled"].failed is not None and "cannot fill in" in str(result["filled"].failed.error)
        assert result["spelled"].started.prompt_tokens == len(f"{FIM[0]}def f({FIM[1]})x{FIM[2]}")
        return
    assert result["spelled"].started.prompt_tokens == 3 + len("def f()x")
    assert result["filled"].started is not None and len(result["filled"].tokens) == 8
    assert result["filled"].started.prompt_tokens == 3 + len("def f()<|end|>")  # which is text there
    alike = replace(filled, id="alike", suffix=")x")
    assert drive(engine, [alike])["alike"].tokens == result["spelled"].tokens


def test_gaps_in_code_are_reported_with_the_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    shape = TargetShape(n_vocab=320, controls=(*FIM, "<|repo_name|>", "<|file_sep|>"))
    engine = build(plan_of(write_target(tmp_path / "fim.gguf", shape)), lambda _: None)
    gap = Infill(("def f(",), (")\n",), (("a.py", "import b\n"),), "x")
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    spelled = "<|repo_name|>myproject\n<|file_sep|>a.py\nimport b\n<|file_sep|>filename\n"
    spelled += f"{FIM[0]}def f(x{FIM[1]})\n{FIM[2]}"
    filled = ChatRequest(id="filled", infill=gap, params=params)
    result = drive(engine, [filled, replace(filled, id="spelled", infill=None, text=spelled)])
    assert result["filled"].tokens == result["spelled"].tokens and len(result["filled"].tokens) == 8
    assert result["filled"].started is not None and result["spelled"].started is not None
    assert result["filled"].started.prompt_tokens == result["spelled"].started.prompt_tokens


def test_counting_takes_no_slot_and_no_time(target: Path) -> None:
    engine = build(plan_of(target, num_slots=1), lambda _: None)
    asked = ChatRequest(id="long", text="x" * 5000, is_counted=True)
    result = drive(engine, [asked])["long"]
    assert result.started is not None and result.started.prompt_tokens == 5000
    assert result.finished is not None and (result.finished.reason, result.finished.prompt_tokens) == ("stop", 5000)
    assert engine.snapshot().prompt_tokens == 0 and not engine.has_work

"""Experts of the first layers in main memory, on the real llama.cpp: placed as asked, with unchanged results."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from doubles.engine_harness import drive
from doubles.runnable_models import write_runnable
from doubles.weightless_models import SKETCHES

from eaglelocal.backend.dry_run import record_log
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.tensor_overrides import parse_overrides
from eaglelocal.errors import UsageError
from eaglelocal.loading.engine_builder import build

MOES = ("qwen3moe", "gpt-oss", "qwen35moe")
ASKED = [
    ChatRequest(
        id=name,
        tokens=tuple(prompt),
        params=SamplingParams(temperature=temperature, seed=7, max_tokens=16, ignore_eos=True),
    )
    for name, prompt, temperature in (("a", range(10, 30), 0.0), ("b", range(10, 90), 0.8))
]


@pytest.fixture(scope="module", params=MOES)
def moe(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Plan:
    path = write_runnable(tmp_path_factory.mktemp(request.param) / "moe.gguf", request.param)
    return Plan(target=path, target_label=request.param, n_ctx=256, n_batch=64, threads=1)


@pytest.mark.parametrize("count", [1, 3])
def test_llama_cpp_takes_the_experts_of_so_many_layers_apart(moe: Plan, count: int) -> None:
    library = load_library()
    with record_log(library) as transcript:
        model = LlamaModel(library, moe.target, Placement(n_cpu_moe=count))
        gc.collect()
        model.close()
    moved = [line.split()[1] for line in transcript.lines if "buffer type overridden" in line]
    assert moved and all("_exps" in name for name in moved)
    assert {int(name.split(".")[1]) for name in moved} == set(range(count))


def test_tensors_are_placed_by_pattern_before_experts(moe: Plan) -> None:
    library, overrides = load_library(), parse_overrides(r"blk\.1\.ffn_(up|down)_exps=CPU,^output=CPU")
    with record_log(library) as transcript:
        model = LlamaModel(library, moe.target, Placement(overrides=overrides, n_cpu_moe=1))
        gc.collect()
        model.close()
    moved = {line.split()[1] for line in transcript.lines if "buffer type overridden" in line}
    assert {"blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"} <= moved
    assert any(name.startswith("blk.0.") for name in moved) and "blk.1.ffn_gate_exps.weight" not in moved


@pytest.mark.parametrize(
    ("override", "words"), [("ffn_nothing=CPU", "no tensor of moe.gguf"), ("_exps=CUDA7", "uses no device CUDA7")]
)
def test_overrides_that_do_nothing_are_refused_before_loading(moe: Plan, override: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(replace(moe, overrides=parse_overrides(override)), lambda _: None)


def test_texts_are_the_same_drafted_or_not(moe: Plan) -> None:
    apart = replace(moe, n_cpu_moe=SKETCHES[moe.target_label].n_layer)
    plain = drive(build(moe, lambda _: None), ASKED)
    for plan in (
        replace(moe, overrides=parse_overrides("_exps=CPU")),
        apart,
        replace(apart, draft_kind="ngram", spec=fixed_spec(3), num_slots=2),
    ):
        answers = drive(build(plan, lambda _: None), ASKED)
        assert {name: answer.tokens for name, answer in answers.items()} == {
            name: answer.tokens for name, answer in plain.items()
        }


def test_more_layers_than_there_are(moe: Plan) -> None:
    layers = SKETCHES[moe.target_label].n_layer
    with pytest.raises(UsageError, match=f"--n-cpu-moe {layers + 1}: this model has {layers} layers") as caught:
        build(replace(moe, n_cpu_moe=layers + 1), lambda _: None)
    assert caught.value.hint == f"--n-cpu-moe {layers}"

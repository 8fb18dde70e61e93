"""Tensors that --override-tensor places: their names, devices and bytes, and the speed that is predicted for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.catalog_plans import machine_named
from doubles.weightless_models import REAL, write_sketch

from eaglelocal.backend.dry_run import weight_buffers
from eaglelocal.backend.model import Placement
from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.cli.plan_report import layers_text
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.tensor_overrides import parse_overrides
from eaglelocal.errors import UsageError
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.upper_layers import is_expert
from eaglelocal.memory.budget import RAM, Buffer, MemoryKind
from eaglelocal.memory.placement import Offload
from eaglelocal.memory.tensor_moves import check_overrides, find_unmatched
from eaglelocal.planning.candidate_evaluation import CacheSetup, CandidateEvaluator
from eaglelocal.planning.no_fit_hints import explain_choice, explain_no_fit
from eaglelocal.planning.options import ModelOption, make_file_option
from eaglelocal.planning.plan_search import search_plan

EXPERTS = r"blk\.([0-9]|1[0-4])\.ffn_.*_exps=CPU"  # of 15 layers
SETUP = CacheSetup(n_ctx=8192, kv_type="f16")


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> ModelOption:
    path = write_sketch(tmp_path_factory.mktemp("moe") / "moe.gguf", REAL["qwen3-30b-a3b"])
    info = ModelInfo.from_header(read_header(path))
    return make_file_option(info, reference="moe", label="moe", catalog=load_catalog(user_folder=Path("/nonexistent")))


def evaluator_with(*overrides: str) -> CandidateEvaluator:
    return CandidateEvaluator(machine_named("rtx-3090"), RunOptions(override_tensor=overrides))


def weights(buffers: tuple[Buffer, ...] | list[Buffer]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for buffer in buffers:
        if buffer.kind is MemoryKind.WEIGHTS:
            sums[buffer.device] += buffer.num_bytes
    return sums


def test_experts_by_pattern_take_what_experts_by_layers_take(moe: ModelOption) -> None:
    by_pattern, by_layers = evaluator_with(EXPERTS), evaluator_with()
    draft = moe.drafts[-1]
    held, expected = (
        weights(by_pattern.estimate_memory(moe, draft, SETUP).buffers),
        weights(by_layers.estimate_memory(moe, draft, SETUP, Offload(None, 15)).buffers),
    )
    assert held == expected
    assert held.total() == weights(by_layers.estimate_memory(moe, draft, SETUP).buffers).total()
    speed = by_pattern.predict(moe, draft).plain_tok_s
    assert speed == pytest.approx(by_layers.predict(moe, draft, Offload(None, 15)).plain_tok_s, rel=0.01)


@pytest.mark.parametrize(
    ("pattern", "crossings", "routed"),
    [
        (EXPERTS, 15, 15),
        (r"attn_q\.=CPU", 48, 0),
        (r"blk\.[0-4]\.attn_(q|k)\.=CPU", 5, 0),  # two tensors of a layer cross once
        (r"token_embd=CPU", 0, 0),
    ],
)
def test_rows_cross_to_each_layer_with_a_moved_tensor(
    moe: ModelOption, pattern: str, crossings: int, routed: int
) -> None:
    readings = evaluator_with(pattern).make_curve(moe, moe.drafts[-1]).readings
    in_ram = [reading for reading in readings if reading.device.name == RAM]
    assert sum(reading.num_crossings for reading in in_ram) == crossings
    assert sum(reading.num_routed for reading in in_ram) == routed


def test_the_first_pattern_decides_and_precedes_experts_by_layers(moe: ModelOption) -> None:
    assert moe.header is not None
    tensors = list(moe.header.tensors.values())
    placement = Placement(overrides=parse_overrides(r"blk\.0\.ffn_up_exps=CUDA0,blk\.0\.=CPU"), n_cpu_moe=2)
    layers = dict.fromkeys(range(moe.shape.n_layer + 1), "CUDA0")
    held = weights(list(weight_buffers(tensors, layers, borrows=False, placement=placement)))
    up = moe.header.tensors["blk.0.ffn_up_exps.weight"].nbytes
    of_first = sum(tensor.nbytes for tensor in tensors if tensor.name.startswith("blk.0."))
    of_second = sum(tensor.nbytes for tensor in tensors if tensor.name.startswith("blk.1.") and is_expert(tensor.name))
    assert held[RAM] == of_first - up + of_second + moe.shape.embedding_bytes


def test_layers_in_ram_may_have_tensors_on_the_card(moe: ModelOption) -> None:
    to_card, alone = (
        evaluator.estimate_memory(moe, moe.drafts[-1], SETUP, Offload(0))
        for evaluator in (evaluator_with(r"blk\.3\.attn_=CUDA0"), evaluator_with())
    )
    assert moe.header is not None
    moved = sum(tensor.nbytes for name, tensor in moe.header.tensors.items() if name.startswith("blk.3.attn_"))
    assert weights(to_card.buffers) - weights(alone.buffers) == Counter({"CUDA0": moved})


def test_a_plan_says_what_moves(moe: ModelOption) -> None:
    options = RunOptions(override_tensor=(EXPERTS,), draft="none", ctx=8192)
    outcome = search_plan((moe,), machine_named("rtx-3090"), options)
    assert outcome.chosen is not None and outcome.chosen.offload == Offload()
    reasons = explain_choice(outcome, outcome.chosen)
    says = "on RAM, by --override-tensor; prompts are read slowly"
    assert any(reason.startswith("45 tensors (") and reason.endswith(says) for reason in reasons)
    nowhere = search_plan((replace(moe, header=None),), machine_named("rtx-3090"), options)
    assert nowhere.chosen is not None
    assert any("is not counted" in reason for reason in explain_choice(nowhere, nowhere.chosen))
    odd = search_plan((moe,), machine_named("rtx-3090"), replace(options, override_tensor=("ffn_odd=CPU",)))
    assert odd.chosen is None and "no tensor of this file" in odd.rejected[0].reason


@pytest.mark.parametrize(
    ("pattern", "experts"),
    [
        (r"blk\.[0-4]\.ffn_.*_exps=CUDA0", "the experts of 35 of 48 layers run"),  # of the 40 that are asked for
        (r"blk\.[0-4]\.ffn_up_exps=CUDA0", "the experts of 40 of 48 layers, as asked, run"),  # the others stay in RAM
    ],
)
def test_experts_that_overrides_place_are_not_counted_in_ram(moe: ModelOption, pattern: str, experts: str) -> None:
    options = RunOptions(override_tensor=(pattern,), n_cpu_moe=40, draft="none", ctx=8192)
    outcome = search_plan((moe,), machine_named("rtx-3090"), options)
    assert outcome.chosen is not None
    assert any(reason.startswith(experts) for reason in explain_choice(outcome, outcome.chosen))
    counted = " ".join(experts.split()[1:6])  # `experts of 35 of 48`
    assert counted in layers_text(outcome, outcome.chosen)


def test_a_plan_without_the_overrides_is_hinted(moe: ModelOption) -> None:
    options = RunOptions(override_tensor=("_exps=CUDA0",), draft="none", ctx=8192)
    outcome = search_plan((moe,), machine_named("rtx-3060"), options)
    assert outcome.chosen is None
    assert "no --override-tensor" in explain_no_fit(outcome)[1]


def test_patterns_without_a_tensor_and_devices_that_are_not_used(moe: ModelOption) -> None:
    assert moe.header is not None
    found = find_unmatched(moe.header.tensors.values(), parse_overrides("_exps=CPU,_odd=CPU"))
    assert found is not None and found.pattern == "_odd"
    with pytest.raises(UsageError, match="this run uses no device CUDA1"):
        check_overrides(parse_overrides("_exps=CUDA1"), ("CUDA0",), "layer")
    with pytest.raises(UsageError, match="parts of tensors"):
        check_overrides(parse_overrides("_exps=CPU"), ("CUDA0", "CUDA1"), "tensor")
    check_overrides((), (), "tensor")

"""The memory and the refusals of a model that several GPUs divide by tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import UsageError
from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.gguf.model_shape import MTP, ModelShape
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind
from eaglelocal.memory.estimate import estimate
from eaglelocal.memory.placement import check_tensor_gpus, explain_borrowed_output, explain_tensor_split
from eaglelocal.planning.options import make_catalog_options

GIB = 2**30
DEVICES = (FreeMemory(RAM, 64 * GIB), FreeMemory("CUDA0", 16 * GIB), FreeMemory("CUDA1", 12 * GIB))


def shape_of(target: str) -> ModelShape:
    catalog = load_catalog(user_folder=Path("/nonexistent"))
    return next(iter(make_catalog_options(catalog.target(target), catalog, quant="Q4_K_M"))).shape


def plan_with(split: str, gpu_layers: int | None = None) -> Plan:
    return Plan(
        target=Path(), target_label="", draft_kind="none", n_ctx=4096, split=split, gpu_layers=gpu_layers, unified=True
    )


def count_bytes(buffers: tuple[Buffer, ...], device: str, kind: MemoryKind) -> int:
    return sum(each.num_bytes for each in buffers if (each.device, each.kind) == (device, kind))


@pytest.mark.parametrize("kind", [MemoryKind.WEIGHTS, MemoryKind.CACHE])
@pytest.mark.parametrize("gpu_layers", [None, 20])
def test_each_gpu_holds_an_equal_part_of_what_one_would(kind: MemoryKind, gpu_layers: int | None) -> None:
    shape = shape_of("qwen3-8b")
    divided = estimate(plan_with("tensor", gpu_layers), shape, None, DEVICES)
    whole = estimate(plan_with("none", gpu_layers), shape, None, DEVICES)
    first, second = (count_bytes(divided, gpu, kind) for gpu in ("CUDA0", "CUDA1"))
    assert first == second
    assert first * 2 == pytest.approx(count_bytes(whole, "CUDA0", kind), abs=2 * shape.n_layer + 4)
    assert count_bytes(divided, RAM, kind) == count_bytes(whole, RAM, kind)


def test_a_draft_model_lies_on_the_first_gpu() -> None:
    draft = shape_of("qwen3-8b")
    plan = replace(plan_with("tensor"), draft_kind="draft_model")
    buffers = estimate(plan, shape_of("qwen3-8b"), draft, DEVICES)
    held = {each.device for each in buffers if each.of_draft and each.kind is MemoryKind.CACHE}
    assert held == {"CUDA0"}


def test_architectures_that_llama_cpp_refuses() -> None:
    assert "nemotron_h_moe" in explain_tensor_split(shape_of("nemotron-3-nano-30b-a3b"))
    assert not explain_tensor_split(shape_of("qwen3.6-27b"))  # a hybrid that it divides


def test_a_head_needs_an_output_of_its_own() -> None:
    own = replace(shape_of("qwen3-8b"), architecture=EAGLE)
    borrowing = replace(own, output_bytes=0, tied_output_bytes=0)
    assert not explain_borrowed_output(own) and not explain_borrowed_output(None)
    assert "borrows" in explain_borrowed_output(borrowing)
    assert not explain_borrowed_output(replace(borrowing, architecture=MTP))
    assert not explain_borrowed_output(replace(borrowing, architecture="qwen3"))


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_fewer_than_two_gpus_are_refused(num_gpus: int) -> None:
    with pytest.raises(UsageError, match="needs two GPUs"):
        check_tensor_gpus(num_gpus)
    check_tensor_gpus(2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (RunOptions(split="tensor", kv_type="q8_0"), "cache of type q8_0"),
        (RunOptions(split="tensor", kv_type="q8_0,f16"), "cache of type q8_0,f16"),
        (RunOptions(split="tensor", flash_attn="off"), "needs flash attention"),
        (RunOptions(split="tensor", rpc=("box:50052",)), "--rpc"),
    ],
)
def test_options_that_exclude_it(options: RunOptions, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        options.check_cache()
    replace(options, split="layer").check_cache()

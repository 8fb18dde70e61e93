"""Where target and draft of a plan lie if the GPUs divide the target by tensors, and what is refused before loading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.backend.llama_library import load_library
from eaglelocal.core.plan import Plan
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.loading.context_parts import make_parts, make_placements, read_models
from eaglelocal.loading.fit import check_memory, check_own_output, check_tensor_split
from eaglelocal.memory.budget import RAM, FreeMemory
from eaglelocal.probe.probe import probe

SHAPE = TargetShape(n_embd=64, n_layer=4, n_ff=64)
GPUS = (FreeMemory("CUDA0", 2**33), FreeMemory("CUDA1", 2**33))
FULL = FreeMemory("CUDA1", 2**20)
HOST = FreeMemory(RAM, 2**40)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    target = write_target(tmp_path / "t.gguf", SHAPE)
    shape = HeadShape(width=64, n_ff=64, draft_vocab=64, own_output=True)
    return Plan(
        target=target,
        target_label="t",
        draft_kind="eagle3",
        draft=write_head(tmp_path / "h.gguf", shape, SHAPE),
        n_ctx=512,
        num_slots=2,
        unified=True,
        split="tensor",
    )


def list_shapes(plan: Plan) -> list[ModelShape]:
    return [model.shape for model in read_models(plan)]


@pytest.mark.parametrize("gpus", [GPUS, (GPUS[0], FULL)])
def test_all_gpus_are_named_for_the_target_and_the_first_for_the_head(plan: Plan, gpus: tuple[FreeMemory, ...]) -> None:
    integrated = FreeMemory("Vulkan0", 2**33, in_ram=True)  # llama.cpp would divide the target among this one too
    there = (HOST, *gpus, integrated)
    target, head = make_placements(plan, probe(), load_library(), read_models(plan), there)
    assert (target.split, target.devices, target.shares) == ("tensor", "CUDA0,CUDA1", ())
    assert (head.split, head.devices, head.shares, head.d2t_device) == ("layer", "CUDA0", (), "CUDA0")


def test_memory_is_checked_on_each_gpu(plan: Plan) -> None:
    models, library = read_models(plan), load_library()
    parts = make_parts(plan, models, make_placements(plan, probe(), library, models, (HOST, *GPUS)), threads=1)
    check_memory(plan, models, parts, library, (HOST, *GPUS))
    with pytest.raises(ResourceError, match="CUDA1"):
        check_memory(plan, models, parts, library, (HOST, GPUS[0], FULL))


def test_one_gpu_is_refused(plan: Plan) -> None:
    check_tensor_split(plan, list_shapes(plan), (HOST, *GPUS))
    with pytest.raises(UsageError, match="needs two GPUs or more, but this run uses 1 GPU"):
        check_tensor_split(replace(plan, device="CUDA1"), list_shapes(plan), (HOST, *GPUS))
    check_tensor_split(replace(plan, split="layer"), list_shapes(plan), (HOST, *GPUS[:1]))


def test_an_architecture_that_llama_cpp_cannot_divide_is_refused(plan: Plan) -> None:
    target, head = list_shapes(plan)
    with pytest.raises(UsageError, match="cannot divide olmo2 models") as refused:
        check_tensor_split(plan, [replace(target, architecture="olmo2"), head], (HOST, *GPUS))
    assert refused.value.hint == "--split layer"


def test_a_head_that_borrows_its_targets_output_is_refused(plan: Plan, tmp_path: Path) -> None:
    borrowing = write_head(tmp_path / "b.gguf", HeadShape(width=64, n_ff=64, own_output=False), SHAPE)
    with pytest.raises(UsageError, match="borrows its target's output"):
        check_own_output(plan, read_models(replace(plan, draft=borrowing))[-1].info)
    check_own_output(plan, read_models(plan)[-1].info)

"""The best model: by score and measured costs, never one that does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.weightless_models import REAL, Sketch, write_sketch

from eaglelocal.catalog.catalog import CPU, load_catalog
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.stats import MeasuredCosts, SizeCost
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.memory.budget import RAM
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.planning.options import ModelOption, make_file_option
from eaglelocal.planning.plan_models import plan_models

GIB = 2**30


def processor(gib: float, gb_s: float = 40.0) -> MachineSpec:
    host = DeviceSpec(
        name=RAM, label="RAM", kind=CPU, total_bytes=None, free_bytes=int(gib * GIB), bytes_s=gb_s * 1e9, flops=1e11
    )
    return MachineSpec(name="a processor", host=host)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelOption]:
    folder: Path = tmp_path_factory.mktemp("models")
    found = {}
    for name in ("qwen3-0.6b", "qwen3-8b"):
        header = read_header(write_sketch(folder / f"{name}.gguf", REAL[name]))
        found[name] = make_file_option(
            ModelInfo.from_header(header), reference=name, label=name, catalog=load_catalog()
        )
    return found


def best(options: dict[str, ModelOption], spec: MachineSpec, **asked: int) -> str | None:
    chosen = plan_models(list(options.values()), spec, RunOptions(**asked)).chosen  # type: ignore[arg-type]
    return None if chosen is None else chosen.option.reference


def test_what_fits_and_answers_quickly_enough(options: dict[str, ModelOption]) -> None:
    assert best(options, processor(32)) == "qwen3-8b"
    assert best(options, processor(8)) == "qwen3-0.6b"
    assert best(options, processor(32, gb_s=8.0)) == "qwen3-0.6b"
    assert best(options, processor(0.5)) is None
    assert best({}, processor(32)) is None


def test_many_slots_and_long_contexts_need_their_room(options: dict[str, ModelOption]) -> None:
    assert best(options, processor(13), ctx=4096) == "qwen3-8b"
    assert best(options, processor(13), ctx=16384, parallel=16) == "qwen3-0.6b"


def test_what_was_measured_outweighs_what_was_computed(options: dict[str, ModelOption]) -> None:
    """8 B would do by its bytes; here it took two seconds a token."""
    slow = MeasuredCosts(decodes=(SizeCost(1, 2.0, 9), SizeCost(2, 2.2, 9)))
    chosen = plan_models(list(options.values()), processor(32), RunOptions(), measured={"qwen3-8b": slow}).chosen
    assert chosen is not None and chosen.option.reference == "qwen3-0.6b"


def test_a_quantized_cache_is_for_want_of_memory_only(options: dict[str, ModelOption]) -> None:
    eight = [options["qwen3-8b"]]
    roomy, tight = (plan_models(eight, processor(gib), RunOptions(ctx=16384)).chosen for gib in (32, 11))
    assert roomy is not None and roomy.setup.kv_type == "f16"
    assert tight is not None and tight.setup.kv_type != "f16"


@pytest.mark.parametrize("name", ["8b-Q4_K_M", "8b-q4_k_m", "8b"])
def test_a_better_quantization_of_the_same_size_is_taken(tmp_path: Path, name: str) -> None:
    """Four bits each, and both leave room: Q4_K_M loses half of what Q4_0 does, by whichever name it is known."""
    found = {}
    for reference, type, stem in (("plain", "Q4_0", "8b-Q4_0"), ("better", "Q4_K", name)):
        header = read_header(write_sketch(tmp_path / f"{stem}.gguf", replace(REAL["qwen3-8b"], type=type)))
        found[reference] = make_file_option(
            ModelInfo.from_header(header), reference=reference, label=reference, catalog=load_catalog()
        )
    assert found["better"].quant in ("Q4_K_M", "Q4_K")
    assert best(found, processor(32)) == "better"


def test_the_quantization_is_what_name_or_header_say(tmp_path: Path) -> None:
    def quant(stem: str, sketch: Sketch) -> str:
        header = read_header(write_sketch(tmp_path / f"{stem}.gguf", sketch))
        return make_file_option(ModelInfo.from_header(header), reference=stem, label=stem, catalog=load_catalog()).quant

    small = replace(REAL["qwen3-0.6b"], type="Q4_K")
    assert quant("small-UD-Q4_K_XL", replace(small, file_type=15)) == "UD-Q4_K_XL"
    assert quant("small", replace(small, file_type=14)) == "Q4_K_S"
    assert quant("small", replace(small, file_type=1024 + 15)) == "Q4_K_M"
    assert quant("small", small) == "Q4_K"

"""The parameters that tell llama.cpp where a model is placed."""

from __future__ import annotations

import ctypes as C
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from eaglelocal.backend.llama_library import LlamaLibrary, load_library
from eaglelocal.backend.model import BufferOverride, NativePlacement, Placement, load_failure
from eaglelocal.errors import ModelFileError, UsageError

PARTS = ("up_exps", "gate_up_exps", "down_chexps", "up", "down_shexp", "gate_inp")


def test_every_field_reaches_llama_cpp() -> None:
    native = NativePlacement(
        load_library(), Placement(gpu_layers=7, devices="CPU", split="row", shares=(3.0, 1.0), repack=False)
    )
    params = native.params
    assert (params.n_gpu_layers, params.split_mode, params.use_extra_bufts) == (7, 2, False)
    assert params.tensor_split[:3] == [3.0, 1.0, 0.0]  # the rest is zero as far as llama.cpp reads
    devices = C.cast(params.devices, C.POINTER(C.c_void_p))
    assert devices[0] == load_library().device_at(0) and devices[1] is None


def test_weights_are_mapped_or_read() -> None:
    library = load_library()
    assert NativePlacement(library, Placement(no_mmap=True)).params.load_mode == library.api.LLAMA_LOAD_MODE_NONE
    assert NativePlacement(library, Placement()).params.load_mode == library.api.LLAMA_LOAD_MODE_AUTO


def test_unset_means_as_llama_cpp_pleases() -> None:
    library = load_library()
    params, plain = NativePlacement(library, Placement()).params, library.api.llama_model_default_params()
    assert (params.n_gpu_layers, params.split_mode) == (plain.n_gpu_layers, plain.split_mode)
    assert not params.tensor_split and not params.devices


def test_more_shares_than_devices_can_be() -> None:
    with pytest.raises(UsageError, match=r"llama\.cpp knows at most"):
        NativePlacement(load_library(), Placement(shares=(1.0,) * 99))


@pytest.mark.parametrize(
    ("fields", "says"), [({"split": "tensors"}, "--split"), ({"devices": "CUDA7"}, "no device CUDA7")]
)
def test_names_that_llama_cpp_does_not_know(fields: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        NativePlacement(load_library(), Placement(**fields))  # type: ignore[arg-type]


def test_a_split_by_tensors_reaches_llama_cpp() -> None:
    library = load_library()
    params = NativePlacement(library, Placement(split="tensor", devices="CPU")).params
    assert params.split_mode == library.api.LLAMA_SPLIT_MODE_TENSOR and not params.tensor_split


def test_a_build_without_splits_by_tensors_is_refused() -> None:
    names = ("llama_model_default_params", "LLAMA_LOAD_MODE_NONE", "llama_max_devices")
    api = SimpleNamespace(**{name: getattr(load_library().api, name) for name in names})
    old = cast(LlamaLibrary, SimpleNamespace(api=api, can_repack=False))
    with pytest.raises(UsageError, match="too old"):
        NativePlacement(old, Placement(split="tensor"))


def test_a_split_that_devices_do_not_know_is_no_fault_of_the_file() -> None:
    path = Path("m.gguf")
    refused = load_failure(path, "error loading model: device Vulkan0 does not support split buffers")
    assert isinstance(refused, UsageError) and "--split layer" in refused.hint
    assert isinstance(load_failure(path, "tensor output.weight is missing"), ModelFileError)


def test_experts_that_stay_in_main_memory_are_named_by_one_pattern() -> None:
    library = load_library()
    native = NativePlacement(library, Placement(n_cpu_moe=12))
    first, last = C.cast(native.params.tensor_buft_overrides, C.POINTER(BufferOverride))[:2]
    assert first.buffer_type == library.cpu_buffer_type() and last.pattern is None  # llama.cpp reads as far as that
    pattern = re.compile(first.pattern.decode())
    names = [f"blk.{layer}.ffn_{part}.weight" for layer in (0, 1, 11, 12, 111) for part in PARTS]
    assert [name for name in names if pattern.search(name)] == [
        f"blk.{layer}.ffn_{part}.weight" for layer in (0, 1, 11) for part in PARTS[:3]
    ]
    assert not NativePlacement(library, Placement()).params.tensor_buft_overrides


def test_a_heads_table_of_tokens_lies_on_a_device() -> None:
    library = load_library()
    native = NativePlacement(library, Placement(n_cpu_moe=2, d2t_device="CPU"))
    experts, ids, last = C.cast(native.params.tensor_buft_overrides, C.POINTER(BufferOverride))[:3]
    assert b"exps" in experts.pattern and last.pattern is None
    assert ids.buffer_type == library.device_buffer_type(library.device_at(0))
    names = ["d2t", "d2t.weight", "blk.0.d2t", "output.weight"]
    assert [name for name in names if re.search(ids.pattern.decode(), name)] == ["d2t"]

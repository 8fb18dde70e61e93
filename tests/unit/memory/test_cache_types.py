"""Which types of keys and values each kind of device computes with, and which models refuse some."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.catalog_plans import option

from eaglelocal.errors import UsageError
from eaglelocal.memory.budget import RAM
from eaglelocal.memory.cache_types import (
    check_kernels,
    explain_refused_type,
    explain_slow_kernel,
    find_missing_kernel,
)

EIGHT_B = option("qwen3-8b", "Q4_K_M").shape


@pytest.mark.parametrize(
    ("kv_type", "device", "words"),
    [
        ("q8_0,q5_1", "CUDA0", ""),
        ("iq4_nl", "CUDA0", "iq4_nl on CUDA0"),
        ("q8_0,iq4_nl", "ROCm1", "iq4_nl on ROCm1"),
        ("q8_0,iq4_nl", "Vulkan0", ""),
        ("q5_1", "MTL0", ""),
        ("q8_0,q5_1", "MTL0", "different types"),
        ("q5_1", "SYCL0", "q5_1 on SYCL0"),
        ("iq4_nl", RAM, ""),
        ("iq4_nl", "NEW0", ""),
    ],
)
def test_kernels_that_a_device_lacks(kv_type: str, device: str, words: str) -> None:
    assert words in find_missing_kernel(kv_type, device)
    assert bool(find_missing_kernel(kv_type, device)) is bool(words)
    if words:
        with pytest.raises(UsageError, match=words):
            check_kernels(kv_type, "auto", (device,))
        check_kernels("q8_0,f16", "off", (device,))


@pytest.mark.parametrize(
    ("kv_type", "device", "is_slow"),
    [
        ("q8_0", "CUDA0", False),
        ("q8_0,q4_0", "CUDA0", True),
        ("q5_1", "CUDA0", True),
        ("q5_1", "Vulkan0", False),
        ("q8_0,q4_0", RAM, False),
        ("q5_1", RAM, True),
    ],
)
def test_kernels_that_a_build_may_lack(kv_type: str, device: str, is_slow: bool) -> None:
    assert bool(explain_slow_kernel(kv_type, device)) is is_slow


def test_models_that_refuse_a_type() -> None:
    narrow, mla = replace(EIGHT_B, key_dim=80, value_dim=80), replace(EIGHT_B, value_dim=0)
    assert "heads of 80" in explain_refused_type(narrow, "f16,q8_0", "auto")
    assert not explain_refused_type(narrow, "f16", "auto")
    assert not explain_refused_type(narrow, "q8_0,f16", "off")
    assert "takes one type" in explain_refused_type(mla, "q8_0,q4_0", "auto")
    assert not explain_refused_type(mla, "q8_0", "auto")

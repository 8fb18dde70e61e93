"""What `plan` answers for quantizations that the catalog does not list: names of publishers and of other engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import UsageError
from eaglelocal.planning.nearest_quant import find_nearest_quant
from eaglelocal.preparation.models import find_models


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(user_folder=Path("/nonexistent"))


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        ("UD-Q4_K_XL", "Q4_K_XL"),  # a prefix of the publisher
        ("ud-q4_k_xl", "Q4_K_XL"),
        ("UD-Q5_K_XL", "Q5_K_M"),  # as its quality is judged
        ("Q2_K", "Q2_K_XL"),
        ("Q3_K_M", "Q3_K_XL"),  # by bits
        ("IQ2_XXS", "IQ2_S"),
        ("AD-IQ3_S_IQ3_XXS", "IQ3_S"),  # a recipe of the publisher
        ("Q4-XYZ", "Q4_K_M"),
        ("Q4", "Q4_K_M"),  # the usual one
        ("q4km", "Q4_K_M"),
        ("Q8_K_XL", "Q8_0"),
    ],
)
def test_an_unlisted_quantization_has_a_nearest(catalog: Catalog, wanted: str, nearest: str) -> None:
    assert find_nearest_quant(catalog.target("qwen3.8-27b"), wanted, catalog.quants) == nearest


@pytest.mark.parametrize(
    ("target", "wanted", "nearest"),
    [
        ("qwen3.8-flash-next", "Q4_K_M", "Q4_K_XL"),  # its file holds a table beside the weights
        ("gpt-oss-120b", "Q4_K_M", "MXFP4"),  # not F16, though that has as many bits
        ("gemma-4-e4b", "Q4_K_S", "IQ4_XS"),
        ("gemma-4-e4b", "Q4_0", "IQ4_XS"),
        ("gemma-4-e4b", "IQ3_S", "IQ3_XXS"),
        ("glm-5.3-flash", "Q3_K_M", "Q3_K_XL"),
        ("muse-glimmer-30b", "Q8", "Q8_0"),  # not Q8_K_XL
    ],
)
def test_the_nearest_says_the_same_bits(catalog: Catalog, target: str, wanted: str, nearest: str) -> None:
    assert find_nearest_quant(catalog.target(target), wanted, catalog.quants) == nearest


@pytest.mark.parametrize(
    ("wanted", "message", "hint"),
    [
        ("MLX-4bit", "MLX-4bit is a format of MLX", "take qwen3.8-27b:Q4_K_S,"),
        ("MLX-8bit", "MLX-8bit is a format of MLX", "take qwen3.8-27b:Q8_0,"),
        ("oQ4", "oQ4 is a format of MLX", "take qwen3.8-27b:Q4_K_S,"),
        ("NVFP4", "the catalog has no NVFP4 file of qwen3.8-27b", "take qwen3.8-27b:Q4_K_S,"),  # llama.cpp reads it
        ("FP8-Dynamic", "FP8-Dynamic is a format of vLLM and TensorRT-LLM", "take qwen3.8-27b:Q8_0,"),
        ("FP8-E4M3", "FP8-E4M3 is a format of vLLM and TensorRT-LLM", "take qwen3.8-27b:Q8_0,"),
        ("fp8_e5m2", "fp8_e5m2 is a format of vLLM and TensorRT-LLM", "take qwen3.8-27b:Q8_0,"),
        ("AWQ-8bit", "AWQ-8bit is a format of vLLM,", "take qwen3.8-27b:Q8_0,"),
        ("EXL2-6.0bpw", "EXL2-6.0bpw is a format of ExLlama", "take qwen3.8-27b:Q6_K,"),
        ("W4A16", "W4A16 is a format of vLLM", "take qwen3.8-27b:Q4_K_S,"),
        ("GPTQ-Int8", "GPTQ-Int8 is a format of vLLM", "take qwen3.8-27b:Q8_0,"),
        ("EXL3", "EXL3 is a format of ExLlama", "take qwen3.8-27b:Q4_K_S,"),
        ("BF16", "the catalog has no qwen3.8-27b in BF16", "it has IQ2_S, "),  # no listed one is near
        ("Q9_K", "the catalog has no qwen3.8-27b in Q9_K", "it has IQ2_S, "),
        ("IQ9_S", "the catalog has no qwen3.8-27b in IQ9_S", "it has IQ2_S, "),
        ("GSQ-RCO", "the catalog has no qwen3.8-27b in GSQ-RCO", "it has IQ2_S, "),
    ],
)
def test_what_stands_for_no_file_is_refused(catalog: Catalog, wanted: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_nearest_quant(catalog.target("qwen3.8-27b"), wanted, catalog.quants)
    assert refused.value.message.startswith(message)
    assert (refused.value.hint or "").startswith(hint)


def test_the_plan_names_what_stands_for_what(catalog: Catalog) -> None:
    (option,) = find_models(RunOptions(target="qwen3.8-27b:UD-Q5_K_XL"), catalog)
    assert (option.reference, option.stands_for) == ("qwen3.8-27b:Q5_K_M", "UD-Q5_K_XL")
    (option,) = find_models(RunOptions(target="qwen3.8-27b:IQ3_S"), catalog)
    assert option.stands_for == ""

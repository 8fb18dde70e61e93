"""Names of files -> models: quantizations, parts, and what is no model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.errors import UsageError
from eaglelocal.gguf.ggml_types import parse_quant
from eaglelocal.hub.repo_builds import MAX_NAMES, choose_build, group_builds, join_names

QUANTS = ("Q4_K_M", "Q5_0", "IQ4_XS", "IQ3_XXS", "Q8_0", "UD-Q4_K_XL", "MXFP4", "BF16", "F16", "Q3_K_L", "TQ2_0", "F32")


@pytest.mark.parametrize(
    ("stem", "quant"),
    [
        ("Qwen3-8B-Q4_K_M", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m", "Q4_K_M"),
        ("Llama-3.3-70B.i1-IQ3_XXS", "IQ3_XXS"),
        ("gpt-oss-20b-mxfp4", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE", "MXFP4_MOE"),
        ("Qwen3.6-27B-UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("UD-Q2_K_XL/GLM-UD-Q2_K_XL", "UD-Q2_K_XL"),
        ("model.Q6_K", "Q6_K"),
        ("Mistral-7B-fp16", "F16"),
        ("BF16/model", "BF16"),
        ("Q8_0/model-f16", "F16"),  # the name speaks before the folder
        ("ggml-model-bf16", "BF16"),
        ("Qwen3-8B", ""),
        ("iq-test-model", ""),
        ("Q4mer", ""),
    ],
)
def test_a_quantization_is_read_from_a_name(stem: str, quant: str) -> None:
    assert parse_quant(stem) == quant


@given(
    model=st.from_regex(r"[A-Z][a-z]{1,8}[0-9]?-[1-9]{1,2}[bB]", fullmatch=True),
    quant=st.sampled_from(QUANTS),
    lower=st.booleans(),
    between=st.sampled_from("-._"),
)
def test_any_model_in_any_quantization(model: str, quant: str, lower: bool, between: str) -> None:
    stem = f"{model}{between}{quant.lower() if lower else quant}"
    (build,) = group_builds([f"{stem}.gguf"])
    assert build.quant == quant
    assert choose_build([build], quant.swapcase(), repo="a/b") == build


def test_parts_are_one_model_in_their_order() -> None:
    names = [f"Q8_0/Big-Q8_0-0000{part}-of-00003.gguf" for part in (3, 1, 2)]
    (build,) = group_builds(names)
    assert build.names == tuple(sorted(names))
    assert build.is_complete and build.quant == "Q8_0"
    (rest,) = group_builds(names[:2])
    assert not rest.is_complete


def test_what_is_no_model_is_left_out() -> None:
    names = ["mmproj-model-f16.gguf", "Gemma.imatrix.gguf", "README.md", "model.safetensors", "Gemma-Q4_K_M.gguf"]
    assert [build.names for build in group_builds(names)] == [("Gemma-Q4_K_M.gguf",)]


def test_a_draft_is_taken_only_when_it_is_meant() -> None:
    builds = group_builds(["Qwen3-8B-Q8_0.gguf", "Qwen3-8B-eagle3-Q8_0.gguf"])
    assert choose_build(builds, "q8_0", repo="a/b").names == ("Qwen3-8B-Q8_0.gguf",)
    assert choose_build(builds, "q8_0", repo="a/b", drafts=True).names == ("Qwen3-8B-eagle3-Q8_0.gguf",)


def test_a_repository_of_drafts_has_drafts() -> None:
    builds = group_builds(["Llama-eagle3-BF16.gguf"])
    assert choose_build(builds, None, repo="a/b").is_draft


def test_without_a_wish_four_bits() -> None:
    builds = group_builds([f"X-{quant}.gguf" for quant in ("Q8_0", "Q4_K_M", "IQ4_XS", "BF16")])
    assert choose_build(builds, None, repo="a/b").quant == "Q4_K_M"
    assert choose_build(builds[:1], None, repo="a/b").quant == "BF16"


def test_dynamic_quantizations_answer_to_their_plain_names() -> None:
    builds = group_builds(["X-UD-Q4_K_XL.gguf", "X-UD-Q8_0.gguf", "X-Q8_0.gguf"])
    assert choose_build(builds, "q4_k_xl", repo="a/b").names == ("X-UD-Q4_K_XL.gguf",)
    assert choose_build(builds, "q8_0", repo="a/b").names == ("X-Q8_0.gguf",)


@pytest.mark.parametrize(
    ("names", "wanted", "message", "hint"),
    [
        (["X-Q8_0.gguf", "X-Q6_K.gguf"], "Q4_K_M", "has no Q4_K_M", "Q6_K, Q8_0"),
        (["README.md"], None, "no GGUF files", "GGUF"),
        (["X-Q8_0.gguf", "Y-Q8_0.gguf"], "Q8_0", "several", "a/b:X-Q8_0.gguf"),
        (["X-F32.gguf", "X-F16.gguf"], None, "several models: F16, F32", "a/b:F16"),
        (["X-Q8_0-00001-of-00002.gguf"], None, "only 1 of 2 parts", "another"),
    ],
)
def test_what_cannot_be_chosen_says_what_there_is(names: list[str], wanted: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose_build(group_builds(names), wanted, repo="a/b")
    assert message in refused.value.message and hint in refused.value.hint


@pytest.mark.parametrize("wanted", [None, "Q4_K_L", "Q8_0"])
def test_of_thousands_of_models_a_few_are_reported(wanted: str | None) -> None:
    """Those that people take, and those whose names are like the one that was asked for, before the others."""
    kinds = ("Q8_0",) if wanted == "Q8_0" else ("IQ1_S", "F32", "Q4_K_M")
    names = [f"part-{number}/X{number}-{kind}.gguf" for number in range(1000) for kind in kinds]
    with pytest.raises(UsageError) as refused:
        choose_build(group_builds(names), wanted, repo="a/b")
    report = f"{refused.value.message} {refused.value.hint}"
    assert len(report) < 700 and ("more" in report or wanted == "Q4_K_L")
    assert "Q8_0" in report if wanted == "Q8_0" else "Q4_K_M" in report


def test_a_list_begins_with_what_resembles_what_was_asked_for() -> None:
    names = [f"model-{number}" for number in range(100)]
    assert join_names(names[:3]) == "model-0, model-1, model-2"
    assert join_names(names, like="Model-77").startswith("model-77, ")
    assert join_names(names, like="Model-77").endswith(f" and {100 - MAX_NAMES} more")
    assert join_names(["a", "a", "b"], joint=" or ") == "a or b"


def test_a_file_may_be_named() -> None:
    builds = group_builds(
        ["X-Q8_0.gguf", "dir/Y-Q8_0.gguf", "Z-Q8_0-00001-of-00002.gguf", "Z-Q8_0-00002-of-00002.gguf"]
    )
    assert choose_build(builds, "y-q8_0.GGUF", repo="a/b").stem == "dir/Y-Q8_0"
    assert choose_build(builds, "Z-Q8_0.gguf", repo="a/b").num_parts == 2
    assert choose_build(builds, "Z-Q8_0-00001-of-00002.gguf", repo="a/b").num_parts == 2

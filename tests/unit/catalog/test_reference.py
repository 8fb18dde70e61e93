"""References as users write them: each form is recognized."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.catalog.reference import (
    DerivedModel,
    EmbeddedModel,
    File,
    Profile,
    Reference,
    Repo,
    parse_reference,
)
from eaglelocal.errors import UsageError


def absent(_: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("demo", EmbeddedModel("demo")),
        ("demo@1b:q4_0", EmbeddedModel("demo@1b:q4_0")),
        ("demo@nonsense", EmbeddedModel("demo@nonsense")),  # whoever inflates says what is wrong with it
        ("demonstration", Profile("demonstration")),
        ("qwen3-8b", Profile("qwen3-8b")),
        ("qwen3.6-27b:Q4_K_M", Profile("qwen3.6-27b", "Q4_K_M")),
        ("Qwen3.6 27B", Profile("Qwen3.6-27B")),
        (" qwen3.6  27b:Q4_K_M", Profile("qwen3.6-27b", "Q4_K_M")),
        ("Qwen/Qwen3-8B-GGUF", Repo("Qwen/Qwen3-8B-GGUF")),
        ("user/repo:IQ4_XS", Repo("user/repo", "IQ4_XS")),
        ("hf.co/user/repo:Q4_K_M", Repo("user/repo", "Q4_K_M")),
        ("https://huggingface.co/user/repo", Repo("user/repo")),
        ("https://huggingface.co/user/repo/tree/main", Repo("user/repo")),
        ("https://huggingface.co/user/repo/blob/main/a/x-Q4_0.gguf?download=true", Repo("user/repo", "a/x-Q4_0.gguf")),
        ("hf.co/user/repo:Q4_K_M@300m", DerivedModel(Repo("user/repo", "Q4_K_M"), "300m")),
        ("x.gguf", File(Path("x.gguf"))),
        ("folder/x.gguf", File(Path("folder/x.gguf"))),
        ("./qwen3-8b", File(Path("qwen3-8b"))),
        ("/models/x", File(Path("/models/x"))),
        ("x.gguf@1b:bf16", DerivedModel(File(Path("x.gguf")), "1b:bf16")),
        ("/a@b/x.gguf@drop10", DerivedModel(File(Path("/a@b/x.gguf")), "drop10")),
        ("user/repo:Q4_K_M@300m", DerivedModel(Repo("user/repo", "Q4_K_M"), "300m")),
        ("qwen3-8b@q2_k", DerivedModel(Profile("qwen3-8b"), "q2_k")),
        ("x.gguf@nonsense", DerivedModel(File(Path("x.gguf")), "nonsense")),  # whoever makes it says what is wrong
        ("/a@b/x", File(Path("/a@b/x"))),
        ("./x@1b-bf16-0123456789ab.gguf", File(Path("x@1b-bf16-0123456789ab.gguf"))),
    ],
)
def test_kinds(text: str, expected: Reference) -> None:
    assert parse_reference(text, exists=absent) == expected


def test_what_is_there_is_a_file_whatever_it_looks_like() -> None:
    assert parse_reference("embedded") == parse_reference("demo")
    assert parse_reference("embedded@1b:q4_0") == EmbeddedModel("demo@1b:q4_0")
    assert parse_reference("user/repo", exists=lambda text: text == "user/repo") == File(Path("user/repo"))
    assert parse_reference("demo", exists=lambda _: True) == EmbeddedModel("demo")  # but a folder demo is no model


def test_a_path_with_an_at_sign_is_a_file_if_it_is_there() -> None:
    assert parse_reference("./x@1b", exists=lambda _: True) == File(Path("x@1b"))


def test_a_model_is_made_of_one_that_is_there_already() -> None:
    with pytest.raises(UsageError, match="not of a model that is made itself"):
        parse_reference("x.gguf@drop2@1b", exists=absent)


def test_home_is_found() -> None:
    assert parse_reference("~/x.gguf", exists=absent) == File(Path.home() / "x.gguf")


@pytest.mark.parametrize("text", ["", ":", ":Q4", "a/b/c", "user/", "a:b:c", "-x", "https://hub/x", "é"])
def test_what_is_none_of_these(text: str) -> None:
    with pytest.raises(UsageError) as wrong:
        parse_reference(text, exists=absent)
    assert repr(text) in wrong.value.message and "qwen3-8b" in wrong.value.hint


@given(st.text(max_size=30))
def test_never_anything_but_a_reference_or_an_error(text: str) -> None:
    try:
        parsed = parse_reference(text, exists=absent)
    except UsageError:
        return
    match parsed:
        case Profile(id=id, quant=quant):
            assert "-".join(text.split()) == (id if quant is None else f"{id}:{quant}")
        case Repo(name=name, quant=quant):
            assert text == (name if quant is None else f"{name}:{quant}")
        case EmbeddedModel(text=whole):
            assert whole == text


@pytest.mark.parametrize("text", ["qwen3-8b:", "user/repo:", "qwen3-8b::"])
def test_a_colon_without_a_quantization_has_a_hint(text: str) -> None:
    with pytest.raises(UsageError, match="lacks a quantization") as caught:
        parse_reference(text, exists=absent)
    name = text.rstrip(":")
    assert caught.value.hint == f"`{name}` or `{name}:Q4_K_M`"

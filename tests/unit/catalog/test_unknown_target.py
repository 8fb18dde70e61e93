"""The message for an unknown target: for names like Ollama's, where they were looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.catalog.catalog import describe_unknown_target, load_catalog
from eaglelocal.catalog.reference import is_ollama_tag, split_entry
from eaglelocal.errors import UsageError


def test_a_name_of_ollama_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    message = describe_unknown_target("nosuch", "8b")
    assert message.startswith("unknown target 'nosuch:8b': ")
    assert "~/.ollama/models (missing), /usr/share/ollama/.ollama/models" in message
    assert "`ollama pull nosuch:8b`" in message and "Hugging Face only" in message
    (tmp_path / ".ollama/models").mkdir(parents=True)
    assert "~/.ollama/models, " in describe_unknown_target("nosuch", "8b")


def test_the_folder_that_ollama_was_given_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        load_catalog().target("nosuch", "latest")
    assert f"looked for in {tmp_path};" in caught.value.message and ".ollama/models" not in caught.value.message


@pytest.mark.parametrize(
    "tag", [None, "Q4_K_M", "iq4_xs", "F16", "bf16", "MXFP4", "UD-Q4_K_XL", "ud-iq2_m", "nvfp4", "fp8"]
)
def test_other_names_say_no_more(tag: str | None) -> None:
    assert not is_ollama_tag(tag)
    assert describe_unknown_target("x", tag) == f"unknown target '{'x' if tag is None else f'x:{tag}'}'"


@pytest.mark.parametrize(
    ("tag", "entry"),
    [
        ("8b", ("m-8b", "")),
        ("e4b-it-q8_0", ("m-e4b", ":q8_0")),
        ("135m-instruct-v0.2-fp16", ("m-135m", ":fp16")),
        ("4b-instruct-2507-q4_K_M", ("m-4b", ":q4_K_M")),
        ("30b-a3b-thinking-2507-q4_K_M", ("m-30b", ":q4_K_M")),
        ("8b-0528-qwen3-UD-Q4_K_XL", ("m-8b", ":UD-Q4_K_XL")),
        ("8x7b", ("m-8x7b", "")),
        ("latest", ("m", "")),
        ("Q4_K_M", ("m", ":Q4_K_M")),
        ("instruct", ("m", ":instruct")),
    ],
)
def test_tags_become_entries(tag: str, entry: tuple[str, str]) -> None:
    assert split_entry("m", tag) == entry


def test_a_type_that_the_entry_lacks_is_not_proposed() -> None:
    with pytest.raises(UsageError) as caught:
        load_catalog().target("qwen3", "8b-fp16")
    assert caught.value.hint == "did you mean qwen3-8b?"


@pytest.mark.parametrize(("id", "tag"), [("llama3.2", "3b"), ("qwen3", "1b"), ("gemma", "2b")])
def test_much_larger_models_are_not_proposed(id: str, tag: str) -> None:
    catalog = load_catalog()
    with pytest.raises(UsageError) as caught:
        catalog.target(id, tag)
    near = caught.value.hint.removeprefix("did you mean ").rstrip("?").split(" or ")
    assert all(catalog.targets[name].outline.parameters_b <= 4 * float(tag.rstrip("b")) for name in near)


def test_the_nearest_name_comes_first_however_large_its_model_is() -> None:
    with pytest.raises(UsageError, match="mistrall") as caught:
        load_catalog().target("mistrall")
    assert caught.value.hint.startswith("did you mean mistral-7b or ministral-3")


@pytest.mark.parametrize(("id", "hint"), [("coder", "eaglelocal search coder"), ("zzzzzz", "eaglelocal search")])
def test_a_part_of_names_is_searched(id: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_catalog().target(id)
    assert caught.value.hint == hint

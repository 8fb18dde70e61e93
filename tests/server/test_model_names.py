"""The names by which requests may mean a model."""

from __future__ import annotations

import pytest

from eaglelocal.errors import UsageError
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.loaded_models import ModelNames


@pytest.mark.parametrize(
    ("names", "aliases", "asked", "meant"),
    [
        (["a", "b"], ["gpt-4o", "x/y:z"], "gpt-4o", "a"),
        (["a", "b"], ["gpt-4o", "x/y:z"], "x/y:z", "a"),
        (["a", "b"], ["gpt-4o"], "b", "b"),
        (["a", "b"], ["gpt-4o"], "gpt-4", None),
        (["SmolLM2.Q4_1.gguf", "b"], ["B"], "smollm2.q4_1.GGUF", "SmolLM2.Q4_1.gguf"),
        (["a", "b"], ["B"], "b", "b"),
        (["a", "b"], ["B"], "B", "a"),
        (["a", "b"], ["a"], "a", "a"),
        (["a", "b"], ["*"], "gpt-4", "a"),
        (["a", "b"], ["*"], "b", "b"),
        (["a"], [], "*", None),
        (["./model.gguf"], [], "./model.gguf", "model.gguf"),
        (["./model.gguf"], [], "model.gguf", "model.gguf"),
        (["./model.gguf"], [], "model", "model.gguf"),
        (["b", "/home/me/v1.5.gguf"], [], "v1.5", "v1.5.gguf"),
        (["b", "/home/me/v1.5.gguf"], [], "home/me/v1.5.gguf", "v1.5.gguf"),
        (["./sub/../m.gguf"], [], "sub/m.gguf", None),
        (["user/repo:dir/m.gguf"], [], "m", "user/repo:dir/m.gguf"),
        (["user/model"], [], "model", None),
        (["q4/m.gguf", "q8/m.gguf"], [], "m.gguf", None),  # which of them is not said
        (["q4/m.gguf", "q8/m.gguf"], [], "q8/m.gguf", "q8/m.gguf"),
        (["q4/m.gguf", "m"], [], "m", "m"),
        (["a", "q4/m.gguf"], ["m"], "m", "a"),
        (["/home/me/m.gguf@1b:bf16"], [], "m.gguf@1b:bf16", "m.gguf@1b:bf16"),
        (["/home/me/m.gguf@1b:bf16"], [], "/home/me/m.gguf@1b:bf16", "m.gguf@1b:bf16"),
        (["q4/m.gguf@1b", "q8/m.gguf@1b"], [], "q8/m.gguf@1b", "q8/m.gguf@1b"),
    ],
)
def test_names_that_mean_a_model(names: list[str], aliases: list[str], asked: str, meant: str | None) -> None:
    model_names = ModelNames(names, aliases)
    if meant is None:
        with pytest.raises(Problem) as caught:
            model_names.resolve(asked)
        assert caught.value.code == "model_not_found"
    else:
        assert model_names.resolve(asked) == meant


@pytest.mark.parametrize(
    ("names", "aliases", "listed"),
    [
        (["a", "b"], ["gpt-4o", "a", "*"], ["a", "b", "gpt-4o"]),
        (["/home/me/v1.5.gguf", "b"], ["*"], ["v1.5.gguf", "b"]),
        (["q4/m.gguf", "q8/m.gguf", "x/n.gguf"], [], ["q4/m.gguf", "q8/m.gguf", "n.gguf"]),
        (["user/repo:dir/m.gguf"], [], ["user/repo:dir/m.gguf"]),
        (["/home/me/q4/m.gguf", "/home/me/q8/m.gguf"], [], ["q4/m.gguf", "q8/m.gguf"]),
        (["/a/x/m.gguf@1b", "/b/x/m.gguf@1b", "/a/x/m.gguf"], [], ["a/x/m.gguf@1b", "b/x/m.gguf@1b", "m.gguf"]),
    ],
)
def test_where_a_file_lies_is_not_reported(names: list[str], aliases: list[str], listed: list[str]) -> None:
    assert list(ModelNames(names, aliases).listed) == listed


def test_an_unknown_name_gets_a_hint_about_aliases() -> None:
    with pytest.raises(Problem) as caught:
        ModelNames(["a", "b"], ["c"]).resolve("GPT 4o")
    assert caught.value.message == (
        "there is no model 'GPT 4o' here, only: a, b, c "
        "(--alias 'GPT 4o' gives the first one this name, --alias '*' any)"
    )


def test_an_alias_that_is_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match="--alias b: that is another model"):
        ModelNames(["a", "b"], ["x", "b"])

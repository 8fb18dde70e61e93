"""What may follow the `@` of a reference, and what it is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.errors import UsageError
from eaglelocal.gguf.ggml_types import FILE_TYPE_IDS
from eaglelocal.hub.derived_models import Inflation, LayerDrop, Recipe, Requantization, parse_recipe
from eaglelocal.hub.inflation.generated_files import QUANTIZABLE
from eaglelocal.hub.inflation.inflated_sizes import ModelSize


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1b", Inflation(ModelSize(1_000_000_000, "bf16"))),
        ("1.5B:Q4_K_M", Inflation(ModelSize(1_500_000_000, "q4_k_m"))),
        ("300m:q8_0", Inflation(ModelSize(300_000_000, "q8_0"))),
        ("drop10", LayerDrop(10)),
        ("DROP3:q4_0", LayerDrop(3, "q4_0")),
        ("q2_k", Requantization("q2_k")),
        ("F16", Requantization("f16")),
    ],
)
def test_recipes_that_are_understood(text: str, expected: Recipe) -> None:
    assert parse_recipe(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1b:q9", "cannot quantize to the type 'q9'"),
        ("1b:", "cannot quantize to the type ''"),
        ("99m", "cannot inflate to 99m"),
        ("71b", "cannot inflate to 71b"),
        ("1.2.3b", "cannot read the size '1.2.3b'"),
        ("drop0", "`@drop0` leaves no layer out"),
        ("q2_k:q4_0", "cannot make `@q2_k:q4_0` of a model"),
        ("drop", "cannot make `@drop` of a model"),
        ("v2", "cannot make `@v2` of a model"),
    ],
)
def test_recipes_that_are_not(text: str, message: str) -> None:
    with pytest.raises(UsageError) as wrong:
        parse_recipe(text)
    assert wrong.value.message == message and wrong.value.hint


sizes = st.builds(
    ModelSize, st.integers(100, 70_000).map(lambda m: m * 1_000_000), st.sampled_from(sorted(QUANTIZABLE))
)
types = st.sampled_from(sorted(QUANTIZABLE))
recipes = st.one_of(
    # four digits of a size are kept
    st.builds(Inflation, sizes.filter(lambda size: size.num_parameters < 10_000_000_000)),
    st.builds(LayerDrop, st.integers(1, 999), st.none() | types),
    st.builds(Requantization, types),
)


@given(recipes)
def test_a_recipe_is_parsed_from_its_own_text(recipe: Recipe) -> None:
    assert parse_recipe(recipe.text) == recipe
    assert parse_recipe(recipe.text.upper()) == recipe


@given(st.text(max_size=12))
def test_never_anything_but_a_recipe_or_an_error(text: str) -> None:
    try:
        recipe = parse_recipe(text)
    except UsageError:
        return
    assert parse_recipe(recipe.text) == recipe


def test_descriptions_say_what_a_model_is() -> None:
    assert Inflation(ModelSize(10**9, "q8_0")).describe("tiny", 6) == "tiny at the cost of a 1 B model (q8_0)"
    assert LayerDrop(2).describe("tiny", 6) == "tiny without 2 of its 6 layers"
    assert LayerDrop(2, "q4_0").describe("tiny", 6) == "tiny without 2 of its 6 layers (q4_0)"
    assert Requantization("q2_k").describe("tiny", 6) == "tiny requantized to q2_k"


def test_file_types_have_llama_cpps_numbers() -> None:
    assert set(QUANTIZABLE) <= FILE_TYPE_IDS.keys()

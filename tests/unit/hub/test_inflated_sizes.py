"""What a reference means, and whether the shapes are those of real models."""

from __future__ import annotations

import pytest

from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.hub.inflation.inflated_sizes import (
    DEFAULT_SIZE,
    LlamaShape,
    ModelSize,
    choose_head,
    choose_target,
    count_head_parameters,
    parse_demo_reference,
)

SOURCE = LlamaShape(width=256, layers=6, ffn=704, heads=4, kv_heads=2, vocab=4096)
SOURCE_HEAD = LlamaShape(width=256, layers=1, ffn=704, heads=4, kv_heads=2, vocab=4096)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("demo", DEFAULT_SIZE),
        ("demo@1b", ModelSize(1_000_000_000, "bf16")),
        ("demo@1.5B:Q4_0", ModelSize(1_500_000_000, "q4_0")),
        ("demo@100m:f16", ModelSize(100_000_000, "f16")),
        ("demo@70b:q8_0", ModelSize(70_000_000_000, "q8_0")),
    ],
)
def test_references_that_are_understood(reference: str, expected: ModelSize) -> None:
    assert parse_demo_reference(reference) == expected


@pytest.mark.parametrize(
    "reference",
    ["", "demo@", "demo@1", "demo@1t", "demo@b", "demo:q4_0", "demo@1b:", "demo@1b:q5_k", "demo@1b:f32", "Demos"]
    + ["demo@99m", "demo@71b", "demo@0b", "demo@-1b", "demo@1b:q4_0 ", "demo@1e9b"],
)
def test_references_that_are_not(reference: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_demo_reference(reference)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("billions", "phrase"),
    [(1, "a 1 B model"), (8, "an 8 B model"), (11, "an 11 B model"), (18, "an 18 B model"), (70, "a 70 B model")],
)
def test_phrases(billions: int, phrase: str) -> None:
    assert ModelSize(billions * 10**9, "q4_0").phrase == phrase


def test_labels_and_slugs() -> None:
    assert (ModelSize(1_500_000_000, "q4_0").label, ModelSize(1_500_000_000, "q4_0").slug) == ("1.5 B", "1.5b-q4_0")
    assert (DEFAULT_SIZE.label, DEFAULT_SIZE.slug) == ("300 M", "300m-bf16")


SIZES = [10**8 * step // 4 for step in (4, 5, 8, 12, 20, 28, 36, 40, 60, 100, 120, 160, 320, 520, 560, 1280, 2800)]


@pytest.mark.parametrize("source", [SOURCE, LlamaShape(256, 6, 704, 4, 4, 4096), LlamaShape(256, 8, 768, 4, 2, 8192)])
@pytest.mark.parametrize("num_parameters", SIZES)
def test_targets_have_their_size(num_parameters: int, source: LlamaShape) -> None:
    shape = choose_target(num_parameters, source)
    assert abs(shape.num_parameters / num_parameters - 1) < 0.015
    assert shape.holds(source)
    assert shape.heads % shape.kv_heads == 0 and shape.width == 64 * shape.heads
    assert 1.5 < shape.ffn / shape.width < 6


def test_well_known_sizes_look_like_their_models() -> None:
    known = {10**9: (2048, 16), 8 * 10**9: (4096, 32), 70 * 10**9: (8192, 80)}
    found = {size: choose_target(size, SOURCE) for size in known}
    assert {size: (shape.width, shape.layers) for size, shape in found.items()} == known


@pytest.mark.parametrize("num_parameters", SIZES)
def test_heads_weigh_what_real_heads_weigh(num_parameters: int) -> None:
    target = choose_target(num_parameters, SOURCE)
    head = choose_head(target, SOURCE_HEAD, SOURCE.vocab)
    share = count_head_parameters(head, target.width, SOURCE.vocab) / target.num_parameters
    assert 0.04 < share < 0.09
    assert head.holds(SOURCE_HEAD)


def test_what_cannot_hold_the_source_is_refused() -> None:
    with pytest.raises(ResourceError, match="5 M parameters"):
        choose_target(5_000_000, SOURCE)

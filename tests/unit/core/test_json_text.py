"""JSON from untrusted sources: what is read, and what is refused without a traceback."""

from __future__ import annotations

import pytest

from eaglelocal.core.json_text import MAX_DEPTH, is_nested_deeper, read_json


@pytest.mark.parametrize("levels", [1, 5, 64])
def test_depth(levels: int) -> None:
    value: object = 1
    for _ in range(levels):
        value = [value]
    assert is_nested_deeper(value, levels - 1) and not is_nested_deeper(value, levels)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 990, 1000, 100_000])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_too_deep_is_refused(depth: int, before: str, after: str) -> None:
    with pytest.raises(ValueError, match="nested deeper than 64 levels"):
        read_json(before * depth + "1" + after * depth)


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", "{", "", "1" * 5000, "'a'", '{"a": 1,}'])
def test_only_standard_json_is_read(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)


def test_what_is_read() -> None:
    assert read_json('{"a": [1, null, "\\u00e9"]}') == {"a": [1, None, "é"]}
    assert read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)


def test_numbers_beyond_all_floats_are_refused_where_they_must_be_finite() -> None:
    assert read_json("[1e999]") == [float("inf")]
    assert read_json("[1e99, -3, 2.5]", is_finite=True) == [1e99, -3, 2.5]
    for text in ("1e999", '{"a": [-1e999]}', "NaN"):
        with pytest.raises(ValueError):
            read_json(text, is_finite=True)

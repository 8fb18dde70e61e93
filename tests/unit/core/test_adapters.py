"""Adapters of a run and of a request: what a flag and a list of scales mean, and what they may not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.core.adapters import (
    AdapterFile,
    AdapterMix,
    adapter_objects,
    apply_mix,
    describe_adapters,
    list_scales,
    make_mix,
    parse_adapter,
    parse_scale,
    usual_mix,
)
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import UsageError


@pytest.mark.parametrize(
    ("text", "path", "scale"),
    [
        ("a.gguf", "a.gguf", 1.0),
        ("a.gguf:0.5", "a.gguf", 0.5),
        ("a.gguf:-1", "a.gguf", -1.0),
        ("a.gguf:0", "a.gguf", 0.0),
        (r"C:\a.gguf", r"C:\a.gguf", 1.0),
        (r"C:\a.gguf:2", r"C:\a.gguf", 2.0),
        ("C:/a.gguf:1e-1", "C:/a.gguf", 0.1),
        ("b:1.gguf", "b:1.gguf", 1.0),
    ],
)
def test_a_file_with_its_scale(text: str, path: str, scale: float) -> None:
    assert parse_adapter(text) == AdapterFile(Path(path), scale)


@pytest.mark.parametrize("text", ["", " ", "a.gguf:nan", "a.gguf:inf", "a.gguf:-1e400", "a.gguf:1001", "a.gguf:much"])
def test_invalid_scales_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--lora must be FILE or FILE:SCALE"):
        _ = RunOptions(lora=(text,)).adapters


def test_too_many() -> None:
    with pytest.raises(UsageError, match="17 adapters"):
        _ = RunOptions(lora=("a.gguf",) * 17).adapters


@pytest.mark.parametrize(
    ("scales", "mix"),
    [
        ([], ()),
        ([(1, 1.0), (0, 0.5)], ((0, 0.5), (1, 1.0))),
        ([(0, 0.0), (1, 2.0)], ((1, 2.0),)),
        ([(0, -0.0)], ()),
    ],
)
def test_equal_mixes_are_equal(scales: list[tuple[int, float]], mix: AdapterMix) -> None:
    assert make_mix(scales, 2) == mix


@pytest.mark.parametrize(
    ("number", "count", "said"), [(0, 0, "none is loaded"), (1, 1, "the only id is 0"), (3, 3, "the ids are 0 to 2")]
)
def test_an_unknown_id_lists_those_that_are_known(number: int, count: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_mix([(number, 1.0)], count)


def test_what_people_read() -> None:
    files = (
        AdapterFile(Path("/x/poems.gguf")),
        AdapterFile(Path("code.gguf"), 0.5),
        AdapterFile(Path("off.gguf"), 0.0),
    )
    assert usual_mix(files) == ((0, 1.0), (1, 0.5))
    assert describe_adapters(files) == "0 poems.gguf, 1 code.gguf x 0.5, 2 off.gguf off"
    mixed = apply_mix(files, ((1, 1.0), (2, -2.0)))
    assert describe_adapters(mixed) == "0 poems.gguf off, 1 code.gguf, 2 off.gguf x -2"
    assert list_scales(mixed) == ((0, 0.0), (1, 1.0), (2, -2.0))
    assert adapter_objects(mixed[:1]) == [{"id": 0, "name": "poems.gguf", "scale": 0.0}]


def test_an_id_and_a_scale_are_parsed() -> None:
    assert [parse_scale(text) for text in ("0 0.5", " 12  -1 ", "0 0")] == [(0, 0.5), (12, -1.0), (0, 0.0)]


@pytest.mark.parametrize("text", ["", "0", "0 x", "x 0", "-1 1", "² 1", "0 1 2", "9" * 5000 + " 1", "0.5 0"])
def test_an_invalid_id_or_scale_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the id of an adapter and its scale"):
        parse_scale(text)

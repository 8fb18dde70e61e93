"""Recommended sampling in a file: plausible numbers are used, everything else is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.gguf_bytes import BOOL, F32, I32, STRING, U32, GgufBytes

from eaglelocal.core.sampling import SamplingParams, fill_recommended, sampling_text
from eaglelocal.gguf.model_info import read_recommended_sampling
from eaglelocal.gguf.reader import read_header


def recommended(folder: Path, *entries: tuple[str, int, object]) -> dict[str, float]:
    built = GgufBytes().put("general.architecture", STRING, "llama")
    for key, kind, value in entries:
        built.put(f"general.sampling.{key}", kind, value)
    path = folder / "some.gguf"
    path.write_bytes(built.build())
    return read_recommended_sampling(read_header(path))


def test_what_qwen_recommends(tmp_path: Path) -> None:
    found = recommended(
        tmp_path, ("temp", F32, 0.6), ("top_k", I32, 20), ("top_p", F32, 0.95), ("penalty_repeat", F32, 1.05)
    )
    assert found == {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repeat_penalty": 1.05}
    assert sampling_text(found) == "temperature 0.6, top-k 20, top-p 0.95, repeat-penalty 1.05"


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("temp", STRING, "hot"),
        ("temp", BOOL, True),
        ("temp", F32, float("nan")),
        ("temp", F32, -1.0),
        ("temp", F32, 1e-9),
        ("temp", F32, 99.0),
        ("top_k", I32, -1),
        ("top_k", F32, 20.0),
        ("top_p", F32, 1.5),
        ("penalty_last_n", I32, -1),
        ("penalty_repeat", F32, 0.0),
        ("mirostat", U32, 2),
    ],
)
def test_what_cannot_be_meant_is_passed_over(tmp_path: Path, key: str, kind: int, value: object) -> None:
    assert recommended(tmp_path, ("min_p", F32, 0.25), (key, kind, value)) == {"min_p": 0.25}


def test_only_what_was_left_open_follows_the_makers() -> None:
    params = SamplingParams(temperature=0.2, top_k=40, top_p=0.9, left_open=frozenset({"top_k", "min_p"}))
    found = fill_recommended(params, {"temperature": 0.6, "top_k": 20})
    assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.2, 20, 0.9, 0.0)
    assert fill_recommended(SamplingParams(), {"temperature": 0.6}) == SamplingParams()

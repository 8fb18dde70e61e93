"""Values of a header are changed in place; everything else stays unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.random_models import HeadShape, TargetShape, write_head

from eaglelocal.errors import ModelFileError, ResourceError
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import patch_header

SHAPE = TargetShape(n_embd=64, n_layer=4, n_ff=64)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return write_head(tmp_path / "head.gguf", HeadShape(width=64, n_ff=64), SHAPE)


def read_values(path: Path) -> dict[str, object]:
    header = read_header(path)
    return {key: header.array(key) or value for key, value in header.metadata.items()}


def test_flags_numbers_and_lists_change_and_nothing_else(head: Path) -> None:
    before, size = read_values(head), head.stat().st_size
    changes = {
        "eaglelocal.norm_output": True,
        "eagle3.target_layers": (0, 1, 3),
        "eagle3.attention.layer_norm_rms_epsilon": 0.5,
        "eagle3.block_count": 7,
    }
    patch_header(read_header(head), changes)
    assert read_values(head) == before | changes
    assert head.stat().st_size == size
    patch_header(read_header(head), {key: before[key] for key in changes})  # type: ignore[misc]
    assert read_values(head) == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"eaglelocal.nothing": True}, "eaglelocal.nothing is not a number"),
        ({"general.architecture": 1}, "is not a number"),
        ({"eagle3.target_layers": (1, 2)}, "is an array of 3"),
        ({"eagle3.target_layers": 1}, "is an array of 3"),
        ({"eagle3.block_count": (1, 2)}, "is not a number"),
        ({"eagle3.block_count": -1}, "do not fit UINT32"),
        ({"eagle3.target_layers": (1, 2, 2**40)}, "do not fit INT32"),
        ({"tokenizer.ggml.tokens": tuple(range(300))}, "cannot replace"),
    ],
)
def test_what_does_not_fit_changes_nothing(changes: dict[str, object], says: str, head: Path) -> None:
    before = head.read_bytes()
    with pytest.raises(ModelFileError, match=says):
        patch_header(read_header(head), {"eaglelocal.norm_output": True, **changes})  # type: ignore[dict-item]
    assert head.read_bytes() == before


def test_a_file_that_is_gone(head: Path) -> None:
    header = read_header(head)
    head.unlink()
    with pytest.raises(ResourceError, match="cannot write"):
        patch_header(header, {"eaglelocal.norm_output": True})

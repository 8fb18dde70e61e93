"""How the user writes the split of a model over GPUs."""

from __future__ import annotations

import pytest

from eaglelocal.core.run_options import parse_split


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("layer", ("layer", ())),
        ("row", ("row", ())),
        ("none", ("none", ())),
        ("3,1", ("layer", (3.0, 1.0))),
        ("0.5, 0.5,0", ("layer", (0.5, 0.5, 0.0))),
    ],
)
def test_modes_and_shares(text: str, found: tuple[str, tuple[float, ...]]) -> None:
    assert parse_split(text) == found


@pytest.mark.parametrize("text", ["", "3", "tensors", "1,x", "-1,2", "nan,1", "inf,1", "0,0", "1,", ",".join("1" * 17)])
def test_an_invalid_split_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="or the share of each GPU, as 3,1"):
        parse_split(text)

"""Whether slots share one cache, in which drafts can be trees."""

from __future__ import annotations

import pytest

from eaglelocal.core.plan import shares_cache


@pytest.mark.parametrize(
    ("num_slots", "on_gpu", "is_quantized", "shared"),
    [
        (1, True, False, True),
        (2, True, False, True),
        (3, True, False, False),
        (1, False, False, True),
        (2, False, False, False),
        (1, False, True, False),  # quantized weights on a CPU: a tree's cells would be added up in another order
    ],
)
def test_trees_where_rows_are_cheap_and_nothing_is_quantized(
    num_slots: int, on_gpu: bool, is_quantized: bool, shared: bool
) -> None:
    assert shares_cache(num_slots, on_gpu=on_gpu, is_quantized=is_quantized) is shared

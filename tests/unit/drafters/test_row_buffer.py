"""The buffered rows of a sleeping slot, compared with a plain list of all rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.drafters.drafter import Committed
from eaglelocal.drafters.row_buffer import MAX_BUFFERED, RowBuffer

Row = tuple[int, int]  # position and token

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(-70, 3), st.sampled_from([1, 1, 1, 2, 5, 63, 64, 65, 130, 300])),
        st.tuples(st.just("forget"), st.integers(-140, 3), st.just(0)),
    ),
    max_size=30,
)


def rows_of(committed: Committed) -> list[Row]:
    """With each token once more as its features."""
    assert isinstance(committed.features, np.ndarray)
    assert committed.features[:, 0, 0].tolist() == list(committed.tokens)
    return [(committed.first_position + i, token) for i, token in enumerate(committed.tokens)]


@given(operations=OPERATIONS)
def test_it_holds_the_newest_rows_without_holes(operations: list[tuple[str, int, int]]) -> None:
    """Where the newest of them were forgotten it may hold some that are older than it promises to."""
    remembered, rows, token, promised = RowBuffer(), list[Row](), 0, 0
    for verb, offset, count in operations:
        end = rows[-1][0] + 1 if rows else 0
        position = max(end + offset, 0)
        kept = [row for row in rows if row[0] < position]
        if verb == "add" and kept and kept[-1][0] + 1 != position:
            kept = []
        promised = max(promised - (len(rows) - len(kept)), 0)
        rows = kept
        if verb == "forget":
            remembered.forget(position)
        else:
            tokens = list(range(token, token + count))
            token += count
            rows += [(position + i, each) for i, each in enumerate(tokens)]
            promised = min(promised + count, MAX_BUFFERED)
            remembered.add(Committed(0, position, tokens, np.array(tokens, np.float32).reshape(-1, 1, 1)))
        held = RowBuffer(remembered)
        found = rows_of(held.join(3)) if held else []
        assert promised <= len(found) <= MAX_BUFFERED
        assert found == rows[len(rows) - len(found) :]
        assert held.end == (rows[-1][0] + 1 if found else -1)


def test_what_has_no_features_is_not_remembered() -> None:
    remembered = RowBuffer()
    remembered.add(Committed(0, 0, [1, 2], np.ones((2, 1, 4), np.float32)))
    remembered.add(Committed(0, 2, [3], None))
    assert not remembered

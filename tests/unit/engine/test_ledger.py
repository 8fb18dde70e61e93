"""What the books say of plain decoding is never more than the step took."""

from __future__ import annotations

import pytest

from eaglelocal.engine.ledger import Ledger
from eaglelocal.speculation.costs import StepCosts


def ledger(cost_of_one: float, cost_of_eight: float) -> Ledger:
    costs = StepCosts()
    for _ in range(50):
        costs.learn(1, cost_of_one, num_cells=0)
        costs.learn(8, cost_of_eight, num_cells=0)
    return Ledger(costs)


@pytest.mark.parametrize(("one_s", "eight_s", "is_cheaper"), [(0.01, 0.03, True), (0.68, 0.29, False)])
def test_fewer_rows_are_never_dearer(one_s: float, eight_s: float, is_cheaper: bool) -> None:
    """0.68 s for one row and 0.29 s for eight: such was measured while other programs came and went."""
    books = ledger(one_s, eight_s)
    books.begin(0.0)
    for _ in range(3):
        books.mark()
    times = books.end(0.0, num_rows=8, num_drafted=7)
    assert times.verify_s > 0
    assert times.plain_s <= times.verify_s
    assert (times.plain_s < 0.9 * times.verify_s) is is_cheaper

"""The chosen size against every other one: all prefixes, all subsets closed under parents, all levels; and what is
expected of tokens that are not drafted yet, against every outcome."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.speculation.acceptance.acceptance_model import Outlook
from eaglelocal.speculation.policy.goodput import find_best_size, share_out, split_into_units, value_chains

probabilities = st.floats(0.0, 1.0)
steps = st.floats(-0.5, 2.0)  # of a cost curve: it may fall


def gains_of(chances: Sequence[float]) -> list[float]:
    return list(itertools.accumulate(chances, lambda a, b: a * b))


def prices_of(rises: Sequence[float]) -> list[float]:
    return [1.0 + rise for rise in itertools.accumulate(rises, initial=0.0)]


def test_a_climb_that_stops_at_the_first_fall_would_have_stopped_at_two() -> None:
    size, worth = find_best_size([0.9, 0.8, 0.7, 0.6], [2.0, 2.1, 2.2, 3.3, 3.4])
    assert size == 4
    assert worth == pytest.approx(-0.4)


@given(st.lists(probabilities, max_size=16), st.lists(steps, min_size=16, max_size=16))
def test_no_prefix_is_worth_more(chances: list[float], rises: list[float]) -> None:
    gains, prices = gains_of(chances), prices_of(rises)
    size, worth = find_best_size(gains, prices)
    worths = [sum(gains[:n]) - prices[n] for n in range(len(gains) + 1)]
    assert worth == pytest.approx(max(worths))
    assert worths[size] == pytest.approx(worth)


@given(st.lists(st.lists(probabilities, max_size=3), min_size=1, max_size=3), st.lists(steps, min_size=9, max_size=9))
def test_no_set_of_tokens_with_their_parents_is_worth_more(chances: list[list[float]], rises: list[float]) -> None:
    chains, prices = [gains_of(chain) for chain in chances], prices_of(rises)
    size, worth = find_best_size(*split_into_units(chains, prices, leveled=False))
    shares = share_out(size, chains)
    chosen = sum(sum(chain[:n]) for chain, n in zip(chains, shares, strict=True)) - prices[sum(shares)]
    possible = itertools.product(*(range(len(chain) + 1) for chain in chains))
    best = max(
        sum(sum(chain[:n]) for chain, n in zip(chains, sizes, strict=True)) - prices[sum(sizes)] for sizes in possible
    )
    assert worth == pytest.approx(best)
    assert chosen == pytest.approx(best)


@given(st.lists(st.lists(probabilities, max_size=4), min_size=1, max_size=4), st.lists(steps, min_size=16, max_size=16))
def test_no_level_is_worth_more_where_all_draft_equally_far(chances: list[list[float]], rises: list[float]) -> None:
    chains, prices = [gains_of(chain) for chain in chances], prices_of(rises)
    level, worth = find_best_size(*split_into_units(chains, prices, leveled=True))

    def worth_of(level: int) -> float:
        return sum(sum(chain[:level]) for chain in chains) - prices[level * len(chains)]

    longest = max(map(len, chains))
    assert worth == pytest.approx(max(map(worth_of, range(longest + 1))))
    assert worth_of(level) == pytest.approx(worth)


# ---- tokens that are not drafted yet
def by_hand(outlook: Outlook, rows: list[float], step: float, reach: float = 1.0) -> float:
    """Return what `ChainValue.at` approximates, by recursion over every kind of every token."""
    brought = 0.0
    for share, chance in outlook.outcomes:
        further = max(by_hand(outlook, rows[1:], step, reach * chance) - step, 0.0) if rows[1:] else 0.0
        brought += share * max(reach * chance - rows[0] + further, 0.0)
    return brought


chances = st.floats(0.05, 0.99)
outlooks = st.builds(
    lambda share, one, other: Outlook.of([(share, one), (1.0 - share, other)]), st.floats(0.0, 1.0), chances, chances
)
row_prices = st.lists(st.floats(0.0, 0.6), min_size=1, max_size=6)


@given(outlooks, row_prices, st.floats(0.0, 0.2), st.floats(0.05, 1.0), st.data())
def test_the_value_is_that_of_every_outcome(
    outlook: Outlook, rows: list[float], step: float, reach: float, data: st.DataObject
) -> None:
    (value,) = value_chains([outlook], rows, [step] * len(rows))
    assert value.gain == pytest.approx(max(by_hand(outlook, rows, step) - step, 0.0), rel=0.12, abs=0.1)
    num_drafted = data.draw(st.integers(0, len(rows) - 1))
    expected = by_hand(outlook, rows[num_drafted:], step, reach)
    assert value.at(num_drafted, reach) == pytest.approx(expected, rel=0.12, abs=0.1)


@given(outlooks, outlooks, row_prices, st.floats(0.0, 0.2))
def test_every_slot_has_its_own_value(one: Outlook, other: Outlook, rows: list[float], step: float) -> None:
    steps = [step] * len(rows)
    alone = [value_chains([each], rows, steps)[0].gain for each in (one, other)]
    assert [value.gain for value in value_chains([one, other], rows, steps)] == pytest.approx(alone)


SURE = Outlook.of([(0.5, 0.98), (0.5, 0.97)])


def test_rows_behind_a_cliff_are_counted_on() -> None:
    assert value_chains([SURE], [1.2, 0.0, 0.0, 0.0], [0.01] * 4)[0].gain > 2.0
    assert value_chains([SURE], [1.2], [0.01])[0].gain == 0.0


def test_what_is_not_known_yet_is_worth_looking_at() -> None:
    """One token in six is nearly certain: to find it costs a draft step, to send all of them would not pay."""
    mixed, even = Outlook.of([(1 / 6, 0.99), (5 / 6, 0.2)]), Outlook.of([(1.0, 0.33)])
    assert value_chains([mixed], [0.5, 0.5], [0.05] * 2)[0].gain > 0.0
    assert value_chains([even], [0.5, 0.5], [0.05] * 2)[0].gain == 0.0


def test_nothing_is_hoped_for_beyond_the_last_level_or_after_an_impossible_token() -> None:
    (value,) = value_chains([SURE], [0.1, 0.1], [0.01] * 2)
    assert value.at(1, 1.0) > 0.5
    assert value.at(2, 1.0) == value.at(1, 0.0) == value.at(0, 1e-9) == 0.0


def test_tokens_that_come_together_are_paid_for_once() -> None:
    (block,) = value_chains([SURE], [0.1] * 4, [0.5, 0.0, 0.0, 0.0])
    (single,) = value_chains([SURE], [0.1] * 4, [0.5] * 4)
    assert block.gain == pytest.approx(single.gain + 3 * 0.5, abs=0.2)


def test_shares_of_the_most_likely() -> None:
    assert share_out(3, [[0.9, 0.5, 0.1], [0.6, 0.4]]) == [2, 1]


@pytest.mark.slow
def test_no_set_of_tokens_is_worth_more_over_many_cases() -> None:
    chance = random.Random(3)
    for _ in range(20_000):
        chains = [gains_of([chance.random() for _ in range(chance.randint(0, 4))]) for _ in range(chance.randint(1, 3))]
        prices = prices_of([chance.choice([0.0, 0.02, 0.1, 1.0, -0.4]) for _ in range(12)])
        size, worth = find_best_size(*split_into_units(chains, prices, leveled=False))
        every = itertools.product(*(range(len(chain) + 1) for chain in chains))
        best = max(sum(sum(c[:n]) for c, n in zip(chains, ns, strict=True)) - prices[sum(ns)] for ns in every)
        assert worth == pytest.approx(best)
        assert sum(share_out(size, chains)) == size

"""The chosen size against every other one: all prefixes, all subsets closed under parents, all levels."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.speculation.acceptance.acceptance_model import Outlook
from eaglelocal.speculation.policy.goodput import (
    count_paying_levels,
    estimate_worth,
    find_best_size,
    pays_to_grow,
    pays_to_grow_all,
    share_out,
    split_into_units,
)

probabilities = st.floats(0.0, 1.0)
steps = st.floats(-0.5, 2.0)  # of a cost curve: it may fall


def certain(probability: float) -> Outlook:
    return Outlook(((1.0, probability),), probability)


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


def test_a_step_pays_if_the_flat_part_after_the_cliff_does() -> None:
    cliff = [1.0, 2.2, 2.2, 1.7, 2.7]
    assert pays_to_grow([], cliff, certain(0.6), 0.01)
    assert not pays_to_grow([], cliff[:3], certain(0.6), 0.01)
    assert not pays_to_grow([], cliff, certain(0.6), 1.0)


def test_what_is_not_known_yet_is_worth_looking_at() -> None:
    """One token in six is nearly certain: to find it costs a draft step, to send all of them would not pay."""
    outlook = Outlook(((5 / 6, 0.2), (1 / 6, 0.99)), 0.33)
    prices = [1.0, 1.5, 2.0]
    assert pays_to_grow([], prices, outlook, 0.05)
    assert not pays_to_grow([], prices, certain(outlook.mean), 0.05)


@given(
    st.lists(probabilities, max_size=6),
    probabilities,
    st.lists(steps, min_size=12, max_size=12),
    st.floats(0.0, 0.3),
)
def test_one_chain_of_several_decides_as_an_only_one(
    chances: list[float], hope: float, rises: list[float], step_price: float
) -> None:
    gains, prices, outlook = gains_of(chances), prices_of(rises), Outlook(((0.5, hope), (0.5, hope / 2)), hope)
    alone = pays_to_grow(gains, prices, outlook, step_price)
    assert pays_to_grow_all([gains], prices, [outlook], step_price, leveled=False) == alone
    assert pays_to_grow_all([gains], prices, [outlook], step_price, leveled=True) == alone


@given(
    st.lists(probabilities, max_size=4),
    st.tuples(probabilities, probabilities, probabilities),
    st.lists(steps, min_size=16, max_size=16),
    st.floats(0.0, 0.3),
    st.integers(1, 12),
)
def test_levels_that_are_drafted_ahead_would_have_been_one_by_one(
    chances: list[float], hopes: tuple[float, float, float], rises: list[float], step_price: float, most: int
) -> None:
    """Also where tokens turn out surer than was asked of them."""
    gains, prices = gains_of(chances), prices_of(rises)
    mean, least, real = hopes[0], min(hopes[1:]), max(hopes[1:])
    levels = count_paying_levels(gains, prices, mean, step_price, chance=least, most=most)
    assert 1 <= levels <= most
    for level in range(1, levels):
        reached = [*gains, *((gains[-1] if gains else 1.0) * real**n for n in range(1, level + 1))]
        assert pays_to_grow(reached, prices, certain(mean), step_price + 1e-9) or pays_to_grow(
            reached, prices, certain(mean), step_price - 1e-9
        )
    if levels < most:
        reached = [*gains, *((gains[-1] if gains else 1.0) * least**n for n in range(1, levels + 1))]
        assert not pays_to_grow(reached, prices, certain(mean), step_price + 1e-9)


def test_chains_that_cannot_grow_are_sent_along() -> None:
    assert pays_to_grow_all([[0.9], [0.9]], [1.0, 1.1, 1.2, 1.3], [None, certain(0.9)], 0.01, leveled=False)


def test_tokens_that_come_together_are_paid_for_once() -> None:
    prices = [1.0, 1.1, 1.2, 1.3, 1.4]
    assert estimate_worth(0.5, prices, 0.3, block_size=4) == pytest.approx(0.5 + 0.25 + 0.125 - 0.3 - 0.3)
    assert estimate_worth(0.5, prices, 0.3, block_size=2) == pytest.approx(0.5 + 0.25 - 0.2 - 0.3)
    assert estimate_worth(0.9, [1.0, 3.0, 3.0, 3.0, 3.0], 0.1, block_size=2) == 0.0  # nothing follows the second
    assert not pays_to_grow([], [1.0, 3.0, 3.0, 3.0, 3.0], certain(0.9), 0.1, block_size=2)
    assert estimate_worth(0.5, prices, 0.3) == pytest.approx(0.5 - 0.1 - 0.3)
    assert pays_to_grow([], prices, certain(0.6), 0.7, block_size=4)
    assert not pays_to_grow([], prices, certain(0.6), 0.7)


@given(st.lists(steps, min_size=8, max_size=8), st.floats(0.05, 0.95), st.floats(0.0, 1.0), st.integers(1, 8))
def test_what_pays_one_by_one_pays_together(
    rises: list[float], hope: float, step_price: float, block_size: int
) -> None:
    prices, outlook = prices_of(rises)[: block_size + 1], certain(hope)
    together = estimate_worth(hope, prices, step_price, block_size=block_size)
    assert together >= estimate_worth(hope, prices, step_price) - 1e-9
    if pays_to_grow([], prices, outlook, step_price):
        assert pays_to_grow([], prices, outlook, step_price, block_size=block_size)


def test_expected_worth_is_that_of_the_best_length() -> None:
    assert estimate_worth(0.5, [1.0, 1.2, 1.4, 2.4], 0.05) == pytest.approx(0.75 - 0.4 - 0.1)
    assert estimate_worth(0.1, [1.0, 1.2], 0.05) == 0.0


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

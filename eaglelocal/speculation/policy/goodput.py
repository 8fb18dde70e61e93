"""Maximise expected tokens per second: how many drafted rows to verify, and whether to draft another level.

A second has a price: the tokens that the machine makes in it anyway (`rate`). A step is worth its expected tokens less
the price of its seconds, and what maximises that in every step maximises tokens per second in the long run (Dinkelbach
1967, for ratios; here the rate is learned). The argmax runs over all sizes, because cost curves are steps: a hill climb
that stops at the first fall does not reach the next flat part.

    gains   0.9 0.8 0.7 0.6     tokens that each further row is expected to bring, best first
    prices  2.0 2.1 2.2 3.3 3.4 of a step with 0, 1, 2, 3, 4 such rows, in tokens
    worth  -2.0 -1.2 -0.5 -0.9 -0.4   ->  4: a climb would have stopped at 2

Rows are added in units: single rows, or levels of all chains.
Pure: plain numbers in and out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eaglelocal.speculation.acceptance.acceptance_model import Outlook


def find_best_size(gains: Sequence[float], prices: Sequence[float]) -> tuple[int, float]:
    """Return the number of units with the largest worth, and that worth; among equals the fewest."""
    size, worth = 0, -prices[0]
    total = 0.0
    for n, gain in enumerate(gains, start=1):
        total += gain
        if total - prices[n] > worth:
            size, worth = n, total - prices[n]
    return size, worth


def pays_to_grow(
    gains: Sequence[float], prices: Sequence[float], outlook: Outlook, step_price: float, *, block_size: int = 1
) -> bool:
    """Return whether another token of the only chain is expected to be worth its draft step; others may follow it.

    The next token's confidence is not known before it is drafted; where it turns out low, only the draft step is lost.

    gains    of the chain: how likely the answer gets as far as each token
    prices   by number of drafted rows; no more rows can be sent than it has entries for
    at_once  tokens of one draft step, and none after them (a block); 1: a step per token
    """
    _, worth = find_best_size(gains, prices)
    reach = gains[-1] if gains else 1.0
    return pays_to_draft(prices[len(gains) + 1 :], worth, sum(gains), reach, outlook, step_price, block_size=block_size)


def count_paying_levels(
    gains: Sequence[float], prices: Sequence[float], mean: float, step_price: float, *, chance: float, most: int
) -> int:
    """Return how many levels of the only chain pay, at most `most`, if each token is accepted with `chance`.

    The first is known to pay. As in `pays_to_grow`, but without cases: tokens after are accepted with the mean.
    """
    total, reach = sum(gains), gains[-1] if gains else 1.0
    _, worth = find_best_size(gains, prices)
    for num_rows in range(len(gains) + 1, len(gains) + most):
        reach *= chance
        total += reach
        worth = max(worth, total - prices[num_rows])
        if not pays_ahead(prices[num_rows + 1 :], worth - total + step_price, reach * mean, mean, step_price):
            return num_rows - len(gains)
    return most


def pays_ahead(ahead: Sequence[float], needed: float, reach: float, mean: float, a_level: float) -> bool:
    """Return whether tokens ahead together bring `needed` more than they cost.

    ahead    price of a step with 1, 2 .. of them
    reach    how likely the answer gets as far as the first; each further one is accepted with `mean`
    a_level  price of each draft step but the first
    """
    brought = cost = 0.0
    for price in ahead:
        brought += reach
        if brought - price - cost > needed:
            return True
        reach *= mean
        cost += a_level
    return False


def pays_to_draft(
    ahead: Sequence[float],
    worth: float,
    total: float,
    reach: float,
    outlook: Outlook,
    step_price: float,
    *,
    block_size: int = 1,
) -> bool:
    """Return whether another level is expected to be worth its draft step.

    Levels after it are assumed to be accepted with the mean, as far as rows can be sent, so that a cliff in the costs
    hides nothing beyond it. If the mean alone decides for it, the cases are skipped: their average is never less.

    ahead   price of a step with 1, 2 .. more levels
    worth   of what is drafted, at its best size
    total   tokens expected of all that is drafted; reach: how likely the answer gets to its end
    """
    needed, mean = worth - total, outlook.mean
    is_block = block_size > 1
    ahead, a_level = (ahead[:block_size], 0.0) if is_block else (ahead, step_price)
    if pays_ahead(ahead, needed + step_price, reach * mean, mean, a_level):
        return True
    sums = []
    gain, sum_, cost = 1.0, 0.0, 0.0  # for a reach of one, the first token being accepted
    for price in ahead:
        sum_ += gain
        gain *= mean
        sums.append((sum_, price + cost))
        cost += a_level
    expected = 0.0
    for share, probability in outlook.outcomes:
        further = reach * probability
        best = max([further * sum_ - price for sum_, price in sums], default=needed)
        if best > needed:
            expected += share * (best - needed)
    return expected > step_price


def pays_to_grow_all(
    chains: Sequence[Sequence[float]],
    prices: Sequence[float],
    outlooks: Sequence[Outlook | None],
    step_price: float,
    leveled: bool,
    *,
    block_size: int = 1,
) -> bool:
    """Return `pays_to_grow` for another level of several chains; those without an outlook do not grow."""
    worth = find_best_size(*split_into_units(chains, prices, leveled))[1]
    select_slots = [(chain, outlook) for chain, outlook in zip(chains, outlooks, strict=True) if outlook is not None]
    if leveled:
        rows_a_level, num_rows = len(chains), max(len(chain) for chain, _ in select_slots) * len(chains)
    else:
        rows_a_level, num_rows = len(select_slots), sum(map(len, chains))
    ahead = prices[num_rows + rows_a_level :: rows_a_level]
    reaches = [chain[-1] if chain else 1.0 for chain, _ in select_slots]
    outlook = join_outlooks([outlook for _, outlook in select_slots], reaches)
    return pays_to_draft(ahead, worth, sum(map(sum, chains)), sum(reaches), outlook, step_price, block_size=block_size)


def join_outlooks(outlooks: Sequence[Outlook], reaches: Sequence[float]) -> Outlook:
    """Return the outlook of chains that grow together, weighted by their reaches. Shares are those of the drafter."""
    reach = max(sum(reaches), 1e-9)

    def mean(chances: Iterable[float]) -> float:
        return sum(r * chance for r, chance in zip(reaches, chances, strict=True)) / reach

    cases = zip(*(outlook.outcomes for outlook in outlooks), strict=True)
    outcomes = tuple((case[0][0], mean(chance for _, chance in case)) for case in cases)
    return Outlook(outcomes, mean(outlook.mean for outlook in outlooks))


def split_into_units(
    chains: Sequence[Sequence[float]], prices: Sequence[float], leveled: bool
) -> tuple[list[float], Sequence[float]]:
    """Return the gains of all chains by units (rows, or levels), and the prices by units; `prices` are by rows.

    A level takes a row of every chain, drafted or not: llama.cpp decodes equally many of each.
    """
    if not leveled:
        return sorted((gain for chain in chains for gain in chain), reverse=True), prices
    levels = range(min(max(map(len, chains), default=0), (len(prices) - 1) // max(len(chains), 1)))
    return [sum(chain[n] for chain in chains if n < len(chain)) for n in levels], prices[:: max(len(chains), 1)]


def estimate_worth(hope: float, prices: Sequence[float], step_price: float, *, block_size: int = 1) -> float:
    """Return the worth of a chain of the best length, relative to no draft, if each token is accepted with `hope`."""
    best = total = 0.0
    reach = 1.0
    is_block = block_size > 1
    for n in range(1, min(len(prices), block_size + 1) if is_block else len(prices)):
        reach *= hope
        total += reach
        best = max(best, total - (prices[n] - prices[0]) - (1 if is_block else n) * step_price)
    return best


def share_out(size: int, chains: Sequence[Sequence[float]]) -> list[int]:
    """Return how many tokens of each chain are among the `size` most likely ones; of equals, those of earlier chains.

    Gains fall along a chain, so the most likely tokens are a prefix of every chain.
    """
    heads = [0] * len(chains)
    ranked = sorted((-gain, i) for i, chain in enumerate(chains) for gain in chain)
    for _, i in ranked[:size]:
        heads[i] += 1
    return heads


def cut_to_best(room: int, chains: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
    """Return the chains, cut to their tokens among the `room` most likely ones."""
    if sum(map(len, chains)) <= room:
        return chains
    return [chain[:size] for chain, size in zip(chains, share_out(room, chains), strict=True)]

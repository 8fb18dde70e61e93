"""Expected tokens per second: how many drafted rows are worth verifying, and whether to draft another level.

A second has a price: the tokens that the machine makes in it anyway (`rate`). A step is worth its expected tokens
less the price of its seconds, and what maximises that in every step maximises tokens per second in the long run
(Dinkelbach 1967, for ratios; here the rate is learned). The argmax runs over all sizes, because cost curves are steps:
a climb that stops at the first fall is stuck before the next flat part.

    gains   0.9 0.8 0.7 0.6     tokens that each further row is expected to bring, best first
    prices  2.0 2.1 2.2 3.3 3.4 of a step with 0, 1, 2, 3, 4 such rows, in tokens
    worth  -2.0 -1.2 -0.5 -0.9 -0.4   ->  4: a climb would have stopped at 2

Pure: plain numbers in and out.
"""

from __future__ import annotations

from collections.abc import Sequence

LOOK_AHEAD = 4  # levels: far enough to see behind a cliff of the cost curve


def best_size(gains: Sequence[float], prices: Sequence[float]) -> tuple[int, float]:
    """Number of rows with the largest worth, and that worth; of equals the fewest rows."""
    size, worth = 0, -prices[0]
    total = 0.0
    for n, (gain, price) in enumerate(zip(gains, prices[1:], strict=False), start=1):
        total += gain
        if total - price > worth:
            size, worth = n, total - price
    return size, worth


def pays_to_draft(
    gains: Sequence[float],
    prices: Sequence[float],
    growing: Sequence[tuple[float, float]],
    step_price: float,
    leveled: bool = False,
) -> bool:
    """Is another level of drafting expected to be worth its price, if levels behind it may follow?

    gains       of what is drafted so far, in the units of `prices`, best first
    growing     of each chain that would grow: how likely its last token is accepted (1 for a root), and how likely
                a further one is, given the one before it
    step_price  of one level of drafting
    leveled     a unit is a level of all chains, not one row
    """
    _, worth = best_size(gains, prices)
    expected = list(gains)
    reached = [reach for reach, _ in growing]
    for levels in range(1, LOOK_AHEAD + 1):
        reached = [reach * hope for reach, (_, hope) in zip(reached, growing, strict=True)]
        expected.extend([sum(reached)] if leveled else reached)
        if not leveled:
            expected.sort(reverse=True)
        if best_size(expected, prices)[1] - levels * step_price > worth:
            return True
    return False


def expected_worth(hope: float, prices: Sequence[float], step_price: float) -> float:
    """Of drafting a chain of the best length, compared with no draft, when each token is accepted with `hope`."""
    best = total = 0.0
    reach = 1.0
    for n in range(1, len(prices)):
        reach *= hope
        total += reach
        best = max(best, total - (prices[n] - prices[0]) - n * step_price)
    return best


def merged(chains: Sequence[Sequence[float]]) -> tuple[list[float], list[int]]:
    """Gains of several chains, best first, and which chain each belongs to.

    Gains fall along a chain, so that any first part of the result is a first part of every chain.
    """
    heads = [0] * len(chains)
    gains: list[float] = []
    owners: list[int] = []
    for _ in range(sum(map(len, chains))):
        best = max((i for i, chain in enumerate(chains) if heads[i] < len(chain)), key=lambda i: chains[i][heads[i]])
        gains.append(chains[best][heads[best]])
        owners.append(best)
        heads[best] += 1
    return gains, owners

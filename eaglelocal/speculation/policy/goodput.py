"""Maximize expected tokens per second (goodput): how many drafted rows to verify, and whether to draft another level.

A second costs the tokens that the machine makes in it anyway (`Throughput.rate`). The worth of a step is its expected
tokens less the cost of its seconds. Choosing the size of largest worth, argmax over n of (expected tokens with n
drafted rows - rate * seconds with n drafted rows), in every step maximizes tokens per second in the long run
(Dinkelbach 1967, for ratios; here the rate is learned). The argmax runs over all sizes, because cost curves rise in
jumps: a hill climb that stops at the first fall does not reach the next flat part.

    gains   0.9 0.8 0.7 0.6     tokens that each further row is expected to bring, best first
    costs   2.0 2.1 2.2 3.3 3.4 of a step with 0, 1, 2, 3, 4 such rows, in tokens
    worth  -2.0 -1.2 -0.5 -0.9 -0.4   ->  4: a climb would have stopped at 2

Rows are added in units: single rows, or levels of all chains. Pure: plain numbers in and out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.speculation.acceptance.acceptance_model import Outlook


def find_best_size(gains: Sequence[float], costs: Sequence[float]) -> tuple[int, float]:
    """Return the number of units with the largest worth, and that worth; among equals the fewest."""
    size, worth = 0, -costs[0]
    total = 0.0
    for n, gain in enumerate(gains, start=1):
        total += gain
        if total - costs[n] > worth:
            size, worth = n, total - costs[n]
    return size, worth


def pays_to_grow(
    gains: Sequence[float], costs: Sequence[float], outlook: Outlook, step_cost: float, *, block_size: int = 1
) -> bool:
    """Return whether another token of the only chain is expected to be worth its draft step; others may follow it.

    The next token's confidence is not known before it is drafted; where it turns out low, only the draft step is lost.

    gains       of the chain: how likely the answer gets as far as each token
    costs       by number of drafted rows; no more rows can be sent than it has entries for
    block_size  tokens of one draft step, and none after them; 1: a step per token
    """
    _, worth = find_best_size(gains, costs)
    reach = gains[-1] if gains else 1.0
    return pays_to_draft(costs[len(gains) + 1 :], worth, sum(gains), reach, outlook, step_cost, block_size=block_size)


def count_paying_levels(
    gains: Sequence[float], costs: Sequence[float], mean: float, step_cost: float, *, chance: float, most: int
) -> int:
    """Return how many levels of the only chain pay, at most `most`, if each token is accepted with `chance`.

    The first is known to pay. Works as `pays_to_grow`, but later tokens are accepted with the mean.
    """
    total, reach = sum(gains), gains[-1] if gains else 1.0
    _, worth = find_best_size(gains, costs)
    for num_rows in range(len(gains) + 1, len(gains) + most):
        reach *= chance
        total += reach
        worth = max(worth, total - costs[num_rows])
        if not pays_ahead(costs[num_rows + 1 :], worth - total + step_cost, reach * mean, mean, step_cost):
            return num_rows - len(gains)
    return most


def pays_ahead(next_costs: Sequence[float], needed: float, reach: float, mean: float, level_cost: float) -> bool:
    """Return whether the next tokens together bring `needed` more than they cost.

    next_costs  of a step with 1, 2 .. of them
    reach       how likely the answer gets as far as the first; each further one is accepted with `mean`
    level_cost  of each draft step but the first
    """
    brought = spent = 0.0
    for cost in next_costs:
        brought += reach
        if brought - cost - spent > needed:
            return True
        reach *= mean
        spent += level_cost
    return False


def pays_to_draft(
    next_costs: Sequence[float],
    worth: float,
    total: float,
    reach: float,
    outlook: Outlook,
    step_cost: float,
    *,
    block_size: int = 1,
) -> bool:
    """Return whether another level is expected to be worth its draft step.

    Levels after it are assumed to be accepted with the mean, as far as rows can be sent, so that a cliff in the costs
    hides nothing beyond it. If the mean alone decides for it, the outcomes are skipped: their average is never less.

    next_costs  of a step with 1, 2 .. more levels
    worth       of what is drafted, at its best size
    total       tokens expected of all that is drafted
    reach       how likely the answer gets to its end
    """
    needed, mean = worth - total, outlook.mean
    is_block = block_size > 1
    next_costs, level_cost = (next_costs[:block_size], 0.0) if is_block else (next_costs, step_cost)
    if pays_ahead(next_costs, needed + step_cost, reach * mean, mean, level_cost):
        return True
    sums = []
    gain, sum_, spent = 1.0, 0.0, 0.0  # for a reach of one, the first token being accepted
    for cost in next_costs:
        sum_ += gain
        gain *= mean
        sums.append((sum_, cost + spent))
        spent += level_cost
    expected = 0.0
    for share, probability in outlook.outcomes:
        further = reach * probability
        best = max([further * sum_ - cost for sum_, cost in sums], default=needed)
        if best > needed:
            expected += share * (best - needed)
    return expected > step_cost


def pays_to_grow_all(
    chains: Sequence[Sequence[float]],
    costs: Sequence[float],
    outlooks: Sequence[Outlook | None],
    step_cost: float,
    leveled: bool,
    *,
    block_size: int = 1,
    max_depth: int = MAX_DRAFT_TOKENS,
) -> bool:
    """Return `pays_to_grow` for another level of several chains; chains without an outlook do not grow.

    max_depth  tokens that the drafter can draft in a chain
    """
    worth = find_best_size(*split_into_units(chains, costs, leveled))[1]
    growing_chains = [(chain, outlook) for chain, outlook in zip(chains, outlooks, strict=True) if outlook is not None]
    longest = max(len(chain) for chain, _ in growing_chains)
    if leveled:
        rows_per_level, num_rows = len(chains), longest * len(chains)
    else:
        rows_per_level, num_rows = len(growing_chains), sum(map(len, chains))
    next_costs = costs[num_rows + rows_per_level :: rows_per_level][: max_depth - longest]
    reaches = [chain[-1] if chain else 1.0 for chain, _ in growing_chains]
    outlook = join_outlooks([outlook for _, outlook in growing_chains], reaches)
    return pays_to_draft(
        next_costs, worth, sum(map(sum, chains)), sum(reaches), outlook, step_cost, block_size=block_size
    )


def join_outlooks(outlooks: Sequence[Outlook], reaches: Sequence[float]) -> Outlook:
    """Return the joint outlook of chains that grow together, weighted by their reaches; all come from one drafter."""
    reach = max(sum(reaches), 1e-9)

    def mean(chances: Iterable[float]) -> float:
        return sum(r * chance for r, chance in zip(reaches, chances, strict=True)) / reach

    cases = zip(*(outlook.outcomes for outlook in outlooks), strict=True)
    outcomes = tuple((case[0][0], mean(chance for _, chance in case)) for case in cases)
    return Outlook(outcomes, mean(outlook.mean for outlook in outlooks))


def split_into_units(
    chains: Sequence[Sequence[float]], costs: Sequence[float], leveled: bool
) -> tuple[list[float], Sequence[float]]:
    """Return the gains of all chains by units (rows, or levels), and the costs by units; `costs` are by rows.

    A level takes a row of every chain, drafted or not: llama.cpp decodes equally many of each.
    """
    if not leveled:
        return sorted((gain for chain in chains for gain in chain), reverse=True), costs
    levels = range(min(max(map(len, chains), default=0), (len(costs) - 1) // max(len(chains), 1)))
    return [sum(chain[n] for chain in chains if n < len(chain)) for n in levels], costs[:: max(len(chains), 1)]


def estimate_worth(chance: float, costs: Sequence[float], step_cost: float, *, block_size: int = 1) -> float:
    """Return the worth of a chain of the best length relative to no draft, if each token is accepted with `chance`."""
    best = total = 0.0
    reach = 1.0
    is_block = block_size > 1
    for n in range(1, min(len(costs), block_size + 1) if is_block else len(costs)):
        reach *= chance
        total += reach
        best = max(best, total - (costs[n] - costs[0]) - (1 if is_block else n) * step_cost)
    return best


def share_out(size: int, chains: Sequence[Sequence[float]]) -> list[int]:
    """Return how many tokens of each chain are among the `size` most likely ones; ties go to earlier chains.

    Gains fall along a chain, so the most likely tokens are a prefix of every chain.
    """
    heads = [0] * len(chains)
    ranked = sorted((-gain, i) for i, chain in enumerate(chains) for gain in chain)
    for _, i in ranked[:size]:
        heads[i] += 1
    return heads


def leaves_pay(chains: Sequence[Sequence[float]], leaves: Sequence[float], costs: Sequence[float]) -> bool:
    """Return whether rows for some of these leaves, with the given gains, would be worth more than the chains alone."""
    firsts, costs = split_into_units(chains, costs, False)
    most = len(costs) - 1
    nodes = sorted([*firsts, *leaves], reverse=True)[:most]
    return find_best_size(nodes, costs)[1] > find_best_size(firsts[:most], costs)[1]


def choose_width(
    nodes: Sequence[float],
    tips: Sequence[float],
    costs: Sequence[float],
    chances: Sequence[float],
    step_costs: Mapping[int, float],
) -> int:
    """Return after how many leaves of a tree to draft in one call, so that the step is worth most; 0: none is worth it.

    Looks one level ahead: the quality of grandchildren is not known, and they are drafted only if they pay.

    nodes       gains of what is drafted, the largest first
    tips        gains of the leaves: tokens after which nothing is drafted yet, the largest first
    chances     probabilities that a leaf's children are accepted
    step_costs  of a draft step, by the number of leaves
    """
    best, worth = 0, find_best_size(nodes[: len(costs) - 1], costs)[1]
    for width, step_cost in step_costs.items():
        children = [chance * tip for tip in tips[:width] for chance in chances]
        grown = sorted([*nodes, *children], reverse=True)[: len(costs) - 1]
        grown_worth = find_best_size(grown, costs)[1] - step_cost
        if grown_worth > worth:
            best, worth = width, grown_worth
    return best


GRID, NUM_REACHES = math.log(0.75), 14  # reaches that are distinguished: 1, 0.75, 0.56, .. down to 0.02


def expect_gains(
    kinds: Sequence[Sequence[tuple[float, float]]], rows: Sequence[float], steps: Sequence[float]
) -> list[float]:
    """Return the tokens that drafting is expected to gain each slot in a step, its rows and draft steps paid.

    Each next token is drafted if that is worth its draft step, and sent if it is worth its row, once its kind is known:
    backward induction over the levels of a chain, and over how likely the answer gets so far.

    kinds  (share, chance of acceptance) of the tokens of each slot's text
    rows   cost of a row of each level, in tokens
    steps  cost of drafting each level
    """
    share, chance = np.moveaxis(np.array(kinds, np.float64), 2, 0)[:, :, None, :]  # [slots, 1, kinds]
    places = np.arange(NUM_REACHES, dtype=np.float64)
    reach = np.exp(GRID * places)[None, :, None] * chance  # [slots, reaches, kinds]
    at = np.minimum(places[None, :, None] + np.log(np.maximum(chance, 1e-6)) / GRID, NUM_REACHES)
    low = at.astype(np.int64)
    part = at - low
    low += (NUM_REACHES + 2) * np.arange(len(kinds))[:, None, None]  # in the flat array: indexing it is fast
    high = low + 1
    worth = np.zeros((len(kinds), NUM_REACHES + 2))
    for row, step in zip(reversed(rows), reversed(steps), strict=True):
        further = worth.take(low) * (1.0 - part) + worth.take(high) * part
        gained = (share * np.maximum(reach - row + further, 0.0)).sum(axis=2) - step
        worth[:, :NUM_REACHES] = np.maximum(gained, 0.0)
    return [float(each) for each in worth[:, 0]]

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
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

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


GRID, NUM_REACHES = math.log(0.9), 38  # reaches that are distinguished: 1, 0.9, 0.81, .. down to 0.02


class ChainValue(NamedTuple):
    """The worth of drafting on to a slot, in tokens, by what it has drafted already."""

    outlook: Outlook  # of its text
    table: Sequence[Sequence[float]]  # [levels drafted][reach]: of the next level and those after it, see `at`
    first_step_cost: float

    def at(self, num_drafted: int, reach: float) -> float:
        """Return what the next level and those after it bring, their rows and all but the next draft step paid.

        num_drafted  tokens of the chain so far
        reach        how likely the answer gets to their end
        """
        place = math.log(reach) / GRID if reach > 0.0 else NUM_REACHES
        low = int(place)
        if num_drafted >= len(self.table) or low >= NUM_REACHES - 1:
            return 0.0
        row, part = self.table[num_drafted], place - low
        return row[low] * (1.0 - part) + row[low + 1] * part

    @property
    def gain(self) -> float:
        """The gain of a step that may draft over one that drafts nothing."""
        return max(self.table[0][0] - self.first_step_cost, 0.0)


def value_chains(outlooks: Sequence[Outlook], rows: Sequence[float], steps: Sequence[float]) -> list[ChainValue]:
    """Return what drafting is worth to each slot.

    Each next token is drafted if that is worth its draft step, and sent if it is worth its row, once its kind is known:
    backward induction over the levels of a chain, and over how likely the answer gets so far.

    outlooks  of the text of each slot
    rows      cost of a row of each level to a slot, in tokens
    steps     a slot's share of the draft step of each level; at least one
    """
    kinds = np.array([each.outcomes for each in outlooks], np.float64)
    share, chance = np.moveaxis(kinds, 2, 0)[:, :, None, :]  # [slots, 1, kinds]
    places = np.arange(NUM_REACHES, dtype=np.float64)
    reach = np.exp(GRID * places)[None, :, None] * chance  # [slots, reaches, kinds]
    at = np.minimum(places[None, :, None] + np.log(np.maximum(chance, 1e-6)) / GRID, NUM_REACHES)
    low = at.astype(np.int64)
    part = at - low
    low += (NUM_REACHES + 2) * np.arange(len(outlooks))[:, None, None]  # in the flat array: indexing it is fast
    high = low + 1
    worth = np.zeros((len(outlooks), NUM_REACHES + 2))
    tables = np.empty((len(rows), len(outlooks), NUM_REACHES))
    for level in reversed(range(len(rows))):
        further = worth.take(low) * (1.0 - part) + worth.take(high) * part
        brought = (share * np.maximum(reach - rows[level] + further, 0.0)).sum(axis=2)
        worth[:, :NUM_REACHES] = np.maximum(brought - steps[level], 0.0)
        tables[level] = brought
    by_slot = tables.swapaxes(0, 1).tolist()
    return [ChainValue(outlook, table, steps[0]) for outlook, table in zip(outlooks, by_slot, strict=True)]

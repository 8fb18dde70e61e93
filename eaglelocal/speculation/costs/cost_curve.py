"""Extend the costs of some sizes to all sizes: an estimate, and an optimistic one. Pure.

Costs are relative to a decode of one row, sizes are numbers of rows, in ascending order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

UNMEASURED_DEVIATION = (0.3, 0.5)  # of a size that never ran: between measured sizes, and beyond them
ROUGHNESS = 0.25  # standard deviation (as a logarithm) of curves from the line between two neighbors
OPTIMISM = 0.6  # standard deviations by which the optimistic cost is lower
WELL_KNOWN = 0.05  # deviation up to which a size is not tried again
REACH, BEYOND = 2, 0.25  # times the largest known size that are tried; cost there, at least: as rows ** 0.25


def interpolate_costs(points: Mapping[int, float], most: int) -> list[float]:
    """Extend the known costs of some sizes to 0 .. most rows: linear between them, steeper beyond the largest.

    >>> interpolate_costs({1: 1.0, 3: 2.0}, 5)
    [0.0, 1.0, 1.5, 2.0, 2.6666666666666665, 3.333333333333333]
    """
    sizes, costs = list(points), list(points.values())
    last, cost = sizes[-1], costs[-1]
    slope = cost / last
    if len(sizes) > 1:
        slope = max(slope, (cost - costs[-2]) / (last - sizes[-2]))
    within = [_interpolate(rows, sizes, costs) for rows in range(1, min(most, last) + 1)]
    return [0.0, *within, *(cost + slope * (rows - last) for rows in range(last + 1, most + 1))]


def _interpolate(rows: int, sizes: list[int], costs: list[float]) -> float:
    """Return the cost on the line between the two sizes around `rows`, which is at most the last one."""
    behind = bisect_left(sizes, rows)
    if behind == 0 or sizes[behind] == rows:
        return costs[behind]
    size, cost = sizes[behind - 1], costs[behind - 1]
    return (costs[behind] - cost) / (sizes[behind] - size) * (rows - size) + cost


def smooth_costs(points: Mapping[int, float], deviations: Mapping[int, float]) -> dict[int, float]:
    """Move each cost towards the line between its neighbors; the less certain it is, the further.

    A size that was measured at a bad moment would otherwise look too expensive to be tried again; a cliff that was
    measured well hardly moves. Deviations are of the logarithm.
    """
    sizes = list(points)
    found = dict(points)
    for before, rows, behind in zip(sizes, sizes[1:], sizes[2:], strict=False):
        share = (rows - before) / (behind - before)
        smooth = math.log(points[before] + share * (points[behind] - points[before]))
        doubt = deviations[rows] ** 2
        weight = doubt / (doubt + ROUGHNESS**2)
        found[rows] = math.exp((1.0 - weight) * math.log(points[rows]) + weight * smooth)
    return found


def make_optimistic(
    points: Mapping[int, float], deviations: Mapping[int, float], most: int, *, noise: float
) -> list[float]:
    """Return optimistic costs of 0 .. most rows: as low as the measurements plausibly allow.

    Between two sizes the cost is at least the cheaper one's. Up to REACH times the largest size, further rows may be
    nearly free, as they are where a decode waits for memory.

    noise  of one decode (as a logarithm): no size is known better
    """
    import numpy as np  # planning needs none

    settled = max(WELL_KNOWN, noise)
    sizes = list(points)
    costs = [cost * math.exp(-OPTIMISM * max(deviations[rows] - settled, 0.0)) for rows, cost in points.items()]
    last, cost = sizes[-1], costs[-1]
    table = np.array(interpolate_costs(dict(zip(sizes, costs, strict=True)), most))
    rows = np.arange(most + 1)
    behind = np.minimum(np.searchsorted(sizes, rows), len(sizes) - 1)  # index of the first known size >= rows
    cheaper = np.minimum(np.take(costs, behind), np.take(costs, np.maximum(behind - 1, 0)))
    is_between = (rows > 1) & (rows < last) & (np.take(sizes, behind) != rows)
    untried = table * math.exp(-OPTIMISM * (UNMEASURED_DEVIATION[0] - WELL_KNOWN))
    table = np.where(is_between, np.maximum(untried, cheaper), table)
    is_near = (rows > last) & (rows <= REACH * last)
    found: list[float] = np.where(is_near, np.minimum(table, cost * (rows / last) ** BEYOND), table).tolist()
    return found

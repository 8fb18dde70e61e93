"""Divide a model's layers among several GPUs so that the fastest hold as many as they can. Pure.

llama.cpp divides layers by free memory. Then a slower card holds as many as it can even where the faster one has room
for all, and a card whose layers have their experts in RAM stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence


def pack_blocks(sizes: Sequence[int], rooms: Sequence[int], *, from_last: bool = False) -> tuple[float, ...]:
    """Return how many consecutive blocks each device takes, if one after another takes all that it has room for.

    The last to choose takes the rest, whether or not it has room.

    from_last  the last device chooses first

    >>> pack_blocks([4, 4, 4, 1], [9, 5]), pack_blocks([4, 4, 4, 1], [9, 5], from_last=True)
    ((2.0, 2.0), (2.0, 2.0))
    """
    if from_last:
        return pack_blocks(sizes[::-1], rooms[::-1])[::-1]
    counts, start = [], 0
    for room in rooms[:-1]:
        end = start
        while end < len(sizes) and sizes[end] <= room:
            room -= sizes[end]
            end += 1
        counts.append(float(end - start))
        start = end
    return (*counts, float(len(sizes) - start))

"""Split a step's rows into passes, as llama.cpp does where every slot has its own cache, and choose padding rows.

Each pass over the weights takes slots with consecutive numbers, and equally many rows of each: two slots with 5 rows
and 1 row are two passes, and so are slots 0 and 2. A pass costs nearly as much as a whole step, a row next to nothing;
so padding rows can save time. They are decoded and removed again.

    rows 5, 5, 1, 5    three passes: 4 rows of all slots, then 8 of slots 0 and 1, then 4 of slot 3
    padded 5, 5, 5, 5  one pass of 20
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

Seconds = Callable[[int], float]  # of a pass, by its rows


def split_rows(rows: Mapping[int, int], undivided: int = 0) -> list[int]:
    """Return the rows of each pass, as llama_batch_allocr::split_equal makes them of sequential sequences.

    undivided  last rows of a slot that must be in one pass, where recurrent states are kept for them; 0: none
    """
    if is_level(rows):  # the common case
        return [sum(rows.values())]
    left = {slot: count for slot, count in sorted(rows.items()) if count}
    found = []
    while left:
        run = find_first_run(left)
        length = min(left[slot] for slot in run)
        run = drop_divided(run, left, length, undivided)
        if not run:
            found.append(left.pop(min(left)))  # the first slot is a pass of its own
            continue
        found.append(length * len(run))
        for slot in run:
            left[slot] -= length
        left = {slot: count for slot, count in left.items() if count}
    return found


def drop_divided(run: list[int], left: Mapping[int, int], length: int, undivided: int) -> list[int]:
    """Return the first slots of a run whose next `length` rows may be split from the rest."""
    return list(takewhile(lambda slot: not 0 < left[slot] - length < undivided, run))


def is_level(rows: Mapping[int, int]) -> bool:
    """Return whether all slots have equally many rows, and no gap is between them."""
    counts = {*rows.values()}
    return len(counts) == 1 and 0 not in counts and max(rows) - min(rows) < len(rows)


def find_first_run(slots: Mapping[int, int]) -> list[int]:
    """Return the lowest slot and the slots that follow it without a gap."""
    first = min(slots)
    run = [first]
    while run[-1] + 1 in slots:
        run.append(run[-1] + 1)
    return run


def choose_padding_rows(
    decoding: Mapping[int, int], idle: Sequence[int], seconds: Seconds, undivided: int = 0
) -> dict[int, int]:
    """Return the padding rows by slot that make the step cheapest.

    Candidates: no padding; the decoding slots padded to equal length; the same with the idle slots between them; idle
    slots alone.

    decoding  rows of the slots that decode

    idle  slots that decode nothing
    """
    if len(split_rows(decoding, undivided)) <= 1:
        return {}
    shortest, longest = min(decoding.values()), max(decoding.values())
    gaps = [slot for slot in idle if min(decoding) < slot < max(decoding)]
    levelled = {slot: longest - rows for slot, rows in decoding.items()}
    choices: list[dict[int, int]] = [
        {},
        levelled,
        levelled | dict.fromkeys(gaps, longest),
        dict.fromkeys(gaps, shortest),
    ]
    best = min(choices, key=lambda padding: sum(map(seconds, split_rows(add_rows(decoding, padding), undivided))))
    return {slot: count for slot, count in best.items() if count}


def price_levels(fixed: Mapping[int, int], slots: Sequence[int], num_levels: int, seconds: Seconds) -> list[float]:
    """Return the seconds of a step with 0 .. num_levels more rows of each of the slots, with the best padding rows.

    slots  have one row each before that
    fixed  rows of the other slots that decode

    Slot 0 with five rows and slot 1 with one are two passes, or one of ten rows, in which up to four more of slot 1
    cost nothing.
    """
    prices = []
    for level in range(num_levels + 1):
        rows = {**fixed, **dict.fromkeys(slots, 1 + level)}
        passes = split_rows(add_rows(rows, choose_padding_rows(rows, (), seconds)))
        prices.append(sum(map(seconds, passes)))
    return prices


def add_rows(rows: Mapping[int, int], padding: Mapping[int, int]) -> dict[int, int]:
    return {slot: rows.get(slot, 0) + padding.get(slot, 0) for slot in {*rows, *padding}}

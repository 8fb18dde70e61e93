"""Decide how many prompt rows (chunked prefill) go into a step with running answers, so that these stay fluent.

The costs of steps come from a function that is passed in; sequences are not known here. Without answers a prompt gets
the whole batch. With answers a step may take FLUENT_S, or, if that is longer, SLOWDOWN times the step without prompts.
This keeps the gap between two tokens below 2.5 times its usual length. A fast model gets larger pieces by FLUENT_S:
each piece is a pass of its own, which reads all weights, so that small ones cost the answers more in total. Where more
prompts than answers are in progress, the allowance grows by that ratio, because more users wait for the prompts.
Prompts share the rows evenly: a short one need not wait for a long one, and slots with equally many rows cost one pass
(speculation/costs/ubatch_split.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eaglelocal.core.records import dataclass

SLOWDOWN = 2.2
FLUENT_S = 0.1  # between tokens: twice as fast as people read
MIN_PROMPT_ROWS = 4  # of prompts in a step, whatever they cost: otherwise a long prompt might never be prefilled
MAX_TRIES = 32  # sizes whose cost is computed, between one that fits and twice as many rows

Seconds = Callable[[Mapping[int, int]], float]  # of a decode, by rows of each slot; 0.0 while unknown


@dataclass(frozen=True, slots=True)
class PrefillPace:
    """Costs of steps, and the rows that answers are likely to need in the next one.

    drafted        rows by slot, besides the root
    prompt_factor  recent measured / predicted time of prompt rows: `seconds` does not know their context
    """

    seconds: Seconds
    drafted: Mapping[int, int]
    prompt_factor: float = 1.0


UNKNOWN = PrefillPace(lambda rows: 0.0, {})


def allot_prompt_rows(
    remaining: Mapping[int, int], decoding: Mapping[int, int], *, max_rows: int, pace: PrefillPace = UNKNOWN
) -> dict[int, int]:
    """Return the number of rows for each prompt, by slot.

    remaining  prompt rows still to be prefilled, by slot, the oldest first
    decoding   rows of the slots that decode
    max_rows   rows that the batch has left
    """
    max_rows = min(max_rows, sum(remaining.values()))
    if decoding and remaining:
        max_rows = find_affordable_rows(remaining, decoding, max_rows=max_rows, pace=pace)
    counts = dict(zip(remaining, split_evenly(list(remaining.values()), max_rows), strict=True))
    return {slot: count for slot, count in counts.items() if count}


def find_affordable_rows(
    remaining: Mapping[int, int], decoding: Mapping[int, int], *, max_rows: int, pace: PrefillPace
) -> int:
    """Return the largest affordable number of prompt rows. Costs rise in jumps, so sizes beyond one are tried too."""
    quiet_s = pace.seconds(decoding)
    extra_s = max(quiet_s * (SLOWDOWN - 1.0) * max(len(remaining) / len(decoding), 1.0), FLUENT_S - quiet_s)
    needed = list(remaining.values())

    def fits(num_rows: int) -> bool:
        prompts = dict(zip(remaining, split_evenly(needed, num_rows), strict=True))
        return pace.prompt_factor * (pace.seconds({**decoding, **prompts}) - quiet_s) <= extra_s

    num_fitting = min(MIN_PROMPT_ROWS, max_rows)
    while num_fitting < max_rows and fits(min(2 * num_fitting, max_rows)):
        num_fitting = min(2 * num_fitting, max_rows)
    most = min(2 * num_fitting, max_rows)
    stride = max((most - num_fitting) // MAX_TRIES, 1)
    return next((rows for rows in range(most, num_fitting, -stride) if fits(rows)), num_fitting)


def split_evenly(needed: Sequence[int], num_rows: int) -> list[int]:
    """Divide `num_rows` evenly. A share that is not needed goes to the others, and odd rows to the first.

    >>> split_evenly([3, 100, 100], 10)
    [3, 4, 3]
    """
    shares = [0] * len(needed)
    unfilled = [i for i, need in enumerate(needed) if need]
    while num_rows and unfilled:
        each = num_rows // len(unfilled)
        if each == 0:
            for i in unfilled[:num_rows]:
                shares[i] += 1
            break
        for i in unfilled:
            more = min(each, needed[i] - shares[i])
            shares[i] += more
            num_rows -= more
        unfilled = [i for i in unfilled if shares[i] < needed[i]]
    return shares

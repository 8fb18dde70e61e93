"""Decide how many prompt rows go into a step beside running answers: as many as the pace of the answers allows.

The costs of steps come from a function that is passed in; sequences are not known here. Without answers a prompt gets
the whole batch. Beside answers a step may cost SLOWDOWN times what it would without the prompt, so that the gap
between two tokens stays below 2.5 times its quiet value (decodes differ by a tenth, and drafting takes its time either
way); where more prompts are read than answers run, as many times more, for then more people wait for them. Prompts
share the rows evenly: a short one is not held up behind a long one, and slots with equally many rows cost one pass
(speculation/costs/ubatch_split.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SLOWDOWN = 2.2
MIN_PROMPT_ROWS = 4  # of prompts in a step, whatever they cost: otherwise a long prompt might never be read
MAX_TRIES = 32  # sizes that are priced between one that fits and twice as many rows

Seconds = Callable[[Mapping[int, int]], float]  # of a decode, by rows of each slot; 0.0 while unknown


@dataclass(frozen=True, slots=True)
class PrefillPace:
    """Costs of steps, and the rows that answers are likely to need in the next one.

    drafted  rows by slot, beside the root
    dearer   factor by which prompt rows lately took more than `seconds` says: they attend to a context of their own
    """

    seconds: Seconds
    drafted: Mapping[int, int]
    dearer: float = 1.0


def cost_nothing(rows: Mapping[int, int]) -> float:
    """Return 0.0, the cost of any decode before anything is known."""
    return 0.0


UNKNOWN = PrefillPace(cost_nothing, {})


def allot_prompt_rows(
    left: Mapping[int, int], decoding: Mapping[int, int], *, room: int, pace: PrefillPace = UNKNOWN
) -> dict[int, int]:
    """Return the number of rows for each prompt, by slot.

    left      prompt rows still to be read, by slot, the oldest first
    decoding  rows of the slots that decode
    room      rows that the batch has left
    """
    room = min(room, sum(left.values()))
    if decoding and left:
        room = find_affordable_rows(left, decoding, room=room, pace=pace)
    counts = dict(zip(left, split_evenly(list(left.values()), room), strict=True))
    return {slot: count for slot, count in counts.items() if count}


def find_affordable_rows(left: Mapping[int, int], decoding: Mapping[int, int], *, room: int, pace: PrefillPace) -> int:
    """Return the largest affordable number of prompt rows, the last before a jump of the costs, which are steps."""
    quiet_s = pace.seconds(decoding)
    extra_s = quiet_s * (SLOWDOWN - 1.0) * max(len(left) / len(decoding), 1.0)
    wanted = list(left.values())

    def fits(num_rows: int) -> bool:
        prompts = dict(zip(left, split_evenly(wanted, num_rows), strict=True))
        return pace.dearer * (pace.seconds({**decoding, **prompts}) - quiet_s) <= extra_s

    fitting = min(MIN_PROMPT_ROWS, room)
    while fitting < room and fits(min(2 * fitting, room)):
        fitting = min(2 * fitting, room)
    most = min(2 * fitting, room)
    stride = max((most - fitting) // MAX_TRIES, 1)
    return next((rows for rows in range(most, fitting, -stride) if fits(rows)), fitting)


def split_evenly(wanted: Sequence[int], room: int) -> list[int]:
    """Return even shares of `room`; what one does not need goes to the others, and odd rows to the first.

    >>> shares([3, 100, 100], 10)
    [3, 4, 3]
    """
    given = [0] * len(wanted)
    hungry = [i for i, want in enumerate(wanted) if want]
    while room and hungry:
        each = room // len(hungry)
        if each == 0:
            for i in hungry[:room]:
                given[i] += 1
            break
        for i in hungry:
            more = min(each, wanted[i] - given[i])
            given[i] += more
            room -= more
        hungry = [i for i in hungry if given[i] < wanted[i]]
    return given

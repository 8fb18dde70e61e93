"""The states of requests in words, as monitors show them: waiting, reading, running, or how they ended.

Pure. The first word from the engine on a request is Started, which comes with the first rows of its prompt. Whether it
waits until then depends on the free slots: the engine gives all of them to requests at its next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from eaglelocal.server.active_call import ActiveCall
from eaglelocal.server.answer_state import AnswerState

WAITING, READING, RUNNING = "waiting", "reading", "running"
REFUSED, FAILED = "refused", "failed"


def name_state(choice: AnswerState) -> str:
    """Return the state of a request by itself; one that has not begun waits."""
    if choice.finished is not None:
        return choice.finished.reason
    if choice.error is not None:
        return FAILED if choice.has_failed else REFUSED
    if choice.ended_at:
        return REFUSED if choice.is_refused else "gone"
    if choice.started is None:
        return WAITING
    return RUNNING if choice.num_tokens else READING


def name_active_states(
    active: Iterable[tuple[ActiveCall, AnswerState]], count_slots: Callable[[str], int]
) -> dict[str, str]:
    """Return the states of the active requests by their ids.

    Of the submitted ones that have not begun, the oldest are read, as many as their model has free slots. So many are
    right, until the next step; with several owners the engine may choose others.

    active       in order of arrival
    count_slots  returns the slots of a model; 0 while its engine does not run
    """
    requests = list(active)
    free = Counter({model: count_slots(model) for model in {call.model for call, _ in requests}})
    free.subtract(call.model for call, choice in requests if choice.started is not None and not choice.is_over)
    states = {}
    for call, choice in requests:
        state = name_state(choice)
        if state == WAITING and call.is_submitted and free[call.model] > 0:
            free[call.model] -= 1
            state = READING
        states[choice.request.id] = state
    return states

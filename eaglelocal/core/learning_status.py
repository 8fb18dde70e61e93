"""The state of learning from answers, as screens, snapshots and metrics show it."""

from __future__ import annotations

from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.plurals import count_noun
from eaglelocal.core.records import dataclass

ACTIVE_STATES = ("learning", "judging")
STATES = ("idle", *ACTIVE_STATES, "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningStatus:
    """The state of learning; `on` False: nothing is kept.

    state    one of STATES; the note of a paused one says why
    version  the learned version that drafts; 0: the base head
    """

    on: bool = True
    kept_answers: int = 0
    kept_bytes: int = 0
    state: str = "idle"
    version: int = 0
    note: str = ""


LEARNING_OFF = LearningStatus(on=False)


def describe_learning(status: LearningStatus) -> str:
    """Return a few words; "" if learning is off.

    >>> describe_learning(LearningStatus(kept_answers=12, kept_bytes=40_000, state="learning", version=3))
    'learning, 12 answers kept (40 kB), version 3'
    """
    if not status.on:
        return ""
    state = {"idle": "learns when idle", "paused": f"learning paused: {status.note}"}.get(status.state, status.state)
    version = f", version {status.version}" if status.version else ""
    answers = count_noun(status.kept_answers, "answer")
    return f"{state}, {answers} kept ({format_disk(status.kept_bytes)}){version}"

"""The places in a transcript where one can stand: each question, each answer, and each code block. Pure.

Example: a question whose answer has two code blocks has four stops: question, answer, code 1, code 2. An answer that is
a code block and no more has one stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from eaglelocal.conversation.code_blocks import count_code_blocks, find_code_blocks
from eaglelocal.core.records import dataclass
from eaglelocal.tui.transcript.entries import EntryKind, TranscriptEntry

Entries = Sequence[TranscriptEntry]


class StopKind(Enum):
    QUESTION = "question"
    ANSWER = "answer"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Stop:
    """A place to stand on."""

    question: int  # the index of the question's entry
    kind: StopKind
    code: int = 0  # the number of the code block


def find_question(entries: Entries, index: int) -> int | None:
    """Return the index of the last question at or before an entry, or None."""
    return next((at for at in range(index, -1, -1) if entries[at].kind is EntryKind.QUESTION), None)


def find_next_question(entries: Entries, index: int) -> int:
    """Return the index of the first question at or after an entry, or the number of entries."""
    return next((at for at in range(index, len(entries)) if entries[at].kind is EntryKind.QUESTION), len(entries))


def list_stops(entries: Entries, question: int) -> list[Stop]:
    """Return the stops of a question and its answer, in order."""
    answers = _list_answers(entries, question)
    numbers = [
        entries[at].first_code + number for at in answers for number in range(count_code_blocks(entries[at].text))
    ]
    has_text = answers and not _is_code_alone("".join(entries[at].text for at in answers).strip())
    answer = [Stop(question, StopKind.ANSWER)] if has_text else []
    return [Stop(question, StopKind.QUESTION), *answer, *(Stop(question, StopKind.CODE, each) for each in numbers)]


def find_neighbor(entries: Entries, stop: Stop, step: int) -> Stop | None:
    """Return the stop before (step -1) or after (1) another one, or None."""
    stops = list_stops(entries, stop.question)
    index = stops.index(stop) + step
    if 0 <= index < len(stops):
        return stops[index]
    if step > 0:
        following = find_next_question(entries, stop.question + 1)
        return Stop(following, StopKind.QUESTION) if following < len(entries) else None
    earlier = find_question(entries, stop.question - 1)
    return None if earlier is None else list_stops(entries, earlier)[-1]


def find_entries(entries: Entries, stop: Stop) -> range:
    """Return the indexes of the entries that a stop covers, for a code block the one that it is in."""
    if stop.kind is StopKind.QUESTION:
        return range(stop.question, stop.question + 1)
    answers = _list_answers(entries, stop.question)
    if stop.kind is StopKind.ANSWER:
        return range(answers[0], answers[-1] + 1)
    at = next(at for at in reversed(answers) if entries[at].first_code <= stop.code)
    return range(at, at + 1)


def read_stop(entries: Entries, stop: Stop) -> str:
    """Return the text of a stop as it was written: a question, an answer, or the code of a block."""
    found = [entries[at] for at in find_entries(entries, stop)]
    if stop.kind is StopKind.CODE:
        return find_code_blocks(found[0].text)[stop.code - found[0].first_code].code
    kind = EntryKind.QUESTION if stop.kind is StopKind.QUESTION else EntryKind.ANSWER
    return "".join(entry.text for entry in found if entry.kind is kind).strip()


def _is_code_alone(answer: str) -> bool:
    if answer.startswith(("```", "~~~")) and answer.endswith(("```", "~~~")):
        return len(find_code_blocks(answer)) == 1
    return False


def _list_answers(entries: Entries, question: int) -> list[int]:
    following = find_next_question(entries, question + 1)
    return [at for at in range(question + 1, following) if entries[at].kind is EntryKind.ANSWER]

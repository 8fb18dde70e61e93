"""The places in a transcript where one can stand: their order, what they cover, and their text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.conversation.conversation import Turn
from eaglelocal.core.events import TextPiece
from eaglelocal.tui.transcript.entries import EntryKind, LiveAnswer, TranscriptEntry, make_entries, make_question
from eaglelocal.tui.transcript.stops import (
    Stop,
    StopKind,
    find_entries,
    find_neighbor,
    find_question,
    list_stops,
    read_stop,
)

CODE = "Try:\n\n```sh\nls\n```\n\n1. or\n   ```py\n   a = 1\n   ```\n"
NOTE = TranscriptEntry(EntryKind.NOTE, "a note")
ANSWERS = st.sampled_from(["", "yes", CODE, "```\nopen", "a\n\nb\n\nc"])


def grow(text: str, first_code: int) -> list[TranscriptEntry]:
    live = LiveAnswer(first_code)
    live.push([TextPiece(1, text, False)])
    finished, growing = live.advance()
    return [*finished, *growing]


@given(st.lists(ANSWERS, min_size=1, max_size=5), st.booleans())
def test_every_stop_is_reached_in_both_directions(answers: list[str], has_notes: bool) -> None:
    entries = make_entries(Turn("q", answer) for answer in answers)
    if has_notes:
        entries = [each for entry in entries for each in (NOTE, entry)]
    at = 0 if entries[0].kind is EntryKind.QUESTION else 1
    walked = [Stop(at, StopKind.QUESTION)]
    while (found := find_neighbor(entries, walked[-1], 1)) is not None:
        walked.append(found)
    back = [walked[-1]]
    while (found := find_neighbor(entries, back[-1], -1)) is not None:
        back.append(found)
    assert back == walked[::-1]
    questions = [at for at, entry in enumerate(entries) if entry.kind is EntryKind.QUESTION]
    assert walked == [stop for question in questions for stop in list_stops(entries, question)]
    numbers = [stop.code for stop in walked if stop.kind is StopKind.CODE]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_text_of_a_stop_is_as_it_was_written() -> None:
    whole = make_entries([Turn("q", "```\nx\n```"), Turn("q2", CODE, reasoning="hm")])
    grown = [*make_entries([Turn("q", "```\nx\n```")]), make_question("q2", 1), NOTE, *grow(CODE, 2), NOTE]
    for entries in (whole, grown):
        question = find_question(entries, len(entries) - 1)
        assert question is not None
        stops = list_stops(entries, question)
        assert [read_stop(entries, stop) for stop in stops] == ["q2", CODE.strip(), "ls", "a = 1"]
        assert [stop.code for stop in stops] == [0, 0, 2, 3]
        for stop in stops:
            assert all(0 <= at < len(entries) for at in find_entries(entries, stop))


def test_code_alone_is_one_stop() -> None:
    for answer, num_stops in (("```\nx\n```", 2), ("```\nx\n```\ny", 3), ("```\nx\n```\n```\ny\n```", 4)):
        assert len(list_stops(make_entries([Turn("q", answer)]), 0)) == num_stops


def test_an_answer_between_notes_is_one_stop() -> None:
    first, *others = grow("a\n\nb\n\nc\n\nd", 1)
    entries = [make_question("q", 0), first, NOTE, *others]
    assert read_stop(entries, Stop(0, StopKind.ANSWER)) == "a\n\nb\n\nc\n\nd"
    assert find_question([NOTE], 0) is None

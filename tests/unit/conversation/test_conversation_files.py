"""Files that chats write besides conversations: names, exported documents, earlier questions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.answer_stats import answer_line
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.conversation_file import export_markdown, format_markdown
from eaglelocal.conversation.question_history import MAX_ENTRIES, MAX_FILE_BYTES, QuestionHistory
from eaglelocal.core.events import Finished
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import ResourceError, UsageError


def save(folder: Path, name: str, *turns: Turn) -> None:
    conversation_file.save(Conversation(turns=list(turns)), conversation_file.find_path(folder, name), target="m")


# ---- names
@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("What is an eagle?", "What is an eagle"),
        ("../../etc/passwd", "etc passwd"),
        ("???", "chat"),
        ("", "chat"),
        ("What's 2+2, and 10% of (3 + 4)?!", "What's 2+2, and 10% of (3 + 4)"),
        ("'Hello,' he said", "Hello,' he said"),
        ("a\nb\tc", "a b c"),
        ("Was heißt Öl?", "Was heißt Öl"),
        ("What is in package.json?", "What is in package"),
        ("read a.json.json .json", "read a"),
    ],
)
def test_a_conversation_is_named_after_its_question(tmp_path: Path, question: str, name: str) -> None:
    assert conversation_file.choose_name(tmp_path, question) == name


def test_names_are_never_given_twice(tmp_path: Path) -> None:
    for expected in ("why", "why 2", "WHY 3"):
        name = conversation_file.choose_name(tmp_path, expected.split()[0])
        save(tmp_path, name)
        assert name == expected


@given(st.text(max_size=200))
def test_every_question_makes_a_name_that_is_one(question: str) -> None:
    folder = Path("/nowhere")
    name = conversation_file.choose_name(folder, question)
    path = conversation_file.find_path(folder, name)
    assert (path.parent, path.stem) == (folder, name)


def test_a_question_about_a_json_file_leaves_what_is_there(tmp_path: Path) -> None:
    save(tmp_path, "What is in package", Turn("a", "b"))
    assert conversation_file.choose_name(tmp_path, "What is in package.json?") == "What is in package 2"


def test_renaming_keeps_what_was_said_and_nothing_is_written_over(tmp_path: Path) -> None:
    save(tmp_path, "one", Turn("a", "b"))
    save(tmp_path, "two", Turn("c", "d"))
    with pytest.raises(UsageError, match="'two' already exists"):
        conversation_file.rename(tmp_path, "one", "two")
    with pytest.raises(UsageError, match="no conversation named 'tow'"):
        conversation_file.rename(tmp_path, "tow", "three")
    assert conversation_file.rename(tmp_path, "one", "three.json") == "three"
    assert conversation_file.load_conversation(tmp_path, "three").turns == [Turn("a", "b")]
    conversation_file.delete(tmp_path, "three")
    assert conversation_file.list_names(tmp_path) == ("two",)


def test_a_link_to_nothing_is_no_conversation(tmp_path: Path) -> None:
    save(tmp_path, "one", Turn("a", "b"))
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    assert conversation_file.list_names(tmp_path) == ("one",)


def test_thoughts_are_kept_and_older_files_have_none(tmp_path: Path) -> None:
    save(tmp_path, "new", Turn("a", "b", reasoning="c"), Turn("d", "e"))
    assert conversation_file.load_conversation(tmp_path, "new").turns == [Turn("a", "b", reasoning="c"), Turn("d", "e")]
    (tmp_path / "old.json").write_text('{"version": 1, "turns": [{"question": "a", "answer": "b"}]}')
    assert conversation_file.load_conversation(tmp_path, "old").turns == [Turn("a", "b")]
    (tmp_path / "odd.json").write_text('{"version": 1, "turns": [{"question": "a", "answer": "b", "reasoning": 3}]}')
    with pytest.raises(UsageError, match="turn 1"):
        conversation_file.load_conversation(tmp_path, "odd")


# ---- documents
def test_the_figures_of_an_answer_are_kept(tmp_path: Path) -> None:
    timings = Timings(ttft_s=0.5, decode_s=2.0)
    finished = Finished("a", "cancelled", "", 7, 87, timings, SpeculationStats(), reasoning_tokens=31)
    save(tmp_path, "a", Turn("q", "a", finished=finished), Turn("q", "a"))
    first, second = conversation_file.load_conversation(tmp_path, "a").turns
    assert first.finished is not None and second.finished is None
    assert answer_line(first.finished) == answer_line(finished) == "87 tokens (31 thinking) · 2.5 s · stopped"
    path = tmp_path / "a.json"
    for figures in ('"much"', '{"reason": "stop"}', "[]", "null"):
        path.write_text(f'{{"version": 1, "turns": [{{"question": "q", "answer": "a", "figures": {figures}}}]}}')
        assert conversation_file.load_conversation(tmp_path, "a").turns == [Turn("q", "a")]


def test_a_document_has_everything_in_order() -> None:
    turns = [Turn("# why?\nreally", "Because.", reasoning="hm"), Turn("and?", "half", stopped=True)]
    document = format_markdown(Conversation("be brief", turns, name="eagles"), target="a model")
    parts = ["# eagles", "*a model*", "> be brief", "> # why?\n> really", "hm", "Because.", "> and?", "half", "stopped"]
    places = [document.index(part) for part in parts]
    assert places == sorted(places)


def test_a_document_is_not_written_over(tmp_path: Path) -> None:
    talk, path = Conversation(turns=[Turn("a", "b")]), tmp_path / "talk.md"
    export_markdown(talk, path, target="m")
    before = path.read_text()
    with pytest.raises(UsageError, match="already exists"):
        export_markdown(Conversation(turns=[Turn("c", "d")]), path, target="m")
    assert path.read_text() == before
    with pytest.raises(ResourceError, match="cannot write") as caught:
        export_markdown(talk, tmp_path / "nowhere" / "talk.md", target="m")
    assert caught.value.hint == f"mkdir -p {tmp_path / 'nowhere'}"
    with pytest.raises(UsageError, match="nothing to export"):
        export_markdown(Conversation(), tmp_path / "other.md", target="m")


# ---- questions
def test_a_walk_through_old_questions(tmp_path: Path) -> None:
    history = QuestionHistory(tmp_path / "deeper" / "questions")
    assert (history.older("typed"), history.newer()) == (None, None)
    for question in ("one", "two\nlines", "two\nlines"):
        history.add(question)
    again = QuestionHistory(tmp_path / "deeper" / "questions")
    assert [again.older("typed"), again.older("x"), again.older("x")] == ["two\nlines", "one", None]
    assert [again.newer(), again.newer(), again.newer()] == ["two\nlines", "typed", None]


def test_rubbish_in_the_file_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "questions"
    path.write_bytes(b'"good"\n{not json\n3\n\xff\xfe\n' + b"[" * 100_000 + b'\n"too"\n')
    history = QuestionHistory(path)
    assert [history.older(""), history.older(""), history.older("")] == ["too", "good", None]


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    history = QuestionHistory(tmp_path / "questions")
    for number in range(2 * MAX_ENTRIES + 10):
        history.add(f"question {number}")
    assert MAX_ENTRIES <= len((tmp_path / "questions").read_text().splitlines()) < 2 * MAX_ENTRIES


def test_a_file_that_has_grown_over_many_sessions_is_cut_at_a_start(tmp_path: Path) -> None:
    path = tmp_path / "questions"
    path.write_text("".join(f'"question {number}"\n' for number in range(2 * MAX_ENTRIES + 1)))
    QuestionHistory(path)
    lines = path.read_text().splitlines()
    assert (len(lines), lines[-1]) == (MAX_ENTRIES, f'"question {2 * MAX_ENTRIES}"')


def test_the_newest_of_a_large_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "questions"
    path.write_text(f'"old {"x" * MAX_FILE_BYTES}"\n"one"\n"two"\n')
    history = QuestionHistory(path)
    assert [history.older(""), history.older(""), history.older("")] == ["two", "one", None]
    assert path.read_text() == '"one"\n"two"\n'


def test_a_disk_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = QuestionHistory(tmp_path / "file" / "questions")
    history.add("one")
    assert history.older("") == "one"


def test_the_last_conversation_is_the_one_that_was_saved_last(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no conversation is saved yet"):
        conversation_file.load_last(tmp_path)
    for number, name in enumerate(("b", "a", "c")):
        path = tmp_path / f"{name}.json"
        conversation_file.save(Conversation(turns=[Turn(name, "x")]), path, target="m")
        os.utime(path, (number, number))
    os.utime(tmp_path / "a.json", (9, 9))
    last = conversation_file.load_last(tmp_path)
    assert (last.name, last.turns[0].question, last.num_saved) == ("a", "a", 1)

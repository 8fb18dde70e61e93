"""Conversations in memory and on disk, and what falls out of the context."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from doubles.image_files import image_bytes
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import (
    Conversation,
    TokenEstimate,
    Turn,
    calibrate_estimate,
    list_versions,
    turns_to_forget,
    walk_branches,
)
from eaglelocal.conversation.pictures import check_picture
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError

PNG = image_bytes()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
TURNS = st.lists(st.builds(Turn, question=TEXT, answer=TEXT, stopped=st.booleans()), max_size=6)


def test_messages_are_system_turns_question() -> None:
    conversation = Conversation("be brief", [Turn("a", "b"), Turn("c", "d")], num_forgotten=1)
    sent = [(message.role, message.content) for message in conversation.messages(Turn("e", ""))]
    assert sent == [("system", "be brief"), ("user", "c"), ("assistant", "d"), ("user", "e")]


def test_a_question_that_is_cut_and_answered_again_has_two_versions() -> None:
    old, new = Turn("c", "d"), Turn("c", "another")
    conversation = Conversation(turns=[Turn("a", "b"), old, Turn("e", "f")], num_forgotten=3, num_saved=3)
    conversation.cut(1)
    assert (conversation.turns, conversation.num_saved) == ([Turn("a", "b")], 1)
    assert conversation.num_forgotten == 0  # turns before it may fit again
    conversation.add(new)
    assert conversation.turns[1] == Turn("c", "another", others=((old, Turn("e", "f")),), version=1)
    conversation.choose_version(1, 0)
    assert conversation.turns[1:] == [Turn("c", "d", others=((new,),), version=0), Turn("e", "f")]


def test_without_an_answer_the_cut_turns_come_back() -> None:
    conversation = Conversation(turns=[Turn("a", "b"), Turn("c", "d")])
    conversation.cut(0)
    assert conversation.restore()
    assert conversation.turns == [Turn("a", "b"), Turn("c", "d")]
    assert not conversation.restore()


def test_a_question_without_an_answer_is_kept_but_not_sent_again() -> None:
    conversation = Conversation(turns=[Turn("a", "b"), Turn("c", "", stopped=True, reasoning="hm"), Turn("d", "")])
    assert [message.content for message in conversation.messages(Turn("e", ""))] == ["a", "b", "d", "", "e"]
    del conversation.turns[2]
    conversation.cut(1)
    conversation.add(Turn("c", "d"))
    assert conversation.turns == [Turn("a", "b"), Turn("c", "d")]  # what was without an answer is no version of it


STEPS = st.lists(st.tuples(st.sampled_from(["ask", "cut", "choose"]), st.integers(0, 5), TEXT), max_size=25)


@given(STEPS)
def test_no_answer_is_ever_lost_and_versions_keep_their_order(steps: list[tuple[str, int, str]]) -> None:
    conversation, answers = Conversation(), list[str]()
    for number, (step, at, text) in enumerate(steps):
        if step == "choose" and conversation.turns:
            index = at % len(conversation.turns)
            version = number % conversation.turns[index].num_versions
            before = list_versions(tuple(conversation.turns[index:]))
            conversation.choose_version(index, version)
            assert conversation.turns[index].version == version
            assert list_versions(tuple(conversation.turns[index:])) == before
        elif step != "choose":
            if step == "cut":
                conversation.cut(at % (len(conversation.turns) + 1))
            answers.append(f"{number} {text}")
            conversation.add(Turn("q", answers[-1]))
    kept = [turn.answer for branch in walk_branches(tuple(conversation.turns)) for turn in branch]
    assert sorted(kept) == sorted(answers)


@given(steps=STEPS)
def test_versions_are_saved_and_an_older_program_reads_those_that_are_chosen(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, str]]
) -> None:
    conversation = Conversation()
    for _step, at, text in steps:
        conversation.cut(at % (len(conversation.turns) + 1))
        conversation.add(Turn("q", text))
    folder = tmp_path_factory.mktemp("talks")
    conversation_file.save(conversation, folder / "talk.json", target="m")
    loaded = conversation_file.load_conversation(folder, "talk")
    assert loaded.turns == conversation.turns
    written = json.loads((folder / "talk.json").read_text())
    assert [(turn["question"], turn["answer"]) for turn in written["turns"]] == [("q", t.answer) for t in loaded.turns]


def test_versions_that_go_upwards_many_times_can_be_read_again(tmp_path: Path) -> None:
    conversation = Conversation(turns=[Turn("q", str(number)) for number in range(200)])
    for index in reversed(range(200)):
        conversation.cut(index)
        conversation.add(Turn("q", "again"))
    conversation_file.save(conversation, tmp_path / "talk.json", target="m")
    loaded = conversation_file.load_conversation(tmp_path, "talk")
    assert sum(map(len, walk_branches(tuple(loaded.turns)))) == 400


def test_a_branch_has_the_turns_so_far_without_their_versions() -> None:
    conversation = Conversation("s", [Turn("a", "b"), Turn("c", "d")], name="x", sampling={"top_k": 3})
    conversation.cut(0)
    conversation.add(Turn("a", "other"))
    branched = conversation.branch(0)
    assert (branched.turns, branched.name, branched.system) == ([Turn("a", "other")], "", "s")
    assert branched.sampling == {"top_k": 3}


@pytest.mark.parametrize(
    "fields",
    [
        {"others": 3},
        {"others": [[]]},
        {"others": [3]},
        {"turn": {"others": [0], "version": 0}},
        {"turn": {"others": [-1], "version": 0}, "others": [[{"question": "a", "answer": "b"}]]},
        {"turn": {"others": [0, 0], "version": 1}, "others": [[{"question": "a", "answer": "b"}]]},
        {"turn": {"others": [[0]], "version": 0}, "others": [[{"question": "a", "answer": "b"}]]},
        {"others": [[{"question": "a"}]]},
    ],
)
def test_wrong_versions_are_reported(tmp_path: Path, fields: dict[str, object]) -> None:
    turn = {"question": "a", "answer": "b"} | fields.pop("turn", {})  # type: ignore[operator]
    (tmp_path / "x.json").write_text(json.dumps({"version": 1, "turns": [turn], **fields}))
    with pytest.raises(UsageError, match=r"others|versions|needs a question"):
        conversation_file.load_conversation(tmp_path, "x")


def test_other_versions_are_found_by_their_words(tmp_path: Path) -> None:
    conversation = Conversation(turns=[Turn("Eagles?", "old")])
    conversation.cut(0)
    conversation.add(Turn("Owls?", "new"))
    conversation_file.save(conversation, tmp_path / "x.json", target="m")
    (tmp_path / "y.json").write_text("[]")
    assert dict(conversation_file.read_search_texts(tmp_path, ["x", "y"])) == {"x": "owls?\nnew\neagles?\nold"}


def test_pictures_of_other_versions_are_stored_too(tmp_path: Path) -> None:
    picture = check_picture("cat.png", PNG)
    conversation = Conversation(turns=[Turn("a", "b", pictures=(picture,))])
    conversation.cut(0)
    conversation.add(Turn("c", "d"))
    conversation_file.save(conversation, tmp_path / "x.json", target="m")
    assert conversation_file.load_conversation(tmp_path, "x").turns[0].others[0][0].pictures[0].data == PNG


def test_a_cut_within_left_out_turns_sends_what_fits_before_it_again() -> None:
    conversation = Conversation(turns=[Turn(f"q{number}", f"a{number}") for number in range(12)], num_forgotten=6)
    conversation.cut(5)
    begun = Turn("edited", "")
    num_left_out = turns_to_forget(conversation, begun, estimate=TokenEstimate(), n_ctx=4000, max_tokens=None)
    sent = [message.content for message in conversation.messages(begun, num_forgotten=num_left_out)]
    assert sent == [*(text for number in range(5) for text in (f"q{number}", f"a{number}")), "edited"]


def test_tools_take_room_from_the_turns() -> None:
    conversation = Conversation(turns=[Turn("q" * 400, "a" * 400)] * 6)
    left_out = [
        turns_to_forget(
            conversation, Turn("q", ""), estimate=TokenEstimate(num_tool_chars=chars), n_ctx=4096, max_tokens=None
        )
        for chars in (0, 6000)
    ]
    assert left_out[0] == 0 < left_out[1]


def test_turns_that_are_about_to_be_replaced_are_saved_too(tmp_path: Path) -> None:
    conversation = Conversation(turns=[Turn(f"q{number}", "a") for number in range(5)])
    conversation.cut(1)
    conversation_file.save(conversation, tmp_path / "talk.json", target="m")
    assert len(conversation_file.load_conversation(tmp_path, "talk").turns) == 5
    assert conversation.num_saved == 1


def test_long_conversations_are_measured_once_a_turn() -> None:
    """As slow as the square of the turns, this would take minutes."""
    conversation = Conversation(turns=[Turn("question", "answer" * 20)] * 10_000)
    assert turns_to_forget(conversation, Turn("q", ""), estimate=TokenEstimate(), n_ctx=10**6, max_tokens=None) == 0


@given(TEXT, TURNS)
def test_what_is_saved_is_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, system: str, turns: list[Turn]
) -> None:
    folder = tmp_path_factory.mktemp("talks")
    conversation_file.save(Conversation(system, turns), folder / "talk.json", target="m")
    loaded = conversation_file.load_conversation(folder, "talk")
    assert (loaded.system, loaded.turns, loaded.name) == (system, turns, "talk")


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "talk.json"
    conversation_file.save(Conversation(turns=[Turn("a", "b")]), path, target="m")
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="No space left"):
        conversation_file.save(Conversation(turns=[Turn("more", "b")]), path, target="m")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["talk.json"]


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "talk.json"
    conversation_file.save(Conversation(turns=[Turn("a", "b")]), path, target="m")
    assert path.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot write"):
        conversation_file.save(Conversation(turns=[Turn("a", "b")]), tmp_path / "file" / "talk.json", target="m")


@pytest.mark.parametrize(
    "name", ["../up", "/etc/passwd", "a/b", "..", ".hidden", "", " ", "a\nb", "x" * 200, "a\0b", "-f"]
)
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="invalid name"):
        conversation_file.find_path(tmp_path, name)


@given(st.text(max_size=100))
def test_every_name_stays_in_the_folder(name: str) -> None:
    folder = Path("/talks")
    try:
        path = conversation_file.find_path(folder, name)
    except UsageError:
        return
    assert path.parent == folder
    assert path.suffix == ".json"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not a conversation"),
        ("[]", "no turns"),
        ('{"version": 1}', "no turns"),
        ('{"version": 2, "turns": []}', "version 2"),
        ('{"version": 1, "turns": 3}', "turns a list"),
        ('{"version": 1, "system": 3, "turns": []}', "system must be text"),
        ('{"version": 1, "turns": [{"question": "a", "answer": "b"}, {"question": 1}]}', "turn 2"),
        ('{"version": 1, "turns": ["a"]}', "turn 1"),
        ("[" * 100_000, "not a conversation"),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "talk.json").write_text(content)
    with pytest.raises(UsageError, match=complaint):
        conversation_file.load_conversation(tmp_path, "talk")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
    )
)
def test_any_json_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    folder = tmp_path_factory.mktemp("talks")
    (folder / "talk.json").write_text(json.dumps({"version": 1, "turns": [content]}))
    with pytest.raises(EagleLocalError, match="turn 1"):
        conversation_file.load_conversation(folder, "talk")


def test_binary_rubbish_is_refused(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a conversation"):
        conversation_file.load_conversation(tmp_path, "talk")


def test_a_mistyped_name_gets_the_nearest(tmp_path: Path) -> None:
    conversation_file.save(Conversation(turns=[Turn("a", "b")]), tmp_path / "holiday.json", target="m")
    with pytest.raises(UsageError) as caught:
        conversation_file.load_conversation(tmp_path, "holliday")
    assert caught.value.hint == "/load holiday"


@pytest.mark.parametrize("max_tokens", [None, 10**6])
def test_nothing_is_forgotten_while_it_fits(max_tokens: int | None) -> None:
    """A limit beyond the context does not cost the conversation."""
    conversation = Conversation(turns=[Turn("q" * 100, "a" * 100)] * 3)
    assert (
        turns_to_forget(conversation, Turn("q", ""), estimate=TokenEstimate(0.1), n_ctx=2048, max_tokens=max_tokens)
        == 0
    )


@given(TURNS, TEXT, st.integers(1, 400), st.none() | st.integers(1, 500))
def test_what_fits_without_some_turns_is_made_to_fit(
    turns: list[Turn], question: str, n_ctx: int, max_tokens: int | None
) -> None:
    conversation, estimate, begun = Conversation("system", turns), TokenEstimate(), Turn(question, "")
    room = n_ctx - (n_ctx // 4 if max_tokens is None else min(max_tokens, n_ctx * 3 // 4))
    num = turns_to_forget(conversation, begun, estimate=estimate, n_ctx=n_ctx, max_tokens=max_tokens)
    fits = [estimate.count_tokens(conversation.messages(begun, num_forgotten=n)) <= room for n in range(len(turns) + 1)]
    assert (num == 0) == (fits[0] or not turns)
    assert fits[num] or not any(fits)
    assert num < len(turns) or not any(fits[:num])  # the last turn stays if it can


def test_turns_are_forgotten_some_at_a_time() -> None:
    """Each time the whole prompt is read anew."""
    conversation, estimate, forgotten = Conversation(), TokenEstimate(0.25), []
    for _ in range(100):
        conversation.num_forgotten = turns_to_forget(
            conversation, Turn("q" * 100, ""), estimate=estimate, n_ctx=2000, max_tokens=None
        )
        forgotten.append(conversation.num_forgotten)
        conversation.turns.append(Turn("q" * 100, "a" * 100))
    assert len(set(forgotten)) <= 15  # each of about six turns
    assert forgotten[-1] >= 75


def test_the_estimate_learns_what_the_engine_counted() -> None:
    messages = Conversation(turns=[Turn("q" * 500, "a" * 500)]).messages(Turn("x" * 10, ""))
    assert calibrate_estimate(messages, 700).count_tokens(messages) == 700

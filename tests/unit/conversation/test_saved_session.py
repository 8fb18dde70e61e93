"""Saving a session and going on with it: one file for a conversation, nothing lost, the same model and settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.image_files import image_bytes
from doubles.scripted_client import ScriptedClient, join_nothing, scripted_plan

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import ActionContext
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.pictures import check_picture
from eaglelocal.conversation.sampling_form import set_field
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session, resume_conversation, save_session
from eaglelocal.conversation.slash_commands import parse_command, run_command
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import ModelFileError, UsageError

ONE, TWO, THREE = Turn("one", "1"), Turn("two", "2"), Turn("three", "3")


class Notes:
    """A `MessageOutput` that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str = "") -> None:
        self.lines.append(text)

    note = message


def load(plan: Plan) -> ActiveModel:
    if plan.target_label == "gone":
        raise ModelFileError("no file gone.gguf")
    client = ScriptedClient((), label=plan.target_label)
    return ActiveModel(client, plan, client.info)


def make_session(conversation: Conversation | None = None, *, target: str = "first", keeps: bool = False) -> Session:
    loader = ModelLoader(lambda choice: scripted_plan(choice.target or target), load, join_nothing)
    model = load(loader.plan(ModelChoice()))
    params = SamplingParams(temperature=0.7, left_open=frozenset({"temperature", "top_k"}))
    begun = conversation or Conversation()
    return Session(loader, model, params, conversation=begun, target=target, keeps_model=keeps)


def run(session: Session, folder: Path, *lines: str) -> list[str]:
    notes = Notes()
    for line in lines:
        run_command(ActionContext(session, notes, folder), parse_command(line))  # type: ignore[arg-type]
    return notes.lines


# ---- two chats, one file
def test_two_chats_on_one_conversation_lose_no_turn(tmp_path: Path) -> None:
    save_session(make_session(Conversation(turns=[ONE])), tmp_path)
    first, second = (make_session(conversation_file.load_conversation(tmp_path, "one")) for _ in range(2))
    first.conversation.add(TWO)
    assert save_session(first, tmp_path).notice == ""
    second.conversation.add(THREE)
    saved = save_session(second, tmp_path)
    assert saved.notice == "another chat has changed 'one', so this one is now saved as 'one 2'"
    first.conversation.add(THREE)
    second.conversation.add(TWO)
    assert [save_session(each, tmp_path).notice for each in (first, second)] == ["", ""]
    assert conversation_file.load_conversation(tmp_path, "one").turns == [ONE, TWO, THREE]
    assert conversation_file.load_conversation(tmp_path, "one 2").turns == [ONE, THREE, TWO]


def test_a_conversation_that_another_chat_deleted_is_saved_again(tmp_path: Path) -> None:
    session = make_session(Conversation(turns=[ONE]))
    save_session(session, tmp_path)
    conversation_file.delete(tmp_path, "one")
    assert save_session(session, tmp_path).notice == ""
    assert conversation_file.list_names(tmp_path) == ("one",)


def test_what_another_chat_wrote_stays_where_it_is_when_this_one_moves(tmp_path: Path) -> None:
    save_session(make_session(Conversation(turns=[ONE])), tmp_path)
    first, second = (make_session(conversation_file.load_conversation(tmp_path, "one")) for _ in range(2))
    first.conversation.add(TWO)
    save_session(first, tmp_path)
    run(second, tmp_path, "/save mine")
    assert conversation_file.load_conversation(tmp_path, "one").turns == [ONE, TWO]
    assert conversation_file.load_conversation(tmp_path, "mine").turns == [ONE]


@pytest.mark.parametrize(
    ("turns", "read"),
    [([ONE, TWO], [replace(ONE, others=((TWO,), (THREE, ONE))), TWO]), ([], [replace(TWO, others=((THREE, ONE),))])],
)
def test_versions_that_no_turn_names_are_kept(tmp_path: Path, turns: list[Turn], read: list[Turn]) -> None:
    def write(branch: list[Turn]) -> list[dict[str, str]]:
        return [{"question": turn.question, "answer": turn.answer} for turn in branch]

    content = {"version": 1, "turns": write(turns), "others": [write([TWO]), write([THREE, ONE])]}
    (tmp_path / "loose.json").write_text(json.dumps(content))
    session = make_session(conversation_file.load_conversation(tmp_path, "loose"))
    save_session(session, tmp_path)
    assert session.conversation.turns == conversation_file.load_conversation(tmp_path, "loose").turns == read


# ---- one conversation, one file
def test_a_saved_conversation_has_one_file_under_its_last_name(tmp_path: Path) -> None:
    session = make_session(Conversation(turns=[ONE]))
    save_session(session, tmp_path)
    lines = run(session, tmp_path, "/save holiday")
    assert lines == [f"saved as holiday, no longer as one: {tmp_path / 'holiday.json'}"]
    assert conversation_file.list_names(tmp_path) == ("holiday",)
    run(session, tmp_path, "/rename trip", "/save")
    assert conversation_file.list_names(tmp_path) == ("trip",)
    session.conversation.add(TWO)
    save_session(session, tmp_path)
    assert conversation_file.load_conversation(tmp_path, "trip").turns == [ONE, TWO]


def test_another_conversation_is_not_overwritten(tmp_path: Path) -> None:
    save_session(make_session(Conversation(turns=[ONE])), tmp_path)
    other = make_session(Conversation(turns=[TWO]))
    save_session(other, tmp_path)
    with pytest.raises(UsageError, match="'one' already exists"):
        run(other, tmp_path, "/save one")
    assert set(conversation_file.list_names(tmp_path)) == {"one", "two"}


def test_a_picture_names_a_conversation_without_words(tmp_path: Path) -> None:
    shown = Turn("", "a cat", pictures=(check_picture("cat.png", image_bytes()),))
    assert save_session(make_session(Conversation(turns=[shown])), tmp_path).path.stem == "image cat.png, 4x3"


# ---- model and settings
def test_a_conversation_goes_on_with_its_model(tmp_path: Path) -> None:
    save_session(make_session(Conversation(turns=[ONE]), target="eagle"), tmp_path)
    session = make_session()
    assert run(session, tmp_path, "/load one")[0] == "loading eagle, as before"
    assert (session.model.info.target, session.choice.target) == ("eagle", "eagle")


def test_a_named_model_stays_and_the_other_is_mentioned(tmp_path: Path) -> None:
    save_session(make_session(Conversation(turns=[ONE]), target="eagle"), tmp_path)
    session = make_session(keeps=True)
    assert run(session, tmp_path, "/load one")[0] == "the conversation was held with eagle; /model eagle loads it"
    assert session.model.info.target == "first"


def test_a_model_that_is_gone_leaves_the_present_one(tmp_path: Path) -> None:
    conversation = Conversation(turns=[ONE], target="gone", reference="gone")
    session, notes = make_session(), Notes()
    resume_conversation(session, conversation, notes)  # type: ignore[arg-type]
    assert notes.lines[-1] == "the conversation was held with gone, which cannot be loaded: no file gone.gguf"
    assert (session.model.info.target, session.conversation) == ("first", conversation)


def test_a_file_is_named_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_session(target="./a.gguf").reference == str(tmp_path / "a.gguf")
    assert make_session(target="demo@1b").reference == "demo@1b"


def test_what_was_set_comes_back_with_the_conversation(tmp_path: Path) -> None:
    session = make_session(Conversation(turns=[ONE]))
    run(session, tmp_path, "/set temperature 0.7", "/set seed 5", "/save warm")
    other = make_session()
    run(other, tmp_path, "/set top_p 0.5", "/load warm")
    assert (other.params.temperature, other.params.seed, other.params.top_p) == (0.7, 5, 1.0)
    assert other.params.left_open == {"top_k"}
    assert make_session(conversation_file.load_conversation(tmp_path, "warm")).params == other.params


def test_ones_own_settings_come_back_with_a_new_conversation(tmp_path: Path) -> None:
    run(make_session(Conversation(turns=[ONE])), tmp_path, "/set temperature 0.2", "/set max_tokens 9", "/save short")
    session = make_session()
    said = run(session, tmp_path, "/set top_p 0.5", "/load short", "/set seed 3")
    assert "sampling as in short: temperature 0.2, most tokens 9" in said
    run(session, tmp_path, "/clear")
    assert session.conversation.sampling == {"top_p": 0.5, "seed": 3}
    assert (session.params.temperature, session.params.max_tokens) == (0.7, None)


def test_values_that_no_chat_wrote_are_left_out(tmp_path: Path) -> None:
    values = {"temperature": 99, "top_p": "x", "seed": None, "top_k": True, "min_p": None, "cats": 1, "max_tokens": 7}
    session = make_session(Conversation(turns=[ONE]))
    path = save_session(session, tmp_path).path
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sampling": values, "reference": 3}))
    read = conversation_file.load_conversation(tmp_path, "one")
    assert (read.sampling, read.reference) == ({"seed": None, "max_tokens": 7}, "")


def test_a_value_is_set_in_a_session_of_its_own() -> None:
    session = make_session()
    session.set_params(set_field(session.params, "temperature", "0.2"))
    assert session.conversation.sampling == {"temperature": 0.2}

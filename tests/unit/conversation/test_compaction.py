"""A summary in place of old turns: what is sent, and when it no longer counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from doubles.scripted_client import Script, ScriptedClient, join_nothing, says, scripted_plan

from eaglelocal.conversation.ask import follow_answer
from eaglelocal.conversation.compaction import NUM_KEPT, SUMMARY_REQUEST, can_compact, compact, undo_compaction
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.conversation_file import load_conversation
from eaglelocal.conversation.session import (
    ActiveModel,
    AnswerEvents,
    ModelLoader,
    RequestOutcome,
    Session,
    save_session,
)
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError, UsageError

LONG = " and so on" * 20  # so that a summary is shorter


def make_session(*scripts: Script, turns: int, n_ctx: int = 2048) -> Session:
    client = ScriptedClient(scripts, n_ctx=n_ctx)
    plan = scripted_plan("m")
    model = ActiveModel(client, plan, client.info)
    past = [Turn(f"q{number}", f"a{number}" + LONG) for number in range(turns)]
    loader = ModelLoader(lambda choice: plan, lambda plan: model, join_nothing)
    return Session(loader, model, SamplingParams(), Conversation("be brief", past), choice=ModelChoice())


def follow(events: AnswerEvents) -> RequestOutcome:
    return follow_answer(events, lambda event: None)


def list_contents(session: Session) -> list[str]:
    return [message.content for message in session.conversation.messages(Turn("next", ""))]


def test_a_second_summary_is_made_of_the_first_and_the_turns_since() -> None:
    session = make_session(says("first summary"), says("second summary"), turns=NUM_KEPT + 1)
    assert re.fullmatch(r"1 turn summarized: \d+ to \d+ tokens; /undo takes it back", compact(session, follow))
    assert list_contents(session)[2:] == ["first summary", "q1", f"a1{LONG}", "q2", f"a2{LONG}", "next"]
    assert not can_compact(session.conversation)
    session.conversation.add(Turn("q3", "a3"))
    assert compact(session, follow)
    sent = [message.content for message in session.model.client.requests[-1].messages]  # type: ignore[attr-defined]
    assert sent[2:] == ["first summary", "q1", f"a1{LONG}", SUMMARY_REQUEST]
    assert list_contents(session)[2:] == ["second summary", "q2", f"a2{LONG}", "q3", "a3", "next"]
    undo_compaction(session.conversation)
    assert "q0" in list_contents(session)
    with pytest.raises(UsageError, match="no summary to undo"):
        undo_compaction(session.conversation)


def test_a_summary_of_turns_that_were_replaced_is_not_sent() -> None:
    session = make_session(says("summary"), turns=NUM_KEPT + 1)
    compact(session, follow)
    session.conversation.turns[0] = Turn("q0", "another answer")
    assert session.conversation.summary is None
    assert "summary" not in list_contents(session)


def test_a_summary_that_is_not_shorter_is_not_used() -> None:
    session = make_session(says(f"summary{LONG * 2}"), turns=NUM_KEPT + 1)
    with pytest.raises(UsageError, match="summary of 1 turn is not shorter"):
        compact(session, follow)
    assert session.conversation.summarized is None


def test_a_failed_summary_changes_nothing() -> None:
    session = make_session(Script(("half",), fails=EngineError("it crashed")), turns=NUM_KEPT + 1)
    with pytest.raises(EngineError, match="it crashed"):
        compact(session, follow)
    assert session.conversation.summarized is None


def test_a_conversation_longer_than_the_context_is_summarized_from_its_end() -> None:
    session = make_session(says("summary"), turns=60, n_ctx=400)
    assert compact(session, follow)
    sent = [message.content for message in session.model.client.requests[-1].messages]  # type: ignore[attr-defined]
    assert "q0" not in sent and f"q{60 - NUM_KEPT - 1}" in sent


def test_a_summary_is_saved_and_can_be_undone_after_reopening(tmp_path: Path) -> None:
    session = make_session(says("summary"), turns=NUM_KEPT + 1)
    save_session(session, tmp_path, "long")
    compact(session, follow)
    assert session.conversation.num_saved == 0  # so that leaving saves it
    save_session(session, tmp_path)
    sent = list_contents(session)
    assert "summary" in sent and "q0" not in sent
    session.open_conversation(load_conversation(tmp_path, "long"))
    assert list_contents(session) == sent
    undo_compaction(session.conversation)
    save_session(session, tmp_path)
    session.open_conversation(load_conversation(tmp_path, "long"))
    assert "q0" in list_contents(session)


def test_the_turns_of_a_summary_count_as_left_out_after_reopening(tmp_path: Path) -> None:
    session = make_session(says("summary"), turns=NUM_KEPT + 8)
    compact(session, follow)
    save_session(session, tmp_path, "long")
    reopened = load_conversation(tmp_path, "long")
    assert reopened.num_forgotten == session.conversation.num_forgotten == 8
    reopened.cut(2)
    assert reopened.num_forgotten == 0  # the summary is of other turns
    assert reopened.restore() and reopened.num_forgotten == 8


@pytest.mark.parametrize(
    "summary", [None, 3, {"text": "s", "num_turns": 1}, {"text": "s", "num_turns": -1, "last_answer": ""}]
)
def test_a_malformed_summary_is_none(tmp_path: Path, summary: object) -> None:
    turns = [{"question": "q", "answer": ""}]
    (tmp_path / "x.json").write_text(json.dumps({"version": 1, "turns": turns, "summary": summary}))
    assert load_conversation(tmp_path, "x").summary is None

"""Calls of tools in a chat: what is offered, asked, run, cut, sent back and recorded. Over scripted servers."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.property_tests import examples
from doubles.scripted_client import Script, ScriptedClient, calls, join_nothing, says, scripted_plan
from doubles.scripted_tools import CLOCK, PAGE, ScriptedPool, ScriptedReviewer, make_tools
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.cli.output import standard_output
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import ActionContext
from eaglelocal.conversation.ask import AskResult, ask, follow_answer
from eaglelocal.conversation.chat_tools import MAX_OFFERED, ChatTools, Permission, find_grant, make_offer
from eaglelocal.conversation.conversation import CompletedCall, Conversation, ToolRound, Turn
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.conversation.slash_commands import Command, run_command
from eaglelocal.conversation.stored_permissions import StoredPermissions
from eaglelocal.conversation.tool_rounds import (
    MAX_CALLS,
    MAX_ROUNDS,
    MIN_RESULT_CHARS,
    cut_result,
    describe_call,
    shrink_results,
)
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.tools import ToolCall, ToolUse
from eaglelocal.errors import Cancelled, UsageError
from eaglelocal.tool_servers.server_list import ServerSpec
from eaglelocal.tool_servers.tool_results import ServerTool, ToolResult


def make_session(tools: ChatTools, *scripts: Script, n_ctx: int = 8192, takes_tools: bool = True) -> Session:
    client = ScriptedClient(scripts, n_ctx=n_ctx)
    model = ActiveModel(client, scripted_plan("m"), replace(client.info, takes_tools=takes_tools))
    return Session(
        ModelLoader(lambda _: scripted_plan("m"), lambda _: model, join_nothing), model, SamplingParams(), tools=tools
    )


def run(session: Session, reviewer: ScriptedReviewer) -> AskResult:
    return ask(session, "what?", lambda events: follow_answer(events, lambda _: None), (), reviewer)


def sent(session: Session, index: int = -1) -> list[tuple[str, str]]:
    assert isinstance(session.model.client, ScriptedClient)
    return [(message.role, message.content) for message in session.model.client.requests[index].messages]


def test_a_call_is_shown_run_and_sent_back(tmp_path: Path) -> None:
    pool = ScriptedPool(results={"now": ToolResult("noon", num_chars=4)})
    session = make_session(
        make_tools(tmp_path, pool), calls("now", '{"zone": "UTC"}', text="Let me see."), says("It is noon")
    )
    reviewer = ScriptedReviewer()
    outcome = run(session, reviewer).outcome
    assert outcome.text == "It is noon"
    assert [(each.label, each.arguments) for each in reviewer.reviews] == [("time.now", '{"zone": "UTC"}')]
    assert pool.called == [("time.now", {"zone": "UTC"})]
    assert sent(session) == [("user", "what?"), ("assistant", "Let me see."), ("tool", "noon")]
    first, second = session.model.client.requests  # type: ignore[attr-defined]
    assert [tool.name for tool in first.tools] == ["now", "fetch"]
    assert second.messages[1].tool_calls == (ToolCall("call_0", "now", '{"zone": "UTC"}'),)
    assert second.messages[2].tool_call_id == "call_0"
    assert [describe_call(done) for done in reviewer.rounds[0].calls] == ['time.now {"zone": "UTC"} -> 4 characters']
    assert len(session.answers) == 2  # of both requests, for /stats


def test_a_permission_that_cannot_be_stored_is_for_this_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    session = make_session(make_tools(tmp_path / "file" / "folder"), calls("now"), says("done"))
    reviewer = ScriptedReviewer((Permission.ALWAYS,))
    assert run(session, reviewer).outcome.text == "done"
    assert reviewer.rounds[0].calls[0].state == "done"
    assert "Not a directory, so time.now is allowed this time only" in reviewer.notes[-1]


def test_what_is_allowed_in_a_chat_is_asked_again_in_another_conversation(tmp_path: Path) -> None:
    reviewer = ScriptedReviewer((Permission.CHAT,))
    tools = replace(make_tools(tmp_path), granted={("web", "")})
    session = make_session(tools, *[calls("now"), calls("fetch"), says("done")] * 3)
    run(session, reviewer)
    context = ActionContext(session, standard_output(), tmp_path)
    run_command(context, Command("/clear"))
    run(session, reviewer)
    session.open_conversation(Conversation())
    run(session, reviewer)
    assert [review.label for review in reviewer.reviews] == ["time.now"] * 3  # web.fetch is allowed by a flag


def test_two_chats_that_allow_tools_at_once_lose_none(tmp_path: Path) -> None:
    pool = ScriptedPool()
    chats = [make_tools(tmp_path, pool) for _ in range(2)]
    tools = [ServerTool("web", f"tool {number}") for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda at: chats[at % 2].allow(tools[at], Permission.ALWAYS), range(20)))
        assert all(map(chats[0].is_allowed, tools))
        list(threads.map(lambda at: chats[at % 2].allowed.remove("web", tools[at].name), range(20)))  # type: ignore[union-attr]
    assert not any(map(chats[0].is_allowed, tools))


def test_the_next_question_is_sent_with_earlier_calls(tmp_path: Path) -> None:
    session = make_session(make_tools(tmp_path), calls("now"), says("noon"), says("evening"))
    run(session, ScriptedReviewer())
    run(session, ScriptedReviewer())
    assert [role for role, _ in sent(session)] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize(
    ("answers", "num_reviews"),
    [
        ((Permission.NO,), 3),
        ((Permission.ONCE,), 3),
        ((Permission.CHAT,), 1),
        ((Permission.ALWAYS,), 1),
        ((Permission.NO, Permission.CHAT), 2),
    ],
)
def test_an_answer_holds_for_as_long_as_it_says(
    tmp_path: Path, answers: tuple[Permission, ...], num_reviews: int
) -> None:
    pool = ScriptedPool()
    session = make_session(make_tools(tmp_path, pool), *[calls("now")] * 3, says("done"))
    reviewer = ScriptedReviewer(answers)
    run(session, reviewer)
    assert len(reviewer.reviews) == num_reviews
    assert len(pool.called) == (0 if answers == (Permission.NO,) else 3 - answers.count(Permission.NO))
    refused = [done.state == "refused" for each in reviewer.rounds for done in each.calls]
    assert refused == [answer is Permission.NO for answer in (*answers, *[answers[-1]] * 3)][:3]


def test_always_is_for_other_chats_too_until_the_command_changes(tmp_path: Path) -> None:
    tools = make_tools(tmp_path)
    tools.start(lambda: False)
    tools.allow(CLOCK, Permission.ALWAYS)
    assert make_tools(tmp_path).is_allowed(CLOCK)
    assert not make_tools(tmp_path).is_allowed(PAGE)
    allowed = StoredPermissions(tmp_path / "allowed.json")
    other = ServerSpec(name="time", command="serve-time", args=("--elsewhere",))
    assert allowed.is_allowed(tools.pool.specs["time"], "now") and not allowed.is_allowed(other, "now")
    tools.forget("time")
    assert not make_tools(tmp_path).is_allowed(CLOCK)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[["time", "now"]]', '{"time": true}', "[" * 200])
def test_a_file_that_cannot_be_read_allows_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "allowed.json").write_text(content)
    assert not make_tools(tmp_path).is_allowed(CLOCK)


def test_every_call_of_an_answer_is_asked_about(tmp_path: Path) -> None:
    script = calls("now", "{}", ("fetch", '{"url": "x"}'), ("now", "{}"))
    reviewer = ScriptedReviewer((Permission.ONCE, Permission.NO, Permission.ONCE))
    session = make_session(make_tools(tmp_path), script, says("done"))
    run(session, reviewer)
    assert [each.label for each in reviewer.reviews] == ["time.now", "web.fetch", "time.now"]
    assert [done.state for done in reviewer.rounds[0].calls] == ["done", "refused", "done"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (calls("then"), "there is no tool then; there are: now, fetch"),
        (calls("now", "{half"), "the arguments are not a JSON object"),
        (calls("now", "[1]"), "it is no JSON object"),
        (calls("now", "[" * 5000), "deeper"),
    ],
)
def test_a_call_that_cannot_be_run_is_answered(tmp_path: Path, script: Script, reason: str) -> None:
    pool, reviewer = ScriptedPool(), ScriptedReviewer()
    run(make_session(make_tools(tmp_path, pool), script, says("done")), reviewer)
    (done,) = reviewer.rounds[0].calls
    assert done.state == "refused" and reason in done.result
    assert not pool.called and not reviewer.reviews


def test_a_model_that_only_calls_has_to_answer_in_the_end(tmp_path: Path) -> None:
    session, reviewer = make_session(make_tools(tmp_path), calls("now")), ScriptedReviewer()
    run(session, reviewer)
    choices = [request.tool_choice.use for request in session.model.client.requests]  # type: ignore[attr-defined]
    assert choices == [ToolUse.AUTO] * MAX_ROUNDS + [ToolUse.NONE]
    assert len(reviewer.rounds) == MAX_ROUNDS and "has to answer" in reviewer.notes[-1]


def test_only_so_many_calls_of_an_answer_are_run(tmp_path: Path) -> None:
    pool = ScriptedPool()
    run(
        make_session(make_tools(tmp_path, pool), calls("now", "{}", *[("now", "{}")] * 40), says("done")),
        ScriptedReviewer(),
    )
    assert len(pool.called) == MAX_CALLS


@pytest.mark.parametrize("at", ["starting", "calling"])
def test_stopping_while_a_server_works_ends_the_answer(tmp_path: Path, at: str) -> None:
    session = make_session(make_tools(tmp_path, ScriptedPool(hangs=True)), calls("now"), says("never"))
    outcome = run(session, ScriptedReviewer(stops_at=at)).outcome
    assert isinstance(outcome.error, Cancelled) and not outcome.text
    assert len(session.model.client.requests) == (at == "calling")  # type: ignore[attr-defined]
    (turn,) = session.conversation.turns
    assert (turn.question, turn.stopped, turn.is_answered) == ("what?", True, at == "calling")


def test_a_reasoning_model_gets_its_thoughts_back_within_a_turn_only(tmp_path: Path) -> None:
    session = make_session(make_tools(tmp_path), replace(calls("now"), thought="hm"), says("noon"), says("evening"))
    run(session, ScriptedReviewer())
    run(session, ScriptedReviewer())
    reasonings = [[message.reasoning for message in each.messages] for each in session.model.client.requests]  # type: ignore[attr-defined]
    assert reasonings[1] == ["", "hm", ""] and set(reasonings[2]) == {""}


# ---- what is offered
@pytest.mark.parametrize("are_wanted", [True, False])
def test_a_template_without_tools_is_offered_none_and_that_is_said_once_if_they_are_wanted(
    tmp_path: Path, are_wanted: bool
) -> None:
    pool, reviewer = ScriptedPool(), ScriptedReviewer()
    tools = replace(make_tools(tmp_path, pool), are_wanted=are_wanted)
    session = make_session(tools, says("a"), takes_tools=False)
    without = session.model
    for takes_tools in (False, True, False):  # as after /model
        session.model = replace(without, info=replace(without.info, takes_tools=takes_tools))
        run(session, reviewer)
    assert reviewer.notes == are_wanted * ["this model's template has no tools, so it is offered none"]
    assert not session.model.client.requests[0].tools  # type: ignore[attr-defined]


def test_a_server_that_fails_is_named_and_the_others_are_offered(tmp_path: Path) -> None:
    pool, reviewer = ScriptedPool(failing={"bad": "command not found: 'bad'"}), ScriptedReviewer()
    session = make_session(make_tools(tmp_path, pool), says("a"))
    run(session, reviewer)
    assert reviewer.notes == ["tool server bad failed: command not found: 'bad'"]
    assert len(session.model.client.requests[0].tools) == 2  # type: ignore[attr-defined]


def test_without_a_person_only_allowed_tools_are_offered(tmp_path: Path) -> None:
    pool = ScriptedPool()
    tools = replace(make_tools(tmp_path, pool, can_ask=False), are_wanted=True)
    reviewer = ScriptedReviewer()
    run(make_session(tools, says("a")), reviewer)
    assert not pool.started and "nobody can be asked" in reviewer.notes[0]
    make_tools(tmp_path).allowed.add(pool.specs["web"], "fetch")  # type: ignore[union-attr]
    session = make_session(tools, says("a"))
    run(session, reviewer)
    assert pool.started == {"web"}
    assert [tool.name for tool in session.model.client.requests[0].tools] == ["fetch"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("granted", [("web", ""), ("web", "fetch")])
def test_tools_can_be_allowed_by_name(tmp_path: Path, granted: tuple[str, str]) -> None:
    pool, reviewer = ScriptedPool(), ScriptedReviewer((Permission.NO,))
    tools = replace(make_tools(tmp_path, pool, can_ask=False), granted={granted})
    run(make_session(tools, calls("fetch"), calls("now"), says("a")), reviewer)
    assert [label for label, _ in pool.called] == ["web.fetch"] and not reviewer.reviews


def test_a_tool_that_is_allowed_and_does_not_exist_is_named(tmp_path: Path) -> None:
    reviewer = ScriptedReviewer()
    tools = replace(make_tools(tmp_path, can_ask=False), granted={("web", "nope")}, are_wanted=True)
    run(make_session(tools, says("a")), reviewer)
    assert reviewer.notes == ["web has no tool 'nope'; it has fetch"]


def test_a_switched_off_tool_is_not_offered_and_its_server_is_not_started(tmp_path: Path) -> None:
    pool = ScriptedPool()
    tools = make_tools(tmp_path, pool)
    tools.switch("web", is_on=False)
    tools.start(lambda: False)
    assert pool.started == {"time"}
    assert list(tools.offer(8192).by_name) == ["now"]
    tools.switch("now", is_on=False)
    assert not tools.offer(8192).by_name
    tools.switch("time.now", is_on=True)
    assert list(tools.offer(8192).by_name) == ["now"]
    with pytest.raises(UsageError, match="no server or tool is called 'nothing'"):
        tools.switch("nothing", is_on=True)


TOOLS = st.builds(
    ServerTool,
    server=st.sampled_from(["a", "b", "c d"]),
    name=st.text(max_size=80),
    description=st.text(max_size=300),
    parameters=st.sampled_from(["{}", '{"type":"object"}', f'{{"description":"{"x" * 900}"}}']),
)


@examples(50)
@given(st.lists(TOOLS, max_size=MAX_OFFERED + 20), st.integers(0, 6000))
def test_an_offer_fits_and_its_names_are_those_that_models_can_write(tools: list[ServerTool], num_chars: int) -> None:
    offer = make_offer(tools, num_chars)
    assert offer.num_chars <= num_chars and len(offer.by_name) <= MAX_OFFERED
    assert len(offer.by_name) + offer.num_left_out == len(tools)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in offer.by_name)


def test_tools_of_the_same_name_get_that_of_their_server() -> None:
    offer = make_offer([ServerTool("a", "get"), ServerTool("b", "get"), ServerTool("b", "get me")], 1000)
    assert list(offer.by_name) == ["get", "b_get", "get_me"]


# ---- results in the context
@given(st.text(max_size=500), st.integers(0, 600))
def test_a_cut_result_says_how_much_is_left_out(text: str, limit: int) -> None:
    cut = cut_result(text, len(text), limit)
    assert cut == text if len(text) <= limit else cut.startswith(text[:limit]) and f"of {len(text)} characters]" in cut


def test_results_share_a_part_of_the_context(tmp_path: Path) -> None:
    pool = ScriptedPool(results={"fetch": ToolResult("x" * 100_000, num_chars=5_000_000)})
    session = make_session(make_tools(tmp_path, pool), calls("fetch"), calls("fetch"), says("done"), n_ctx=2000)
    reviewer = ScriptedReviewer()
    run(session, reviewer)
    first, second = (each.calls[0].result for each in reviewer.rounds)
    assert first.endswith("[cut: these are the first 2000 of 5000000 characters]")
    assert second.endswith(f"[cut: these are the first {MIN_RESULT_CHARS} of 5000000 characters]")


def test_a_result_that_takes_too_many_tokens_is_cut_until_it_fits(tmp_path: Path) -> None:
    """The scripted engine counts a word as a token: these have two characters."""
    pool = ScriptedPool(results={"fetch": ToolResult("x " * 900, num_chars=1800)})
    session = make_session(make_tools(tmp_path, pool), calls("fetch"), says("done"), n_ctx=600)
    outcome = run(session, ScriptedReviewer()).outcome
    assert outcome.text == "done" and outcome.error is None
    assert "[cut: these are the first" in outcome.rounds[0].calls[0].result


def test_results_are_not_cut_for_ever() -> None:
    begun: Turn | None = Turn(
        "q", "", rounds=(ToolRound((CompletedCall(ToolCall("", "now", "{}"), "time.now", "x" * 10**6),)),)
    )
    num = 0
    while begun is not None:
        begun, num = shrink_results(begun), num + 1
    assert num < 20


# ---- conversations on disk
LONG = CompletedCall(ToolCall("c1", "fetch", '{"url": "`"}'), "web.fetch", "````\n<b>\x1b[2J", "failed")


def test_calls_are_saved_and_read_again(tmp_path: Path) -> None:
    rounds = (ToolRound((LONG, replace(LONG, state="refused")), "text", "thought"), ToolRound((LONG,)))
    saved = Conversation(turns=[Turn("q", "a", rounds=rounds), Turn("q", "a")])
    conversation_file.save(saved, tmp_path / "one.json", target="m")
    assert conversation_file.load_conversation(tmp_path, "one").turns == saved.turns
    assert "rounds" not in json.loads((tmp_path / "one.json").read_text())["turns"][1]


@pytest.mark.parametrize("rounds", [3, [3], [{}], [{"text": "", "reasoning": "", "calls": [{"id": "x"}]}], {"a": 1}])
def test_malformed_calls_are_refused_with_their_turn(tmp_path: Path, rounds: object) -> None:
    turn = {"question": "q", "answer": "a", "rounds": rounds}
    (tmp_path / "one.json").write_text(json.dumps({"version": 1, "turns": [turn]}))
    with pytest.raises(UsageError, match="turn 1 has invalid calls of tools"):
        conversation_file.load_conversation(tmp_path, "one")


def test_an_exported_result_stays_in_its_block() -> None:
    document = conversation_file.format_markdown(
        Conversation(turns=[Turn("q", "a", rounds=(ToolRound((LONG,)),))]), target="m"
    )
    assert "<summary>web.fetch {&quot;url&quot;: &quot;`&quot;} -&gt; failed: ````</summary>" in document
    assert "`````\n````\n<b>" in document


# ---- permissions
@pytest.mark.parametrize(
    ("name", "servers", "grant"),
    [
        ("time", ["time"], ("time", "")),
        ("time.now", ["time"], ("time", "now")),
        ("a.b", ["a", "a.b"], ("a.b", "")),
        ("a.b.c", ["a", "a.b"], ("a.b", "c")),
        ("a.b.c", ["a"], ("a", "b.c")),
        ("timer", ["time"], None),
    ],
)
def test_a_name_allows_a_server_or_one_of_its_tools(
    name: str, servers: list[str], grant: tuple[str, str] | None
) -> None:
    assert find_grant(name, servers) == grant

"""The chat's calls of a published tool server, over an engine in its own process, and over a running server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles import directed_server_engine
from doubles.running_server import directed, served
from doubles.scripted_client import join_nothing, scripted_plan
from doubles.scripted_tools import ScriptedReviewer

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.client.http_client import HttpClient
from eaglelocal.conversation.ask import ask, follow_answer
from eaglelocal.conversation.chat_tools import ChatTools
from eaglelocal.conversation.session import ActiveModel, ModelLoader, RequestOutcome, Session
from eaglelocal.conversation.stored_permissions import StoredPermissions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.tool_servers.server_list import ServerSpec
from eaglelocal.tool_servers.server_pool import ServerPool

pytest.importorskip("mcp_server_time")
pytestmark = pytest.mark.full
TIME = ServerSpec(name="time", command=sys.executable, args=("-m", "mcp_server_time"))


@pytest.fixture(params=["process", "server"])
def model(request: pytest.FixtureRequest) -> Iterator[ActiveModel]:
    if request.param == "process":
        plan = directed_server_engine.plan()
        with EngineClient(plan, builder=directed_server_engine.BUILDER) as engine:
            yield ActiveModel(engine, plan, engine.start())
        return
    with served(directed()) as server, HttpClient(server.url) as client:
        yield ActiveModel(client, None, client.start())


def run(session: Session, question: str, reviewer: ScriptedReviewer) -> RequestOutcome:
    return ask(session, question, lambda events: follow_answer(events, lambda _: None), (), reviewer).outcome


def test_a_model_calls_tools_and_goes_on_with_their_results(model: ActiveModel, tmp_path: Path) -> None:
    pool, reviewer = ServerPool([TIME]), ScriptedReviewer()
    loader = ModelLoader(lambda _: scripted_plan("m"), lambda _: model, join_nothing)
    tools = ChatTools(pool, StoredPermissions(tmp_path / "allowed.json"))
    session = Session(loader, model, SamplingParams(), tools=tools)
    try:
        call = 'call get_current_time {"timezone": "UTC"}'
        outcome = run(session, f"think it over\nsay Let me see.\n{call}\n{call}\nthen\nshow", reviewer)
    finally:
        pool.close()
    assert [each.label for each in reviewer.reviews] == ["time.get_current_time"] * 2
    (done,) = outcome.rounds
    assert (done.text, done.reasoning.strip()) == ("Let me see.", "it over")
    assert ['"timezone": "UTC"' in one.result for one in done.calls] == [True, True]
    ids = [one.call.id for one in done.calls]
    assert len(set(ids)) == 2
    for part in ("Let me see.", '"get_current_time"', "convert_time", *ids, '\\"timezone\\": \\"UTC\\"'):
        assert part in outcome.text, part  # the request as the engine sees it


def test_a_server_says_that_its_template_has_no_tools() -> None:
    with served(directed("thinker")) as server, HttpClient(server.url) as client:
        assert not client.start().takes_tools

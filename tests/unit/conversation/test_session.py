"""Changing the model of a session: when it is planned, and that the old one is restored if loading fails."""

from __future__ import annotations

import pytest
from doubles.scripted_client import ScriptedClient, join_nothing, says, scripted_plan

from eaglelocal.conversation.ask import ask, follow_answer
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError, ModelFileError


class Loads:
    """Plans what it is asked for, and loads it unless it is called `bad`; notes what was loaded at each planning."""

    def __init__(self) -> None:
        self.clients: list[ScriptedClient] = []
        self.num_alive: list[int] = []

    def session(self) -> Session:
        loader = ModelLoader(self.plan, self.load, self.join)
        return Session(loader, loader.load(loader.plan(ModelChoice())), SamplingParams())

    def plan(self, choice: ModelChoice) -> Plan:
        self.num_alive.append(sum(not client.num_closed for client in self.clients))
        return scripted_plan(choice.target or "first")

    def join(self, url: str) -> ActiveModel:
        if url != "http://there:1/v1":
            raise EngineError(f"no server answers at {url}")
        self.clients.append(ScriptedClient((), label="theirs"))
        return ActiveModel(self.clients[-1], None, self.clients[-1].info)

    def load(self, plan: Plan) -> ActiveModel:
        if plan.target_label == "bad":
            raise ModelFileError("bad cannot be loaded")
        self.clients.append(ScriptedClient((), label=plan.target_label))
        return ActiveModel(self.clients[-1], plan, self.clients[-1].info)


def test_what_comes_is_planned_with_the_memory_that_the_old_one_leaves() -> None:
    loads = Loads()
    session = loads.session()
    session.switch(ModelChoice(target="second"))
    assert session.model.info.target == "second"
    assert loads.num_alive == [0, 1, 0]  # refused before anything is given up, and planned when all is free


def test_the_same_model_is_not_loaded_twice() -> None:
    loads = Loads()
    session = loads.session()
    session.switch(ModelChoice(target="first"))
    assert len(loads.clients) == 1


def test_a_dead_engine_is_loaded_again_as_it_was() -> None:
    loads = Loads()
    session = loads.session()
    loads.clients[0].state = "failed"
    session.switch(ModelChoice(target="first"))
    assert len(loads.clients) == 2 and not loads.clients[-1].num_closed


def test_the_old_one_comes_back_when_the_new_one_cannot_be_loaded() -> None:
    loads = Loads()
    session = loads.session()
    with pytest.raises(ModelFileError):
        session.switch(ModelChoice(target="bad"))
    assert session.model.info.target == "first" and not loads.clients[-1].num_closed


def test_a_server_is_joined_in_place_of_a_model_and_the_other_way_round() -> None:
    loads = Loads()
    session = loads.session()
    session.switch(ModelChoice(target="http://there:1/v1"))
    assert session.model.info.target == "theirs" and session.model.plan is None and loads.clients[0].num_closed
    session.switch(ModelChoice(target="second"))
    assert session.model.info.target == "second" and loads.clients[1].num_closed
    with pytest.raises(EngineError):
        session.switch(ModelChoice(target="https://away"))
    assert session.model.info.target == "second" and not loads.clients[2].num_closed


def test_a_page_of_a_hub_is_no_server() -> None:
    loads = Loads()
    session = loads.session()
    session.switch(ModelChoice(target="https://hub.example/owner/model-GGUF"))
    assert session.model.info.target == "https://hub.example/owner/model-GGUF"


def test_the_context_is_counted_until_something_else_would_be_sent() -> None:
    client = ScriptedClient((says("two words"),))
    model = ActiveModel(client, None, client.info)
    session = Session(ModelLoader(lambda _: scripted_plan("m"), lambda _: model, join_nothing), model, SamplingParams())
    ask(session, "hello", lambda events: follow_answer(events, lambda event: None))
    assert (session.context_use.used, session.context_use.is_counted) == (3, True)
    session.conversation.system = "be brief"
    assert session.context_use.used > 3 and not session.context_use.is_counted


def test_turns_that_no_longer_fit_are_not_counted_after_a_conversation_is_opened() -> None:
    session = Loads().session()
    n_ctx = session.model.info.n_ctx
    session.open_conversation(Conversation(turns=[Turn("word " * n_ctx, "so many"), Turn("hello", "two words")]))
    assert 0 < session.context_use.used < n_ctx // 10

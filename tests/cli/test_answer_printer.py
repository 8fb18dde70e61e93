"""What a terminal shows of an answer whose text goes elsewhere."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from doubles.scripted_client import Script, ScriptedClient, join_nothing, scripted_plan

from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.output import Output
from eaglelocal.conversation.ask import follow_answer
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.core.events import Finished, RequestEvent
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams


class Events(list[RequestEvent]):
    def cancel(self) -> None: ...


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ask(stdout: io.StringIO, stderr: io.StringIO, *, quiet: bool = False) -> str:
    """Ask a model that thinks and return what stderr got."""
    client = ScriptedClient((Script(("yes",), thought="hm"),))
    model = ActiveModel(client, scripted_plan("m"), client.info)
    session = Session(ModelLoader(lambda _: scripted_plan("m"), lambda _: model, join_nothing), model, SamplingParams())
    Asker(session, Output(stdout=stdout, stderr=stderr, environ={"TERM": "xterm"}), quiet=quiet).ask("?")
    return stderr.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_thoughts_that_nobody_sees_are_counted_in_a_faint_line_that_is_erased(quiet: bool) -> None:
    stdout = io.StringIO()
    shown = ask(stdout, Terminal(), quiet=quiet)
    assert re.match(r"\r\x1b\[K\x1b\[2mthinking, 1 token · \d+ s\x1b\[0m\r\x1b\[K(?!\r)", shown)
    assert stdout.getvalue() == ("" if quiet else "yes\n")


def test_without_a_terminal_nothing_is_shown_of_thoughts() -> None:
    assert "thinking," not in ask(io.StringIO(), io.StringIO())


def test_thoughts_on_a_terminal_need_no_count() -> None:
    stdout = Terminal()
    assert "thinking," not in ask(stdout, Terminal()) and "hm" in stdout.getvalue()


def test_a_joined_server_that_is_away_or_has_another_model_is_mentioned() -> None:
    client, stderr = ScriptedClient((Script(("yes",)),)), io.StringIO()
    model = ActiveModel(client, None, client.info, read_info=lambda: replace(client.info, target="another"))
    session = Session(ModelLoader(lambda _: scripted_plan("m"), lambda _: model, join_nothing), model, SamplingParams())
    asker = Asker(session, Output(stdout=io.StringIO(), stderr=stderr, environ={}))
    client.state = "draining"
    asker.ask("?")
    assert stderr.getvalue().startswith("the server takes no new questions; the question waits for it\n")
    client.state = "ready"
    asker.ask("?")
    asker.ask("?")
    assert stderr.getvalue().count("its model is now another\n") == 1


def test_an_answer_that_the_engine_ended_for_a_loop_is_known_as_one() -> None:
    script = ScriptedClient((Script(("yes",)),))
    events = [
        replace(event, is_loop=True) if isinstance(event, Finished) else event
        for event in script.stream(ChatRequest(id="a", messages=(Message("user", "?"),)))
    ]
    assert follow_answer(Events(events), lambda event: None).is_loop

"""Tools in line mode: what is opened from the settings, the question about a call, and answers without a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.scripted_client import ScriptedClient, calls, join_nothing, says, scripted_plan
from doubles.scripted_tools import ScriptedPool, make_tools

from eaglelocal import locations
from eaglelocal.cli import tool_calls
from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.output import Output
from eaglelocal.cli.tool_calls import LineReviewer, can_ask_here, open_tools
from eaglelocal.conversation.answer_stats import answer_object
from eaglelocal.conversation.chat_tools import Permission, find_grant
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.conversation.tool_rounds import CallReview
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.settings import Settings

LIST = '{"mcpServers": {"time": {"command": "serve-time"}}}'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    locations.config_dir().mkdir(parents=True)
    return tmp_path


def test_the_file_beside_the_settings_is_opened_if_it_is_there(tmp_path: Path) -> None:
    assert "there is no" in open_tools(Settings(), None, can_ask=True).source
    locations.mcp_file().write_text(LIST)
    assert list(open_tools(Settings(), None, can_ask=True).pool.specs) == ["time"]
    assert not open_tools(Settings(mcp="none"), None, can_ask=True).pool.specs
    (tmp_path / "other.json").write_text(LIST.replace("time", "web"))
    assert list(open_tools(Settings(mcp=str(tmp_path / "other.json")), None, can_ask=True).pool.specs) == ["web"]
    with pytest.raises(ResourceError):
        open_tools(Settings(mcp=str(tmp_path / "missing.json")), None, can_ask=True)


def test_tools_are_wanted_by_those_who_give_a_flag() -> None:
    locations.mcp_file().write_text(LIST)
    named = Settings.load({"mcp": "auto"}, {}, Path("no.toml"))
    wants = [open_tools(settings, None, can_ask=False).are_wanted for settings in (Settings(), named)]
    assert [*wants, open_tools(Settings(), "time", can_ask=False).are_wanted] == [False, True, True]


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    locations.mcp_file().write_text(LIST)
    monkeypatch.setattr(tool_calls, "is_sdk_installed", lambda: False)
    with pytest.raises(UsageError) as caught:
        open_tools(Settings(), None, can_ask=True)
    assert caught.value.hint == 'pip install "eaglelocal[mcp]"'


def test_names_that_are_allowed_must_be_those_of_servers() -> None:
    locations.mcp_file().write_text(LIST)
    assert open_tools(Settings(), "time, time.now", can_ask=False).granted == {("time", ""), ("time", "now")}
    for name in ("tim", "times.now", "web"):
        with pytest.raises(UsageError, match="has no server for"):
            open_tools(Settings(), name, can_ask=False)


def run_piped(
    folder: Path, pool: ScriptedPool, *, quiet: bool = False, allowed: str = "", wants: bool = False
) -> tuple[str, str, dict[str, object]]:
    """Ask one question without a terminal; return stdout, stderr and the JSON object."""
    stdout, stderr = io.StringIO(), io.StringIO()
    client = ScriptedClient((calls("now", "{}", text="Let me see."), says("noon")))
    tools = make_tools(folder, pool, can_ask=False)
    tools.are_wanted = wants
    tools.granted |= {grant for grant in [find_grant(allowed, ["time"])] if grant}
    model = ActiveModel(client, scripted_plan("m"), client.info)
    session = Session(
        ModelLoader(lambda _: scripted_plan("m"), lambda _: model, join_nothing), model, SamplingParams(), tools=tools
    )
    outcome = Asker(session, Output(stdout=stdout, stderr=stderr, environ={}), quiet=quiet).ask("time?")
    assert outcome.finished is not None
    made = answer_object(outcome.text, outcome.finished, client.info, rounds=outcome.rounds)
    return stdout.getvalue(), stderr.getvalue(), made


def test_in_a_pipe_nothing_runs_that_is_not_allowed(tmp_path: Path) -> None:
    pool = ScriptedPool()
    assert "nobody can be asked here" in run_piped(tmp_path, pool, wants=True)[1]
    assert "offered" not in run_piped(tmp_path, pool)[1]
    assert not pool.called and not pool.started


def test_in_a_pipe_an_allowed_tool_runs_and_only_the_text_goes_to_stdout(tmp_path: Path) -> None:
    stdout, stderr, made = run_piped(tmp_path, ScriptedPool(), allowed="time.now")
    assert stdout == "Let me see.\nnoon\n"
    assert "calling time.now" in stderr and "time.now {} -> 2 characters" in stderr
    assert made["tool_calls"] == [{"tool": "time.now", "arguments": "{}", "state": "done", "result": "{}"}]


def test_a_quiet_chat_prints_nothing_of_its_calls(tmp_path: Path) -> None:
    assert run_piped(tmp_path, ScriptedPool(), quiet=True, allowed="time")[:2] == ("", "")


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a terminal that is stdin."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


@pytest.mark.parametrize(
    ("typed", "permission"),
    [
        ("o", Permission.ONCE), ("C", Permission.CHAT), ("a", Permission.ALWAYS),
        ("", Permission.NO), ("yes", Permission.NO), ("oo", Permission.NO),
    ],
)  # fmt: skip
def test_a_call_is_allowed_by_one_letter(keyboard: int, typed: str, permission: Permission) -> None:
    stderr = AnsweredStream(keyboard, typed)
    reviewer = LineReviewer(Output(stdout=io.StringIO(), stderr=stderr, environ={}), is_quiet=False)
    os.write(keyboard, b"a\n")  # typed before the question: it decides nothing
    assert select.select([sys.stdin], [], [], 10)[0]  # it takes a moment to get through
    assert reviewer.review(CallReview("time.now", '{"text": "\N{REPLACEMENT CHARACTER}[2J"}')) is permission
    assert "the model wants to call time.now" in stderr.getvalue() and '{"text": ' in stderr.getvalue()


class AnsweredStream(io.StringIO):
    """A stderr that types an answer a moment after the question."""

    def __init__(self, keyboard: int, typed: str) -> None:
        super().__init__()
        self._keyboard, self._typed = keyboard, typed

    def write(self, text: str) -> int:
        if text.startswith("allow it"):
            threading.Timer(0.3, os.write, (self._keyboard, f"{self._typed}\n".encode())).start()
        return super().write(text)


def test_nobody_can_be_asked_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert not can_ask_here(is_quiet=False)
    monkeypatch.setattr(sys, "stdin", None)
    assert not can_ask_here(is_quiet=False)

"""Tools on the chat screen: the question about a call, its folded result, and what stops it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from doubles import tmux
from doubles.chat_screen import ChatHarness, ChatObserver, play
from doubles.running_server_process import running_server_process
from doubles.scripted_client import calls, says
from doubles.scripted_tools import ScriptedPool, make_tools
from doubles.timeouts import wait_until

from eaglelocal.conversation.chat_tools import Permission
from eaglelocal.conversation.conversation import CompletedCall, ToolRound
from eaglelocal.core.tools import ToolCall
from eaglelocal.tool_servers.tool_results import ServerTool, ToolResult
from eaglelocal.tui.chat.tool_dialog import ToolDialog
from eaglelocal.tui.transcript.entries import EntryKind, RenderOptions, make_call_entries, render_entry
from eaglelocal.tui.transcript.text_rows import Appearance, join_row

HOSTILE = "\x1b]52;c;ZXZpbA==\x07[bold]$(rm)[/bold]\x9b31m"
NOON = {"now": ToolResult("noon, " * 10, num_chars=60)}


def make_stage(folder: Path, pool: ScriptedPool, *scripts: object, **changes: object) -> ChatHarness:
    return ChatHarness(folder, scripts=scripts, tools=make_tools(folder, pool), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("downs", "permission"), [(0, Permission.NO), (1, Permission.ONCE), (2, Permission.CHAT), (3, Permission.ALWAYS)]
)
def test_a_call_waits_for_an_answer_and_enter_alone_means_no(
    tmp_path: Path, downs: int, permission: Permission
) -> None:
    pool = ScriptedPool(results=NOON)
    stage = make_stage(tmp_path, pool, calls("now", '{"zone": "UTC"}', text="Let me see."), says("It is noon"))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("what time is it?")
        await person.sees("the model wants to call time.now", '{"zone": "UTC"}', "do not run it")
        assert not pool.called
        await person.pilot.press(*["down"] * downs, "enter")
        await person.sees("Let me see.", "▸ time.now", "It is noon")
        await person.idle()
        assert ("-> 60 characters" in person.text) == (permission is not Permission.NO)

    play(stage, scenario)
    assert len(pool.called) == (permission is not Permission.NO)
    tool = ServerTool("time", "now")
    assert stage.tools.is_allowed(tool) == (permission in (Permission.CHAT, Permission.ALWAYS))
    assert make_tools(tmp_path).is_allowed(tool) == (permission is Permission.ALWAYS)


def test_esc_in_the_question_means_no_and_the_answer_goes_on(tmp_path: Path) -> None:
    pool = ScriptedPool()
    stage = make_stage(tmp_path, pool, calls("now"), says("I cannot know"))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("time?")
        await person.sees("the model wants to call")
        await person.pilot.press("escape")
        await person.sees("the user did not allow this call", "I cannot know")

    play(stage, scenario)
    assert not pool.called


def test_a_key_unfolds_results_and_a_click_on_their_title_too(tmp_path: Path) -> None:
    stage = make_stage(tmp_path, ScriptedPool(results=NOON), calls("now"), says("It is noon"))
    stage.tools.granted.add(("time", ""))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("time?")
        await person.sees("▸ time.now {} -> 60 characters", "It is noon")
        assert "noon, noon" not in person.text
        await person.pilot.press("ctrl+t")
        await person.sees("▾ time.now", "noon, noon")
        row = next(number for number, line in enumerate(person.text.split("\n")) if "▾ time.now" in line)
        await person.pilot.click(offset=(5, row))
        await person.sees("▸ time.now")

    play(stage, scenario)


def test_esc_stops_a_call_that_hangs(tmp_path: Path) -> None:
    stage = make_stage(tmp_path, ScriptedPool(hangs=True), calls("now"), says("never"), says("the next one"))
    stage.tools.granted.add(("time", ""))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("time?")
        await person.sees("calling time.now · esc stops")
        await person.pilot.press("escape")
        await person.idle()
        await person.sees("stopped")
        assert "error" not in person.text
        await person.ask("and now?")
        await person.sees("never")

    play(stage, scenario)


@pytest.mark.parametrize("hangs", [True, False])
def test_leaving_during_a_call_or_its_question_ends_at_once(tmp_path: Path, hangs: bool) -> None:
    pool = ScriptedPool(hangs=True)
    stage = make_stage(tmp_path, pool, calls("now"), says("never"))
    stage.tools.granted |= {("time", "")} if hangs else set()

    async def scenario(person: ChatObserver) -> None:
        await person.ask("time?")
        await person.sees("calling time.now" if hangs else "the model wants to call")
        await person.pilot.press("ctrl+q")

    play(stage, scenario)
    wait_until(lambda: not stage.app.controller.is_busy, "the end of the task")
    assert len(pool.called) == hangs


def test_all_of_long_hostile_arguments_can_be_read_before_a_call(tmp_path: Path) -> None:
    arguments = json.dumps({"text": HOSTILE + "x" * 3000 + "THE END"}, ensure_ascii=False)
    stage = make_stage(tmp_path, ScriptedPool(), calls("now", arguments), says("done"))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("time?")
        await person.sees("the model wants to call", "[bold]$(rm)[/bold]", "run it, and always from now on")
        assert "THE END" not in person.text
        await person.pilot.press(*["pagedown"] * 8)
        await person.sees("THE END", "do not run it")
        assert isinstance(person.app.screen, ToolDialog)
        await person.pilot.press("enter")
        await person.sees("done")
        assert not set("\x1b\x07\x9b") & set(person.text)

    play(stage, scenario)


def test_the_command_lists_tools_and_switches_them(tmp_path: Path) -> None:
    pool = ScriptedPool(failing={"bad": "command not found: 'bad'"})
    stage = make_stage(tmp_path, pool, says("an answer"))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/tools off web")
        await person.sees(
            "tool servers of mcp.json", "time  connected, 1 tool", "on   now  Return the time.", "web  off"
        )
        await person.sees("bad  failed: command not found: 'bad'", "stderr: last words")
        await person.ask("/tools sometimes web")
        await person.sees("/tools cannot do 'sometimes web'")
        await person.ask("why?")
        await person.sees("an answer")

    play(stage, scenario)
    assert [tool.name for tool in stage.client.requests[0].tools] == ["now"]


def test_calls_are_shown_again_when_a_conversation_is_opened(tmp_path: Path) -> None:
    pool = ScriptedPool(results=NOON)
    stage = make_stage(tmp_path, pool, calls("now"), says("It is noon"), saves=True)
    stage.tools.granted.add(("time", ""))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("the time")
        await person.sees("It is noon")
        await person.idle()
        await person.ask("/clear")
        await person.no_longer_sees("It is noon")
        await person.ask("/load the time")
        await person.sees("▸ time.now {} -> 60 characters", "It is noon")

    play(stage, scenario)


@pytest.mark.parametrize("is_ascii", [True, False])
def test_an_entry_of_a_call_is_one_line_until_it_is_unfolded(is_ascii: bool) -> None:
    call = CompletedCall(ToolCall("", "now", f'{{"a": "{HOSTILE}"}}'), "time.now", f"one\ntwo{HOSTILE}")
    first, second = make_call_entries(ToolRound((call, call)))
    assert (first.kind, first.has_gap, second.has_gap) == (EntryKind.CALL, True, False)
    appearance = Appearance(is_ascii=is_ascii)
    folded = [join_row(row) for row in render_entry(second, 200, RenderOptions(appearance))]
    opened = [join_row(row) for row in render_entry(second, 200, RenderOptions(appearance, shows_thoughts=True))]
    assert len(folded) == 1 and folded[0].startswith("+ time.now" if is_ascii else "▸ time.now")
    assert len(opened) == 4 and opened[2].strip() == "one"
    assert not set("\x1b\x07\x9b") & set("".join([*folded, *opened]))


# ---- the real program
@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[tmux.TmuxScreen]:
    with tmux.TmuxScreen(tmp_path) as screen:
        yield screen


@pytest.mark.full
@pytest.mark.skipif(not tmux.IS_THERE, reason="tmux is not installed")
def test_the_real_chat_calls_a_published_server_and_ends_it(terminal: tmux.TmuxScreen, tmp_path: Path) -> None:
    pytest.importorskip("mcp_server_time")
    config = tmp_path / "config" / "eaglelocal"
    config.mkdir(parents=True)
    server = {"command": sys.executable, "args": ["-m", "mcp_server_time"]}
    (config / "mcp.json").write_text(json.dumps({"mcpServers": {"time": server}}))
    environ = {"PYTHONPATH": str(Path(__file__).parents[2]), "LC_ALL": "C.UTF-8"}
    environ |= {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CONFIG", "STATE")}
    with running_server_process() as served:
        terminal.start([sys.executable, "-m", "eaglelocal", "chat", "--url", served.url], environ)
        terminal.sees("actor · 0/4.1k")
        terminal.type('call get_current_time {"timezone": "UTC"}')
        terminal.press("C-j")
        terminal.type("then")
        terminal.press("C-j")
        terminal.type("say it is noon")
        terminal.press("Enter")
        terminal.sees("the model wants to call time.get_current_time", '{"timezone": "UTC"}')
        (child,) = [each for each in psutil.process_iter(["cmdline", "ppid"]) if is_server_of(each, tmp_path)]
        terminal.press("Down", "Enter")
        terminal.sees('▸ time.get_current_time {"timezone": "UTC"} ->', "it is noon")
        os.kill(child.ppid(), signal.SIGTERM)
        terminal.sees("ended with")
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the end of the server")


def is_server_of(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process is the tool server of the chat whose configuration is in this folder."""
    try:
        parent = psutil.Process(process.info["ppid"] or 1)
        is_server = "mcp_server_time" in (process.info["cmdline"] or ())
        return is_server and parent.environ().get("XDG_CONFIG_HOME") == str(folder / "config")
    except psutil.Error:
        return False

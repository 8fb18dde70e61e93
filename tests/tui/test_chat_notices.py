"""What the chat screen says by itself: a system message that goes on, figures, a model that was loaded meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.chat_screen import ChatHarness, ChatObserver, play
from doubles.scripted_client import Script, ScriptedClient, says
from textual.widgets import Input

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import LINE_KEYS, ActionContext
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.slash_commands import COMMANDS, Command, help_lines
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.tui.chat import chat_tasks
from eaglelocal.tui.chat.chat_dialogs import SettingsDialog
from eaglelocal.tui.chat.model_picker import ModelDialog
from eaglelocal.tui.display_options import DisplayOptions, make_display_options


def test_a_new_conversation_says_that_the_system_message_stays(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/system be brief")
        await person.idle()
        await person.pilot.press("ctrl+n")
        await person.sees("be brief", '/system "" removes it')
        await person.ask('/system ""')
        await person.idle()
        await person.pilot.press("ctrl+n")
        await person.no_longer_sees("be brief")

    play(stage, scenario)


def test_figures_are_hidden_where_the_user_wants_none(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, display_options=DisplayOptions(has_figures=False))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("why?")
        await person.sees("the first answer")
        await person.idle()
        assert "tok/s" not in person.text
        await person.pilot.press("f4")
        await person.until(lambda: isinstance(person.app.screen, SettingsDialog), "the dialog")
        field = person.app.screen.query_one("#figures", Input)
        assert field.value == "off"
        field.value = "maybe"
        await person.pilot.press("ctrl+s")
        await person.sees("figures must be on or off")
        field.value = "on"
        await person.pilot.press("ctrl+s")
        await person.ask("and?")
        await person.sees("41.2 tok/s")

    play(stage, scenario)


def test_the_setting_of_figures(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("figures = false\n")
    assert not make_display_options(Settings.load({}, {}, config)).has_figures
    assert Settings.load({}, {"EAGLELOCAL_FIGURES": "true"}, config).figures
    with pytest.raises(UsageError, match="figures must be true or false, not 'x'"):
        Settings.load({}, {"EAGLELOCAL_FIGURES": "x"}, config)


def test_an_open_picker_shows_the_model_that_was_loaded_meanwhile(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, is_held=True)

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f5")
        await person.until(lambda: isinstance(person.app.screen, ModelDialog), "the dialog")
        await person.sees("a model is being loaded")
        stage.gate.set()
        await person.sees("now: scripted model")
        await person.no_longer_sees("a model is being loaded")

    play(stage, scenario, waits=False)


def test_a_joined_server_is_not_left_for_another_way_of_drafting(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        session = person.app.controller._tasks.session
        assert session is not None
        client = ScriptedClient((says("x"),), label="served")
        session.model = type(session.model)(client, None, client.info)
        await person.ask("/draft none")
        await person.sees("the server decides how it drafts", "/model REF loads a model here")
        assert session.model.client is client

    play(stage, scenario)


def test_help_breaks_no_word_of_a_line_and_names_all_commands() -> None:
    lines = help_lines(LINE_KEYS)
    assert max(map(len, lines)) < 80
    assert not any("]show" in line for line in lines)
    text = "\n".join(lines)
    for name, command in COMMANDS.items():
        assert f"{name} {command.arguments}".rstrip() in text
    assert " ".join(text.split()).count("show or change the draft") == 1


def test_saved_conversations_are_searched_by_name_and_text(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    for name, answer in (("cats", "they purr"), ("dogs", "they Bark"), ("fish", "they swim")):
        conversation_file.save(Conversation(turns=[Turn("what?", answer)]), folder / f"{name}.json", target="")
    (folder / "broken.json").write_text("[]")
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.start.want(is_wanted=False)  # it lists the last ones too
        await person.pilot.press("ctrl+o")
        await person.sees("cats", "dogs", "fish", "broken")
        await person.type("bark")
        await person.no_longer_sees("fish")
        await person.sees("dogs")
        await person.pilot.press(*["backspace"] * 4)
        await person.type("fi")
        await person.no_longer_sees("dogs")
        await person.pilot.press(*["backspace"] * 2, "down", "up", *"cats", "enter")
        await person.sees("they purr")

    play(stage, scenario)


def test_a_question_that_was_not_sent_is_recalled_at_the_next_start(tmp_path: Path) -> None:
    async def leave(person: ChatObserver) -> None:
        await person.type("half a\nquestion")
        await person.pilot.press("ctrl+q")
        await person.until(lambda: person.app._exit, "the end")

    async def recall(person: ChatObserver) -> None:
        await person.pilot.press("up")
        assert person.app.prompt.text == "half a\nquestion"

    play(ChatHarness(tmp_path), leave)
    play(ChatHarness(tmp_path), recall)


def test_what_a_command_said_before_it_failed_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: ActionContext, command: Command) -> None:
        context.output.message("half of it\nin two lines")
        raise UsageError("no more")

    stage = ChatHarness(tmp_path, scripts=(Script(hangs=True),))
    monkeypatch.setattr(chat_tasks, "run_command", fail)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.until(lambda: person.app.controller.activity.answer is not None, "an answer")
        await person.ask("/stats")
        await person.sees("error: no more")
        await person.pilot.press("escape")
        await person.sees("half of it")

    play(stage, scenario)


def test_the_search_of_conversations_ignores_case_as_the_picker_does(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    for name, answer in (("Straße", "x"), ("owls", "Weiß")):
        conversation_file.save(Conversation(turns=[Turn("who?", answer)]), folder / f"{name}.json", target="m")

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.start.want(is_wanted=False)
        await person.pilot.press("ctrl+o")
        await person.sees("Straße", "owls")
        await person.type("STRASSE")
        await person.no_longer_sees("owls")
        assert "Straße" in person.text
        await person.pilot.press(*["backspace"] * 7)
        await person.type("WEISS")
        await person.no_longer_sees("Straße")
        assert "owls" in person.text

    play(ChatHarness(tmp_path), scenario)


def test_a_server_is_joined_again_only_after_it_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []
    monkeypatch.setattr(chat_tasks.ChatTasks, "rejoin", lambda tasks: joined.append("now"))
    monkeypatch.setattr("eaglelocal.tui.chat.chat_controller.POLL_S", 0.01)
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ready()
        stage.client.state = "disconnected"
        await person.sees("the server no longer answers")
        assert not joined
        stage.client.state = "ready"
        await person.until(lambda: joined == ["now"], "the return")

    play(stage, scenario)


def test_a_new_name_is_in_the_status_line_at_once(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.ask("hello")
        await person.idle()
        for command in ("/save first", "/rename second"):
            await person.ask(command)
            name = command.split()[-1]
            await person.until(lambda name=name: person.app.view.status.text.endswith(f" {name}"), name)  # type: ignore[misc]

    play(ChatHarness(tmp_path), scenario)

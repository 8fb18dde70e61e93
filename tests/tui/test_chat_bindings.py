"""Tests of every key of the chat screen and of its dialogs."""

from __future__ import annotations

import string
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from doubles.chat_screen import ChatHarness, ChatObserver, play
from doubles.scripted_client import Script, says
from textual.binding import Binding
from textual.widgets import Input, OptionList, TextArea

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.question_history import QuestionHistory
from eaglelocal.conversation.slash_commands import COMMANDS
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.tui.chat.chat_app import ChatApp
from eaglelocal.tui.chat.chat_dialogs import (
    ConversationsDialog,
    Dialog,
    SettingsDialog,
)
from eaglelocal.tui.chat.model_picker import ModelDialog
from eaglelocal.tui.chat.prompt_input import WARNING, PromptInput
from eaglelocal.tui.chat.turn_keys import TURN_BINDINGS
from eaglelocal.tui.display_options import (
    CHAT_ACTIONS,
    CHAT_PURPOSES,
    MONITOR_ACTIONS,
    TURN_PURPOSES,
    DisplayOptions,
    check_display_options,
)
from eaglelocal.tui.mapped_keys import NO_KEY, name_key
from eaglelocal.tui.monitor.monitor_app import Monitor
from eaglelocal.tui.monitor.request_table import RequestTable
from eaglelocal.tui.monitor.servers_app import ServersMonitor


def saved(folder: Path, name: str, *turns: Turn) -> None:
    conversations = folder / "conversations"
    conversation_file.save(Conversation(turns=list(turns)), conversations / f"{name}.json", target="m")


def test_a_question_of_several_lines(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.type("first\nsecond")
        await person.pilot.press("shift+enter")
        await person.type("third")
        await person.pilot.press("ctrl+j", "backspace")
        assert person.app.prompt.text == "first\nsecond\nthird"
        await person.until(lambda: person.app.prompt.region.height == 5, "three lines and a border")
        await person.pilot.press("enter")
        await person.sees("❯ first", "  third")
        await person.until(lambda: person.app.prompt.region.height == 3, "a prompt of one line")

    play(stage, scenario)
    assert stage.client.requests[0].messages[0].content == "first\nsecond\nthird"


def test_a_line_that_arrives_at_once_is_sent_in_order(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        for key in ("o", "n", "e", "enter", "t", "w", "o", "enter"):
            person.app.simulate_key(key)
        await person.sees("first answer", "another one")

    play(stage, scenario)
    assert [request.messages[-1].content for request in stage.client.requests] == ["one", "two"]


def test_keys_that_move_act_in_order_too(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        for key in ("a", "space", "b", "ctrl+left", "x", "home", "y", "ctrl+c", "c", "ctrl+w", "d"):
            person.app.simulate_key(key)
        await person.until(lambda: person.app.prompt.text == "d", "what was typed last")
        await person.pilot.press("e", "ctrl+left", "ctrl+k", "f")
        assert person.app.prompt.text == "f"

    play(ChatHarness(tmp_path), scenario)


@pytest.mark.parametrize("keys", [("shift+enter",), ("alt+enter",), ("ctrl+j",), ("\\", "enter")])
def test_ways_to_begin_a_new_line(tmp_path: Path, keys: tuple[str, ...]) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.type("ab")
        await person.pilot.press("left", *keys)
        assert person.app.prompt.text == "a\nb"

    play(ChatHarness(tmp_path), scenario)


def test_alt_enter_as_terminals_send_it() -> None:
    from textual._xterm_parser import XTermParser

    (event,) = XTermParser().feed("\x1b\r")
    assert event.key == "ctrl+j"  # type: ignore[union-attr]


def test_code_with_quotes_is_sent_as_it_is(tmp_path: Path) -> None:
    code = '"""What it does."""\n\ndef f():\n    """And how."""'
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.replace_text(code)
        await person.pilot.press("enter")
        await person.sees("first answer")

    play(stage, scenario)
    assert stage.client.requests[0].messages[0].content == code


def test_what_was_typed_is_taken_back(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.type("a b")
        await person.pilot.press("ctrl+z")  # where there is no shell to go back to, it does nothing
        await person.pilot.press("ctrl+w", "ctrl+underscore")
        assert person.app.prompt.text == "a b"

    play(ChatHarness(tmp_path), scenario)


def test_history_of_questions(tmp_path: Path) -> None:
    async def first(person: ChatObserver) -> None:
        await person.ask("one")
        await person.ask("/spec")
        await person.idle()

    async def second(person: ChatObserver) -> None:
        await person.type("typed")
        for key, shown in (("up", "/spec"), ("up", "one"), ("up", "one"), ("down", "/spec"), ("down", "typed")):
            await person.pilot.press(key)
            assert person.app.prompt.text == shown

    play(ChatHarness(tmp_path), first)
    play(ChatHarness(tmp_path), second)
    assert (tmp_path / "questions.jsonl").stat().st_mode & 0o077 == 0


def test_earlier_questions_are_found_by_their_words(tmp_path: Path) -> None:
    history = QuestionHistory(tmp_path / "questions.jsonl")
    for question in ("What is an owl?", "What is an eagle?", "an OWL flies", "last"):
        history.add(question)
    stage = ChatHarness(tmp_path)

    async def looks(person: ChatObserver, *keys: str) -> str:
        await person.pilot.press(*keys)
        return person.app.prompt.text

    async def scenario(person: ChatObserver) -> None:
        await person.type("typed")
        await person.pilot.press("ctrl+r")
        assert person.app.prompt.text == "typed"
        await person.sees("earlier question with: ", "enter to take it, esc to cancel")
        assert await looks(person, *"an") == "an OWL flies"
        assert await looks(person, "ctrl+r") == "What is an eagle?"
        assert await looks(person, "space", *"ow") == "What is an owl?"
        await person.sees("earlier question with: an ow")
        assert await looks(person, "up") == "What is an owl?"
        await person.sees("no earlier question with: an ow")
        assert await looks(person, "backspace", "backspace", "backspace") == "an OWL flies"
        assert await looks(person, "ctrl+r", "down") == "an OWL flies"
        assert person.app.prompt.selected_text == "an"
        assert await looks(person, "escape") == "typed"
        await person.no_longer_sees("earlier question")
        assert await looks(person, "ctrl+r", *"eagle", "ctrl+c") == "typed"
        assert await looks(person, "ctrl+r", *"eagle", "home", "x") == "xWhat is an eagle?"
        assert await looks(person, "ctrl+u", "ctrl+k", "ctrl+r", *"eagle", "enter") == "What is an eagle?"
        assert not stage.clients[0].requests
        await person.pilot.press("enter")
        await person.sees("❯ What is an eagle?", "first answer")

    play(stage, scenario)


def pasted(person: ChatObserver, text: str) -> str:
    person.app.prompt._paste(text)
    return person.app.prompt.text


def test_a_long_paste_is_folded_and_sent_whole(tmp_path: Path) -> None:
    log = "\n".join(f"line {number}" for number in range(312))
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.type("look ")
        assert pasted(person, log) == "look [312 lines, ~1 481 tokens]"
        await person.type(" again ")
        assert pasted(person, log.upper()).endswith(" again [312 lines, ~1 481 tokens, 2]")
        await person.pilot.press("backspace")  # all of it
        assert person.app.prompt.text == "look [312 lines, ~1 481 tokens] again "
        await person.pilot.press("ctrl+underscore")
        assert person.app.prompt.text.endswith("[312 lines, ~1 481 tokens, 2]")
        await person.pilot.press("left", "x")  # never into it
        assert person.app.prompt.text.endswith("[312 lines, ~1 481 tokens, 2]x")
        await person.pilot.press("backspace", "ctrl+w", "enter")
        await person.sees("first answer")

        await person.pilot.press("up")
        assert person.app.prompt.text == "look [312 lines, ~1 481 tokens] again "

    play(stage, scenario)
    assert stage.client.requests[0].messages[0].content == f"look {log} again"


def test_a_text_longer_than_the_free_context_is_warned_of_while_it_is_typed(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, n_ctx=1000)

    async def scenario(person: ChatObserver) -> None:
        pasted(person, "word " * 400)
        await person.sees("[2000 characters, ~700 tokens]")
        await person.pilot.pause(0.6)
        assert "more than" not in person.text
        pasted(person, "more " * 400)
        await person.sees("~1 400 tokens, more than the 1 000 that are free")
        assert person.app.prompt._hint_style == WARNING
        await person.pilot.press("backspace")
        await person.no_longer_sees("more than the")

    play(stage, scenario)


def test_a_question_that_is_too_long_stays_in_the_prompt(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        mark = pasted(person, "word " * 400 + "word")
        await person.pilot.press("enter")
        await person.sees("the prompt has")
        await person.until(lambda: person.app.prompt.text == mark, "the question in the prompt")

    play(ChatHarness(tmp_path, n_ctx=300), scenario)


def test_the_start_and_end_of_a_line_are_those_of_the_whole_line(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        prompt = person.app.prompt
        prompt.insert("first\n" + "word " * 50)
        await person.pilot.press("up")
        for key, column in (("ctrl+a", 0), ("ctrl+e", 250), ("home", 0), ("end", 250)):
            await person.pilot.press(key)
            assert prompt.cursor_location == (1, column)

    play(stage, scenario)


def shouting(folder: Path) -> str:
    """An editor."""
    program = "import sys; p = sys.argv[1]; t = open(p).read(); open(p, 'w').write(t.upper() + '\\n')"
    (folder / "editor.py").write_text(program)
    return f"{sys.executable} {folder / 'editor.py'}"


def test_a_folded_paste_is_undone_edited_and_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", shouting(tmp_path))
    long = "x" * 1001
    stage = lent(ChatHarness(tmp_path), monkeypatch)

    async def scenario(person: ChatObserver) -> None:
        await person.type("a")
        assert pasted(person, long) == "a[1001 characters, ~1 001 tokens]"
        person.app.prompt.select_all()
        assert person.app.prompt.selected_text == f"a{long}"
        await person.pilot.press("ctrl+underscore")
        assert person.app.prompt.text == "a"
        assert pasted(person, "short") == "ashort"
        person.app.copy_to_clipboard(long)
        await person.pilot.press("ctrl+v")
        assert person.app.prompt.text == "ashort[1001 characters, ~1 001 tokens]"
        await person.pilot.press("ctrl+g")
        await person.until(lambda: person.app.prompt.text == f"ASHORT{long.upper()}", "what the editor was given")

    play(stage, scenario)


def test_tab_completes_a_command(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.type("/sy")
        await person.pilot.press("tab")
        assert person.app.prompt.text == "/system "
        assert person.app.focused is person.app.prompt

    play(ChatHarness(tmp_path), scenario)


def test_commands_are_listed_and_chosen_while_they_are_typed(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.type("/")
        await person.sees("> /help", "/think", "as long as the m")  # with its present value
        await person.type("sp")
        await person.sees("> /spec  set the draft length", "/spec [auto|off|pid|N]")
        await person.no_longer_sees("/help")
        await person.pilot.press("escape")
        await person.no_longer_sees("set the draft length")
        await person.type("e")
        assert "set the draft length" not in person.text  # it stays closed while more is typed
        await person.pilot.press("backspace", "backspace")
        await person.sees("> /stats")
        await person.pilot.press("down", "enter")  # it takes arguments
        assert person.app.prompt.text == "/spec "
        await person.sees("auto", "pid")
        await person.pilot.press("down", "down", "up", "enter")
        await person.sees("drafting: automatic")
        await person.no_longer_sees("pid")
        await person.type("/qu")
        await person.sees("> /exit")  # by its name in other programs

    play(ChatHarness(tmp_path), scenario)


def test_arguments_are_sent_as_typed_until_a_row_is_highlighted(tmp_path: Path) -> None:
    saved(tmp_path, "eagles", Turn("q", "a"))
    saved(tmp_path, "owls", Turn("who?", "owls"))

    async def scenario(person: ChatObserver) -> None:
        await person.type("/delete e")
        await person.sees("eagles")
        await person.pilot.press("enter")
        await person.sees("no conversation named 'e'")
        await person.type("/load OW")
        await person.pilot.press("tab")
        assert person.app.prompt.text == "/load owls"
        await person.pilot.press("enter")
        await person.sees("❯ who?")
        await person.type("/draft ngram,lo")
        await person.pilot.press("tab")
        assert person.app.prompt.text == "/draft ngram,lookahead"

    play(ChatHarness(tmp_path), scenario)


def test_a_row_of_the_menu_is_clicked(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.type("/")
        await person.sees("> /help")
        row = next(number for number, text in enumerate(person.text.splitlines()) if "/stats" in text)
        await person.pilot.click(offset=(8, row))
        await person.sees("no answers yet")

    play(ChatHarness(tmp_path), scenario)


def test_what_is_pasted_adds_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("secret")
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        assert pasted(person, "\x1b[1;31mmail\x1b[0m: @notes.md") == r"mail: \@notes.md"
        await person.pilot.press("enter")
        await person.sees("the first answer")
        await person.type("/system ")
        assert pasted(person, "@notes.md") == "/system @notes.md"

    play(stage, scenario)
    assert stage.client.requests[0].messages[-1].content == "mail: @notes.md"


def test_pasted_lines_are_one_question(tmp_path: Path) -> None:
    from textual import events

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.post_message(events.Paste("first\r\nsecond\rthird"))
        await person.until(lambda: person.app.prompt.text == "first\nsecond\nthird", "the pasted text")

    play(ChatHarness(tmp_path), scenario)


def test_keys_that_show_and_hide(tmp_path: Path) -> None:
    thoughtful = Turn("who?", "eagles", reasoning="who flies high")
    saved(tmp_path, "eagles", thoughtful)
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f2")
        await person.sees("No answer yet")
        await person.pilot.press("f2")
        await person.no_longer_sees("No answer yet")
        await person.ask("/load eagles")
        await person.sees("▸ thought, 3 words")
        await person.pilot.press("ctrl+t")
        await person.sees("▾ thought, 3 words", "who flies high")
        await person.pilot.press("ctrl+t")
        await person.no_longer_sees("who flies high")
        row = next(number for number, text in enumerate(person.text.splitlines()) if "▸ thought" in text)
        await person.pilot.click(offset=(4, row))
        await person.sees("who flies high")

    play(stage, scenario)


def test_drafted_text_is_marked_on_request(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("the first answer")
        assert marked(person) == ""
        await person.pilot.press("f9")
        await person.until(lambda: marked(person) == "first", "a mark on the drafted word alone")
        await person.pilot.press("f9")
        await person.until(lambda: marked(person) == "", "no mark")

    play(stage, scenario)


def marked(person: ChatObserver) -> str:
    transcript = person.app.view.transcript
    strips = [transcript.render_line(y) for y in range(transcript.size.height)]
    return "".join(s.text for strip in strips for s in strip if s.style and s.style.underline)


def test_retry_new_and_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = ChatHarness(tmp_path)
    desktop: list[str] = []
    monkeypatch.setattr("eaglelocal.tui.terminal.clipboard.copy_text", desktop.append)

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f8")
        await person.sees("there is no answer yet")
        await person.ask("one")
        await person.sees("41.2 tok/s")
        await person.pilot.press("f8")
        assert [person.app.clipboard] == desktop == ["the first answer"]
        await person.ask("/copy")
        await person.until(lambda: desktop == ["the first answer"] * 2, "a copy")
        await person.sees("copied 16 characters")
        await person.ask("/copy code")
        await person.sees("there is no code block in the last answer")
        await person.pilot.press("f6")
        await person.sees("and another one")
        assert "the first answer" not in person.text
        await person.pilot.press("ctrl+n")
        await person.no_longer_sees("another one")

    play(stage, scenario)


def test_what_the_mouse_marks_is_copied(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("the first answer")
        row = next(number for number, text in enumerate(person.text.splitlines()) if "the first answer" in text)
        await person.pilot.mouse_down(offset=(1, row))
        await person.pilot.hover(offset=(10, row))
        await person.pilot.mouse_up(offset=(10, row))
        await person.pilot.press("ctrl+c")
        assert person.app.clipboard == "the first"
        assert not person.app._exit

    play(stage, scenario)


@pytest.mark.parametrize(("times", "copied"), [(2, "größer,"), (3, "🎉🎉 日本 größer, weiß")])
def test_clicks_mark_a_word_or_a_line_also_after_wide_characters(tmp_path: Path, times: int, copied: str) -> None:
    stage = ChatHarness(tmp_path, scripts=(says("🎉🎉 日本 größer, weiß\n\nmore"),))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("more")
        row = next(number for number, text in enumerate(person.text.splitlines()) if "größer" in text)
        await person.pilot.click(offset=(14, row), times=times)
        await person.pilot.press("ctrl+c")
        assert person.app.clipboard == copied

    play(stage, scenario)


def test_the_other_copy_key_copies_and_pages_are_turned(tmp_path: Path) -> None:
    lines = "\n\n".join(f"line{number}" for number in range(60))
    stage = ChatHarness(tmp_path, scripts=(says(lines),))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("line59")
        for key, shown in (("ctrl+home", "❯ one"), ("pagedown", "line12"), ("ctrl+end", "line59")):
            await person.pilot.press(key)
            await person.sees(shown)
        await person.pilot.press("pageup")
        await person.no_longer_sees("line59")
        await person.type("typed")
        await person.pilot.press("shift+home", "super+c")
        assert person.app.clipboard == "typed"

    play(stage, scenario)


def test_ctrl_c_stops_then_discards_then_leaves(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("half",), hangs=True),))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("half")
        await person.type("typed")
        await person.pilot.press("ctrl+c")
        await person.sees("stopped")
        assert person.app.prompt.text == "typed"
        await person.pilot.press("ctrl+c")
        assert person.app.prompt.text == ""
        await person.pilot.pause(2.1)
        await person.pilot.press("ctrl+c")
        assert not person.app._exit
        await person.pilot.press("ctrl+c")

    assert play(stage, scenario) == 130


@pytest.mark.parametrize("keys", [("ctrl+q",), ("ctrl+d",), ("slash", "e", "x", "i", "t", "enter")])
def test_ways_to_leave(tmp_path: Path, keys: tuple[str, ...]) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press(*keys)
        await person.until(lambda: person.app._exit, "the end")

    assert play(ChatHarness(tmp_path), scenario) in (0, None)


def test_ctrl_d_deletes_where_something_is_typed(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.type("ab")
        await person.pilot.press("home", "ctrl+d")
        assert person.app.prompt.text == "b"
        assert not person.app._exit

    play(ChatHarness(tmp_path), scenario)


def lent(stage: ChatHarness, monkeypatch: pytest.MonkeyPatch) -> ChatHarness:
    """There is no terminal to lend in these tests."""
    monkeypatch.setattr(stage.app, "suspend", nullcontext)
    return stage


def test_the_editor_gets_the_question_and_gives_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", shouting(tmp_path))
    stage = lent(ChatHarness(tmp_path), monkeypatch)

    async def scenario(person: ChatObserver) -> None:
        await person.type("shout")
        await person.pilot.press("ctrl+g")
        await person.until(lambda: person.app.prompt.text == "SHOUT", "the edited text")

    play(stage, scenario)


def test_an_editor_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "no-such-editor")
    stage = lent(ChatHarness(tmp_path), monkeypatch)

    async def scenario(person: ChatObserver) -> None:
        await person.type("keep")
        await person.pilot.press("ctrl+g")
        await person.sees("error: editor not found: 'no-such-editor'")
        assert person.app.prompt.text == "keep"

    play(stage, scenario)


# ---- dialogs
def test_conversations_are_opened_renamed_deleted_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "three"):
        saved(tmp_path, name, Turn(f"{name}?", "answer"))
    stage, folder = ChatHarness(tmp_path, saves=True), tmp_path / "conversations"

    async def choose(person: ChatObserver, name: str) -> None:
        if not isinstance(person.app.screen, ConversationsDialog):
            await person.pilot.press("ctrl+o")
            await person.until(lambda: isinstance(person.app.screen, ConversationsDialog), "the dialog")
        await person.idle()
        person.app.screen.query_one(OptionList).highlighted = conversation_file.list_names(folder).index(name)
        await person.pilot.pause()

    async def scenario(person: ChatObserver) -> None:
        await choose(person, "two")
        await person.pilot.press("enter")
        await person.sees("❯ two?")
        await choose(person, "two")
        await person.sees("^e Export  del Delete  esc Close  ^r Rename")
        await person.pilot.press("ctrl+r", "x")
        await person.sees("new name        twox")
        await person.pilot.press("enter")
        await person.sees("  twox")
        await person.no_longer_sees("new name")
        await choose(person, "three")
        await person.pilot.press("delete")
        await person.sees("press delete again to delete 'three' for good")
        assert "three" in conversation_file.list_names(folder)
        await person.pilot.press("delete")
        await person.no_longer_sees("  three")
        await choose(person, "one")
        await person.pilot.press("ctrl+e")
        await person.sees("written to")
        await choose(person, "one")
        await person.pilot.press("ctrl+r")
        person.app.screen.query_one("#name", Input).value = "../up"
        await person.pilot.press("enter")
        await person.sees("invalid name for a conversation")
        await person.pilot.press("escape", "escape")
        await person.sees("renamed two to twox", "deleted three")
        assert isinstance(person.app.focused, PromptInput)
        await person.ask("/delete twox")  # it is open
        await person.no_longer_sees("❯ two?")
        await person.ask("new")  # which does not save what was deleted
        await person.sees("the first answer")

    play(stage, scenario)
    assert sorted(conversation_file.list_names(folder)) == ["new", "one"]
    assert "> one?" in (tmp_path / "one.md").read_text()


def test_letters_in_the_list_of_conversations_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, "one", Turn("one?", "answer"))

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("ctrl+o")
        await person.until(lambda: isinstance(person.app.screen, ConversationsDialog), "the dialog")
        await person.type(f"{string.ascii_letters}{string.digits} ")
        assert isinstance(person.app.screen, ConversationsDialog)
        assert "new name" not in person.text

    play(ChatHarness(tmp_path), scenario)
    assert conversation_file.list_names(tmp_path / "conversations") == ("one",)
    assert not (tmp_path / "one.md").exists()


@pytest.mark.parametrize("opener", ["ctrl+o", "f4", "f5", "f1", "ctrl+p"])
def test_the_key_that_leaves_works_in_every_dialog(tmp_path: Path, opener: str) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press(opener)
        await person.until(lambda: len(person.app.screen_stack) == 2, "the dialog")
        await person.pilot.press("ctrl+q")
        await person.until(lambda: person.app._exit, "the end")

    play(stage, scenario)


def test_help_opens_at_its_top_and_is_searched(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f1")
        await person.sees("type to search", "/help", "show this list")
        assert "ctrl+g" not in person.text  # below what fits
        await person.pilot.press(*["pagedown"] * 4)
        await person.sees("ctrl+g")
        await person.pilot.press("pageup", "up", "down")
        await person.type("draft SET")
        await person.sees("/spec [auto|off|pid|N]")
        assert "/help" not in person.text
        await person.type("zz")
        await person.sees("nothing has 'draft SETzz'")
        await person.pilot.press("ctrl+u")
        await person.type("keys summarized")
        await person.sees("send the summarized turns again", "f7")
        await person.pilot.press("escape")
        await person.no_longer_sees("type to search")
        assert isinstance(person.app.focused, PromptInput)

    play(ChatHarness(tmp_path), scenario)


def test_help_needs_no_model(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, is_held=True)

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f1")
        await person.sees("show this list")
        await person.pilot.press("f1")
        await person.no_longer_sees("show this list")
        await person.ask("/?")
        await person.sees("show this list")

    play(stage, scenario, waits=False)


def test_settings_go_into_the_next_question(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f4")
        await person.until(lambda: isinstance(person.app.screen, SettingsDialog), "the dialog")
        person.app.screen.query_one("#system", TextArea).text = "be brief"
        person.app.screen.query_one("#temperature", Input).value = "warm"
        await person.pilot.press("ctrl+s")
        await person.sees("temperature must be a number, not 'warm'")
        person.app.screen.query_one("#temperature", Input).value = "99"
        await person.pilot.press("ctrl+s")
        await person.sees("temperature must lie between")
        person.app.screen.query_one("#temperature", Input).value = "0.2"
        person.app.screen.query_one("#seed", Input).value = "7"
        await person.pilot.press("ctrl+s")
        await person.idle()
        await person.ask("one")
        await person.sees("first answer")

    play(stage, scenario)
    (request,) = stage.client.requests
    assert (request.params.temperature, request.params.seed, request.params.max_tokens) == (0.2, 7, None)
    assert request.messages[0].content == "be brief"


def test_what_a_command_has_set_stands_in_the_settings(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.ask("/set top_k 17")
        await person.idle()
        await person.pilot.press("f4")
        await person.until(lambda: isinstance(person.app.screen, SettingsDialog), "the dialog")
        assert person.app.screen.query_one("#top_k", Input).value == "17"

    play(ChatHarness(tmp_path), scenario)


def test_another_model_and_draft_length(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f5")
        await person.until(lambda: isinstance(person.app.screen, ModelDialog), "the dialog")
        dialog = person.app.screen
        dialog.query_one("#spec", Input).value = "many"
        await person.pilot.press("ctrl+s")
        await person.sees("must be auto, off, pid")
        dialog.query_one("#target", Input).value = "other"
        dialog.query_one("#spec", Input).value = "3"
        await person.pilot.press("enter")
        await person.sees("other · ", "3 tokens ahead")
        await person.ask("one")
        await person.sees("first answer")

    play(stage, scenario)
    assert [client.label for client in stage.clients] == ["scripted model", "other"]
    assert str(stage.client.requests[0].spec) == "3"


# ---- the user's own keys, and how keys are shown
def test_keys_can_be_given_to_other_actions(tmp_path: Path) -> None:
    stage = ChatHarness(
        tmp_path, display_options=DisplayOptions(keys=(("panel", "ctrl+b"), ("send", "ctrl+s"), ("newline", "enter")))
    )

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("ctrl+b")
        await person.sees("No answer yet")
        await person.pilot.press("f2")
        await person.sees("No answer yet")
        await person.type("a")
        await person.pilot.press("enter", "b", "ctrl+s")
        await person.sees("first answer")

    play(stage, scenario)
    assert stage.client.requests[0].messages[0].content == "a\nb"


def test_the_palette_has_everything_by_name(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("ctrl+p")
        await person.type("mark")
        await person.sees("Mark drafted")
        await person.pilot.press("enter", "enter")
        await person.sees("drafted and accepted text is marked")

    play(ChatHarness(tmp_path), scenario)


def test_the_palette_has_our_words_and_no_other(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        titles = [command.title for command in person.app.get_system_commands(person.app.screen)]
        assert len(titles) == len(set(titles))
        assert {*COMMANDS, "Help", "Model", "Leave", "Theme: light", "Theme: terminal"} <= set(titles)
        assert {"Theme", "Quit", "Keys", "Maximize", "Screenshot"} & set(titles) == set()
        await person.pilot.press("ctrl+p")
        await person.type("/stats")
        await person.pilot.press("down", "enter")
        await person.sees("no answers yet")
        await person.pilot.press("ctrl+p")
        await person.type("/export")
        await person.pilot.press("down", "enter")
        await person.until(lambda: person.app.prompt.text == "/export ", "the command in the prompt")

    play(ChatHarness(tmp_path), scenario)


def test_a_theme_that_is_chosen_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("# mine\nport = 9\n[keys]\nquit = 'q'\n")
    stage = ChatHarness(tmp_path, display_options=DisplayOptions(theme_file=file))

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("ctrl+p")
        await person.type("theme light")
        await person.pilot.press("down", "enter")
        await person.sees("theme light, kept")
        assert person.app.theme == "light"
        file.write_text("theme = [1")
        person.app.action_choose_theme("dark")
        await person.sees("theme dark, only for now")

    play(stage, scenario)
    file.write_text("# mine\nport = 9\n[keys]\nquit = 'q'\n")
    DisplayOptions(theme_file=file).keep_theme("contrast")
    assert Settings.load({}, {}, file).theme == "contrast"
    assert file.read_text().endswith("# mine\nport = 9\n[keys]\nquit = 'q'\n")


def test_themes_of_the_config_are_those_of_the_screen(tmp_path: Path) -> None:
    for name in ChatHarness(tmp_path).app.available_themes:
        assert Settings.load({"theme": name}, {}, tmp_path / "none.toml").theme == name


def keys_by_purpose(app: ChatApp) -> dict[str, str]:
    return {row.purpose: row.name for row in app.help_rows() if row.group == "keys"}


def test_every_key_is_listed_by_help(tmp_path: Path) -> None:
    app = ChatHarness(tmp_path).app
    bindings = [binding for binding in (*ChatApp.BINDINGS, *PromptInput.BINDINGS) if isinstance(binding, Binding)]
    bound = {name_key(key) for binding in bindings for key in binding.key.split(",")}
    listed = [key for keys in keys_by_purpose(app).values() for key in keys.split(", ")]
    assert sorted({*bound, "ctrl+p"} - {"super+c"}) == sorted(listed)
    of_turns = {row.purpose: row.name.split(", ") for row in app.help_rows() if row.group == "keys of a turn"}
    assert [set(of_turns[TURN_PURPOSES[each.id]]) for each in TURN_BINDINGS] == [
        {name_key(key) for key in each.key.split(",")} for each in TURN_BINDINGS
    ]


def test_help_lists_the_keys_of_the_config(tmp_path: Path) -> None:
    keys = (("panel", "ctrl+b, f12"), ("send", "ctrl+s"), ("newline", "enter"), ("edit", "ctrl+r"))
    stage = ChatHarness(tmp_path, display_options=DisplayOptions(keys=keys))
    listed = keys_by_purpose(stage.app)
    expected = {"panel": "ctrl+b, f12", "send": "ctrl+s", "newline": "enter", "retry": "f6", "search": "ctrl+r"}
    assert {each: listed[CHAT_PURPOSES[each]] for each in expected} == expected
    assert listed[CHAT_PURPOSES["edit"]] == NO_KEY  # the prompt takes it, for its search
    assert "f2" not in listed.values()

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("f1")
        await person.type("panel")
        await person.sees("ctrl+b, f12")

    play(stage, scenario)


def test_hints_name_the_keys_of_the_config(tmp_path: Path) -> None:
    keys = (("stop", "f11"), ("interrupt", "f10"), ("leave", "f12"))
    stage = ChatHarness(
        tmp_path, display_options=DisplayOptions(keys=keys), scripts=(Script(("on and on",), hangs=True),)
    )

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("answering ·", "f11 stops")
        await person.pilot.press("f3")
        await person.sees("f11 stops it")
        await person.pilot.press("f11")
        await person.idle()
        await person.pilot.press("f3")
        await person.sees("editing a question: enter asks again, f11 keeps it as it was")
        await person.pilot.press("f11", "f10")
        await person.sees("press f10 again, ctrl+d or f12 to leave")

    play(stage, scenario)


def test_a_key_that_the_user_chose_counts_before_a_default_one(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, display_options=DisplayOptions(keys=(("send", "ctrl+j"),)))
    assert keys_by_purpose(stage.app)[CHAT_PURPOSES["newline"]] == "shift+enter, alt+enter"

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("a", "ctrl+j")
        await person.sees("the first answer")

    play(stage, scenario)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("ctrl+underscore", "ctrl+_"),
        ("pageup", "page up"),
        ("slash", "/"),
        ("space", "space"),
        ("G", "G"),
        ("f1", "f1"),
    ],
)
def test_keys_are_named_as_people_write_them(key: str, name: str) -> None:
    assert name_key(key) == name


def test_every_action_can_be_bound_by_its_name() -> None:
    screens = {
        CHAT_ACTIONS: ((ChatApp, PromptInput, Dialog, *Dialog.__subclasses__()), TURN_BINDINGS),
        MONITOR_ACTIONS: ((Monitor, RequestTable, ServersMonitor), ()),
    }
    for known, (places, others) in screens.items():
        bindings = [*others, *(each for place in places for each in place.BINDINGS)]
        assert {each.id for each in bindings if isinstance(each, Binding)} == known
    check_display_options(DisplayOptions(keys=(("panel", "ctrl+b"), ("pause", "p"))))
    with pytest.raises(UsageError, match="unknown action 'pannel'"):
        check_display_options(DisplayOptions(keys=(("pannel", "p"),)))


def test_ascii_draws_with_ascii_alone(tmp_path: Path) -> None:
    from eaglelocal.tui.glyphs import ASCII

    stage = ChatHarness(
        tmp_path,
        display_options=DisplayOptions(glyphs=ASCII),
        size=(120, 40),
        scripts=(says("- one\n- two\n\n> three"),),
    )

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("* one", "| three", "41.2 tok/s")
        assert [char for char in person.text if not char.isascii()] == []

    play(stage, scenario)

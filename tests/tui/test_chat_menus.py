"""The list on an empty screen, files in a question, summaries of old turns, and commands during an answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.chat_screen import ChatHarness, ChatObserver, play
from doubles.image_files import write_image
from doubles.scripted_client import Script, says
from textual import events
from textual.widgets import Input

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.tui.chat import chat_app
from eaglelocal.tui.chat.chat_dialogs import ConversationsDialog
from eaglelocal.tui.chat.model_picker import ModelDialog
from eaglelocal.tui.chat.start_list import STARTERS
from eaglelocal.tui.display_options import DisplayOptions


def saved(folder: Path, name: str) -> None:
    path = folder / "conversations" / f"{name}.json"
    conversation_file.save(Conversation(turns=[Turn("who?", "eagles")]), path, target="m")


# ---- an empty screen
def test_an_empty_screen_offers_a_start_until_the_first_question(tmp_path: Path) -> None:
    saved(tmp_path, "birds")
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.sees("continue: birds", *STARTERS)
        await person.pilot.press("down")
        await person.sees("> continue: birds")
        await person.pilot.press("up")
        await person.no_longer_sees("> continue")
        await person.pilot.press("down", "down", "enter")  # the question can be changed before it is sent
        assert person.app.prompt.text == STARTERS[0]
        await person.pilot.press("enter")
        await person.sees("the first answer")
        await person.no_longer_sees(STARTERS[1])
        await person.ask("/clear")
        await person.sees(STARTERS[1])
        await person.pilot.press("down", "enter")
        await person.sees("❯ who?")
        await person.no_longer_sees(STARTERS[1])

    play(stage, scenario)


def test_the_list_takes_no_key_from_somebody_who_types(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.sees(STARTERS[0])
        await person.type("one")
        await person.pilot.press("down", "enter")
        await person.sees("❯ one")

    play(ChatHarness(tmp_path), scenario)


@pytest.mark.parametrize("size", [(40, 12), (20, 6)])
def test_a_small_screen_shows_only_what_fits(tmp_path: Path, size: tuple[int, int]) -> None:
    saved(tmp_path, "birds")

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.pause(0.2)
        assert len(person.app.prompt.start._rows) == max(size[1] // 2 - 4, 0)
        await person.type("/")
        await person.sees("/help")
        await person.pilot.press("escape", "backspace")

    play(ChatHarness(tmp_path, size=size), scenario)


# ---- files
def test_a_file_is_added_with_an_at_sign_or_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my notes"
    folder.mkdir()
    (folder / "to do.txt").write_text("one\ntwo\n")
    (folder / "tool").write_bytes(b"\x7fELF\0")
    monkeypatch.chdir(tmp_path)
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.type("look at @my")
        await person.sees("> my notes/")
        await person.pilot.press("tab")
        await person.sees("to do.txt", "tool")
        await person.type("too")
        await person.pilot.press("enter")
        await person.sees("is not text")
        await person.pilot.press("ctrl+u", "ctrl+k")
        await person.type("look at @my")
        await person.pilot.press("tab")
        await person.type("to\\ ")
        await person.pilot.press("enter")
        assert person.app.prompt.text == "look at [to do.txt, 2 lines, ~11 tokens] "
        await person.pilot.press("enter")
        await person.sees("the first answer")
        await person.ask("/add my notes/to do.txt")
        await person.until(lambda: person.app.prompt.text == "[to do.txt, 2 lines, ~11 tokens] ", "the mark")
        await person.pilot.press("ctrl+u")
        await person.ask("/add gone.txt")
        await person.sees("cannot read gone.txt: No such file")
        await person.ask("see @gone.txt")
        await person.sees("\\@gone.txt is sent as text")
        await person.pilot.press("ctrl+u")
        (tmp_path / "big.txt").write_text("x" * 1_000_001)
        await person.ask("see @big.txt")
        await person.sees("hint: head -c 50000 big.txt > part.txt")

    play(stage, scenario)
    assert stage.client.requests[0].messages[-1].content == "look at to do.txt:\n```\none\ntwo\n```"


def test_commands_without_a_name_list_what_there_is(tmp_path: Path) -> None:
    saved(tmp_path, "birds")

    async def scenario(person: ChatObserver) -> None:
        for line in ("/load", "/delete"):
            await person.ask(line)
            await person.until(lambda: isinstance(person.app.screen, ConversationsDialog), "the dialog")
            await person.pilot.press("escape")
        await person.ask("/model demo --ctx 4096")
        await person.until(lambda: isinstance(person.app.screen, ModelDialog), "the dialog")
        assert person.app.screen.query_one("#target", Input).value == "demo"

    play(ChatHarness(tmp_path), scenario)


def test_a_picture_after_an_at_sign_is_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.type("who is @ca")
        await person.pilot.press("tab")
        await person.sees("[image: cat.png")
        assert person.app.prompt.text == "who is "

    play(ChatHarness(tmp_path, sees_images=True), scenario)


def test_an_address_opens_no_menu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "example.com").write_text("text")
    monkeypatch.chdir(tmp_path)
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("me@example")
        await person.sees("the first answer")

    play(stage, scenario)
    assert stage.client.requests[0].messages[-1].content == "me@example"


@pytest.mark.parametrize("name", ["notes.md", "./notes.md", "notes.md?", "my\\ notes.md"])
def test_a_file_that_is_typed_whole_is_added_when_the_question_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for file in ("notes.md", "my notes.md"):
        (tmp_path / file).write_text("milk\n")
    monkeypatch.chdir(tmp_path)
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.insert(f"ask @alice or @types/node of @{name}")
        await person.pilot.press("escape", "enter")
        await person.sees("the first answer")

    play(stage, scenario)
    sent = stage.client.requests[0].messages[0].content
    assert sent.startswith("ask @alice or @types/node of ") and "notes.md:\n```\nmilk\n```" in sent


@pytest.mark.parametrize(("path", "reason"), [
    ("/dev/zero", "/dev/zero is not a file"),
    ("./src", "src is a folder"),
    ("./missing", "cannot read missing: No such file"),
])  # fmt: skip
def test_a_path_that_cannot_be_added_is_refused_before_the_question_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.insert(f"look at @{path} please")
        await person.pilot.press("enter")
        await person.sees(f"error: {reason}")
        assert person.app.prompt.text == f"look at @{path} please"
        assert person.app.controller.waiting == ()

    play(stage, scenario)
    assert stage.client.requests == []


def test_a_backslash_before_the_sign_sends_a_word_that_looks_like_a_file(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.insert("mail @site.org now")
        await person.pilot.press("enter")
        await person.sees("error: cannot read site.org", "\\@site.org is sent as text")
        await person.pilot.press("home")
        for _ in "mail ":
            await person.pilot.press("right")
        await person.pilot.press("\\", "enter")
        await person.sees("the first answer")

    play(stage, scenario)
    assert stage.client.requests[0].messages[0].content == "mail @site.org now"


# ---- summaries
LONG = "one" + " and so on" * 7


def test_old_turns_are_summarized_and_the_summary_undone(tmp_path: Path) -> None:
    scripts = tuple(says(text) for text in (LONG, "two", "three", "SUMMARY OF ALL", "four", "five"))
    stage = ChatHarness(tmp_path, scripts=scripts, saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/compact")
        await person.sees("there is nothing to summarize")
        assert "error" not in person.text
        for question in ("q1", "q2", "q3"):
            await person.ask(question)
            await person.idle()
        await person.ask("/compact")
        await person.sees("▸ summary of 1 earlier turn, 3 words", "❯ q2", "❯ q3", "1 turn summarized: ")
        await person.no_longer_sees("❯ q1")
        await person.pilot.press("ctrl+t")
        await person.sees("SUMMARY OF ALL")
        await person.type("/comp")
        await person.sees("1 turn summarized")
        await person.pilot.press("ctrl+u")
        await person.ask("q4")
        await person.idle()
        await person.ask("/clear")
        await person.no_longer_sees("❯ q4")
        await person.ask("/load q1")
        await person.sees("❯ q4")
        await person.no_longer_sees("❯ q1")
        await person.type("/comp")
        await person.sees("1 turn summarized")
        await person.pilot.press("ctrl+u")
        await person.pilot.press("f7")  # as /undo does
        await person.sees("❯ q1")
        await person.ask("q5")
        await person.idle()
        await person.pilot.press("f2")
        await person.no_longer_sees("No answer yet")

    play(stage, scenario)
    contents = [[message.content for message in request.messages] for request in stage.client.requests]
    assert contents[3][:2] == ["q1", LONG] and len(contents[3]) == 3
    assert contents[4][1:] == ["SUMMARY OF ALL", "q2", "two", "q3", "three", "q4"]
    assert contents[5] == ["q1", LONG, "q2", "two", "q3", "three", "q4", "four", "q5"]
    (name,) = conversation_file.list_names(tmp_path / "conversations")
    assert len(conversation_file.load_conversation(tmp_path / "conversations", name).turns) == 5


# ---- during an answer
def test_commands_run_during_an_answer_and_questions_wait(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("word",), hangs=True), says("and another one")))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("word")
        await person.ask("two")
        await person.sees("1 waiting")
        await person.ask("/set top_k 7")
        await person.ask("/sped")
        await person.sees("unknown command /sped")
        await person.ask("/clear")  # it belongs to what comes after the answers
        await person.sees("2 waiting")
        await person.pilot.press("escape")
        await person.idle()
        await person.no_longer_sees("❯ one")

    play(stage, scenario)
    assert stage.client.requests[1].params.top_k == 7


def test_what_a_command_says_during_an_answer_leaves_or_comes_below_it(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("word",), hangs=True),), size=(100, 40))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("word")
        for line, notice in (
            ("/system be brief", "system message: be brief"),
            ("/theme nope", "error: no theme 'nope' (/theme lists them)"),
            ("/sped", "error: unknown command /sped"),
        ):
            await person.ask(line)
            await person.until(lambda notice=notice: notice in person.app.view.status.text, notice)  # type: ignore[misc]
            assert person.text.count(notice) == 1
        await person.ask("/set top_k 7")
        await person.until(lambda: len(person.app.view.transcript._late) == 1, "a list")
        assert "top_k           7" not in person.text
        await person.pilot.press("escape")
        await person.sees("stopped", "top_k           7")
        assert person.text.index("stopped") < person.text.index("top_k           7")
        person.app.clear_notifications()
        await person.no_longer_sees("/sped")

    play(stage, scenario)


# ---- notifications
@pytest.mark.parametrize(("is_away", "notifies", "after_s", "expected"), [
    (True, True, 0.0, 1), (False, True, 0.0, 0), (True, False, 0.0, 0), (True, True, 60.0, 0),
])  # fmt: skip
def test_a_long_answer_notifies_somebody_who_looks_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_away: bool, notifies: bool, after_s: float, expected: int
) -> None:
    monkeypatch.setattr(chat_app, "LONG_ANSWER_S", after_s)
    stage, written = ChatHarness(tmp_path, display_options=DisplayOptions(notifies=notifies)), list[str]()

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        if is_away:
            person.app.post_message(events.AppBlur())
        await person.until(lambda: person.app.app_focus is not is_away, "the focus")
        await person.idle()
        assert person.app._driver is not None
        monkeypatch.setattr(person.app._driver, "write", written.append)
        person.app._receive(stage_end(stage))

    play(stage, scenario)
    assert sum(chat_app.ANSWER_NOTIFICATION in text for text in written) == expected


def stage_end(stage: ChatHarness) -> chat_app.AnswerEnded:
    from eaglelocal.conversation.ask import AskResult
    from eaglelocal.conversation.session import RequestOutcome

    return chat_app.AnswerEnded(AskResult(RequestOutcome(), 0), None, stage.n_ctx)

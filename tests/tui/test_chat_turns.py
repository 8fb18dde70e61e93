"""Standing on turns and code blocks: moving, copying, editing, asking again, branching and switching versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles.chat_screen import ChatHarness, ChatObserver, play
from doubles.scripted_client import Script, says
from textual import events

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.errors import EngineError
from eaglelocal.tui.chat import chat_tasks
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.glyphs import ASCII
from eaglelocal.tui.transcript.stops import StopKind

CODE = "Try this:\n\n```sh\nls -l\n```\n\n1. or\n   ```py\n   a = 1\n   ```"
THREE = (says("alpha"), says("beta"), says("gamma"), says("delta"))


def marked(person: ChatObserver) -> str:
    """The rows with the sign of a stop."""
    return "\n".join(row[1:].strip() for row in person.text.splitlines()[1:-6] if row[:1] in ("▌", "|"))


def backgrounds(person: ChatObserver, row: int) -> list[object]:
    """The background of each cell of a row."""
    strip = person.app.screen._compositor.render_strips()[row]
    return [segment.style and segment.style.bgcolor for segment in strip for _ in segment.text]


async def ask_three(person: ChatObserver) -> None:
    for question in ("one", "two", "three"):
        await person.ask(question)
        await person.idle()
    await person.sees("gamma")


def asked(stage: ChatHarness) -> list[str]:
    """The messages of the last request."""
    return [message.content for message in stage.client.requests[-1].messages]


def test_turns_and_code_are_walked_through_with_a_mark(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(says("hello"), says(CODE)))

    async def scenario(person: ChatObserver) -> None:
        await person.pilot.press("alt+up")  # there is nothing yet
        assert person.app.view.transcript.stop is None
        for question in ("one", "two"):
            await person.ask(question)
            await person.idle()
        await person.sees("py #2")
        seen = []
        for key in ("alt+up", "alt+up", "up", "alt+up", "alt+up", "up", "alt+up"):
            await person.pilot.press(key)
            await person.pilot.pause()
            seen.append(marked(person))
        assert seen[:2] == ["py #2\na = 1", "sh #1\nls -l"]
        assert seen[2].startswith("Try this:") and seen[2].endswith("a = 1")
        assert seen[3:] == ["❯ two", "hello", "❯ one", "❯ one"]
        await person.sees("y copy · e edit · r again · b branch · left/right version · esc back")
        for key in ("alt+down", "down", "alt+down", "alt+down", "alt+down", "alt+down"):
            await person.pilot.press(key)
        assert person.app.view.transcript.stop is None  # after the last one
        await person.no_longer_sees("y copy")

    play(stage, scenario)


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (160, 45)])
def test_the_stop_is_in_view_at_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    folder = tmp_path / "conversations"
    turns = [Turn(f"question {number}", f"{CODE}\n\nanswer {number} " + "word " * 90) for number in range(40)]
    conversation_file.save(Conversation(turns=turns), folder / "long.json", target="m")
    stage = ChatHarness(tmp_path, size=size)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/load long")
        await person.sees("word")
        transcript = person.app.view.transcript
        for _ in range(12):
            await person.pilot.press("alt+up")
            assert transcript.stop is not None
            first = transcript._stop_rows.start - transcript.scroll_offset.y
            assert 0 <= first < transcript.size.height
        assert marked(person)
        for _ in range(12):
            await person.pilot.press("alt+down")
            if transcript.stop is not None:
                first = transcript._stop_rows.start - transcript.scroll_offset.y
                assert 0 <= first < transcript.size.height

    play(stage, scenario)


def test_what_one_stands_on_is_copied_and_the_prompt_keeps_its_text(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(says(CODE),))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("py #2")
        await person.idle()
        await person.type("unsent")
        copied = []
        for _ in range(4):
            await person.pilot.press("alt+up", "y")
            await person.pilot.pause()
            copied.append(person.app.clipboard)
        assert copied == ["a = 1", "ls -l", CODE, "one"]
        await person.pilot.press("enter")  # sends nothing
        assert person.app.view.transcript.stop is None
        assert person.app.prompt.text == "unsent"
        await person.pilot.press("alt+up", "escape", "alt+up", "x", "y")
        assert person.app.prompt.text == "unsentxy"
        await person.pilot.press("alt+up", "backspace")
        assert person.app.prompt.text == "unsentx"
        await person.pilot.press("alt+up")
        person.app.prompt.post_message(events.Paste("pasted"))
        await person.until(lambda: person.app.prompt.text == "unsentxpasted", "a paste")
        await person.pilot.press("y")
        assert person.app.prompt.text == "unsentxpastedy"
        await person.pilot.press("alt+up", "ctrl+r", "y")  # searches
        assert person.app.prompt.text == "unsentxpastedy"
        assert "no earlier question with: y" in str(person.app.prompt.border_title)
        assert len(stage.client.requests) == 1

    play(stage, scenario)


def test_moving_and_copying_work_while_an_answer_grows(tmp_path: Path) -> None:
    words = tuple(f"line {number}\n\n" for number in range(900))
    stage = ChatHarness(tmp_path, scripts=(says("hello"), Script(words, delay_s=0.02)))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.idle()
        await person.ask("two")
        transcript = person.app.view.transcript
        await person.until(lambda: transcript.scroll_offset.y > 20, "an answer that scrolls")
        await person.pilot.press("alt+up", "alt+up", "y")
        assert person.app.clipboard == "two"
        y = transcript.scroll_offset.y
        await person.pilot.press("alt+up", "y")
        assert person.app.clipboard == "hello"
        for key in ("r", "b", "left_square_bracket"):
            await person.pilot.press(key)
            await person.sees("wait until the answer has ended")
        assert transcript.stop is not None and transcript.scroll_offset.y <= y
        await person.pilot.press("escape")  # goes back to the prompt, and to the end
        assert person.app.controller.is_busy
        await person.until(lambda: transcript.scroll_offset.y > y, "the end again")
        await person.pilot.press("escape")
        await person.idle()

    play(stage, scenario)


def test_asking_again_keeps_both_answers_and_the_chosen_one_is_sent(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=THREE, saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.idle()
        await person.pilot.press("alt+up", "r")
        await person.sees("beta", "version 2/2")
        await person.idle()
        await person.no_longer_sees("alpha")
        await person.pilot.press("alt+up", "left")
        await person.sees("alpha", "version 1/2 · 1 token · ")  # with the figures of that answer
        await person.sees("left/right version 1/2 · esc back")
        await person.no_longer_sees("beta")
        assert person.app.view.transcript.stop is not None  # still there
        for key in ("right_square_bracket", "left_square_bracket", "right", "left_square_bracket"):
            await person.pilot.press(key)
            await person.idle()
        await person.sees("alpha")
        await person.pilot.press("escape")
        await person.ask("two")
        await person.idle()

    play(stage, scenario)
    assert asked(stage) == ["one", "alpha", "two"]
    folder = tmp_path / "conversations"
    turns = conversation_file.load_conversation(folder, "one").turns
    assert [(turn.answer, turn.version, turn.num_versions) for turn in turns] == [("alpha", 0, 2), ("gamma", 0, 1)]
    assert turns[0].others == ((Turn("one", "beta"),),)


def test_one_version_cannot_be_switched(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.idle()
        await person.pilot.press("alt+up", "right")
        await person.sees("this turn has one version")
        await person.pilot.press("escape")
        await person.no_longer_sees("this turn has one version")

    play(stage, scenario)


def test_an_earlier_question_is_edited_and_what_followed_is_kept(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=THREE, saves=True)

    async def scenario(person: ChatObserver) -> None:
        await ask_three(person)
        await person.type("unsent")
        await person.pilot.press("alt+up", "up", "up", "up", "e")  # the second question
        assert person.app.prompt.text == "two"
        await person.sees("editing a question: enter asks again")
        await person.pilot.press("escape")
        assert person.app.prompt.text == "unsent"
        await person.pilot.press("alt+up", "up", "up", "up", "e", "x", "enter")
        await person.sees("❯ twox", "delta", "version 2/2", "the turn after it stays with version 1")
        await person.idle()
        await person.no_longer_sees("gamma")
        assert person.app.prompt.text == "unsent"
        await person.pilot.press("alt+up", "left")
        await person.sees("❯ two", "beta", "❯ three", "gamma", "version 1/2")

    play(stage, scenario)
    assert asked(stage) == ["one", "alpha", "twox"]
    turns = conversation_file.load_conversation(tmp_path / "conversations", "one").turns
    assert [turn.answer for turn in turns] == ["alpha", "beta", "gamma"]


def test_a_branch_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=THREE, saves=True)

    async def scenario(person: ChatObserver) -> None:
        await ask_three(person)
        await person.pilot.press("alt+up", "up", "up", "b")
        await person.sees("a new conversation with the first 2 turns of one, saved as one 2")
        await person.no_longer_sees("gamma")
        await person.ask("other")
        await person.sees("delta")
        await person.idle()

    play(stage, scenario)
    assert asked(stage) == ["one", "alpha", "two", "beta", "other"]
    files = {path.stem: json.loads(path.read_text())["turns"] for path in (tmp_path / "conversations").glob("*.json")}
    answers = {name: [turn["answer"] for turn in turns] for name, turns in files.items()}
    assert answers == {"one": ["alpha", "beta", "gamma"], "one 2": ["alpha", "beta", "delta"]}


def test_a_branch_loses_no_turn_that_is_not_saved(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=THREE)

    async def scenario(person: ChatObserver) -> None:
        await ask_three(person)
        await person.pilot.press("alt+up", "up", "up", "b")
        await person.sees("this conversation is not saved", "gamma")
        await person.ask("/save mine")
        await person.sees("saved as mine")
        await person.idle()
        await person.pilot.press("alt+up", "up", "up", "b")
        await person.sees("the first 2 turns of mine")

    play(stage, scenario)


@pytest.mark.parametrize("script", [Script((), hangs=True), Script((), fails=EngineError("it broke"))])
def test_without_a_new_answer_the_old_one_stays(tmp_path: Path, script: Script) -> None:
    stage = ChatHarness(tmp_path, scripts=(says("alpha"), script), saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.idle()
        await person.pilot.press("alt+up", "r")
        await person.until(lambda: len(stage.client.requests) == 2, "a request")
        await person.pilot.press("escape")
        await person.sees("alpha", "there is no new answer")
        await person.idle()
        assert person.text.count("❯ one") == 1

    play(stage, scenario)
    assert [turn.answer for turn in conversation_file.load_conversation(tmp_path / "conversations", "one").turns] == [
        "alpha"
    ]


def test_a_question_without_an_answer_is_kept_unless_it_was_refused(tmp_path: Path) -> None:
    fails = Script((), fails=EngineError("it broke"))
    stage = ChatHarness(tmp_path, scripts=(fails, says("beta"), says("gamma")), saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("it broke")
        await person.idle()
        await person.pilot.press("alt+up", "b")
        await person.sees("there is nothing to branch from")
        await person.ask("two")
        await person.sees("beta")
        await person.idle()
        assert [turn.question for turn in read_saved(tmp_path, "one").turns] == ["one", "two"]
        await person.pilot.press("alt+up", "up", "up", "r")
        await person.sees("gamma", "version 2/2")
        await person.idle()
        assert [turn.question for turn in read_saved(tmp_path, "one").turns] == ["one"]
        person.app.prompt.insert_pasted("word " * 3000)
        await person.pilot.press("enter")
        await person.sees("the prompt has 3000 tokens")
        await person.idle()
        await person.pilot.press("ctrl+u", "alt+up", "r")
        await person.sees("this question is not in the conversation")

    play(stage, scenario)
    assert [message.content for message in stage.client.requests[1].messages] == ["two"]  # nothing unanswered


def read_saved(folder: Path, name: str) -> Conversation:
    return conversation_file.load_conversation(folder / "conversations", name)


def test_questions_and_settings_are_on_disk_at_once(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("word",), hangs=True),), saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/system like a cat")  # nothing to save yet
        await person.ask("one")
        await person.sees("word")
        assert read_saved(tmp_path, "one").turns == [Turn("one", "", stopped=True)]
        await person.pilot.press("escape")
        await person.idle()
        assert read_saved(tmp_path, "one").turns == [Turn("one", "word", stopped=True)]
        await person.ask("/system like a dog")
        await person.ask("/set top_k 7")
        await person.idle()
        saved = read_saved(tmp_path, "one")
        assert (saved.system, saved.sampling) == ("like a dog", {"top_k": 7})

    play(stage, scenario)


def test_a_conversation_is_deleted_after_its_answer_and_not_saved_again(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("word",), hangs=True),), saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("word")
        await person.ask("/delete one")
        await person.sees("1 waiting")
        await person.pilot.press("escape")
        await person.idle()
        await person.no_longer_sees("word")

    play(stage, scenario)
    assert conversation_file.list_names(tmp_path / "conversations") == ()


def test_a_long_answer_stays_marked_while_one_scrolls(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    turns = [Turn("q", "\n\n".join(f"{number} " + "word " * 40 for number in range(30))), Turn("q2", "end")]
    conversation_file.save(Conversation(turns=turns), folder / "long.json", target="m")
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/load long")
        await person.sees("end")
        await person.pilot.press("alt+up", "up", "up")
        transcript = person.app.view.transcript
        for _ in range(12):
            await person.pilot.press("pagedown")
            await person.pilot.pause()
        assert transcript._stop_rows.stop == transcript._layout.top(2)
        assert transcript.stop is not None

    play(stage, scenario)


def test_ascii_marks_with_ascii(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, display_options=DisplayOptions(glyphs=ASCII), scripts=(says(CODE),))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.idle()
        await person.pilot.press("alt+up")
        await person.sees("y copy | e edit")
        assert marked(person) == "py #2\na = 1"

    play(stage, scenario)


def test_a_conversation_that_is_opened_ends_standing(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    conversation_file.save(Conversation(turns=[Turn("who?", "eagles")]), folder / "birds.json", target="m")
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.idle()
        await person.pilot.press("alt+up")
        person.app.controller.run_command("/load birds")
        await person.sees("eagles")
        assert person.app.view.transcript.stop is None
        await person.pilot.press("alt+up")
        assert person.app.view.transcript.stop.kind is StopKind.ANSWER

    play(stage, scenario)


def test_a_theme_is_previewed_and_kept_or_not(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    stage = ChatHarness(tmp_path, display_options=DisplayOptions(theme_file=file))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/theme")
        await person.sees("catppuccin-latte")
        await person.pilot.press("down", "down")
        await person.until(lambda: person.app.theme == "contrast", "a preview")
        await person.pilot.press("escape")
        await person.until(lambda: person.app.theme == "dark", "the theme before")
        assert not file.exists()
        await person.ask("/theme")
        await person.sees("catppuccin-latte")
        await person.pilot.press("down", "enter")
        await person.sees("theme light, kept")
        await person.ask("/theme dracula")
        await person.sees("theme dracula, kept")
        await person.ask("/theme neon")
        await person.sees("no theme 'neon'")

    play(stage, scenario)
    assert "dracula" in file.read_text()


def test_the_selection_of_the_mouse_is_visible(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("the first answer")
        await person.idle()
        row = next(number for number, text in enumerate(person.text.splitlines()) if "the first answer" in text)
        before = backgrounds(person, row)
        await person.pilot.mouse_down(offset=(1, row))
        await person.pilot.hover(offset=(10, row))
        await person.pilot.mouse_up(offset=(10, row))
        await person.pilot.pause()
        changed = [at for at, (old, new) in enumerate(zip(before, backgrounds(person, row), strict=True)) if old != new]
        assert changed == list(range(1, 11))  # with the blank after the word

    play(stage, scenario)


@pytest.mark.parametrize(("problem", "shown"), [(EngineError("no memory"), "no memory"), (KeyError("x"), "a bug")])
def test_a_question_that_fails_as_a_whole_ends_the_answer_and_shows_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception, shown: str
) -> None:
    stage = ChatHarness(tmp_path, scripts=(says("alpha"),))
    real = chat_tasks.ask

    def fail(*_: object) -> object:
        raise problem

    async def scenario(person: ChatObserver) -> None:
        monkeypatch.setattr(chat_tasks, "ask", fail)
        await person.ask("one")
        await person.sees(shown)
        assert not person.app.view.transcript.is_growing
        await person.ask("/load nosuch")
        await person.sees("no conversation named 'nosuch'")
        monkeypatch.setattr(chat_tasks, "ask", real)
        await person.ask("/retry")
        await person.sees("alpha")
        assert person.text.count("❯ one") == 1

    play(stage, scenario)


def test_a_reply_of_a_command_survives_a_repeated_question_that_is_stopped(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(says("alpha"), Script(hangs=True)))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.idle()
        await person.ask("/retry")
        await person.until(lambda: person.app.view.transcript.is_growing, "an answer")
        person.app.view.transcript.reply("top_k is 7")
        await person.pilot.press("escape")
        await person.idle()
        await person.sees("❯ one\n\n alpha", "top_k is 7", "there is no new answer")

    play(stage, scenario)


def test_each_turn_keeps_its_own_figures_whatever_the_others_answered(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    conversation_file.save(Conversation(turns=[Turn("who?", "yes", stopped=True)]), folder / "old.json", target="m")
    stage = ChatHarness(tmp_path, scripts=(says("yes"), Script(("yes",), hangs=True), says("other")), saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.idle()
        await person.ask("two")
        await person.sees("❯ two\n\n yes")
        await person.pilot.press("escape")
        await person.idle()
        await person.ask("/retry")
        await person.sees("other")
        await person.idle()
        await person.pilot.press("alt+up", "alt+up", "left")
        await person.sees("version 1/2 · 1 token · 0.7 s · stopped")
        assert person.text.count("stopped") == 1
        await person.ask("/load old")
        await person.sees("❯ who?\n\n yes\n stopped")

    play(stage, scenario)

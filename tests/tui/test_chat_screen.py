"""The chat screen as a user sees it: questions, answers, errors, commands, conversations on disk."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.chat_screen import ChatHarness, ChatObserver, play
from doubles.image_files import write_image
from doubles.scripted_client import Script, says
from textual import events
from textual.widgets._toast import Toast

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.pictures import read_picture
from eaglelocal.errors import EngineError


def test_a_question_is_answered_with_its_figures(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.sees("scripted model · 0/2.0k (0 %)")
        await person.ask("why?")
        await person.sees("❯ why?", "the first answer", "3 tokens · ", "41.2 tok/s · drafts ")
        await person.ask("and?")
        await person.sees("and another one")

    play(stage, scenario)
    assert [message.content for message in stage.client.requests[1].messages] == ["why?", "the first answer", "and?"]
    assert stage.client.num_closed


def test_what_is_typed_and_sent_while_the_model_loads_is_kept(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, is_held=True)

    async def scenario(person: ChatObserver) -> None:
        await person.sees("62 %", "loading the scripted model")
        await person.ask("first")
        await person.sees("1 waiting")
        await person.type("second")
        stage.gate.set()
        await person.sees("❯ first", "the first answer")
        assert person.app.prompt.text == "second"
        assert "62 %" not in person.text

    play(stage, scenario, waits=False)


def test_waiting_questions_are_visible(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, is_held=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("[first]\nquestion")
        await person.ask("second")
        await person.sees("waiting: [first] question; second")
        stage.gate.set()
        await person.no_longer_sees("waiting:")

    play(stage, scenario, waits=False)


def test_esc_takes_back_what_waits(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, is_held=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("first")
        await person.ask("second")
        await person.sees("2 waiting, esc takes back")
        await person.pilot.press("escape")
        assert person.app.prompt.text == "first\nsecond"
        stage.gate.set()
        await person.ready()
        assert stage.client.requests == []

    play(stage, scenario, waits=False)


def test_esc_stops_an_answer_and_the_next_question_works(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("half", " an"), hangs=True), says("whole")))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("half an", "answering ·", "esc stops")
        await person.pilot.press("escape")
        await person.sees("stopped")
        await person.ask("two")
        await person.sees("whole")

    play(stage, scenario)


def test_a_failure_stands_in_the_transcript_with_its_hint(tmp_path: Path) -> None:
    dies = Script(("bro", "ken"), fails=EngineError("the engine process ended with signal 9", hint="ask again"))
    stage = ChatHarness(tmp_path, scripts=(dies, says("well")))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("broken", "error: the engine process ended with signal 9", "hint: ask again")
        stage.client.state = "restarting"
        await person.sees("the engine has ended and is being restarted", "restarting the engine")
        stage.client.state, stage.client.restarts = "ready", 1
        await person.sees("the engine is running again (1 restart)")
        await person.ask("/retry")
        await person.sees("well")
        assert person.text.count("❯ one") == 1

    play(stage, scenario)


def test_the_engine_is_looked_at_after_every_answer_however_short(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        for number in (1, 2):
            await person.until(lambda: bool(stage.client.looked_at), "a first look")
            await person.ask("one")
            await person.until(lambda number=number: number in stage.client.looked_at, "a look behind the answer")  # type: ignore[misc]

    play(stage, scenario)


def test_a_joined_server_that_goes_and_comes_back_is_reported(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        stage.client.state = "draining"
        await person.sees("the server takes no new questions; questions wait for it")
        stage.client.state = "disconnected"
        await person.sees("the server no longer answers; questions wait for it")
        stage.client.state = "ready"
        await person.sees("the server answers again")
        await person.ask("one")
        await person.sees("the first answer")

    play(stage, scenario)


def test_another_model_of_a_joined_server_is_announced_before_its_answer(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        session = person.app.controller._tasks.session
        assert session is not None
        session.model = replace(session.model, read_info=lambda: replace(stage.client.info, target="another model"))
        await person.ask("one")
        await person.sees("the first answer", "── another model")
        places = [person.text.index(text) for text in ("❯ one", "── another", "the first answer")]
        assert places == sorted(places)

    play(stage, scenario)


def test_a_model_that_cannot_be_loaded_leaves_a_screen_that_loads_another(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, is_broken=True)

    async def scenario(person: ChatObserver) -> None:
        await person.sees("error: no file missing.gguf", "hint: /model demo")
        await person.ask("hello")
        await person.sees("error: no model is loaded")
        await person.ask("/model other.gguf")
        await person.sees("other.gguf · 0/2.0k")
        await person.ask("hello")
        await person.sees("the first answer")
        await person.ask("/model another.gguf")
        await person.sees("── another.gguf · ")
        await person.idle()
        assert person.text.count("── another.gguf · ") == 1

    play(stage, scenario, waits=False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/help", "clear the conversation"),
        ("/stats", "no answers yet"),
        ("/spec 3", "drafting: 3 tokens ahead"),
        ("/system be brief", "system message: be brief"),
        ("/system\nbe brief", "system message: be brief"),
        ("/model missing.gguf", "error: no file missing.gguf"),
        ("/model other.gguf", "other.gguf · "),
        ("/draft ngram", "draft    scripted head"),
        ("/set top_k 7", "top_k           7"),
        ("/sped", "error: unknown command /sped"),
        ("/export", "error: there is nothing to export yet"),
        ("/load nothing", "error: no conversation named 'nothing'"),
    ],
)
def test_commands_do_what_they_do_in_line_mode(tmp_path: Path, line: str, expected: str) -> None:
    stage = ChatHarness(tmp_path, size=(100, 62))

    async def scenario(person: ChatObserver) -> None:
        await person.ask(line)
        await person.sees(expected)

    play(stage, scenario)


def test_another_model_has_none_of_the_figures_of_the_last_one(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("hello")
        await person.idle()
        assert person.app.view.feed.make_frame(time.monotonic()).drafted
        await person.ask("/set top_k 7")
        await person.idle()
        assert person.app.view.feed.make_frame(time.monotonic()).drafted  # it is the same model
        await person.ask("/model other.gguf")
        await person.idle()
        frame = person.app.view.feed.make_frame(time.monotonic())
        assert (frame.drafted, frame.tok_s, frame.figures.acceptance) == (None, None, None)

    play(stage, scenario)


def test_a_notice_takes_the_place_of_the_activity_and_covers_nothing(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("hello")
        await person.idle()

        def lines(text: str) -> list[str]:
            return [line for line in person.text.splitlines() if text in line]

        await person.until(
            lambda: any("41.2 tok/s" in line for line in lines("scripted model ·")), "a status line with figures"
        )
        person.app.notify("it has [been] done", timeout=2, markup=False)
        await person.sees("it has [been] done")
        (line,) = lines("it has [been] done")
        assert "41.2 tok/s" in line and "scripted model" not in line
        assert not person.app.query(Toast)
        await person.no_longer_sees("it has [been] done")
        await person.sees("scripted model ·")

    play(stage, scenario)


def test_a_draft_is_part_of_the_choice(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/draft ngram")
        await person.idle()
        await person.ask("/model other.gguf")
        await person.idle()

    play(stage, scenario)
    asked = [(choice.target, choice.draft) for choice in stage.choices]  # planned again when the old one is gone
    assert list(dict.fromkeys(asked)) == [(None, None), (None, "ngram"), ("other.gguf", "ngram")]


def test_conversations_are_kept_by_themselves(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("why is that?")
        await person.sees("first answer", "why is that")
        await person.ask("and?")
        await person.sees("another one")
        await person.idle()

    play(stage, scenario)
    (file,) = (tmp_path / "conversations").iterdir()
    assert file.stem == "why is that"
    assert [turn["question"] for turn in json.loads(file.read_text())["turns"]] == ["why is that?", "and?"]


def saved(folder: Path, name: str, *turns: Turn) -> None:
    conversations = folder / "conversations"
    conversation_file.save(Conversation(turns=list(turns)), conversations / f"{name}.json", target="m")


def test_a_saved_conversation_goes_on(tmp_path: Path) -> None:
    saved(tmp_path, "eagles", Turn("who?", "**eagles**", reasoning="who flies"))
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/load eagles")
        await person.sees("❯ who?", "▸ thought, 2 words", " eagles")
        await person.ask("and?")
        await person.sees("the first answer")

    play(stage, scenario)
    assert [message.content for message in stage.client.requests[0].messages] == ["who?", "**eagles**", "and?"]


def test_dropping_the_oldest_turns_is_reported(tmp_path: Path) -> None:
    saved(tmp_path, "long", *(Turn("word " * 60, "word " * 60) for _ in range(4)))
    stage = ChatHarness(tmp_path, n_ctx=300)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/load long")
        await person.ask("next")
        await person.sees("no longer sent", "the first answer")

    play(stage, scenario)


def test_an_edited_question_takes_the_place_of_the_last(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("whi")
        await person.sees("first answer", "41.2 tok/s")
        await person.idle()
        await person.pilot.press("f3")
        assert person.app.prompt.text == "whi"
        await person.pilot.press("backspace", "y", "enter")
        await person.sees("❯ why", "another one")
        await person.no_longer_sees("❯ whi")

    play(stage, scenario)
    assert [message.content for message in stage.client.requests[1].messages] == ["why"]


def test_a_question_is_not_edited_while_the_next_one_is_answered(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(says("first answer"), Script(("half",), hangs=True), says("whole")))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("41.2 tok/s")
        await person.idle()
        await person.ask("two")
        await person.sees("half")
        await person.pilot.press("f3")
        await person.sees("wait until the answer has ended")
        assert person.app.prompt.text == ""
        await person.pilot.press("escape")
        await person.idle()
        await person.pilot.press("f3")
        assert person.app.prompt.text == "two"

    play(stage, scenario)


def test_an_edit_does_not_reach_another_conversation(tmp_path: Path) -> None:
    saved(tmp_path, "eagles", Turn("who?", "**eagles**"))
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("whi")
        await person.sees("41.2 tok/s")
        await person.idle()
        await person.pilot.press("f3")
        person.app.controller.run_command("/load eagles")  # as the list of conversations does
        await person.sees("who?")
        await person.pilot.press("backspace", "y", "enter")
        await person.sees("error: the question is no longer in this conversation", "who?", "eagles")
        await person.pilot.press("up")
        assert person.app.prompt.text == "why"
        await person.pilot.press("enter")
        await person.sees("another one")

    play(stage, scenario)
    assert [message.content for message in stage.client.requests[1].messages] == ["who?", "**eagles**", "why"]


def test_the_tail_is_followed_unless_the_user_has_scrolled_up(tmp_path: Path) -> None:
    words = tuple(f"word{number}\n\n" for number in range(40))
    stage = ChatHarness(tmp_path, scripts=(Script(words, hangs=True), says("end")))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("word39")
        await person.pilot.press("pageup", "pageup")
        await person.no_longer_sees("word39")
        top = shown(person)
        await person.pilot.press("escape")
        await person.idle()
        await person.pilot.pause(0.3)
        assert shown(person) == top
        await person.pilot.press("ctrl+end")
        await person.sees("stopped")

    play(stage, scenario)


def test_what_is_in_view_stays_however_much_was_looked_at(tmp_path: Path) -> None:
    saved(tmp_path, "long", Turn("q", "\n\n".join(f"paragraph {number}" for number in range(200))))
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/load long")
        await person.sees("paragraph 199")
        transcript = person.app.view.transcript
        await person.pilot.press(*["pageup"] * 35)
        for _ in range(100):
            transcript.scroll_relative(y=3, animate=False, immediate=True)
            assert person.text.count("paragraph") >= transcript.size.height // 2

    play(stage, scenario)


def test_notices_during_an_answer_are_shown_below_it(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("half", " an answer"), hangs=True), says("whole")))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("half an answer")
        stage.client.state = "restarting"
        await person.sees("restarting the engine")
        await person.pilot.press("escape")
        await person.idle()
        await person.sees("stopped", "the engine has ended")
        assert person.text.count("half an answer") == 1
        assert person.text.index("the engine has ended") > person.text.index("half an answer")

    play(stage, scenario)


def shown(person: ChatObserver) -> list[str]:
    """The transcript, without its scrollbar."""
    return [text[:79].rstrip() for text in person.text.splitlines()[1:19]]


def test_resizing_during_a_stream_shows_the_same_words(tmp_path: Path) -> None:
    words = tuple(f"word{number} " for number in range(300))
    stage = ChatHarness(tmp_path, scripts=(Script(words, delay_s=0.005),), size=(120, 40))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        for size in ((80, 24), (200, 60), (40, 12), (100, 30)):
            await person.pilot.resize_terminal(*size)
            await person.pilot.pause(0.15)
            lines = person.text.splitlines()
            assert len(lines) == size[1]
            assert max(map(len, lines)) <= size[0]
        await person.sees("word299", "41.2 tok/s")

    play(stage, scenario)


def test_the_panel_stands_next_to_or_below_and_can_be_sent_away(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, size=(150, 40))

    async def scenario(person: ChatObserver) -> None:
        panel, transcript = person.app.view.panel, person.app.view.transcript
        assert not panel.display
        await person.pilot.press("f2")
        await person.sees("No answer yet")
        assert panel.region.y == transcript.region.y
        await person.pilot.resize_terminal(90, 40)
        await person.until(lambda: panel.region.y > transcript.region.y, "a panel below")
        await person.pilot.press("f2")
        await person.no_longer_sees("No answer yet")
        await person.pilot.resize_terminal(80, 24)
        await person.pilot.press("f2")
        await person.sees("No answer yet")
        await person.pilot.press("f2")
        await person.no_longer_sees("No answer yet")
        await person.pilot.resize_terminal(160, 40)
        await person.pilot.pause(0.1)
        assert not panel.display  # it was hidden by hand

    play(stage, scenario)


def test_the_panel_is_off_until_there_is_much_room(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, size=(139, 50))

    async def scenario(person: ChatObserver) -> None:
        assert not person.app.view.panel.display
        await person.ask("what is that?")
        await person.sees("the first answer")
        await person.idle()
        await person.sees("tok/s · drafts ")
        await person.pilot.resize_terminal(140, 50)
        await person.until(lambda: person.app.view.panel.display, "a panel beside the transcript")

    play(stage, scenario)


def test_a_resize_under_a_dialog_is_not_lost(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        body = person.app.screen_stack[0].query_one("#body")
        await person.ask("hello")
        await person.sees("the first answer")
        assert body.has_class("stacked") and not person.app.view.panel.display
        await person.pilot.press("f4")
        await person.sees("temperature")
        await person.pilot.resize_terminal(140, 40)
        await person.until(lambda: not body.has_class("stacked"), "the wide layout, under the dialog")
        await person.pilot.press("escape")
        await person.sees("answer     time")
        assert person.app.view.panel.region.y == person.app.view.transcript.region.y

    play(stage, scenario)


def test_control_characters_of_a_model_do_not_reach_the_terminal(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("a\x1b[31mb", "\x07c\td")),))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}c")

    play(stage, scenario)


def test_leaving_ends_the_answer_and_the_engine(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path, scripts=(Script(("half",), hangs=True),))

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        await person.sees("half")
        await person.pilot.press("ctrl+q")

    play(stage, scenario)
    assert stage.client.num_closed
    assert not stage.client.busy


def test_a_picture_is_attached_and_stands_above_its_question(tmp_path: Path) -> None:
    write_image(tmp_path / "cat.png", size=(40, 30))
    stage = ChatHarness(tmp_path, sees_images=True, size=(120, 40))

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.post_message(events.Paste(f"{tmp_path}/cat.png "))
        await person.sees("with the next question: [image: cat.png, 40x30]", "─ [image: cat.png, 40x30] ")
        assert person.app.prompt.text == ""
        await person.ask("what is it")
        await person.sees("❯ [image: cat.png, 40x30]", "the first answer")
        await person.no_longer_sees("─ [image: cat.png, 40x30] ")
        await person.pilot.press("f3")
        await person.sees("editing a question: enter asks again")
        await person.ask(" really")
        await person.sees("what is it really", "and another one")

    play(stage, scenario)
    assert [[len(message.images) for message in request.messages] for request in stage.client.requests] == [[1], [1]]


def test_a_picture_that_is_dropped_into_a_text_is_attached_and_the_text_stays(tmp_path: Path) -> None:
    cat = write_image(tmp_path / "cat.png")
    stage = ChatHarness(tmp_path, sees_images=True, size=(120, 40))

    async def scenario(person: ChatObserver) -> None:
        await person.ready()
        await person.type("/image ")
        person.app.prompt.post_message(events.Paste(str(cat)))
        await person.until(lambda: person.app.prompt.text == f"/image {cat}", "the path behind the command")
        person.app.prompt.replace_text("what is ")
        person.app.prompt.post_message(events.Paste(str(cat)))
        await person.sees("─ [image: cat.png, 4x3] ")
        await person.ask("this")
        await person.sees("the first answer")

    play(stage, scenario)
    [request] = stage.client.requests
    assert request.messages[0].content == "what is this" and len(request.messages[0].images) == 1


def test_the_status_shows_that_pictures_are_read_and_that_it_stops(tmp_path: Path) -> None:
    cat = read_picture(write_image(tmp_path / "cat.png"))
    slow = Script(("a", " cat"), delay_s=1.0)
    stage = ChatHarness(tmp_path, scripts=(slow,), sees_images=True, attached=(cat,))

    async def scenario(person: ChatObserver) -> None:
        await person.ready()
        await person.ask("what is it")
        await person.sees("reading images · ", "answering ·", "esc stops")
        await person.pilot.press("escape")
        await person.sees("stopped", "scripted model ·")
        await person.no_longer_sees("reading images")

    play(stage, scenario)


def test_what_was_attached_at_the_start_is_shown_at_once(tmp_path: Path) -> None:
    cat = read_picture(write_image(tmp_path / "cat.png"))
    stage = ChatHarness(tmp_path, sees_images=True, attached=(cat,))

    async def scenario(person: ChatObserver) -> None:
        await person.sees("─ [image: cat.png, 4x3] ")
        await person.ask("/image none")
        await person.no_longer_sees("─ [image: cat.png, 4x3] ")
        await person.ask("hi")
        await person.sees("the first answer")

    play(stage, scenario)
    assert not stage.client.requests[0].messages[0].images


def test_a_path_for_a_model_without_eyes_stays_text_until_it_is_sent(tmp_path: Path) -> None:
    cat = write_image(tmp_path / "cat.png")
    stage = ChatHarness(tmp_path, size=(120, 40))

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.replace_text("see ")
        person.app.prompt.post_message(events.Paste(str(cat)))
        await person.until(lambda: person.app.prompt.text == f"see {cat}", "the path in the text")
        person.app.prompt.replace_text("")
        person.app.prompt.post_message(events.Paste(str(cat)))
        await person.until(lambda: person.app.prompt.text == str(cat), "the path in the prompt")
        await person.pilot.press("enter")
        await person.sees("scripted model reads no images")

    play(stage, scenario)
    assert stage.client.requests == []


def test_a_kept_conversation_shows_its_pictures_again(tmp_path: Path) -> None:
    cat = read_picture(write_image(tmp_path / "cat.png"))
    talk = Conversation(turns=[Turn("what is it", "a cat", pictures=(cat,))])
    conversation_file.save(talk, tmp_path / "conversations" / "talk.json", target="m")
    stage = ChatHarness(tmp_path, sees_images=True)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("/load talk")
        await person.sees("[image: cat.png, 4x3]", "what is it", "a cat")
        await person.ask("and now")
        await person.sees("the first answer")

    play(stage, scenario)
    assert [len(message.images) for message in stage.client.requests[0].messages] == [1, 0, 0]


def test_tab_completes_the_path_of_a_picture(tmp_path: Path) -> None:
    write_image(tmp_path / "catalog.png")
    stage = ChatHarness(tmp_path)

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.replace_text(f"/image {tmp_path}/cata")
        await person.pilot.press("tab")
        assert person.app.prompt.text == f"/image {tmp_path}/catalog.png"

    play(stage, scenario)


def test_clear_also_clears_notices(tmp_path: Path) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.ask("/set top_k 7")
        await person.sees("top_k           7")
        await person.ask("/clear")
        await person.idle()
        await person.no_longer_sees("top_k")
        await person.ask("/sped")
        await person.sees("unknown command /sped")
        await person.ask("/new")
        await person.no_longer_sees("unknown command")
        assert "the conversation was cleared" not in person.text

    play(ChatHarness(tmp_path), scenario)


def test_a_continued_conversation_is_shown_and_sent(tmp_path: Path) -> None:
    begun = Conversation(turns=[Turn("who flies?", "an eagle")], name="flyers", num_saved=1)
    stage = ChatHarness(tmp_path, conversation=begun, saves=True)

    async def scenario(person: ChatObserver) -> None:
        await person.sees("❯ who flies?", "an eagle", "flyers")
        await person.ask("how high?")
        await person.sees("the first answer")

    play(stage, scenario, waits=False)
    assert [message.content for message in stage.client.requests[0].messages] == ["who flies?", "an eagle", "how high?"]
    assert len(conversation_file.load_last(tmp_path / "conversations").turns) == 2


@pytest.mark.parametrize("stop_loops", [True, False])
def test_an_answer_that_repeats_itself_is_ended(tmp_path: Path, stop_loops: bool) -> None:
    """Without that it would hang: nobody cancels it."""
    stage = ChatHarness(tmp_path, scripts=(Script((" tea",) * 700, hangs=True), says("yes")), stop_loops=stop_loops)

    async def scenario(person: ChatObserver) -> None:
        await person.ask("one")
        if not stop_loops:
            await person.sees("answering · 700 tokens")
            await person.pilot.press("escape")
            return await person.sees("700 tokens", "stopped")
        await person.sees("stopped", "the answer repeated itself over and over", "/retry asks again")
        await person.ask("on")
        return await person.sees("yes")

    play(stage, scenario)


def test_a_long_question_is_folded_until_it_is_opened(tmp_path: Path) -> None:
    stage = ChatHarness(tmp_path)
    question = "\n".join(f"line {number}" for number in range(240))

    async def scenario(person: ChatObserver) -> None:
        person.app.prompt.insert_pasted(question)
        await person.pilot.press("enter")
        await person.sees("❯ line 0", "line 7", "▸ and 232 lines more", "the first answer")
        assert "line 8" not in person.text
        row = next(y for y, line in enumerate(person.text.splitlines()) if "232 lines more" in line)
        await person.pilot.click("#transcript", offset=(8, row))
        await person.pilot.press("ctrl+home")
        await person.sees("line 12")
        await person.pilot.press("ctrl+end")
        await person.sees("line 239", "▾ 240 lines")
        await person.pilot.press("ctrl+t")
        await person.sees("▸ and 232 lines more")

    play(stage, scenario)
    assert stage.client.requests[0].messages[0].content == question

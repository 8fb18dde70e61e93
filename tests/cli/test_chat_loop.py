"""The interactive loop over a scripted client: answers, slash commands, failures, Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doubles.image_files import write_image
from doubles.scripted_client import Script, ScriptedClient, join_nothing, says, scripted_plan

from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.chat_line import ChatLoop, copy_to_desktop
from eaglelocal.cli.output import Output
from eaglelocal.conversation.action_context import ActionContext
from eaglelocal.conversation.conversation import Turn
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AUTO_SPEC, OFF, Spec, fixed_spec, parse_spec
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError, ModelFileError, UsageError

Line = str | type[BaseException]


@dataclass
class ChatLoopHarness:
    """A loop with lines typed ahead; ctrl-d follows the last."""

    client: ScriptedClient
    folder: Path
    lines: list[Line]
    spec: Spec = AUTO_SPEC
    params: SamplingParams = field(default_factory=lambda: SamplingParams(stop_loops=True))
    chosen: list[ModelChoice] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    stdout: io.StringIO = field(default_factory=io.StringIO)
    stderr: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        output = Output(stdout=self.stdout, stderr=self.stderr, environ={})
        plan = scripted_plan(self.client.label, spec=self.spec)
        self.session = Session(
            ModelLoader(self._plan, self._load, join_nothing),
            ActiveModel(self.client, plan, self.client.info),
            self.params,
        )
        context = ActionContext(self.session, output, self.folder, self.copied.append)
        self._loop = ChatLoop(Asker(self.session, output), context, self._read)

    def run(self) -> int:
        return self._loop.run()

    @property
    def turns(self) -> list[Turn]:
        return self.session.conversation.turns

    def _read(self) -> str:
        line = self.lines.pop(0) if self.lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    def _plan(self, choice: ModelChoice) -> Plan:
        if choice.target == "missing":
            raise ModelFileError("no file missing", hint="eaglelocal chat --target demo")
        self.chosen.append(choice)
        spec = parse_spec(choice.spec) if choice.spec else self.spec
        return scripted_plan(choice.target or "scripted model", spec=spec)

    def _load(self, plan: Plan) -> ActiveModel:
        assert self.client.num_closed, "two models in memory"
        self.loaded.append(plan.target_label)
        if plan.target_label == "broken":
            raise ModelFileError("the file broken is cut short")
        client = ScriptedClient((says("from the other"),), label=plan.target_label)
        return ActiveModel(client, plan, client.info)


Start = Callable[..., ChatLoopHarness]


@pytest.fixture
def talk(tmp_path: Path) -> Start:
    def start(
        *lines: Line,
        scripts: tuple[Script, ...] = (says("hello there", 1),),
        n_ctx: int = 2048,
        spec: Spec = AUTO_SPEC,
        sees_images: bool = False,
        adapters: tuple[AdapterFile, ...] = (),
        max_draft: int = 0,
    ) -> ChatLoopHarness:
        client = ScriptedClient(scripts, n_ctx=n_ctx, sees_images=sees_images, adapters=adapters, max_draft=max_draft)
        return ChatLoopHarness(client, tmp_path / "conversations", list(lines), spec)

    return start


def test_an_answer_and_its_line(talk: Start) -> None:
    chat = talk("hi")
    assert chat.run() == 0
    assert chat.stdout.getvalue() == "hello there\n"
    assert "41.2 tok/s · " in chat.stderr.getvalue()
    assert chat.turns == [Turn("hi", "hello there")]


def test_earlier_turns_are_sent(talk: Start) -> None:
    chat = talk("/system be brief", "one", "two")
    chat.run()
    sent = [(message.role, message.content) for message in chat.client.requests[-1].messages]
    assert sent == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "hello there"),
        ("user", "two"),
    ]


def test_thoughts_are_neither_shown_in_a_pipe_nor_sent_again(talk: Start) -> None:
    chat = talk("one", "two", scripts=(Script(("yes",), thought="hm"),))
    chat.run()
    assert chat.stdout.getvalue() == "yes\nyes\n"
    assert chat.turns[0] == Turn("one", "yes", reasoning="hm")
    assert [message.content for message in chat.client.requests[-1].messages] == ["one", "yes", "two"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(thought="hm"), "after the model's thoughts"),
        (Script(("",)), "the answer is empty"),
        (Script(("\n",)), "the answer is empty"),
    ],
)
def test_an_answer_without_text_is_explained(talk: Start, script: Script, said: str) -> None:
    chat = talk("one", scripts=(script,))
    chat.run()
    assert chat.stdout.getvalue().strip() == ""
    assert said in chat.stderr.getvalue()


def test_an_answer_that_repeats_itself_is_ended_with_a_note(talk: Start) -> None:
    """Without that it would hang: nobody cancels it."""
    chat = talk("one", "two", scripts=(Script((" tea",) * 700, hangs=True), Script(("yes",))))
    assert chat.run() == 0
    assert "repeated itself over and over" in chat.stderr.getvalue()
    assert chat.turns[0].stopped and chat.turns[1].answer == "yes"


def test_thoughts_that_repeat_themselves_are_left_to_their_budget(talk: Start) -> None:
    thought = Script(("yes",), thought=" tea" * 700)
    chat = talk("/think 1000", "one", scripts=(thought,))
    chat.run()
    assert [turn.answer for turn in chat.turns] == ["yes"]
    chat = talk("one", scripts=(thought,))
    chat.run()
    assert "repeated itself" in chat.stderr.getvalue()


@pytest.mark.parametrize(
    ("line", "effort", "budget"),
    [("512", "medium", 512), ("off", "", 0), ("high", "high", None), ("auto", "", None)],
)
def test_think_limits_the_next_answers(talk: Start, line: str, effort: str, budget: int | None) -> None:
    chat = talk(f"/think {line}", "one", scripts=(says("yes"),))
    chat.run()
    thinking = chat.client.requests[-1].params.thinking
    assert (thinking.effort, thinking.budget) == (effort, budget)


def test_think_with_rubbish_is_an_error(talk: Start) -> None:
    chat = talk("/think lots")
    chat.run()
    assert "off, low, medium, high, or a number of tokens" in chat.stderr.getvalue()


def test_empty_lines_ask_nothing(talk: Start) -> None:
    chat = talk("", "   ")
    assert chat.run() == 0
    assert chat.client.requests == []


@pytest.mark.parametrize("line", ["/exit", "/bye", "/quit", "/q"])
def test_exit_leaves_at_once(talk: Start, line: str) -> None:
    chat = talk(line, "never")
    assert chat.run() == 0
    assert chat.client.requests == []


@pytest.mark.parametrize("line", ["/help", "/?", "/"])
def test_help_lists_every_command(talk: Start, line: str) -> None:
    chat = talk(line)
    chat.run()
    for name in ["/help", "/stats", "/spec", "/system", "/clear", "/retry", "/save", "/load", "/model", "/exit"]:
        assert name in chat.stderr.getvalue()


@pytest.mark.parametrize(
    ("typed", "near"), [("/sats", "/stats"), ("/modell x", "/model"), ("/sy", "/system"), ("/exti", "/exit")]
)
def test_an_unknown_command_gets_the_nearest(talk: Start, typed: str, near: str) -> None:
    chat = talk(typed, "hi")
    chat.run()
    name = typed.split()[0]
    assert f"error: unknown command {name}\n\nhint: {near}" in chat.stderr.getvalue()
    assert len(chat.client.requests) == 1


def test_a_blank_makes_it_text_and_so_does_a_second_line(talk: Start) -> None:
    chat = talk(" /etc/hosts?", "/* a comment\n*/")
    chat.run()
    asked = [request.messages[-1].content for request in chat.client.requests]
    assert asked == ["/etc/hosts?", "/* a comment\n*/"]


def test_spec_off_and_on_again_without_loading(talk: Start) -> None:
    chat = talk("/spec off", "a", "/spec on", "b", "/spec 2", "c", "/spec 0", "d")
    chat.run()
    assert [request.spec for request in chat.client.requests] == [OFF, AUTO_SPEC, fixed_spec(2), OFF]
    assert "drafting off (your setting)" in chat.stderr.getvalue()
    assert "drafting: 2 tokens ahead" in chat.stderr.getvalue()
    assert chat.loaded == []


def test_spec_says_which_length_is_not_drafted(talk: Start) -> None:
    chat = talk("/spec 8", "/spec 4", max_draft=5)
    chat.run()
    lines = [line for line in chat.stderr.getvalue().splitlines() if line.startswith("drafting: ")]
    assert lines[0].startswith("drafting: 5 tokens ahead (at most 5 tokens can be drafted here, not 8), ")
    assert lines[1].startswith("drafting: 4 tokens ahead, ")


def test_spec_loads_again_where_the_model_was_loaded_without_a_draft(talk: Start) -> None:
    chat = talk("a", "/spec 7", "b", spec=OFF)
    chat.run()
    assert set(chat.chosen) == {ModelChoice(spec="7")}
    assert chat.client.num_closed == 1
    assert [turn.question for turn in chat.turns] == ["a", "b"]


@pytest.mark.parametrize("argument", ["-1", "1.5", "many", "1000", "²"])
def test_spec_with_rubbish_is_an_error(talk: Start, argument: str) -> None:
    chat = talk(f"/spec {argument}")
    chat.run()
    assert "error: /spec must be auto, off, pid or a number from 0 to 16, not" in chat.stderr.getvalue()


def test_lora_shows_the_adapters_and_sets_their_scales(talk: Start) -> None:
    adapters = (AdapterFile(Path("poems.gguf")), AdapterFile(Path("code.gguf"), 0.0))
    chat = talk("/lora", "a", "/lora 1 0.5", "b", "/lora 0 0", "c", "/model", adapters=adapters)
    chat.run()
    assert [request.adapters for request in chat.client.requests] == [
        None,
        ((0, 1.0), (1, 0.5)),
        ((0, 0.0), (1, 0.5)),
    ]
    said = chat.stderr.getvalue()
    for line in ("0 poems.gguf, 1 code.gguf off", "0 poems.gguf, 1 code.gguf x 0.5", "0 poems.gguf off, 1 code.gguf"):
        assert f"adapters: {line}" in said
    assert "adapters 0 poems.gguf, 1 code.gguf off\n" in said


@pytest.mark.parametrize(
    ("argument", "said"),
    [("1 1", "the only id is 0"), ("0 5000", "a scale must lie between"), ("0 nan", "a scale"), ("x", "its scale")],
)
def test_lora_with_rubbish_is_an_error(talk: Start, argument: str, said: str) -> None:
    chat = talk(f"/lora {argument}", "hi", adapters=(AdapterFile(Path("poems.gguf")),))
    chat.run()
    assert f"error: /lora {argument}: " in chat.stderr.getvalue() and said in chat.stderr.getvalue()
    assert chat.client.requests[0].adapters is None


def test_adapters_are_as_at_the_start_with_another_model(talk: Start) -> None:
    adapters = (AdapterFile(Path("poems.gguf")),)
    chat = talk("/lora 0 0", "/draft ngram", "/lora", "/model other", "/lora", adapters=adapters)
    chat.run()
    assert chat.session.adapters is None
    assert "no adapter is loaded: --lora FILE loads one" in chat.stderr.getvalue()


def test_system_shows_sets_and_removes(talk: Start) -> None:
    chat = talk("/system", "/system be brief", "/system", '/system ""', "hi")
    chat.run()
    assert chat.stderr.getvalue().count("no system message") == 2
    assert chat.stderr.getvalue().count("system message: be brief") == 2
    assert [message.role for message in chat.client.requests[0].messages] == ["user"]


def test_set_shows_and_changes_how_answers_are_drawn(talk: Start) -> None:
    chat = talk(
        "/set temperature 0.25", "a", "/set parameter seed 7", "/set max_tokens 9", "b", "/set seed", "c", "/set"
    )
    chat.run()
    drawn = [(each.params.temperature, each.params.seed, each.params.max_tokens) for each in chat.client.requests]
    assert drawn == [(0.25, None, None), (0.25, 7, 9), (0.25, None, 9)]
    assert "temperature     0.25\n" in chat.stderr.getvalue()
    assert "max_tokens      9\nseed            another one each time\n" in chat.stderr.getvalue()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set num_ctx 9", "unknown parameter 'num_ctx'\n\nhint: eaglelocal chat --ctx N, or f5 in its screen"),
        ("/set warmth 1", "unknown parameter 'warmth'\n\nhint: one of: temperature, top_k"),
        ("/set temperature hot", "temperature must be a number, not 'hot'"),
        ("/set temperature", "temperature must be a number, not ''"),
        ("/set top_p 2", "top_p must lie between 0.0 and 1.0, not 2.0"),
    ],
)
def test_what_cannot_be_set_changes_nothing(talk: Start, line: str, said: str) -> None:
    chat = talk(line, "a")
    chat.run()
    assert f"error: {said}" in chat.stderr.getvalue()
    assert chat.client.requests[0].params == SamplingParams(stop_loops=True)


@pytest.mark.parametrize("line", ["/clear", "/new", "/reset"])
def test_clear_keeps_the_system_message(talk: Start, line: str) -> None:
    chat = talk("/system be brief", "a", line, "b")
    chat.run()
    assert [message.content for message in chat.client.requests[-1].messages] == ["be brief", "b"]


def test_retry_asks_the_same_without_the_old_answer(talk: Start) -> None:
    chat = talk("a", "/retry", scripts=(says("first"), says("second")))
    chat.run()
    assert chat.client.requests[0].messages == chat.client.requests[1].messages
    assert chat.turns == [Turn("a", "second", others=((Turn("a", "first"),),), version=1)]


def test_retry_without_a_question(talk: Start) -> None:
    chat = talk("/retry")
    chat.run()
    assert "error: there is no question yet" in chat.stderr.getvalue()


CODE = "Try:\n```python\na = 1\n\nb = 2\n```\nor\n~~~~\n```\n~~~~"


@pytest.mark.parametrize(
    ("answer", "line", "copied", "said"),
    [
        ("Yes.", "/copy", ["Yes."], ""),
        (CODE, "/copy", [CODE], ""),
        (CODE, "/copy code", ["```"], ""),
        (CODE.partition("or")[0], "/copy code", ["a = 1\n\nb = 2"], ""),
        ("1. one\n   ```\n   a\n   ```", "/copy code", ["a"], ""),
        (CODE, "/copy 1", ["a = 1\n\nb = 2"], ""),
        (CODE, "/copy 3", [], "there is no code block 3\n\nhint: /copy 1 to /copy 2"),
        ("Yes.", "/copy 0", [], "there is no code block 0"),
        ("```\ncut o", "/copy code", ["cut o"], ""),
        ("`a`", "/copy code", [], "there is no code block in the last answer"),
        ("", "/copy", [], "there is no answer yet"),
        ("Yes.", "/copy all", [], "'all' cannot be copied"),
    ],
)
def test_copy_takes_the_last_answer_or_its_code(
    talk: Start, answer: str, line: str, copied: list[str], said: str
) -> None:
    chat = talk("a", line, scripts=(Script((answer,)),))
    chat.run()
    assert chat.copied == copied
    assert said in chat.stderr.getvalue()


@pytest.mark.parametrize(("line", "copied"), [("/copy", CODE), ("/copy code", "```"), ("/copy 1", "a = 1\n\nb = 2")])
def test_an_answer_without_text_hides_none_before_it(talk: Start, line: str, copied: str) -> None:
    chat = talk("a", "b", line, scripts=(Script((CODE,)), Script((), thought="hm")))
    chat.run()
    assert chat.copied == [copied]


def test_copying_without_a_clipboard_is_reported() -> None:
    output = Output(stdout=io.StringIO(), stderr=io.StringIO(), environ={})
    with pytest.raises(UsageError, match="there is no clipboard here"):
        copy_to_desktop("text", output)  # while tests run there is no program


def test_save_and_load(talk: Start) -> None:
    first = talk("/system be brief", "a", "/save trip")
    first.run()
    second = talk("/load trip", "b", "/save", "/load")
    second.run()
    assert [message.content for message in second.client.requests[0].messages] == ["be brief", "a", "hello there", "b"]
    assert "saved as trip" in second.stderr.getvalue()
    assert [path.name for path in first.folder.iterdir()] == ["trip.json"]


def test_save_does_not_overwrite_another_conversation(talk: Start) -> None:
    talk("a", "/save trip").run()
    other = talk("b", "/save trip")
    other.run()
    assert "error: a conversation named 'trip' already exists" in other.stderr.getvalue()


@pytest.mark.parametrize("line", ["/load ../../etc/passwd", "/save ../x", "/load nothing", "/save"])
def test_errors_of_files_leave_the_loop_running(talk: Start, line: str) -> None:
    chat = talk(line, "hi")
    assert chat.run() == 0
    assert "error: " in chat.stderr.getvalue()
    assert chat.stdout.getvalue() == "hello there\n"


def test_model_shows_and_changes(talk: Start) -> None:
    chat = talk("/model", "a", "/model other", "b")
    chat.run()
    assert "scripted model" in chat.stderr.getvalue()
    assert "target   other" in chat.stderr.getvalue()
    assert chat.stdout.getvalue() == "hello there\nfrom the other\n"
    assert chat.client.num_closed == 1


def test_a_model_that_is_not_there_changes_nothing(talk: Start) -> None:
    chat = talk("/model missing", "b")
    chat.run()
    assert "error: no file missing\n\nhint: /model demo" in chat.stderr.getvalue()
    assert chat.loaded == []
    assert chat.turns == [Turn("b", "hello there")]


def test_a_model_that_cannot_be_loaded_brings_the_old_one_back(talk: Start) -> None:
    chat = talk("/model broken", "b")
    chat.run()
    assert "error: the file broken is cut short" in chat.stderr.getvalue()
    assert chat.loaded == ["broken", "scripted model"]
    assert chat.session.choice == ModelChoice()
    assert chat.turns == [Turn("b", "from the other")]


def test_stats_counts_the_session(talk: Start) -> None:
    chat = talk("a", "b", "/stats")
    chat.run()
    assert "answers       2, 4 tokens" in chat.stderr.getvalue()
    assert "4 in 2 drafts, 2 accepted, 2 wasted" in chat.stderr.getvalue()


def test_a_crash_is_shown_and_the_next_question_works(talk: Start) -> None:
    crash = Script(("half", " an"), fails=EngineError("the engine process ended with signal 9", hint="ask again"))
    chat = talk("a", "b", scripts=(crash, says("fine")))
    assert chat.run() == 0
    assert chat.stdout.getvalue() == "half an\nfine\n"
    assert "error: the engine process ended with signal 9\n\nhint: ask again" in chat.stderr.getvalue()
    assert chat.turns == [Turn("a", "half an", stopped=True), Turn("b", "fine")]


def test_a_question_that_failed_before_any_text_can_be_retried(talk: Start) -> None:
    chat = talk("a", "/retry", scripts=(Script(fails=EngineError("gone")), says("fine")))
    chat.run()
    assert chat.turns == [Turn("a", "fine")]


def press_ctrl_c_after(*delays_s: float) -> None:
    for delay_s in delays_s:
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(talk: Start) -> None:
    chat = talk("a", "b", scripts=(Script(("half", " an"), hangs=True), says("fine")))
    press_ctrl_c_after(0.2)
    assert chat.run() == 0
    assert chat.stdout.getvalue() == "half an\nfine\n"
    assert "· stopped" in chat.stderr.getvalue()
    assert chat.turns == [Turn("a", "half an", stopped=True), Turn("b", "fine")]
    assert [message.content for message in chat.client.requests[1].messages] == ["a", "half an", "b"]


def test_ctrl_c_after_a_stopped_answer_leaves(talk: Start) -> None:
    chat = talk("a", KeyboardInterrupt, "never", scripts=(Script(("half",), hangs=True),))
    press_ctrl_c_after(0.2)
    assert chat.run() == 130
    assert len(chat.client.requests) == 1


def test_a_second_ctrl_c_leaves_an_engine_that_does_not_obey(talk: Start) -> None:
    chat = talk("a", "never", scripts=(Script(("half",), hangs=True, deaf=True),))
    before = signal.getsignal(signal.SIGINT)
    press_ctrl_c_after(0.2, 0.4)
    assert chat.run() == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_at_an_empty_prompt_needs_two(talk: Start) -> None:
    chat = talk(KeyboardInterrupt, "hi", KeyboardInterrupt, KeyboardInterrupt, "never")
    assert chat.run() == 130
    assert len(chat.client.requests) == 1
    assert "ctrl-c again" in chat.stderr.getvalue()


def test_old_turns_make_room_and_the_user_is_informed(talk: Start) -> None:
    chat = talk("/system s", "q " * 60, "r " * 60, "t " * 60, scripts=(says("w " * 20),), n_ctx=250)
    chat.run()
    last = chat.client.requests[-1].messages
    assert last[0].content == "s"
    assert last[-1].content == ("t " * 60).strip()
    assert len(last) < 6
    assert "no longer sent: the conversation is longer than the context of 250 tokens" in chat.stderr.getvalue()
    assert len(chat.turns) == 3  # what is left out is still saved


def test_the_engine_has_the_last_word_on_what_fits(talk: Start) -> None:
    """Short words make the estimate too low: the engine refuses, and another turn goes."""
    chat = talk("a " * 40, "b " * 40, "c " * 40, scripts=(says("ok"),), n_ctx=100)
    chat.run()
    assert [turn.question[0] for turn in chat.turns] == ["a", "b", "c"]
    assert "error" not in chat.stderr.getvalue()


def test_a_question_too_long_by_itself_is_an_error_and_forgets_nothing(talk: Start) -> None:
    chat = talk("a", "b " * 500, "c", n_ctx=200)
    chat.run()
    assert "error: the prompt has 500 tokens, the context 200" in chat.stderr.getvalue()
    assert chat.session.conversation.num_forgotten == 0
    assert [turn.question for turn in chat.turns] == ["a", "c"]


def sent_pictures(chat: ChatLoopHarness) -> list[list[int]]:
    """Of each request, how many each of its messages has."""
    return [[len(message.images) for message in request.messages] for request in chat.client.requests]


def test_a_picture_goes_with_the_next_question_only(talk: Start, tmp_path: Path) -> None:
    cat = write_image(tmp_path / "my cat.png", size=(40, 30))
    lines = (f"/image {tmp_path}/my\\ cat.png", "what is it?", "/image", str(cat), "and now?", "thanks")
    chat = talk(*lines, sees_images=True)
    chat.run()
    assert sent_pictures(chat) == [[1], [1, 0, 1], [1, 0, 1, 0, 0]]
    assert chat.client.requests[0].messages[0].images[0].data == cat.read_bytes()
    said = chat.stderr.getvalue()
    assert said.count("with the next question: [image: my cat.png, 40x30]") == 2
    assert said.count("no picture is attached") == 1
    assert said.count("reading [image: ") == 2


def test_pictures_are_let_go_and_wrong_files_named(talk: Start, tmp_path: Path) -> None:
    cat = write_image(tmp_path / "cat.png")
    (tmp_path / "notes.txt").write_text("text")
    chat = talk(f"/image {cat}", f"/image {tmp_path}/notes.txt", "/image none", "hi", sees_images=True)
    chat.run()
    assert sent_pictures(chat) == [[0]]
    assert "notes.txt is not a PNG, JPEG, GIF, WebP or BMP file" in chat.stderr.getvalue()


def test_images_for_a_text_model_are_refused_at_once(talk: Start, tmp_path: Path) -> None:
    cat = write_image(tmp_path / "cat.png")
    chat = talk(f"/image {cat}", str(cat), "hi")
    chat.run()
    assert sent_pictures(chat) == [[0]]
    assert chat.stderr.getvalue().count("scripted model reads no images") == 2
    assert "--mmproj FILE" in chat.stderr.getvalue()


def test_a_question_is_asked_again_with_its_pictures(talk: Start, tmp_path: Path) -> None:
    cat = write_image(tmp_path / "cat.png")
    failing = Script(fails=EngineError("gone"))
    chat = talk(f"/image {cat}", "what?", "/retry", "/retry", scripts=(failing, says("a cat")), sees_images=True)
    chat.run()
    assert sent_pictures(chat) == [[1], [1], [1]]
    assert [turn.shown_question for turn in chat.turns] == ["[image: cat.png, 4x3]\nwhat?"]


def test_a_text_model_that_follows_gets_the_names_of_images(talk: Start, tmp_path: Path) -> None:
    cat = write_image(tmp_path / "cat.png")
    chat = talk(f"/image {cat}", "what?", "/model blind", "and?", "/retry", sees_images=True)
    chat.run()
    [request, _] = chat.session.model.client.requests  # type: ignore[attr-defined]
    assert request.messages[0].content == "[image: cat.png, 4x3]\nwhat?"
    assert not request.messages[0].images

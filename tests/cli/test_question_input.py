"""Reading a question: single lines, continued lines, blocks; PROMPT and stdin; suggestions for misspelled commands."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from eaglelocal.cli import chat_line
from eaglelocal.cli.chat import chat, join_question, mention_command, mention_file, read_stdin
from eaglelocal.cli.chat_line import MORE, PROMPT, LineDiscarded, read_question
from eaglelocal.cli.load_model import mention_model
from eaglelocal.cli.output import Output
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import list_no_models
from eaglelocal.conversation.command_arguments import ArgumentSources
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.question_history import QuestionHistory
from eaglelocal.core.spelling import closest_word
from eaglelocal.errors import UsageError
from eaglelocal.settings import READERS, Settings


def typing(*lines: str | type[BaseException]) -> tuple[Callable[[str], str], list[str]]:
    """A person who types these lines, and the prompts they saw."""
    left, prompts = list(lines), []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        line = left.pop(0)
        if isinstance(line, str):
            return line
        raise line

    return read_line, prompts


@pytest.mark.parametrize(
    ("lines", "question"),
    [
        (["one line"], "one line"),
        (["goes on \\", "here \\", "to here"], "goes on \nhere \nto here"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""all in one"""'], "all in one"),
        (['  """a', 'b"""  '], "a\nb"),
        (['"""a \\', 'b"""'], "a \\\nb"),
        (['say """x"""'], 'say """x"""'),
        (["pasted\nlines"], "pasted\nlines"),
    ],
)
def test_questions_of_several_lines(lines: list[str], question: str) -> None:
    read_line, prompts = typing(*lines)
    assert read_question(read_line) == question
    assert prompts == [PROMPT, *[MORE] * (len(lines) - 1)]


def test_ctrl_c_in_a_block_discards_it() -> None:
    with pytest.raises(LineDiscarded):
        read_question(typing('"""a', "b", KeyboardInterrupt)[0])


@dataclass
class TypedLine:
    """A line as the library of line editing shows it to a completer."""

    text: str

    def get_line_buffer(self) -> str:
        return self.text

    def get_endidx(self) -> int:
        return len(self.text)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("/lo", "/load "),
        ("/load What i", "/load What is it"),
        ("/load wha", "/load wha"),
        ("/load  it", "/load  it flies"),
        ("/spec a", "/spec auto"),
    ],
)
def test_a_name_with_blanks_is_completed(
    typed: str, completed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("it flies", "What is it"):
        path = conversation_file.find_path(tmp_path, name)
        conversation_file.save(Conversation(turns=[Turn("a", "b")]), path, target="")
    monkeypatch.setattr(chat_line, "readline", None)
    editor = chat_line.LineEditor(QuestionHistory(tmp_path / "questions"), ArgumentSources(tmp_path, list_no_models))
    monkeypatch.setattr(chat_line, "readline", TypedLine(typed))
    before, blank, word = typed.rpartition(" ")
    found = editor._complete(word, 0)
    assert f"{before}{blank}{word if found is None else found}" == completed


class SlowStdin(io.TextIOWrapper):
    """A stdin in which nothing has arrived yet."""

    is_terminal = False

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(("is_terminal", "ending"), [(True, "Ctrl+D ends it"), (False, "use </dev/null")])
def test_waiting_for_stdin_says_how_to_end_it(is_terminal: bool, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglelocal.cli.chat._is_ready", lambda stdin: False)
    stdin, stderr = SlowStdin(io.BytesIO(b"late")), io.StringIO()
    stdin.is_terminal = is_terminal
    assert read_stdin(stdin, Output(stdout=io.StringIO(), stderr=stderr, environ={})) == "late"
    assert stderr.getvalue().startswith(f"waiting for stdin to end ({ending}")


@pytest.mark.parametrize("ending", [EOFError, KeyboardInterrupt])
def test_the_end_at_the_prompt_is_the_loops_business(ending: type[BaseException]) -> None:
    with pytest.raises(ending):
        read_question(typing(ending)[0])


@pytest.mark.parametrize(
    ("prompt", "piped", "question"),
    [
        ("a", "", "a"),
        ("", "b\n", "b"),
        ("a", "b\n", "a\n\nb"),
        ("a", "  indented\n", "a\n\n  indented"),
        ("a", " \n", "a"),
    ],
)
def test_prompt_and_stdin_are_joined(prompt: str, piped: str, question: str) -> None:
    assert join_question(prompt, piped) == question


def test_nothing_asked_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        join_question(" ", "\n")


@pytest.mark.parametrize(("word", "found"), [("/hlep", "/help"), ("/st", "/stats"), ("/zzzzz", None), ("", None)])
def test_nearest(word: str, found: str | None) -> None:
    assert closest_word(word, ["/help", "/stats", "/spec", "/system"]) == found


def test_every_flag_with_a_value_is_a_setting_and_so_has_a_variable() -> None:
    """But for the tools that may run: they are named for one run."""
    others = {"context", "prompt", "image", "plain", "as_json", "tint", "save", "resumes", "allow_tools"}
    flags = set(inspect.signature(chat).parameters) - others
    assert flags <= set(READERS)
    assert {"target", "draft", "spec", "ctx", "threads", "top_k", "seed", "system"} <= flags


NAMES = ["smollm2:135m", "smollm2:latest", "demo"]


@pytest.mark.parametrize(
    ("question", "flags", "is_mentioned"),
    [
        ("smollm2:135m", {}, True),
        ("SmolLM2", {}, True),
        ("smollm2:135m", {"target": "demo"}, False),
        ("smollm2:135m", {"url": "none"}, False),
        ("What is smollm2:135m", {}, False),
        ("why", {}, False),
        (None, {}, False),
    ],
)
def test_a_question_that_is_the_name_of_a_model_gets_a_hint(
    question: str | None,
    flags: dict[str, str],
    is_mentioned: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("eaglelocal.cli.load_model.list_model_names", lambda settings: NAMES)
    stderr = io.StringIO()
    mention_model(
        question, Settings.load(flags, {}, tmp_path / "none"), Output(stdout=io.StringIO(), stderr=stderr, environ={})
    )
    assert (f"eaglelocal chat --target {question}" in stderr.getvalue()) is is_mentioned


def test_a_file_of_a_model_is_no_question(tmp_path: Path) -> None:
    output = Output(stdout=io.StringIO(), stderr=io.StringIO(), environ={})
    settings = Settings.load({}, {}, tmp_path / "none")
    with pytest.raises(UsageError, match="is a model, not a question") as refused:
        mention_model("./a.gguf", settings, output)
    assert refused.value.hint == "eaglelocal chat --target ./a.gguf"
    mention_model("what is a.gguf?", settings, output)


def test_a_file_in_a_question_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.py").write_text("x = 1")
    stderr = io.StringIO()
    output = Output(stdout=io.StringIO(), stderr=stderr, environ={})
    mention_file("ask @alice", output)
    assert not stderr.getvalue()
    mention_file("explain @a\\ b.py", output)
    assert "to send the file: cat 'a b.py' | eaglelocal chat ..." in stderr.getvalue()


@pytest.mark.parametrize(
    ("question", "mentioned"),
    [
        ("/help\nhello", "/help"),
        ("hello\n/bye", "/bye"),
        ("/set temperature 0", "/set temperature 0"),
        ("/usr/bin/make: error\n/exitcode 2\n/ x\n\n// c", ""),
        ("what does /help do?", ""),
        ("hello", ""),
    ],
)
def test_a_slash_command_in_a_pipe_is_reported_as_text(question: str, mentioned: str) -> None:
    stderr = io.StringIO()
    mention_command(question, Output(stdout=io.StringIO(), stderr=stderr, environ={}))
    assert stderr.getvalue().startswith(f"{mentioned!r} is sent as text" if mentioned else "")
    assert bool(stderr.getvalue()) == bool(mentioned)

"""Line mode and the screen's commands report invalid input in one line and go on."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli.test_chat_loop import Start, talk  # noqa: F401  # a fixture
from doubles.pty_program import PATIENCE_S, PtyProgram, search_path
from doubles.scripted_client import Script, says

from eaglelocal.cli.output import Output
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.slash_commands import COMMANDS

PROGRAM = [sys.executable, str(Path(__file__).with_name("scripted_terminal.py"))]
BUG = "this is a bug"
CTRL_D, ENTER = b"\x04", b"\r"


def odd_arguments(folder: Path) -> list[str]:
    """Paths that are none, names that no file has, numbers beyond all bounds."""
    (folder / "folder.md").mkdir(exist_ok=True)
    (folder / "closed").mkdir(mode=0o500, exist_ok=True)
    if not (folder / "pipe.md").exists():
        os.mkfifo(folder / "pipe.md")
        (folder / "loop.md").symlink_to("loop.md")
    return [
        "", "~nosuchuser/x.md", "~", "a\0b", "\0", "\ud83e", "caf\udce9", "\U0001f985" * 80, "\U00020000" * 80,
        "x" * 5000,
        str(folder / "folder.md"), str(folder / "pipe.md"), str(folder / "loop.md"), str(folder / "closed" / "x.md"),
        "/dev/full", "/proc/self/mem", "../x", ".", "..", "-", "9" * 5000, "-1", "nan", "inf", "1e999", "\u0664",
        "temperature nan", "temperature 1e999", "top_k " + "9" * 5000, "seed -1", "max_tokens 0", "seed \ud83e",
        "\x1b[2J",
        "'", '"', "file://", "file:///%00", "https://example.org/a.png", "\u202e", "\r", "%s %(x)s {}",
    ]  # fmt: skip


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_takes_any_argument(
    talk: Start,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for sees in (False, True):
        for argument in odd_arguments(tmp_path):
            chat = talk("hi", f"{command} {argument}", "/save after all", "still there", sees_images=sees)
            assert chat.run() == 0
            said = chat.stderr.getvalue()
            assert BUG not in said, (argument[:40], said)
            said.encode()
            if command not in ("/exit", "/system"):
                assert chat.stdout.getvalue().count("hello there") >= 2 or "error" in said
        (tmp_path / "conversations" / "after all.json").unlink(missing_ok=True)


def test_an_unexpected_error_is_reported_and_the_chat_goes_on(talk: Start, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def fails(*_: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setitem(COMMANDS, "/stats", dataclasses.replace(COMMANDS["/stats"], run=fails))
    chat = talk("hi", "/stats", "again")
    assert chat.run() == 0
    assert "error: this is a bug: ZeroDivisionError: unforeseen" in chat.stderr.getvalue()
    assert "Traceback" not in chat.stderr.getvalue()
    assert [turn.question for turn in chat.turns] == ["hi", "again"]


def test_a_name_that_no_file_may_have_is_refused(talk: Start) -> None:  # noqa: F811
    chat = talk("hi", "/save " + "\U00020000" * 80, "/save " + "\u00e9" * 80)
    chat.run()
    assert "error: the name is too long: 320 bytes, and a file name has at most 250" in chat.stderr.getvalue()
    assert conversation_file.list_names(chat.folder) == ("\u00e9" * 80,)


def test_an_export_under_a_name_that_cannot_be_is_reported_as_that(talk: Start) -> None:  # noqa: F811
    chat = talk("hi", "/export ~nosuchuser/x.md", "/export " + "\u00e9" * 300, "/export " + "a/" * 3000)
    chat.run()
    said = chat.stderr.getvalue()
    assert "there is no user 'nosuchuser'" in said and "write the whole path" in said
    assert "is too long: 600 bytes, and the name of a file has at most 255" in said
    assert "is too long: 6000 bytes" in said
    assert "ls -ld" not in said


def test_an_export_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:  # a limit of the whole process
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            code = _exports(tmp_path)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(tmp_path.iterdir()) == []


def _exports(folder: Path) -> int:
    from eaglelocal.conversation.conversation_file import export_markdown
    from eaglelocal.errors import ResourceError

    try:
        export_markdown(Conversation(turns=[Turn("q", "a" * 100_000)]), str(folder / "x.md"), target="t")
    except ResourceError as error:
        return 0 if "File too large" in error.message else 2
    return 3


# ---- on a terminal
def state(folder: Path, **more: str) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder), "NO_COLOR": "1", **more}


def saved(folder: Path) -> dict[str, str]:
    """Question -> answer, of all that is on disk."""
    files = (folder / "eaglelocal" / "conversations").glob("*.json")
    turns = [turn for file in files for turn in json.loads(file.read_text())["turns"]]
    return {turn["question"]: turn["answer"] for turn in turns}


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_a_byte_that_is_no_text_is_one_character_of_a_question(tmp_path: Path, locale: str) -> None:
    with PtyProgram(PROGRAM, state(tmp_path, LC_ALL=locale)) as chat:
        chat.expect("> ")
        chat.type(b"caf\xe9 noir" + ENTER)
        chat.expect("the first answer")
        chat.expect("> ")
        chat.type(b"/save x" + ENTER)
        chat.expect("saved as x")
        chat.expect("> ")
        chat.type(CTRL_D)
        assert chat.end() == 0
    (question,) = saved(tmp_path)
    assert question in ("caf\ufffd noir", "caf noir")  # where the locale knows characters, readline drops the byte


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_terminal_of_one_column_gets_its_answer(tmp_path: Path, columns: int) -> None:
    with PtyProgram(PROGRAM, state(tmp_path), size=(columns, 10)) as chat:
        chat.expect(">")
        chat.type(b"hi" + ENTER)
        deadline_s = time.monotonic() + PATIENCE_S
        while not re.search(r"41\.2.*\d\s*s\s*>", chat.new.replace("\n", "")):  # it reads the next line again
            assert time.monotonic() < deadline_s, chat.new
            assert chat.read() or chat.program.poll() is None
        chat.type(CTRL_D)
        assert chat.end() == 0
    assert BUG not in chat.shown.replace("\n", "")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_talk_that_is_ended_from_outside_is_kept(tmp_path: Path, number: signal.Signals) -> None:
    with PtyProgram(PROGRAM, state(tmp_path)) as chat:
        chat.expect("> ")
        chat.type(b"hi" + ENTER)
        chat.expect("41.2 tok/s")
        chat.expect("> ")
        os.kill(chat.program.pid, number)
        assert chat.end() == 128 + number
        assert chat.is_mended
    assert saved(tmp_path) == {"hi": "the first answer"}
    assert "the conversation is saved in" in chat.new.replace("\n", " ")
    assert "/load rescued hi" in chat.new


@pytest.mark.parametrize("editing", ["readline", "none"])
def test_a_talk_whose_terminal_goes_away_is_kept(tmp_path: Path, editing: str) -> None:
    """Without the signal that a closed terminal sends: under nohup, or where another process leads the session."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [*PROGRAM, *(["--no-readline"] if editing == "none" else [])],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, **state(tmp_path), "TERM": "xterm", "PYTHONPATH": search_path()},
    )
    os.close(theirs)
    try:
        read_until(ours, b"> ")
        os.write(ours, b"hi" + ENTER)
        read_until(ours, b"41.2 tok/s", b"> ")
        os.close(ours)
        assert program.wait(PATIENCE_S) == 129
    finally:
        program.kill()
        program.wait()
    assert saved(tmp_path) == {"hi": "the first answer"}


def test_ctrl_d_keeps_nothing(tmp_path: Path) -> None:
    with PtyProgram(PROGRAM, state(tmp_path)) as chat:
        chat.expect("> ")
        chat.type(b"hi" + ENTER)
        chat.expect("41.2 tok/s")
        chat.expect("> ")
        chat.type(CTRL_D)
        assert chat.end() == 0
    assert saved(tmp_path) == {}


def read_until(fd: int, *words: bytes) -> None:
    """Read until the terminal has shown these, one behind the other."""
    shown, ends_at = b"", time.monotonic() + PATIENCE_S
    for word in words:
        while word not in shown:
            assert time.monotonic() < ends_at, shown
            if select.select([fd], [], [], 0.2)[0]:
                shown += os.read(fd, 65536)
        shown = shown.partition(word)[2]


def test_a_talk_that_is_saved_or_left_is_not_kept_twice(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    talk_of_two = Conversation(turns=[Turn("one", "1"), Turn("two", "2")])
    conversation_file.save(talk_of_two, conversation_file.find_path(folder, "mine"), target="t")
    assert conversation_file.rescue(talk_of_two, folder, target="t") is None
    assert conversation_file.rescue(conversation_file.load_conversation(folder, "mine"), folder, target="t") is None
    talk_of_two.cut(1)
    talk_of_two.add(Turn("two", "another answer"))
    kept = conversation_file.rescue(talk_of_two, folder, target="t")
    assert kept is not None and conversation_file.load_conversation(folder, kept.stem).turns == talk_of_two.turns


def test_surrogates_in_a_saved_file_are_joined(tmp_path: Path) -> None:
    turns = [{"question": "\ud83e\udd85", "answer": "half \ud83e", "reasoning": "\udd85"}]
    (tmp_path / "x.json").write_text(json.dumps({"version": 1, "system": "\ud83e", "turns": turns}))
    loaded = conversation_file.load_conversation(tmp_path, "x")
    assert loaded.turns == [Turn("\U0001f985", "half \ufffd", reasoning="\ufffd")]
    conversation_file.save(loaded, tmp_path / "y.json", target="caf\udce9")


def test_widths_of_the_environment_are_taken_with_care(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(stdout=open(os.devnull, "w"), stderr=open(os.devnull, "w"), environ={})  # noqa: SIM115
    widths = {"": 80, "0": 80, "x": 80, "-3": 80, "9" * 5000: 80, "999999999": 10_000, "120": 120, "\u00b2": 80}
    for columns, width in widths.items():
        monkeypatch.setenv("COLUMNS", columns)
        assert output.width == width, columns


def test_half_an_emoji_in_an_answer_is_shown_and_saved(talk: Start) -> None:  # noqa: F811
    chat = talk("hi", "/save x", scripts=(Script(("an ", "\ud83e")), says("more")))
    chat.run()
    assert "saved as x" in chat.stderr.getvalue()
    assert conversation_file.load_conversation(chat.folder, "x").turns[0].answer == "an \ufffd"

"""The sink: colour only where it may be, no control characters on a terminal, progress apart from data."""

from __future__ import annotations

import fcntl
import io
import json
import pickle
import pty
import struct
import termios

import pytest

from eaglelocal.cli.output import Output, bar_line, standard_output
from eaglelocal.core.events import LoadProgress, TextPiece
from eaglelocal.errors import EagleLocalError, RequestError

PIECES = (
    TextPiece(1, "plain", False),
    TextPiece(2, " one", True),
    TextPiece(3, " two", True),
    TextPiece(4, " end", False),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def output(stdout: io.StringIO, environ: dict[str, str], stderr: io.StringIO | None = None) -> Output:
    return Output(stdout=stdout, stderr=stderr or io.StringIO(), environ={"TERM": "xterm", **environ})


def painted(stdout: io.StringIO, environ: dict[str, str], *, tint: bool = True) -> str:
    output(stdout, environ).answer(tint=tint).show(PIECES)
    return stdout.getvalue()


def test_accepted_tokens_are_tinted_in_runs_on_a_terminal() -> None:
    assert painted(Terminal(), {}) == "plain\x1b[32m one two\x1b[0m end"


@pytest.mark.parametrize(
    ("stdout", "environ", "tint"),
    [
        (io.StringIO(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, True),
        (Terminal(), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True),
        (Terminal(), {"TERM": "dumb"}, True),
        (Terminal(), {"TERM": ""}, True),
        (Terminal(), {}, False),
    ],
)
def test_no_colour_where_none_is_wanted(stdout: io.StringIO, environ: dict[str, str], tint: bool) -> None:
    assert painted(stdout, environ, tint=tint) == "plain one two end"


THOUGHT = (
    (TextPiece(1, "", False, reasoning="hm, "), TextPiece(2, "", False, reasoning="so")),
    (TextPiece(3, "yes", False),),
)


@pytest.mark.parametrize(
    ("stdout", "environ", "shown"),
    [
        (Terminal(), {}, "\x1b[2mhm, so\x1b[0m\n\nyes"),
        (Terminal(), {"NO_COLOR": "1"}, "hm, so\n\nyes"),
        (io.StringIO(), {}, "yes"),
    ],
)
def test_thoughts_stand_faint_before_the_answer(stdout: io.StringIO, environ: dict[str, str], shown: str) -> None:
    stream = output(stdout, environ).answer(tint=True)
    for pieces in THOUGHT:
        stream.show(pieces)
    assert stdout.getvalue() == shown


def test_colour_into_a_pipe_on_demand() -> None:
    assert "\x1b[32m" in painted(io.StringIO(), {"FORCE_COLOR": "1"})


@pytest.mark.parametrize("tint", [True, False])
def test_a_model_cannot_steer_the_terminal(tint: bool) -> None:
    stdout = Terminal()
    evil = "a\x1b]0;title\x07b\x9bJ\r\n\tc\x08"
    output(stdout, {"NO_COLOR": "" if tint else "1"}).answer(tint=tint).show((TextPiece(1, evil, False),))
    assert stdout.getvalue() == "a\ufffd]0;title\ufffdb\ufffdJ\n\tc\ufffd"


def test_a_pipe_gets_the_text_as_it_is() -> None:
    stdout = io.StringIO()
    output(stdout, {}).answer(tint=True).show((TextPiece(1, "a\x1bb\r\n", False),))
    assert stdout.getvalue() == "a\x1bb\r\n"


EVIL = "a\x1b]0;title\x07b\x9bJ\u202egnp.exe\u2069\x7f\tgr\u00f6\u00dfer \u0627\u200f\u200d"


@pytest.mark.parametrize("stdout", [io.StringIO(), Terminal()])
def test_a_name_cannot_steer_whatever_reads_the_lines(stdout: io.StringIO) -> None:
    output(stdout, {}).lines([EVIL])
    cleaned = "a\ufffd]0;title\ufffdb\ufffdJgnp.exe\ufffd\ufffdgr\u00f6\u00dfer \u0627\u200f\u200d\n"
    assert stdout.getvalue().endswith(cleaned)
    assert "\x1b" not in stdout.getvalue()


def test_an_object_holds_the_text_and_no_terminal_obeys_it() -> None:
    stdout = io.StringIO()
    output(stdout, {}).object({EVIL: [EVIL + "\ud83e"]})
    assert json.loads(stdout.getvalue()) == {EVIL: [EVIL + "\ud83e"]}
    assert set(filter(lambda char: not char.isprintable(), stdout.getvalue())) == {"\n", "\u200f", "\u200d"}


@pytest.mark.parametrize("name", ["", "dumb"])
def test_a_terminal_that_moves_no_cursor_gets_lines(name: str) -> None:
    stderr = Terminal()
    sink = output(Terminal(), {"TERM": name}, stderr)
    progress, status = sink.progress(), sink.status()
    progress(LoadProgress(0.5, "loading the target"))
    status.show("ready")
    status.show()
    progress.finish()
    assert (stderr.getvalue(), sink.can_show_screen) == ("loading the target\n", False)


@pytest.mark.parametrize(("encoding", "is_readable"), [("utf-8", True), ("UTF8", True), ("latin-1", False)])
def test_an_object_survives_every_encoding(encoding: str, is_readable: bool) -> None:
    written, value = io.BytesIO(), {"text": "größer \N{RIGHTWARDS ARROW} 鷲"}
    stdout = io.TextIOWrapper(written, encoding=encoding, errors="replace")
    Output(stdout=stdout, stderr=io.StringIO(), environ={}).object(value)
    report = written.getvalue().decode(encoding)
    assert json.loads(report) == value
    assert ("鷲" in report) is is_readable


class EncodedTerminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("kind", "encoding", "locale", "drawn"), [
    (EncodedTerminal, "utf-8", "de_DE.UTF-8", "█·"),
    (EncodedTerminal, "utf-8", "C", "#-"),
    (io.TextIOWrapper, "utf-8", "C", "█·"),  # in a pipe, signs of a path or a model's name stay as they are
    (io.TextIOWrapper, "ascii", "de_DE.UTF-8", "#-"),
])  # fmt: skip
def test_what_we_draw_is_ascii_where_nothing_else_can_be_shown(
    kind: type[io.TextIOWrapper], encoding: str, locale: str, drawn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    stdout, stderr = (kind(io.BytesIO(), encoding=encoding, errors="replace") for _ in range(2))
    sink = Output(stdout=stdout, stderr=stderr, environ={})
    sink.lines(["█·"])
    sink.data("█·")
    sink.page(["█·"])
    sink.note("█·")
    sink.object({"text": "█·"})
    *lines, written = stdout.buffer.getvalue().decode(encoding).splitlines()
    assert lines == [drawn] * 3 and json.loads(written) == {"text": "█·"}
    assert stderr.buffer.getvalue().decode(encoding) == f"{drawn}\n"


def test_messages_and_errors_go_to_stderr() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    sink = output(stdout, {}, stderr)
    sink.message("hello")
    sink.error(EagleLocalError("no file x.gguf", hint="ls"))
    assert stdout.getvalue() == ""
    assert stderr.getvalue() == "hello\nerror: no file x.gguf\n\nhint: ls\n"


NAMED = "x\nevil: yes\r\x85\u2028#.gguf"


def test_a_name_in_a_message_makes_no_line() -> None:
    stderr = io.StringIO()
    sink = output(io.StringIO(), {}, stderr)
    sink.message(f"{NAMED} is skipped")
    sink.note(f"{NAMED} is left out")
    sink.ask(f"delete {NAMED}?")
    assert stderr.getvalue().count("\n") == 2 and stderr.getvalue().count("evil: yes") == 3
    error = pickle.loads(pickle.dumps(RequestError(f"{NAMED} is empty", hint=f"did you mean {NAMED}?")))
    assert len(error.message.splitlines()) == len(error.hint.splitlines()) == 1  # on screens and in logs, too
    stderr.truncate(0)
    error.hint = "eaglelocal ls\neaglelocal plan"  # a command a line
    sink.error(error)
    assert stderr.getvalue().split("\n")[1:] == ["", "hint: eaglelocal ls", "      eaglelocal plan", ""]


def test_progress_redraws_in_place_and_leaves_nothing() -> None:
    stderr = Terminal()
    progress = output(io.StringIO(), {}, stderr).progress()
    progress(LoadProgress(0.5, "loading the target"))
    progress.finish()
    assert "50%  loading the target" in stderr.getvalue()
    assert stderr.getvalue().endswith("\r\x1b[K")
    assert "\n" not in stderr.getvalue()


def test_an_engine_that_restarts_later_draws_nothing() -> None:
    stderr = Terminal()
    progress = output(io.StringIO(), {}, stderr).progress()
    progress.finish()
    progress(LoadProgress(0.5, "loading the target"))
    assert stderr.getvalue() == ""


def test_progress_into_a_file_names_each_thing_once() -> None:
    stderr = io.StringIO()
    progress = output(io.StringIO(), {}, stderr).progress()
    for fraction in (0.0, 0.3, 1.0):
        progress(LoadProgress(fraction, "making the model"))
    progress(LoadProgress(0.0, "loading"))
    progress.finish()
    assert stderr.getvalue() == "making the model\nloading\n"


def test_long_progress_into_a_file_is_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 1000.0
    monkeypatch.setattr("eaglelocal.cli.output.time.monotonic", lambda: clock_s)
    stderr = io.StringIO()
    progress = output(io.StringIO(), {}, stderr).progress()
    for second in range(0, 150, 10):
        clock_s = 1000.0 + second
        progress(LoadProgress(second / 200, "the target answers", f"{second} tokens"))
    lines = ["the target answers", " 30%  the target answers, 60 tokens", " 60%  the target answers, 120 tokens"]
    assert stderr.getvalue().splitlines() == lines


def test_what_is_only_of_the_moment_stands_next_to_a_bar_and_nowhere_else() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stderr in (terminal, file):
        progress = output(io.StringIO(), {}, stderr).progress()
        for number in range(3):
            progress(LoadProgress(0.5, "fetching 4.7 GB", f"{number} MB/s"))
    assert "50%  fetching 4.7 GB, 0 MB/s" in terminal.getvalue()
    assert "1 MB/s" not in terminal.getvalue()  # too soon after the one before
    assert file.getvalue() == "fetching 4.7 GB\n"


def test_a_question_leaves_the_cursor_after_it() -> None:
    stderr = io.StringIO()
    output(io.StringIO(), {}, stderr).ask("fetch \x1b[31mit? [Y/n] ")
    assert stderr.getvalue() == "fetch \ufffd[31mit? [Y/n] "


@pytest.mark.parametrize("fraction", [-1.0, 0.0, 0.37, 1.0, 2.0])
def test_the_bar_fits_its_columns(fraction: float) -> None:
    for width in (30, 80):
        assert len(bar_line(LoadProgress(fraction, "x" * 100), width)) == width - 1


def test_progress_stays_in_one_line_of_a_narrow_terminal() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with open(theirs, "w", encoding="utf-8") as stderr, open(ours, "rb", buffering=0) as screen:
        Output(stdout=io.StringIO(), stderr=stderr, environ={"TERM": "xterm"}).progress()(LoadProgress(0.5, "x" * 100))
        shown = screen.read(1000).decode()
    assert len(shown.removeprefix("\r\x1b[K")) == 39


def test_a_line_of_a_result_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A file may be named so that it makes a line of its own."""
    standard_output().lines(["file   x\nevil: yes\r\x85#.gguf", "next"])
    assert capsys.readouterr().out.splitlines() == ["file   x\ufffdevil: yes\ufffd\ufffd#.gguf", "next"]

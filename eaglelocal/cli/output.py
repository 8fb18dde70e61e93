"""The output of all commands: data to stdout, messages and progress to stderr. The only file that prints.

It handles colour (NO_COLOR, FORCE_COLOR, terminals), closed pipes and control characters, whatever the text.
"""

from __future__ import annotations

import codecs
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from eaglelocal import locations
from eaglelocal.cli.answer_stream import BAD, QUIET, AnswerStream, paint
from eaglelocal.core.terminal_text import IN_ASCII, can_move_cursor, clean_line, clean_text, escape_in_json, is_utf8
from eaglelocal.errors import Cancelled, EagleLocalError, ResourceError, UsageError

if TYPE_CHECKING:
    from eaglelocal.conversation.answer_stats import MessageOutput
    from eaglelocal.core.events import LoadProgress

BAR_CELLS = 16
DEFAULT_WIDTH, MAX_WIDTH = 80, 10_000
MAX_DIGITS = 9
WIDTH = min(max(shutil.get_terminal_size().columns, 40), 80) - 1  # columns of reports
LABEL = 9  # columns before their texts
REDRAW_S = 0.1
LOG_EVERY_S = 60.0  # between lines of one progress where nothing can be redrawn

ShowProgress = Callable[..., None]  # a fraction, what is done, and perhaps a detail


class OutputClosed(Exception):
    """The end of output because the reader of stdout has exited (`| head`); not a failure."""


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether to colour a stream: NO_COLOR decides, then FORCE_COLOR, then whether it is a capable terminal."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and can_move_cursor(environ)


def takes_any_text(stream: TextIO) -> bool:
    """Return whether the stream is UTF-8; in other encodings some characters would become question marks."""
    encoding = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name == "utf-8"


def replace_signs(text: str, stream: TextIO) -> str:
    """Return a text with the signs that we draw in ASCII, if the terminal cannot show them, or the stream hold them."""
    is_shown = takes_any_text(stream) and (is_utf8(os.environ) or not stream.isatty())
    return text if is_shown else text.translate(IN_ASCII)


def count_columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except (OSError, ValueError):
        return DEFAULT_WIDTH


class Output:
    """The output of a process: stdout for data, stderr for messages, each with its own rules of colour."""

    def __init__(self, *, stdout: TextIO, stderr: TextIO, environ: Mapping[str, str]) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._can_move_cursor = can_move_cursor(environ)
        self.colour = wants_colour(stdout, environ)
        self._colour_messages = wants_colour(stderr, environ)

    @property
    def is_terminal(self) -> bool:
        return self._stdout.isatty()

    @property
    def can_show_screen(self) -> bool:
        """True if stdout is a terminal that can show a full screen."""
        return self.is_terminal and self._can_move_cursor

    @property
    def redraws_messages(self) -> bool:
        """True if stderr is a terminal that can redraw a line, such as a progress bar."""
        return self._stderr.isatty() and self._can_move_cursor

    def data(self, text: str, *, end: str = "\n") -> None:
        """Write a command's result to stdout. Raises OutputClosed, or ResourceError if it cannot be written."""
        self._write(replace_signs(clean_text(text), self._stdout) + end)

    def lines(self, lines: Iterable[str]) -> None:
        """Write a result of several lines to stdout: none of them makes two. Raises as `data` does."""
        for line in lines:
            self._write(replace_signs(clean_line(line), self._stdout) + "\n")

    def page(self, lines: Iterable[str]) -> None:
        """Write lines as `lines` does; if a terminal cannot show them at once, through the user's pager."""
        cleaned = [replace_signs(clean_line(line), self._stdout) for line in lines]
        if not self.can_show_screen or len(cleaned) < os.get_terminal_size(self._stdout.fileno()).lines:
            return self.lines(cleaned)
        import pydoc

        return pydoc.pager("\n".join(cleaned) + "\n")

    def report(self, lines: Iterable[str], *, beside_object: bool) -> None:
        """Write the lines of a report to stdout; to stderr if a JSON object goes to stdout."""
        write = self.message if beside_object else self.data
        for line in lines:
            write(line)

    def object(self, value: Mapping[str, object]) -> None:
        """Write a JSON object on one line to stdout."""
        self._write(format_json(value, is_ascii=not takes_any_text(self._stdout)) + "\n")

    def answer(self, *, tint: bool) -> AnswerStream:
        """Return a stream that shows an answer as it arrives.

        tint: colour accepted draft tokens, if colour is allowed.
        """
        width = self.width - 1 if self.is_terminal else None
        return AnswerStream(self._write, tint=tint and self.colour, faint=self.colour, width=width)

    @property
    def columns(self) -> int | None:
        """The width of the terminal in columns; None if stdout is no terminal, so that data need not fit."""
        return self.width if self.is_terminal else None

    @property
    def width(self) -> int:
        """The width of stdout in columns; COLUMNS or 80 if it is no terminal."""
        if self.is_terminal:
            return count_columns(self._stdout)
        given = os.environ.get("COLUMNS", "")
        number = int(given) if given.isdecimal() and len(given) <= MAX_DIGITS else 0
        return min(number, MAX_WIDTH) or DEFAULT_WIDTH

    def message(self, text: str = "") -> None:
        """Write a line for the user to stderr. A closed stderr is ignored, because messages are not data."""
        self._write_message(clean_line(text))

    def ask(self, question: str) -> None:
        """Write a question to stderr; the cursor stays after it."""
        self._write_message(clean_line(question), end="")

    def note(self, text: str) -> None:
        """Write a message of lesser importance in faint letters, such as the statistics after an answer."""
        text = clean_line(text)
        if self._stderr.isatty():
            text = textwrap.fill(text, max(count_columns(self._stdout) - 1, 1), break_long_words=False)
        self._write_message(paint(text, QUIET) if self._colour_messages else text)

    def error(self, error: EagleLocalError, *, traceback: str = "") -> None:
        """Write the traceback if there is one, `error: ...`, a blank line and `hint: ...`, then the report if any."""
        for line in traceback.splitlines():
            self.message(line)
        word = paint("error", BAD) if self._colour_messages else "error"
        self._write_message(f"{word}: {clean_line(error.message)}")
        if error.hint:
            hint = clean_text(error.hint).replace("\n", "\n      ")  # a command a line
            self._write_message(f"\nhint: {hint}")
        if error.report:
            self._write_message(f"report: {clean_line(error.report)}")

    def progress(self) -> ProgressLine:
        return ProgressLine(self._stderr, in_place=self.redraws_messages)

    def status(self, *, faint: bool = False) -> StatusLine:
        """Return the status line, the last line of stderr; it shows nothing where it cannot be redrawn in place."""
        return StatusLine(self._stderr, is_shown=self.redraws_messages, is_faint=faint and self._colour_messages)

    def _write_message(self, text: str, *, end: str = "\n") -> None:
        with suppress(OSError):
            self._stdout.flush()
        with suppress(OSError):
            print(replace_signs(text, self._stderr), end=end, file=self._stderr, flush=True)

    def _write(self, text: str) -> None:
        try:
            print(text, end="", file=self._stdout, flush=True)
        except OSError as problem:
            if self._stdout is sys.stdout:  # Python's last flush at exit must not fail
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(problem, BrokenPipeError):
                raise OutputClosed from None
            raise ResourceError(f"cannot write to stdout: {problem.strerror}") from problem


class ProgressLine:
    """A progress bar, redrawn in place.

    Elsewhere there is a line for each new `LoadProgress.what`, and one a minute while it lasts.
    """

    def __init__(self, stream: TextIO, *, in_place: bool) -> None:
        self._stream, self._in_place = stream, in_place
        self._what, self._drawn_s = "", 0.0
        self._is_drawn = self._is_finished = False

    def __call__(self, progress: LoadProgress) -> None:
        if self._is_finished:
            return
        is_new, self._what = progress.what != self._what, progress.what
        at_once = is_new or (self._in_place and progress.fraction >= 1.0)
        now_s = time.monotonic()
        if not at_once and now_s - self._drawn_s < (REDRAW_S if self._in_place else LOG_EVERY_S):
            return
        self._drawn_s = now_s
        if self._in_place:
            self._is_drawn = True
            write_or_ignore(self._stream, f"\r\x1b[K{bar_line(progress, count_columns(self._stream))}")
        else:
            write_or_ignore(self._stream, f"{clean_text(progress.what) if is_new else _share_and_label(progress)}\n")

    def finish(self) -> None:
        """Erase the bar and ignore later progress: an engine that restarts must not draw here."""
        self._is_finished = True
        if self._is_drawn:
            write_or_ignore(self._stream, "\r\x1b[K")


@contextmanager
def shown_progress(output: MessageOutput) -> Iterator[ShowProgress]:
    """Yield a function that shows a fraction, what is done, and a detail; the bar is gone after the block."""
    from eaglelocal.core.events import LoadProgress

    progress = output.progress()
    try:
        yield lambda fraction, what, detail="": progress(LoadProgress(fraction, what, detail))
    finally:
        progress.finish()


class StatusLine:
    """A line with the current state that stays below the messages."""

    def __init__(self, stream: TextIO, *, is_shown: bool, is_faint: bool = False) -> None:
        self._stream, self.is_shown, self._is_faint = stream, is_shown, is_faint

    def show(self, text: str = "") -> None:
        """Replace the line; without a text erase it, to make room for a message."""
        if self.is_shown and self._is_ours:
            shown = clean_text(text)[: count_columns(self._stream) - 1]
            write_or_ignore(self._stream, f"\r\x1b[K{paint(shown, QUIET) if self._is_faint else shown}")

    @property
    def _is_ours(self) -> bool:
        """True if this process is in the foreground; in the background (`serve &`) the last line is the shell's."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except (OSError, ValueError):
            return True


def format_json(value: Mapping[str, object], *, is_ascii: bool = False) -> str:
    """Return a JSON object on one line that no terminal obeys."""
    return escape_in_json(json.dumps(value, ensure_ascii=is_ascii))


def write_or_ignore(stream: TextIO, text: str) -> None:
    """Write a text; if the stream is closed, the text is lost."""
    try:
        print(replace_signs(text, stream), end="", file=stream, flush=True)
    except OSError:
        return


def bar_line(progress: LoadProgress, width: int) -> str:
    """Return `━━━━━━━━────  62 %  loading the target`, then the detail, in at most `width` - 1 columns."""
    full = int(_clamped(progress.fraction) * BAR_CELLS)
    return f"{'━' * full}{'─' * (BAR_CELLS - full)} {_share_and_label(progress)}"[: width - 1]


def _share_and_label(progress: LoadProgress) -> str:
    label = ", ".join(part for part in (progress.what, progress.detail) if part)
    return f"{_clamped(progress.fraction):4.0%}  {clean_text(label)}"


def _clamped(fraction: float) -> float:
    return min(1.0, max(0.0, fraction))


def standard_output(*, colour: str = "auto") -> Output:
    """Return the output on the process's own streams; characters that they cannot encode become question marks.

    colour: auto, always or never.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    return Output(stdout=sys.stdout, stderr=sys.stderr, environ=colour_environ(colour))


def colour_environ(colour: str) -> Mapping[str, str]:
    """Return this process's environment with the variables that enforce the setting `colour`."""
    variables = {"auto": {}, "always": {"NO_COLOR": "", "FORCE_COLOR": "1"}, "never": {"NO_COLOR": "1"}}[colour]
    return {**os.environ, **variables}


# ---- confirm: confirmation before an expensive or destructive action: a question on a terminal, --yes elsewhere
YES = frozenset({"y", "yes"})


def confirm(question: str, output: Output, *, yes: bool, default: bool) -> None:
    """Ask a question. Raises Cancelled if the answer is no, UsageError if stdin is no terminal.

    yes      do not ask (--yes)
    default  the meaning of an empty answer
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("--yes is needed: there is no terminal to ask on", hint="--yes")
    output.ask(f"{question} [{'Y/n' if default else 'y/N'}] ")
    answer = sys.stdin.readline()
    if not answer:  # ctrl-d
        output.message()
    word = answer.strip().lower()
    if word in YES or (answer and not word and default):
        return
    raise Cancelled("the answer was no")


# ---- texts: labelled lines and paths for people; sizes and durations are in core/amounts.py. Pure
def format_columns(rows: Sequence[Sequence[str]], *, right: Container[str] = ()) -> list[str]:
    """Return rows as lines with aligned columns; those whose heading in the first row is in `right` at their right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, rows[0], strict=True)
        ).rstrip()
        for row in rows
    ]


def wrap_text(begin: str, text: str, *, width: int = WIDTH, indent: int | None = None) -> list[str]:
    """Return a text in lines of at most `width` columns, the first after `begin`; no word is cut, so it can be copied.

    indent  columns before the other lines; None: as many as `begin` has
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=" " * (len(begin) if indent is None else indent),
        break_on_hyphens=False,
        break_long_words=False,
    )


def label_text(label: str, text: str) -> list[str]:
    """Return a row of the reports on a head: a label and its text."""
    return wrap_text(f"{label:<{LABEL}}", text, width=WIDTH + 1, indent=LABEL)


def path_text(path: Path) -> str:
    """Return the path with `~` for the home folder."""
    home = locations.find_home()
    return f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)

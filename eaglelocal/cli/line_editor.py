"""Input of questions in line mode: one line, a line continued with a backslash, or a block in triple quotes.

Uses the stdlib's line editing (GNU readline or libedit, where available), with history and completion
of slash commands. It does not interpret the lines.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from eaglelocal.cli.prompt_signals import deliver_signals
from eaglelocal.conversation.action_context import ListModels, list_no_models
from eaglelocal.conversation.pictures import complete_path
from eaglelocal.core.folders import PRIVATE, make_folder
from eaglelocal.core.own_files import append_own, is_own
from eaglelocal.core.surrogates import join_surrogates
from eaglelocal.core.terminal_text import can_move_cursor

try:
    import readline
except ImportError:  # a Python without line editing
    readline = None  # type: ignore[assignment]
try:
    import termios
except ImportError:  # not a Unix
    termios = None  # type: ignore[assignment]

QUOTES = '"""'
IMAGE, MODEL = "/image ", "/model "  # followed by a path, and a reference, which are completed
PROMPT, MORE = "> ", ". "
MAX_HISTORY = 1000
ALT_ENTER = r'"\e\C-m": "\\\C-m"'  # types a backslash and enter, so the text continues on the next line

ReadLine = Callable[[str], str]


class LineDiscarded(Exception):
    """A Ctrl-C that discarded a typed text; it does not count towards leaving."""


class TerminalGone(Exception):
    """The end of input because the terminal was closed. A Ctrl-D is an EOFError."""


def read_question(read_line: ReadLine) -> str:
    r"""Read a question and return it with its lines joined.

    Raises EOFError, TerminalGone, LineDiscarded, and KeyboardInterrupt if nothing was typed.

    `one line`, `goes on \` + `here`, or a block: `\"""first`, `second`, `third\"""`.
    """
    line = read_line(PROMPT)
    if line.lstrip().startswith(QUOTES):
        return _read_block(line.lstrip().removeprefix(QUOTES), read_line)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_read_more(read_line))
    return "\n".join(lines)


def _read_block(line: str, read_line: ReadLine) -> str:
    lines = [line]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(_read_more(read_line))
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")


def _read_more(read_line: ReadLine) -> str:
    try:
        return read_line(MORE)
    except KeyboardInterrupt:
        raise LineDiscarded from None


class LineEditor:
    """A line editor with history. Use as a context manager: leaving writes the history file."""

    def __init__(
        self,
        history: Path,
        words: Sequence[str] = (),
        *,
        prompt_is_shown: bool = True,
        list_models: ListModels = list_no_models,
    ) -> None:
        self._history, self._list_models = history, list_models
        self._prompt_is_shown = prompt_is_shown  # False if stdout is a file: the prompt is no data
        self._completions = tuple(words)

    def __enter__(self) -> LineEditor:
        if isinstance(sys.stdin, io.TextIOWrapper):  # invalid UTF-8 must not raise
            sys.stdin.reconfigure(errors="surrogateescape")
        if readline is not None:
            self._prepare()
        return self

    def __exit__(self, *exception: object) -> None:
        if readline is not None:
            self._write_history()

    def read_line(self, prompt: str) -> str:
        """Return one line. Raises EOFError at Ctrl-D or the end of a file, TerminalGone, and as `_on_interrupt`.

        Some editing libraries report a closed terminal as the end of a file; then isatty() has become false.
        """
        was_terminal = _is_on_terminal()
        previous = signal.signal(signal.SIGINT, _on_interrupt)
        try:
            with deliver_signals():
                return join_surrogates(input(prompt if self._prompt_is_shown else ""))
        except (OSError, ValueError, RuntimeError) as problem:
            raise TerminalGone from problem
        except EOFError as end:
            if was_terminal and not _is_on_terminal():
                raise TerminalGone from end
            raise
        finally:
            signal.signal(signal.SIGINT, previous)

    def _prepare(self) -> None:
        readline.set_auto_history(True)
        readline.set_history_length(MAX_HISTORY)
        readline.set_completer(self._complete)
        readline.set_completer_delims(" ")
        for setting in _bindings():
            readline.parse_and_bind(setting)
        try:
            if is_own(self._history):
                readline.read_history_file(self._history)
        except OSError:  # missing, or written by another library: start anew
            readline.clear_history()

    def _complete(self, text: str, state: int) -> str | None:
        if readline.get_line_buffer().startswith(IMAGE):
            return next(iter(complete_path(text)[state:]), None)
        if readline.get_line_buffer().startswith(MODEL):
            return next(iter([name for name in self._list_models() if name.startswith(text)][state:]), None)
        matches = [word for word in self._completions if text and word.startswith(text)]
        return matches[state] + " " if state < len(matches) else None

    def _write_history(self) -> None:
        """Write the history, readable by the owner only because questions are private. Ignores OSError."""
        try:
            make_folder(self._history.parent, PRIVATE)
            append_own(self._history).close()  # its library would open a pipe, and wait
            readline.write_history_file(self._history)
        except OSError:
            return


def _is_on_terminal() -> bool:
    try:
        return sys.stdin.isatty()
    except (OSError, ValueError, AttributeError):  # stdin is closed or None
        return False


def _bindings() -> list[str]:
    if "libedit" in (readline.__doc__ or ""):
        return ["bind ^I rl_complete"]
    paste = ["set enable-bracketed-paste on"] if can_move_cursor(os.environ) else []  # Python disables it
    return ["tab: complete", ALT_ENTER, *paste]


@contextmanager
def hide_typing() -> Iterator[None]:
    """Switch off the terminal's echo, so that text typed during an answer only appears at the next prompt."""
    if termios is None or not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise LineDiscarded if a text was typed, else KeyboardInterrupt.

    A signal handler, because after the signal the library has dropped the typed line.
    """
    if readline is not None and readline.get_line_buffer():
        raise LineDiscarded
    raise KeyboardInterrupt

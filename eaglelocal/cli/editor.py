"""Reading questions from a person: one line, a line that goes on, or a block in triple quotes.

Knows the stdlib's line editing (GNU readline or libedit, where there is one), history and completion
of slash commands. Does not know what the lines mean.
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

from eaglelocal.core.folders import PRIVATE, make_folder
from eaglelocal.core.surrogates import join_surrogates
from eaglelocal.talk.pictures import completions

try:
    import readline
except ImportError:  # a Python without line editing still chats
    readline = None  # type: ignore[assignment]
try:
    import termios
except ImportError:  # not a Unix
    termios = None  # type: ignore[assignment]

QUOTES = '"""'
IMAGE = "/image "  # behind it a path is typed
PROMPT, MORE = "> ", ". "
MAX_HISTORY = 1000
ALT_ENTER = r'"\e\C-m": "\\\C-m"'  # types a backslash and enter: the text goes on

ReadLine = Callable[[str], str]


class LineDiscarded(Exception):
    """Ctrl-C threw away what was typed; nobody wants to leave."""


class TerminalGone(Exception):
    """Nobody can type any more: the terminal was closed. A Ctrl-D is an EOFError."""


def read_question(read_line: ReadLine) -> str:
    r"""A question, its lines joined.

    Raises EOFError, TerminalGone, LineDiscarded, and KeyboardInterrupt when nothing was typed.

    `one line`, `goes on \` + `here`, or a block: `\"""first`, `second`, `third\"""`.
    """
    line = read_line(PROMPT)
    if line.lstrip().startswith(QUOTES):
        return _block(line.lstrip().removeprefix(QUOTES), read_line)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_more(read_line))
    return "\n".join(lines)


def _block(line: str, read_line: ReadLine) -> str:
    lines = [line]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(_more(read_line))
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")


def _more(read_line: ReadLine) -> str:
    try:
        return read_line(MORE)
    except KeyboardInterrupt:
        raise LineDiscarded from None


class LineEditor:
    """A terminal with history. Use as a context manager: leaving writes the history file."""

    def __init__(self, history: Path, completions: Sequence[str] = (), *, prompt_is_shown: bool = True) -> None:
        self._history = history
        self._prompt_is_shown = prompt_is_shown  # not where stdout is a file: the prompt is no data
        self._completions = tuple(completions)

    def __enter__(self) -> LineEditor:
        if isinstance(sys.stdin, io.TextIOWrapper):  # a byte that is no text must not end the line
            sys.stdin.reconfigure(errors="surrogateescape")
        if readline is not None:
            self._prepare()
        return self

    def __exit__(self, *exception: object) -> None:
        if readline is not None:
            self._write_history()

    def read_line(self, prompt: str) -> str:
        """Return one line. Raises EOFError at Ctrl-D or the end of a file, TerminalGone, and what `_on_interrupt` does.

        Some line editing tells a closed terminal as the end of a file: then the terminal no longer says it is one.
        """
        was_terminal = _types_on_terminal()
        previous = signal.signal(signal.SIGINT, _on_interrupt)
        try:
            return join_surrogates(input(prompt if self._prompt_is_shown else ""))
        except (OSError, ValueError, RuntimeError) as problem:
            raise TerminalGone from problem
        except EOFError as end:
            if was_terminal and not _types_on_terminal():
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
            readline.read_history_file(self._history)
        except OSError:  # none yet, or one that another library wrote: start anew
            readline.clear_history()

    def _complete(self, text: str, state: int) -> str | None:
        if readline.get_line_buffer().startswith(IMAGE):
            return next(iter(completions(text)[state:]), None)
        matches = [word for word in self._completions if text and word.startswith(text)]
        return matches[state] + " " if state < len(matches) else None

    def _write_history(self) -> None:
        """Questions are private: the file belongs to its owner alone. A full disk is no reason to fail."""
        try:
            make_folder(self._history.parent, PRIVATE)
            os.close(os.open(self._history, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(self._history)
        except OSError:
            return


def _types_on_terminal() -> bool:
    try:
        return sys.stdin.isatty()
    except (OSError, ValueError, AttributeError):  # closed, or none
        return False


def _bindings() -> list[str]:
    if "libedit" in (readline.__doc__ or ""):
        return ["bind ^I rl_complete"]
    paste = [] if os.environ.get("TERM") == "dumb" else ["set enable-bracketed-paste on"]  # Python switches it off
    return ["tab: complete", ALT_ENTER, *paste]


@contextmanager
def unseen_typing() -> Iterator[None]:
    """What is typed while an answer runs is kept for the next prompt, but does not appear amid the text."""
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
    """Runs while the typed line is still there; afterwards the library has forgotten it."""
    if readline is not None and readline.get_line_buffer():
        raise LineDiscarded
    raise KeyboardInterrupt

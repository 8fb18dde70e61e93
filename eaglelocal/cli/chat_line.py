"""The interactive loop of line mode: read a line, run the command or ask the question, repeat.

It ends on ctrl-d, /exit or a second ctrl-c. An error, even an unexpected one, is shown and the loop continues;
the engine restarts by itself. If the loop fails, the unsaved conversation is written to disk.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from eaglelocal import locations
from eaglelocal.cli.answer_printer import Asker, cancel_on_interrupt
from eaglelocal.cli.output import Output, OutputClosed
from eaglelocal.cli.tool_calls import switch_echo
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import (
    ActionContext,
    LeaveChat,
    ListModels,
    format_copy_message,
    list_no_models,
    refuse_to_copy,
)
from eaglelocal.conversation.answer_stats import model_lines
from eaglelocal.conversation.ask import follow_answer
from eaglelocal.conversation.chat_hints import word_for_chat
from eaglelocal.conversation.command_arguments import ArgumentSources, list_choices, list_paths
from eaglelocal.conversation.pictures import find_dropped_pictures
from eaglelocal.conversation.question_history import QuestionHistory
from eaglelocal.conversation.session import AnswerEvents, RequestOutcome
from eaglelocal.conversation.slash_commands import COMMANDS, Command, is_command, parse_command, run_command
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import can_move_cursor, join_surrogates
from eaglelocal.errors import TRACEBACK_VARIABLE, Cancelled, EagleLocalError, bug_error
from eaglelocal.tui.terminal import clipboard

INTERRUPTED = 130
HUNG_UP = 128 + signal.SIGHUP

ReadQuestion = Callable[[], str]


@dataclass(slots=True)
class ChatLoop:
    """The loop of line mode; `presses` counts ctrl-c since the last line that was entered."""

    asker: Asker
    actions: ActionContext
    read_question: ReadQuestion
    presses: int = 0

    def run(self) -> int:
        """Loop until the user leaves and return the exit code."""
        while True:
            try:
                self._run_line()
            except EagleLocalError as error:
                error.hint = word_for_chat(error.hint)
                self.asker.output.error(error)
            except LineDiscarded:
                self.presses = 0
                self.asker.output.message()
            except KeyboardInterrupt:
                self.asker.output.message()
                self.presses += 1
                if self.presses > 1:
                    return INTERRUPTED
                self.asker.output.note("press ctrl-c again, ctrl-d or /exit to leave")
            except EOFError:
                self.asker.output.message()
                return 0
            except LeaveChat:
                return 0
            except (OutputClosed, TerminalGone):
                raise
            except Exception as problem:  # a bug must not lose the conversation
                is_traced = os.environ.get(TRACEBACK_VARIABLE) == "1"
                trace = "".join(traceback.format_exception(problem)) if is_traced else ""
                self.asker.output.error(bug_error(problem), traceback=trace)

    def _run_line(self) -> None:
        line = self.read_question()
        self.presses = 0
        if find_dropped_pictures(line):
            run_command(self.actions, Command("/image", line))
        elif is_command(line):
            question = run_command(self.actions, parse_command(line))
            if question is not None:
                for part in question.split("\n"):
                    self.asker.output.note(part)
                self._ask(question)
        elif line.strip():
            self._ask(line.strip())

    def _ask(self, question: str) -> None:
        self.presses = 1  # a KeyboardInterrupt from ask() is the second ctrl-c
        with switch_echo(is_on=False):  # what is typed meanwhile appears at the next prompt
            outcome = self.asker.ask(question)
        if outcome.finished is None or outcome.finished.reason != "cancelled":
            self.presses = 0
        if isinstance(outcome.error, Cancelled):
            self.asker.output.note(outcome.error.message)
        elif outcome.error is not None:
            raise outcome.error


def converse(asker: Asker, *, list_models: ListModels = list_no_models) -> int:
    """Converse on a terminal until the user leaves and return the exit code."""
    session, output = asker.session, asker.output
    actions = ActionContext(
        session,
        output,
        locations.conversations_dir(),
        lambda text: copy_to_desktop(text, output),
        list_models=list_models,
        follow=follow_unseen,
    )
    actions.say(*begin_lines(asker), "")
    history = QuestionHistory(locations.question_history_file())
    sources = ArgumentSources(actions.conversations, list_models)
    editor = LineEditor(history, sources, prompt_is_shown=output.is_terminal)

    def read() -> str:
        question = read_question(editor.read_line)
        if question.strip():
            history.add(question)
        return question

    try:
        return ChatLoop(asker, actions, read).run()
    except BaseException as problem:  # a bug, a closed terminal, a full disk
        target = session.model.info.target
        path = conversation_file.rescue(session.conversation, actions.conversations, target=target)
        if path is not None:
            actions.say(f"the conversation is saved in {path}; `/load {path.stem}` continues it")
        if isinstance(problem, TerminalGone):
            return HUNG_UP
        raise


def follow_unseen(events: AnswerEvents) -> RequestOutcome:
    """Follow an answer without showing it; ctrl-c stops it."""
    with cancel_on_interrupt(events.cancel):
        return follow_answer(events, lambda event: None)


def begin_lines(asker: Asker) -> list[str]:
    """Return the lines at the beginning: the model, the keys, the colour, and the continued conversation."""
    model, conversation = asker.session.model, asker.session.conversation
    lines = [
        *model_lines(model.info, model.plan),
        "/help lists the commands, ctrl-c stops an answer, ctrl-d leaves",
    ]
    reports_drafts = model.plan is not None or model.takes_spec  # other servers do not report drafted tokens
    if asker.tint and asker.output.colour and reports_drafts and model.speculates:
        lines.append("green text was drafted, and accepted by the target")
    if turns := conversation.turns:
        last = turns[-1].shown_question
        lines.append(f"continuing {conversation.name}, {count_noun(len(turns), 'turn')}; last question: {last}")
    return lines


def copy_to_desktop(text: str, output: Output) -> None:
    """Copy a text to the clipboard and confirm it. Raises UsageError if no clipboard program is found."""
    place = clipboard.copy_text(text)
    if not place:
        refuse_to_copy(text)
    output.message(format_copy_message(text, place))


# ---- line editor: input of questions in line mode: one line, a line continued with a backslash, or a block in triple
# quotes
#
# Uses the stdlib's line editing (GNU readline or libedit, where available), with history and completion of slash
# commands. It does not interpret the lines.
try:
    import readline
except ImportError:  # a Python without line editing
    readline = None  # type: ignore[assignment]

QUOTES = '"""'
PROMPT, MORE = "> ", ". "
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
    """A line editor that recalls earlier questions."""

    def __init__(self, history: QuestionHistory, sources: ArgumentSources, *, prompt_is_shown: bool = True) -> None:
        self._sources = sources
        self._prompt_is_shown = prompt_is_shown  # False if stdout is a file: the prompt is no data
        if isinstance(sys.stdin, io.TextIOWrapper):  # invalid UTF-8 must not raise
            sys.stdin.reconfigure(errors="surrogateescape")
        if readline is not None:
            self._prepare(history)

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

    def _prepare(self, history: QuestionHistory) -> None:
        readline.clear_history()
        for question in history:
            readline.add_history(question)
        readline.set_completer(self._complete)
        readline.set_completer_delims(" ")
        if "libedit" in (readline.__doc__ or ""):
            bindings = ["bind ^I rl_complete"]
        else:
            paste = ["set enable-bracketed-paste on"] if can_move_cursor(os.environ) else []  # Python disables it
            bindings = ["tab: complete", ALT_ENTER, *paste]
        for binding in bindings:
            readline.parse_and_bind(binding)

    def _complete(self, text: str, state: int) -> str | None:
        """Return a completion of the word, which is the last of an argument: names have blanks."""
        name, blank, argument = readline.get_line_buffer()[: readline.get_endidx()].partition(" ")
        typed = argument.lstrip() if blank else text
        if blank:
            words = [*list_choices(self._sources, name), *list_paths(name, typed)]
        else:
            words = [f"{word} " for word in COMMANDS if text]
        matches = [word[len(typed) - len(text) :] for word in words if word.startswith(typed)]
        return matches[state] if state < len(matches) else None


def _is_on_terminal() -> bool:
    try:
        return sys.stdin.isatty()
    except (OSError, ValueError, AttributeError):  # stdin is closed or None
        return False


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise LineDiscarded if a text was typed, else KeyboardInterrupt.

    A signal handler, because after the signal the library has dropped the typed line.
    """
    if readline is not None and readline.get_line_buffer():
        raise LineDiscarded
    raise KeyboardInterrupt


# ---- signals that arrive just before the line editor waits for a key
#
# The editor checks for signals, then waits. Python's handler of a signal in between would run at the next key only, so
# that a SIGTERM would not end the program.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
REPEAT_S = 0.1


@contextmanager
def deliver_signals() -> Iterator[None]:
    """Send each signal of ENDING again until its handler runs. For the main thread, around a wait for one line.

    The handlers must raise: after the first has run, no signal is sent again.
    """
    handlers = {number: handler for number in ENDING if callable(handler := signal.getsignal(number))}
    is_handled = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        is_handled.set()
        handlers[signal.Signals(number)](number, frame)

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    repeater = threading.Thread(target=_repeat, args=(reading, is_handled), name="signals", daemon=True)
    try:
        for number in handlers:
            signal.signal(number, handle)
        with suppress(RuntimeError):  # the system gives no thread
            repeater.start()
        yield
    finally:
        is_handled.set()
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(writing)
        if repeater.ident is not None:
            repeater.join()
        os.close(reading)


def _repeat(reading: int, is_handled: threading.Event) -> None:
    """Read the numbers of signals as they arrive, until the pipe is closed."""
    main = threading.main_thread().ident or 0
    while numbers := os.read(reading, 1):
        while numbers[0] in ENDING and not is_handled.wait(REPEAT_S):
            signal.pthread_kill(main, numbers[0])

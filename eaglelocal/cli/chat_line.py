"""The interactive loop of line mode: read a line, run the command or ask the question, repeat.

It ends on ctrl-d, /exit or a second ctrl-c. An error, even an unexpected one, is shown and the loop continues;
the engine restarts by itself. If the loop fails, the unsaved conversation is written to disk.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from eaglelocal import locations
from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.line_editor import LineDiscarded, LineEditor, TerminalGone, read_question, unseen_typing
from eaglelocal.cli.output import Output, OutputClosed
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.answer_stats import model_lines
from eaglelocal.conversation.pictures import find_dropped_pictures
from eaglelocal.conversation.session import Session
from eaglelocal.conversation.slash_actions import (
    ActionContext,
    LeaveChat,
    format_copy_message,
    refuse_to_copy,
    run_command,
)
from eaglelocal.conversation.slash_commands import COMMANDS, Command, is_command, parse_command
from eaglelocal.errors import TRACEBACK_VARIABLE, EagleLocalError, bug_error
from eaglelocal.tui.terminal import clipboard

INTERRUPTED = 130
HUNG_UP = 128 + signal.SIGHUP

ReadQuestion = Callable[[], str]


@dataclass(slots=True)
class ChatLoop:
    """The loop of line mode; `presses` counts ctrl-c since the last line that was entered."""

    asker: Asker
    desk: ActionContext
    read_question: ReadQuestion
    presses: int = 0

    def run(self) -> int:
        """Loop until the user leaves and return the exit code."""
        while True:
            try:
                self._once()
            except EagleLocalError as error:
                self.asker.output.error(error)
            except LineDiscarded:
                self.presses = 0
                self.asker.output.message()
            except KeyboardInterrupt:
                self.asker.output.message()
                if self._leaves():
                    return INTERRUPTED
            except EOFError:
                self.asker.output.message()
                return 0
            except LeaveChat:
                return 0
            except (OutputClosed, TerminalGone):
                raise
            except Exception as problem:  # a bug must not lose the conversation
                self._tell_bug(problem)

    def _tell_bug(self, problem: Exception) -> None:
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            self.asker.output.message("".join(traceback.format_exception(problem)))
        self.asker.output.error(bug_error(problem))

    def _leaves(self) -> bool:
        self.presses += 1
        if self.presses == 1:
            self.asker.output.note("ctrl-c again, ctrl-d or /exit leaves")
        return self.presses > 1

    def _once(self) -> None:
        line = self.read_question()
        self.presses = 0
        if find_dropped_pictures(line):
            run_command(self.desk, Command("/image", line))
        elif is_command(line):
            question = run_command(self.desk, parse_command(line))
            if question is not None:
                self.asker.output.note(question)
                self._ask(question)
        elif line.strip():
            self._ask(line.strip())

    def _ask(self, question: str) -> None:
        self.presses = 1  # a KeyboardInterrupt from ask() is the second ctrl-c
        with unseen_typing():
            outcome = self.asker.ask(question)
        if outcome.finished is None or outcome.finished.reason != "cancelled":
            self.presses = 0
        if outcome.error is not None:
            raise outcome.error


def converse(session: Session, output: Output, *, tint: bool) -> int:
    """Converse on a terminal until the user leaves and return the exit code."""
    desk = ActionContext(session, output, locations.conversations_dir(), lambda text: copy_to_desktop(text, output))
    is_told = session.model.plan is not None or session.model.takes_spec  # other servers do not report drafted tokens
    is_tinted = tint and output.colour and is_told and session.model.speculates
    desk.say(
        *model_lines(session.model.info, session.model.plan),
        *_manners(is_tinted),
        "",
    )
    with LineEditor(locations.history_file(), tuple(COMMANDS), prompt_is_shown=output.is_terminal) as editor:
        loop = ChatLoop(Asker(session, output, tint=tint), desk, lambda: read_question(editor.read_line))
        try:
            return loop.run()
        except TerminalGone:
            keep_talk(desk)
            return HUNG_UP
        except BaseException:  # a bug, a closed terminal, a full disk
            keep_talk(desk)
            raise


def keep_talk(desk: ActionContext) -> None:
    """Save the unsaved conversation in a new file, and show its path."""
    path = conversation_file.rescue(
        desk.session.conversation, desk.conversations, target=desk.session.model.info.target
    )
    if path is not None:
        desk.say(f"what was said is kept in {path}; `/load {path.stem}` goes on with it")


def copy_to_desktop(text: str, output: Output) -> None:
    """Copy a text to the clipboard and confirm it. Raises UsageError if no clipboard program is found."""
    if not clipboard.copy_text(text):
        refuse_to_copy(text)
    output.message(format_copy_message(text))


def _manners(is_tinted: bool) -> list[str]:
    manners = "/help lists the commands, ctrl-c stops an answer, ctrl-d leaves"
    return [manners, "green text was drafted, and accepted by the target"] if is_tinted else [manners]

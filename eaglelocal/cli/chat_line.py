"""The interactive loop of line mode: read a line, run the command or ask the question, repeat.

It ends on ctrl-d, /exit or a second ctrl-c. An error, even an unexpected one, is shown and the loop continues;
the engine restarts by itself. If the loop fails, the unsaved conversation is written to disk.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

from eaglelocal import locations
from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.line_editor import LineDiscarded, LineEditor, TerminalGone, hide_typing, read_question
from eaglelocal.cli.output import Output, OutputClosed
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
from eaglelocal.conversation.pictures import find_dropped_pictures
from eaglelocal.conversation.session import Session
from eaglelocal.conversation.slash_commands import COMMANDS, Command, is_command, parse_command, run_command
from eaglelocal.core.plurals import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.errors import TRACEBACK_VARIABLE, EagleLocalError, bug_error
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
                self.asker.output.error(error)
            except LineDiscarded:
                self.presses = 0
                self.asker.output.message()
            except KeyboardInterrupt:
                self.asker.output.message()
                if self._is_second_press():
                    return INTERRUPTED
            except EOFError:
                self.asker.output.message()
                return 0
            except LeaveChat:
                return 0
            except (OutputClosed, TerminalGone):
                raise
            except Exception as problem:  # a bug must not lose the conversation
                self._show_bug(problem)

    def _show_bug(self, problem: Exception) -> None:
        trace = ""
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            trace = "".join(traceback.format_exception(problem))
        self.asker.output.error(bug_error(problem), traceback=trace)

    def _is_second_press(self) -> bool:
        self.presses += 1
        if self.presses == 1:
            self.asker.output.note("press ctrl-c again, ctrl-d or /exit to leave")
        return self.presses > 1

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
        with hide_typing():
            outcome = self.asker.ask(question)
        if outcome.finished is None or outcome.finished.reason != "cancelled":
            self.presses = 0
        if outcome.error is not None:
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
    )
    reports_drafts = (
        session.model.plan is not None or session.model.takes_spec
    )  # other servers do not report drafted tokens
    is_tinted = asker.tint and output.colour and reports_drafts and session.model.speculates
    actions.say(
        *model_lines(session.model.info, session.model.plan),
        *_usage_lines(is_tinted),
        *_continued_lines(session),
        "",
    )
    with LineEditor(
        locations.history_file(), tuple(COMMANDS), prompt_is_shown=output.is_terminal, list_models=list_models
    ) as editor:
        loop = ChatLoop(asker, actions, lambda: read_question(editor.read_line))
        try:
            return loop.run()
        except TerminalGone:
            save_unsaved(actions)
            return HUNG_UP
        except BaseException:  # a bug, a closed terminal, a full disk
            save_unsaved(actions)
            raise


def save_unsaved(actions: ActionContext) -> None:
    """Save the unsaved conversation in a new file, and show its path."""
    path = conversation_file.rescue(
        actions.session.conversation, actions.conversations, target=actions.session.model.info.target
    )
    if path is not None:
        actions.say(f"the conversation is saved in {path}; `/load {path.stem}` continues it")


def copy_to_desktop(text: str, output: Output) -> None:
    """Copy a text to the clipboard and confirm it. Raises UsageError if no clipboard program is found."""
    place = clipboard.copy_text(text)
    if not place:
        refuse_to_copy(text)
    output.message(format_copy_message(text, place))


def _continued_lines(session: Session) -> list[str]:
    """Return a line on the conversation that is continued, if one is."""
    conversation = session.conversation
    if not conversation.turns:
        return []
    turns = len(conversation.turns)
    last = conversation.turns[-1].shown_question
    return [f"continuing {conversation.name}, {count_noun(turns, 'turn')}; last question: {last}"]


def _usage_lines(is_tinted: bool) -> list[str]:
    usage = "/help lists the commands, ctrl-c stops an answer, ctrl-d leaves"
    return [usage, "green text was drafted, and accepted by the target"] if is_tinted else [usage]

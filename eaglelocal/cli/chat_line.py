"""The interactive loop of line mode: read, ask or act, show, again.

Knows when to leave: ctrl-d, /exit, ctrl-c a second time. An error is shown and the loop goes on; the
engine restarts by itself. What nobody foresaw is shown too, and the loop goes on; should it end, the talk is kept.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from eaglelocal import locations
from eaglelocal.cli.asking import Asker
from eaglelocal.cli.editor import LineDiscarded, LineEditor, TerminalGone, read_question, unseen_typing
from eaglelocal.cli.output import Output, OutputClosed
from eaglelocal.errors import TRACEBACK_VARIABLE, EagleLocalError, as_bug
from eaglelocal.talk import conversation_file
from eaglelocal.talk.pictures import dropped_pictures
from eaglelocal.talk.report import model_lines
from eaglelocal.talk.session import Session
from eaglelocal.talk.slash import COMMANDS, Command, is_command, parse
from eaglelocal.talk.slash_actions import Desk, Leave, act, copied_line, no_clipboard
from eaglelocal.tui import clipboard

INTERRUPTED = 130
HUNG_UP = 128 + signal.SIGHUP

ReadQuestion = Callable[[], str]


@dataclass(slots=True)
class Loop:
    """Goes round until the person leaves; `presses` counts ctrl-c since the last line they entered."""

    asker: Asker
    desk: Desk
    read_question: ReadQuestion
    presses: int = 0

    def run(self) -> int:
        """Returns the exit code."""
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
            except Leave:
                return 0
            except (OutputClosed, TerminalGone):
                raise
            except Exception as problem:  # whatever it is, what was said is not lost with it
                self._tell_bug(problem)

    def _tell_bug(self, problem: Exception) -> None:
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            self.asker.output.message("".join(traceback.format_exception(problem)))
        self.asker.output.error(as_bug(problem))

    def _leaves(self) -> bool:
        self.presses += 1
        if self.presses == 1:
            self.asker.output.aside("ctrl-c again, ctrl-d or /exit leaves")
        return self.presses > 1

    def _once(self) -> None:
        line = self.read_question()
        self.presses = 0
        if dropped_pictures(line):
            act(self.desk, Command("/image", line))
        elif is_command(line):
            question = act(self.desk, parse(line))
            if question is not None:
                self.asker.output.aside(question)
                self._ask(question)
        elif line.strip():
            self._ask(line.strip())

    def _ask(self, question: str) -> None:
        self.presses = 1  # a ctrl-c that gets out of ask() was the second
        with unseen_typing():
            outcome = self.asker.ask(question)
        if outcome.finished is None or outcome.finished.reason != "cancelled":
            self.presses = 0
        if outcome.error is not None:
            raise outcome.error


def converse(session: Session, output: Output, *, tint: bool) -> int:
    """Talk on a terminal until the person leaves. Returns the exit code."""
    desk = Desk(session, output, locations.conversations_dir(), lambda text: copy_to_desktop(text, output))
    is_told = session.model.plan is not None or session.model.takes_spec  # other servers do not say what was drafted
    is_tinted = tint and output.colour and is_told and session.model.speculates
    desk.say(
        *model_lines(session.model.info, session.model.plan),
        *_manners(is_tinted),
        "",
    )
    with LineEditor(locations.history_file(), tuple(COMMANDS), prompt_is_shown=output.is_terminal) as editor:
        loop = Loop(Asker(session, output, tint=tint), desk, lambda: read_question(editor.read_line))
        try:
            return loop.run()
        except TerminalGone:
            keep_talk(desk)
            return HUNG_UP
        except BaseException:  # a bug, a closed terminal, a full disk
            keep_talk(desk)
            raise


def keep_talk(desk: Desk) -> None:
    """Write what was said and not saved to disk, and say where."""
    path = conversation_file.rescue(
        desk.session.conversation, desk.conversations, target=desk.session.model.info.target
    )
    if path is not None:
        desk.say(f"what was said is kept in {path}; `/load {path.stem}` goes on with it")


def copy_to_desktop(text: str, output: Output) -> None:
    """Raises UsageError where there is no program for it."""
    if not clipboard.fill(text):
        no_clipboard(text)
    output.message(copied_line(text))


def _manners(is_tinted: bool) -> list[str]:
    manners = "/help lists the commands, ctrl-c stops an answer, ctrl-d leaves"
    return [manners, "green text was drafted, and accepted by the target"] if is_tinted else [manners]

"""The chat screen: a transcript, a prompt and the speculation panel.

Defines keys, actions and layout. `ChatController` does the work that blocks, `ChatView` draws.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len
from rich.console import RenderableType
from textual import events
from textual.app import ComposeResult, SuspendNotSupported, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen
from textual.signal import Signal
from textual.widgets import Footer

from eaglelocal.conversation.command_arguments import ArgumentSources, list_choices, list_paths
from eaglelocal.conversation.pictures import find_dropped_pictures
from eaglelocal.conversation.question_history import QuestionHistory
from eaglelocal.conversation.slash_commands import COMMANDS, is_command, is_help, split_command
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.processes.this_process import settle
from eaglelocal.settings import THEME_NAMES
from eaglelocal.tui.base_app import EagleApp, RedrawTimer
from eaglelocal.tui.chat.chat_bindings import CHAT_BINDINGS
from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_dialogs import (
    ChatKeys,
    ConversationsDialog,
    SettingsDialog,
    ThemeDialog,
    list_command_rows,
)
from eaglelocal.tui.chat.chat_events import (
    AnswerEnded,
    AttachmentsChanged,
    CallQuestion,
    ChatEvent,
    CommandReplied,
    ConversationReplaced,
    DownloadProgressed,
    ExitRequested,
    ModelChanged,
    QuestionSent,
    TextCopied,
)
from eaglelocal.tui.chat.chat_tasks import AskedQuestion, OpenSession
from eaglelocal.tui.chat.chat_view import ChatView
from eaglelocal.tui.chat.external_editor import edit_text
from eaglelocal.tui.chat.menu_rows import MenuSources
from eaglelocal.tui.chat.model_picker import NO_MODELS, ModelDialog, ModelSource
from eaglelocal.tui.chat.offered_models import OfferedModels
from eaglelocal.tui.chat.prompt_input import PromptInput
from eaglelocal.tui.chat.start_list import StartList
from eaglelocal.tui.chat.status_line import format_download, list_notices
from eaglelocal.tui.chat.tool_dialog import ToolDialog
from eaglelocal.tui.chat.turn_keys import TurnKeys
from eaglelocal.tui.display_options import TURN_PURPOSES, DisplayOptions
from eaglelocal.tui.glyphs import ASCII
from eaglelocal.tui.mapped_keys import make_key_rows
from eaglelocal.tui.modal_screens import HelpRow
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.terminal import clipboard
from eaglelocal.tui.transcript.text_rows import Appearance

INTERRUPTED = 130
DOUBLE_PRESS_S = 2.0  # a second ctrl-c within this time leaves
LONG_ANSWER_S = 20.0  # an answer that took as long is worth a notification
ANSWER_NOTIFICATION = "\x1b]9;eaglelocal: the answer is complete\x1b\\\a"  # OSC 9, and the bell
CHAT_CSS = """
#status { height: 1; padding: 0 1; }
.-narrow FooterKey.-command-palette, .-low Footer { display: none; }
.-low PromptInput { max-height: 3; }
ChatApp.-ascii #panel { border-left: ascii $secondary; }
ChatApp.-ascii #body.stacked #panel { border-left: none; border-top: ascii $secondary; }
ChatApp.-ascii PromptInput, ChatApp.-ascii PromptMenu { border: ascii $secondary; }
ChatApp.-ascii Dialog #box, ChatApp.-ascii Dialog TextArea { border: ascii $secondary; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPaths:
    """The paths of saved conversations (a folder) and of the question history (a file)."""

    conversations: Path
    history: Path


class ChatApp(EagleApp[int]):
    """The app of `eaglelocal chat` on a terminal; its result is the exit code."""

    ENABLE_COMMAND_PALETTE = True
    CSS = CHAT_CSS
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (40, "-wide")]  # noqa: RUF012 # `-wide` only ends `-narrow`
    VERTICAL_BREAKPOINTS = [(0, "-low"), (7, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = CHAT_BINDINGS

    def __init__(
        self,
        open_session: OpenSession,
        paths: ChatPaths,
        display_options: DisplayOptions,
        *,
        marks_drafted: bool = False,
        models: ModelSource = NO_MODELS,
        saves: bool = True,
    ) -> None:
        """marks_drafted: mark drafted text from the start. models: for the picker and completion.

        saves: conversations are saved by themselves
        """
        super().__init__(display_options)
        feed, glyphs, folder = Feed(by_events=True), display_options.glyphs, paths.conversations
        self.controller = ChatController(open_session, self._emit, feed, folder, saves=saves, pull=models.pull)
        keys, self.models = dict(display_options.keys), OfferedModels(models)
        choices = partial(list_choices, ArgumentSources(folder, self.models.list_references))
        sources = MenuSources(COMMANDS, self.controller.describe_value, choices, list_paths)
        start = StartList(folder, models.find_best)
        self.prompt = PromptInput(QuestionHistory(paths.history), keys, sources, start)
        self._keys = ChatKeys(self.prompt.mapped_keys, CHAT_BINDINGS, keys)
        self.view = ChatView(self.controller, feed, self.prompt, glyphs, stop_key=self._keys.hint("stop"))
        self.view.transcript.has_figures = display_options.has_figures
        self.turn_keys = TurnKeys(self, self.view.transcript, self.controller, self.prompt.mapped_keys, keys)
        self.prompt.take_key, self.prompt.count_tokens = self.turn_keys.take, self.controller.count_tokens
        self._conversations = folder
        self._interrupted_at = float("-inf")
        self.model_changed: Signal[ModelChanged] = Signal(self, "model-changed")
        self._edited: AskedQuestion | None = None
        self._unsent = ""  # of the prompt, before a question was edited
        self._attachments: tuple[str, ...] = ()  # labels of pictures that go with the next question
        self._download_line = ""
        self._asked_at = 0.0  # monotonic seconds
        self._marks_drafted = marks_drafted

    def compose(self) -> ComposeResult:
        yield self.view.panes
        yield self.prompt.start
        yield self.prompt.menu
        yield self.view.status
        yield self.prompt
        yield Footer()

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _: self._restyle())
        self._restyle()
        self.view.panes.adapt_to(self.size)
        self.prompt.focus()
        RedrawTimer(self, self._draw).start()
        self.controller.start()
        self.call_after_refresh(_warm_up)
        self.call_after_refresh(self._offer_start)
        self.call_after_refresh(self.run_worker, self.models.read_catalog_names, thread=True)

    # ---- layout
    def _restyle(self) -> None:
        appearance = Appearance(is_dark=self.current_theme.dark, is_ascii=self.display_options.glyphs is ASCII)
        self.view.transcript.restyle(appearance, marks_drafted=self._marks_drafted)

    def on_resize(self, event: events.Resize) -> None:
        """Rearrange for the new size, also under a dialog."""
        if self.view.panes.is_mounted:
            self.view.panes.adapt_to(event.size)
            self.call_after_refresh(self.prompt.menu.draw)

    def _draw(self, now: float) -> bool:
        self.prompt.show_hint(self.turn_keys.describe(self.display_options.glyphs), self.view.free_tokens)
        return self.view.draw(now)

    # ---- events of the controller
    def _emit(self, event: ChatEvent) -> None:
        """Pass an event to the screen's thread, from any thread."""
        self.call_later(self._receive, event)

    def _receive(self, event: ChatEvent) -> None:
        match event:
            case TextCopied(text):
                self.copy_text(text)
            case AttachmentsChanged(labels):
                self._attachments = labels
                self._show_prompt_title()
            case CallQuestion(call, answer):
                self.push_screen(ToolDialog(call), answer)
            case DownloadProgressed(reference, progress):
                self._download_line = "" if progress is None else format_download(reference, progress)
                self._show_prompt_title()
            case CommandReplied(reply):
                self.show_reply(reply)
            case ExitRequested():
                self.exit(0)
            case _:
                self.view.show(event)
        self._follow_up(event)
        self._draw(time.monotonic())

    def _follow_up(self, event: ChatEvent) -> None:
        """Do what an event that is shown also means for the app."""
        match event:
            case ModelChanged():
                self.model_changed.publish(event)
                self.models.add(event)
                self._offer_start()
            case ConversationReplaced(turns):
                self.prompt.start.want(is_wanted=not turns)
                self._offer_start()
            case QuestionSent():
                self._asked_at = time.monotonic()
                self.prompt.start.want(is_wanted=False)
            case AnswerEnded() if time.monotonic() - self._asked_at >= LONG_ANSWER_S:
                self._notify_terminal()

    def _notify_terminal(self) -> None:
        """Ring, and let the terminal notify of an answer, unless it has the focus or does not report it."""
        if self.display_options.notifies and not self.app_focus and self._driver is not None:
            self._driver.write(ANSWER_NOTIFICATION)

    def show_reply(self, reply: str | EagleLocalError) -> None:
        """Show what a command says. During an answer, a line is a notice, which leaves; more comes below the answer."""
        fits = (line for line in list_notices(reply) if "\n" not in line and cell_len(line) <= self.size.width - 2)
        if self.view.transcript.is_growing and (line := next(fits, "")):
            self.notify(line, markup=False)
        else:
            self.prompt.start.want(is_wanted=False)  # it would leave no room on a small screen
            self.view.transcript.reply(reply)

    def show_notice(self, text: str) -> None:
        self.view.show_notice(text)

    # ---- the list of an empty screen
    def _offer_start(self) -> None:
        """List what to begin with, until the first question."""
        if self.prompt.start.is_wanted:
            self.prompt.start.offer(None if self.view.model is None else self.view.model.model)

    def on_start_list_chosen(self, message: StartList.Chosen) -> None:
        """Show the model among the others, open the conversation, or put the question into the prompt."""
        match message.row.kind:
            case "model":
                self.action_model(message.row.value)  # which says what would be downloaded
            case "conversation":
                self.action_run_command(f"/load {message.row.value}")
            case "question":
                self.prompt.replace_text(message.row.value)

    # ---- user input
    def on_prompt_input_submitted(self, message: PromptInput.Submitted) -> None:
        text = message.text
        if self._edited is not None:
            place, question = self._edited, text.strip()
            self.controller.send(lambda tasks: tasks.ask_instead(question, place), question=question)
            self._end_editing()
        elif find_dropped_pictures(text):
            self.action_run_command(f"/image {text}")
        elif is_help(text):
            self.action_help()
        elif (command := split_command(text)).name == "/theme":
            self._choose_theme(command.argument)
        elif command.name == "/add" and command.argument:
            self.prompt.add_file(command.argument)
        elif command.name in ("/load", "/delete") and not command.argument:
            self.action_conversations()
        elif (search := self.models.find_search(command)) is not None:
            self.action_model(search)
        elif is_command(text):
            self.action_run_command(text)
        else:
            self.controller.ask(text.strip())
        self._draw(time.monotonic())

    def on_prompt_input_dropped(self, message: PromptInput.Dropped) -> None:
        """Attach dropped pictures. If the model reads no images, insert their paths as text."""
        model = self.view.model
        if model is None or model.model.info.sees_images:
            self.action_run_command(f"/image {message.text}")
        else:
            self.prompt.insert_pasted(message.text)

    def on_prompt_input_file_refused(self, message: PromptInput.FileRefused) -> None:
        self.show_reply(message.error)

    def on_prompt_menu_row_clicked(self) -> None:
        if row := self.prompt.menu.highlighted:
            self.prompt.choose_row(row, sends=True)

    def exit(self, result: int | None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Leave the screen. A question that was not sent comes first when `up` recalls questions at the next start."""
        self.prompt.keep_unsent()
        super().exit(result, return_code, message)

    def action_stop(self) -> None:
        """Stop the answer; else move waiting questions back into the prompt; else end editing; else stop a download."""
        if self.controller.stop():
            return
        if waiting := self.controller.cancel_waiting():
            self.prompt.replace_text("\n".join([*waiting, self.prompt.text]).rstrip("\n"))
        elif self._edited is not None:
            self._end_editing()
        else:
            self.controller.stop_download()

    def action_interrupt(self) -> None:
        """Copy the selection; else stop the answer; else clear the prompt; else leave, at the second ctrl-c."""
        selected = self.screen.get_selected_text() or self.prompt.selected_text
        now, last = time.monotonic(), self._interrupted_at
        if selected:
            self.copy_text(selected)
        elif self.controller.stop():
            self._interrupted_at = now
        elif self.prompt.text:
            self.prompt.replace_text("")
            self._interrupted_at = float("-inf")
        elif now - last < DOUBLE_PRESS_S:
            self.exit(INTERRUPTED)
        else:
            self._interrupted_at = now
            others = self._keys.hint("delete_or_leave", "leave")
            self.notify(f"press {self._keys.hint('interrupt')} again, {others} to leave", timeout=DOUBLE_PRESS_S)

    def action_run_command(self, line: str) -> None:
        self.controller.run_command(line)

    def action_edit(self) -> None:
        if self.refuse_while_busy():
            return
        if (last := self.controller.find_question()) is None:
            self.notify("there is no question yet")
        else:
            self.begin_editing(last)

    def refuse_while_busy(self) -> bool:
        """Return True, and say so, if the user has to wait until the answer has ended."""
        if self.controller.is_busy:
            self.notify(f"wait until the answer has ended; {self._keys.hint('stop')} stops it")
        return self.controller.is_busy

    def begin_editing(self, place: AskedQuestion) -> None:
        """Put a question into the prompt, to ask it again in its place. What was typed comes back afterwards."""
        self._unsent = self.prompt.text if self._edited is None else self._unsent
        self._edited = place
        self.prompt.replace_text(place.text)
        self._show_prompt_title()

    def _end_editing(self) -> None:
        self._edited = None
        self.prompt.replace_text(self._unsent)
        self._show_prompt_title()

    def action_move_turn(self, step: int) -> None:
        """Stand on the turn or code block before (-1) or after (1); at first on the last one in view."""
        self.view.transcript.move_stop(step)
        self._draw(time.monotonic())

    def _show_prompt_title(self) -> None:
        """Show above the prompt whether the last question is being edited, and the attachments."""
        send, stop = self._keys.hint("send"), self._keys.hint("stop")
        title = f"editing a question: {send} asks again, {stop} keeps it as it was"
        parts = [title if self._edited is not None else "", *self._attachments, self._download_line]
        self.prompt.show_title("  ".join(filter(None, parts)))

    def action_toggle_panel(self) -> None:
        self.view.panes.toggle_panel()

    def action_toggle_marks(self) -> None:
        self._marks_drafted = not self._marks_drafted
        self._restyle()
        self.view.panes.toggle_details(self._marks_drafted)
        self.notify("drafted and accepted text is marked" if self._marks_drafted else "drafted text is not marked")

    def action_toggle_thoughts(self) -> None:
        self.view.transcript.toggle_thoughts()

    def action_copy_answer(self) -> None:
        if answer := self.controller.last_answer:
            self.copy_text(answer)
        else:
            self.notify("there is no answer yet")

    def copy_text(self, text: str) -> None:
        self.copy_to_clipboard(text)
        self.screen.clear_selection()
        self.notify(clipboard.copy_and_describe(text), markup=False)

    def action_editor(self) -> None:
        try:
            text = edit_text(self.prompt.whole_text, self.suspend)
        except EagleLocalError as error:
            self.show_reply(error)
        except SuspendNotSupported:
            self.notify("an editor cannot run in this terminal")
        else:
            self.prompt.replace_text(self.prompt.text if text is None else text.rstrip("\n"))

    def action_scroll_chat(self, place: str) -> None:
        """Scroll by a page (`page_up`, `page_down`), to the `top`, or to the `end`, which is followed from then on."""
        match place:
            case "page_up":
                self.view.transcript.scroll_page_up(animate=False)
            case "page_down":
                self.view.transcript.scroll_page_down(animate=False)
            case "top":
                self.view.transcript.scroll_to(y=0, animate=False)
            case "end":
                self.view.transcript.follow()

    # ---- help and palette
    def help_rows(self) -> list[HelpRow]:
        """Return a row for each slash command and for the keys of each action."""
        turn_rows = make_key_rows(self.turn_keys.mapped_keys, TURN_PURPOSES, "keys of a turn")
        return [*list_command_rows(), *self._keys.help_rows(), self.palette_row, *turn_rows]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the screen's bindings and themes, and the slash commands."""
        yield from super().get_system_commands(screen)
        for name, command in COMMANDS.items():
            yield SystemCommand(name, command.purpose, partial(self._begin_command, name))

    def _begin_command(self, name: str) -> None:
        """Run a command, or if it has arguments write it into the prompt."""
        if COMMANDS[name].arguments:
            self.prompt.replace_text(f"{name} ")
            self.prompt.update_suggestion()
            self.prompt.focus()
        else:
            self.prompt.post_message(PromptInput.Submitted(name))

    # ---- dialogs
    def action_conversations(self) -> None:
        self.push_screen(ConversationsDialog(self._conversations, self.controller))

    def action_settings(self) -> None:
        if self.view.model is None:
            self.notify("no model is loaded yet")
        else:
            self.push_screen(SettingsDialog(self.view.model, self.controller, self.view.transcript))

    def _choose_theme(self, name: str) -> None:
        """Change to a theme, "": to one from a list."""
        if not name:
            self.push_screen(ThemeDialog())
        elif name in THEME_NAMES:
            self.action_choose_theme(name)
        else:
            self.show_reply(UsageError(f"no theme {name!r}", hint="/theme lists them"))

    def action_model(self, search: str = "") -> None:
        dialog = ModelDialog(
            self.view.model,
            self.controller,
            self.models.source,
            self.model_changed,
            search=search,
            opened=self.models.opened,
        )
        self.push_screen(dialog)


def _warm_up() -> None:
    """Do slow start-up work once the first screen is drawn, before the user waits for it."""
    from eaglelocal.tui.transcript.markdown_rows import find_lexer

    find_lexer("python")
    gc.collect()
    settle()  # walking all modules would delay a frame


def run_chat(app: ChatApp) -> int:
    """Show the screen until the user leaves and return the exit code. Raises the error that ended it otherwise."""
    try:
        code = app.show()
    finally:
        app.controller.close()
    return app.return_code or 0 if code is None else code

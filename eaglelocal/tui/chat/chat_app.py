"""The chat screen: a transcript, a prompt and the speculation panel.

Defines keys, actions and layout. `ChatController` does the work that blocks, `ChatView` draws.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from textual import events
from textual.app import ComposeResult, SuspendNotSupported, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.signal import Signal
from textual.widgets import Footer

from eaglelocal.conversation.pictures import find_dropped_pictures
from eaglelocal.conversation.question_history import QuestionHistory
from eaglelocal.conversation.slash_commands import COMMANDS, is_command, is_help
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, ResourceError
from eaglelocal.processes.editor import run_editor
from eaglelocal.processes.this_process import settle
from eaglelocal.tui.base_app import EagleApp, RedrawTimer
from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_dialogs import ChatKeys, ConversationsDialog, SettingsDialog, list_command_rows
from eaglelocal.tui.chat.chat_events import (
    AttachmentsChanged,
    CallQuestion,
    CallsCompleted,
    ChatEvent,
    ExitRequested,
    ModelChanged,
    TextCopied,
)
from eaglelocal.tui.chat.chat_tasks import LastQuestion, OpenSession
from eaglelocal.tui.chat.chat_view import ChatView
from eaglelocal.tui.chat.model_picker import NO_MODELS, ModelDialog, ModelSource
from eaglelocal.tui.chat.prompt_input import PromptInput
from eaglelocal.tui.chat.tool_dialog import ToolDialog
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.glyphs import ASCII
from eaglelocal.tui.modal_screens import HelpRow
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.terminal import clipboard
from eaglelocal.tui.transcript.text_rows import Appearance

INTERRUPTED = 130
DOUBLE_PRESS_S = 2.0  # a second ctrl-c within this time leaves
CHAT_BINDINGS: list[BindingType] = [
    Binding("f1", "help", "Help", id="help", tooltip="all commands and keys"),
    Binding("escape", "stop", "Stop", id="stop"),
    Binding("f2", "toggle_panel", "Panel", id="panel"),
    Binding("f3", "edit", "Edit last", id="edit", show=False, tooltip="change the last question and ask again"),
    Binding("ctrl+n", "run_command('/clear')", "New", id="new", tooltip="begin a new conversation"),
    Binding("ctrl+o", "conversations", "Open", id="talks", tooltip="open a saved conversation"),
    Binding("f4", "settings", "Settings", id="settings", show=False, tooltip="system message and sampling"),
    Binding("f5", "model", "Model", id="model", show=False, tooltip="change the model or draft"),
    Binding("f8", "copy_answer", "Copy answer", id="copy_answer", show=False, tooltip="copy it as Markdown"),
    Binding(
        "f9",
        "toggle_marks",
        "Mark drafted",
        id="tint",
        show=False,
        tooltip="mark drafted text, and where drafts are accepted",
    ),
    Binding(
        "ctrl+t", "toggle_thoughts", "Thoughts", id="thoughts", show=False, tooltip="unfold or fold thoughts and calls"
    ),
    Binding("ctrl+g", "editor", "$EDITOR", id="editor", show=False, tooltip="edit the question in $EDITOR"),
    Binding("ctrl+home", "scroll_chat('top')", "Start", id="top", show=False, tooltip="go to the start", priority=True),
    Binding("ctrl+end", "scroll_chat('end')", "End", id="end", show=False, tooltip="go to the end", priority=True),
    Binding("ctrl+q", "quit", "Leave", id="leave"),
]
CHAT_CSS = """
#status { height: 1; padding: 0 1; }
ChatApp.-ascii #panel { border-left: ascii $secondary; }
ChatApp.-ascii #body.stacked #panel { border-left: none; border-top: ascii $secondary; }
ChatApp.-ascii PromptInput { border: ascii $secondary; }
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
        feed, glyphs = Feed(by_events=True), display_options.glyphs
        self.controller = ChatController(open_session, self._emit, feed, paths.conversations, saves=saves)
        keys = dict(display_options.keys)
        self.prompt = PromptInput(QuestionHistory(paths.history), keys, models.list_names)
        self._keys = ChatKeys(self.prompt.mapped_keys, CHAT_BINDINGS, keys)
        self.view = ChatView(self.controller, feed, self.prompt, glyphs, stop_key=self._keys.hint("stop"))
        self.view.transcript.has_figures = display_options.has_figures
        self._conversations, self._models = paths.conversations, models
        self._interrupted_at = float("-inf")
        self.model_changed: Signal[ModelChanged] = Signal(self, "model-changed")
        self._edited: LastQuestion | None = None
        self._attachments: tuple[str, ...] = ()  # labels of pictures that go with the next question
        self._marks_drafted = marks_drafted

    def compose(self) -> ComposeResult:
        yield self.view.panes
        yield self.view.status
        yield self.prompt
        yield Footer()

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _: self._restyle())
        self._restyle()
        self.view.panes.adapt_to(self.size)
        self.prompt.focus()
        RedrawTimer(self, self.view.draw).start()
        self.controller.start()
        self.call_after_refresh(_warm_up)

    # ---- layout
    def _restyle(self) -> None:
        appearance = Appearance(is_dark=self.current_theme.dark, is_ascii=self.display_options.glyphs is ASCII)
        self.view.transcript.restyle(appearance, marks_drafted=self._marks_drafted)

    def on_resize(self, event: events.Resize) -> None:
        """Rearrange for the new size, also under a dialog."""
        if self.view.panes.is_mounted:
            self.view.panes.adapt_to(event.size)

    # ---- events of the controller
    def _emit(self, event: ChatEvent) -> None:
        """Pass an event to the screen's thread, from any thread."""
        self.call_later(self._receive, event)

    def _receive(self, event: ChatEvent) -> None:
        match event:
            case TextCopied(text):
                self._copy(text)
            case AttachmentsChanged(labels):
                self._attachments = labels
                self._show_prompt_title()
            case CallQuestion(call, answer):
                self.push_screen(ToolDialog(call), answer)
            case CallsCompleted(done, live):
                self.view.transcript.add_calls(done, live)
            case ExitRequested():
                self.exit(0)
            case _:
                self.view.show(event)
                if isinstance(event, ModelChanged):
                    self.model_changed.publish(event)
        self.view.draw(time.monotonic())

    def show_notice(self, text: str) -> None:
        self.view.show_notice(text)

    # ---- user input
    def on_prompt_input_submitted(self, message: PromptInput.Submitted) -> None:
        text = message.text
        if self._edited is not None:
            self.controller.ask_instead(text.strip(), self._edited)
            self._end_editing()
        elif find_dropped_pictures(text):
            self.action_run_command(f"/image {text}")
        elif is_help(text):
            self.action_help()
        elif text.strip() == "/model":
            self.action_model()
        elif is_command(text):
            self.action_run_command(text)
        else:
            self.controller.ask(text.strip())
        self.view.draw(time.monotonic())

    def on_prompt_input_dropped(self, message: PromptInput.Dropped) -> None:
        """Attach dropped pictures. If the model reads no images, insert their paths as text."""
        model = self.view.model
        if model is None or model.model.info.sees_images:
            self.action_run_command(f"/image {message.text}")
        else:
            self.prompt.insert_pasted(message.text)

    def exit(self, result: int | None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Leave the screen. A question that was not sent comes first when `up` recalls questions at the next start."""
        self.prompt.keep_unsent()
        super().exit(result, return_code, message)

    def action_stop(self) -> None:
        """Stop the answer; else move waiting questions back into the prompt; else end editing."""
        if self.controller.stop():
            return
        if waiting := self.controller.cancel_waiting():
            self.prompt.replace_text("\n".join([*waiting, self.prompt.text]).rstrip("\n"))
        elif self._edited is not None:
            self._end_editing()
            self.prompt.replace_text("")

    def action_interrupt(self) -> None:
        """Copy the selection; else stop the answer; else clear the prompt; else leave, at the second ctrl-c."""
        selected = self.screen.get_selected_text() or self.prompt.selected_text
        now, last = time.monotonic(), self._interrupted_at
        if selected:
            self._copy(selected)
        elif self.controller.stop():
            self._interrupted_at = now
        elif self.prompt.text:
            self.prompt.replace_text("")
        elif now - last < DOUBLE_PRESS_S:
            self.exit(INTERRUPTED)
        else:
            self._interrupted_at = now
            others = self._keys.hint("delete_or_leave", "leave")
            self.notify(f"press {self._keys.hint('interrupt')} again, {others} to leave", timeout=DOUBLE_PRESS_S)

    def action_run_command(self, line: str) -> None:
        self.controller.run_command(line)

    def action_edit(self) -> None:
        if self.controller.is_busy or self.controller.waiting:
            self.notify(f"wait until the answer has ended; {self._keys.hint('stop')} stops it")
        elif (last := self.controller.last_question) is None:
            self.notify("there is no question yet")
        else:
            self._edited = last
            self.prompt.replace_text(last.text)
            self._show_prompt_title()

    def _end_editing(self) -> None:
        self._edited = None
        self._show_prompt_title()

    def _show_prompt_title(self) -> None:
        """Show above the prompt whether the last question is being edited, and the attachments."""
        send, stop = self._keys.hint("send"), self._keys.hint("stop")
        title = f"the last question: {send} asks again, {stop} keeps it as it was"
        self.prompt.show_title("  ".join([*([title] if self._edited is not None else []), *self._attachments]))

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
            self._copy(answer)
        else:
            self.notify("there is no answer yet")

    def _copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        self.screen.clear_selection()
        self.notify(clipboard.copy_and_describe(text), markup=False)

    def action_editor(self) -> None:
        try:
            text = edit_text(self.prompt.whole_text, self.suspend)
        except EagleLocalError as error:
            self.view.transcript.show_error(error)
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
        palette = HelpRow(self.COMMAND_PALETTE_BINDING, "find commands by name", "keys")
        return [*list_command_rows(), *self._keys.help_rows(), palette]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the screen's bindings and themes, and the slash commands."""
        yield from super().get_system_commands(screen)
        for name, command in COMMANDS.items():
            yield SystemCommand(name, command.purpose, partial(self._begin_command, name))

    def _begin_command(self, name: str) -> None:
        """Run a command, or if it has arguments write it into the prompt."""
        if COMMANDS[name].arguments:
            self.prompt.replace_text(f"{name} ")
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

    def action_model(self) -> None:
        self.push_screen(ModelDialog(self.view.model, self.controller, self._models, self.model_changed))


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


# ---- the user's own editor: $VISUAL, $EDITOR or vi
Suspend = Callable[[], AbstractContextManager[None]]


def edit_text(text: str, suspend: Suspend) -> str | None:
    """Return the edited text, or None if the editor failed. `suspend` lends the terminal to the editor.

    Raises UsageError if there is no such editor, ResourceError if it cannot be run or the disk is full.
    """
    path: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix="question-", suffix=".md")  # with mode 0600
        path = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with suspend():
            is_edited = run_editor(path)
        return path.read_text(encoding="utf-8", errors="replace") if is_edited else None
    except OSError as problem:
        raise ResourceError(f"cannot write a temporary file: {problem.strerror}") from problem
    finally:
        if path is not None:
            path.unlink(missing_ok=True)

"""The chat screen: a transcript, a prompt and the speculation panel.

Defines keys, actions and layout. `ChatController` does the work that blocks, the widgets draw.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Footer

from eaglelocal.client.server_reading import DISCONNECTED
from eaglelocal.conversation.answer_stats import model_lines
from eaglelocal.conversation.conversation import Turn
from eaglelocal.conversation.pictures import find_dropped_pictures
from eaglelocal.conversation.question_history import QuestionHistory
from eaglelocal.conversation.slash_actions import copy_message
from eaglelocal.conversation.slash_commands import is_command
from eaglelocal.core.events import LoadProgress
from eaglelocal.errors import EagleLocalError
from eaglelocal.tui.base_app import EagleApp
from eaglelocal.tui.chat import chat_controller as news
from eaglelocal.tui.chat.chat_controller import ChatController, OpenSession
from eaglelocal.tui.chat.chat_lines import status_line, title_line
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.glyphs import ASCII
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.panel.speculation_panel import SpeculationPanel
from eaglelocal.tui.prompt.prompt_input import PromptInput
from eaglelocal.tui.redraw_timer import RedrawTimer
from eaglelocal.tui.terminal import clipboard
from eaglelocal.tui.terminal.external_editor import edited
from eaglelocal.tui.transcript.entries import RenderOptions
from eaglelocal.tui.transcript.text_rows import Ink
from eaglelocal.tui.transcript.transcript import Transcript
from eaglelocal.tui.transcript.transcript_writer import TranscriptWriter

BESIDE_COLUMNS = 100  # from this width on the panel is right of the transcript, else below it
ROOMY_ROWS = 34  # a narrow screen of fewer rows starts without the panel
FIGURES_S = 0.5  # between updates of figures: faster ones cannot be read, and cost as much as text
EDITING = "the last question; enter asks again, esc leaves it as it is"
INTERRUPTED = 130
LEAVE_WITHIN_S = 2.0  # a second ctrl-c within this time leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlaces:
    """The paths of saved conversations (a folder) and of the question history (a file)."""

    conversations: Path
    history: Path


class ControllerMessage(Message):
    """A Textual message that carries an event of `ChatController` to the screen's thread."""

    def __init__(self, what: news.News) -> None:
        super().__init__()
        self.what = what


class ChatApp(EagleApp[int]):
    """The app of `eaglelocal chat` on a terminal; its result is the exit code."""

    ENABLE_COMMAND_PALETTE = True
    CSS = """
    #body { height: 1fr; layout: horizontal; }
    #body.stacked { layout: vertical; }
    #title, #status { height: 1; padding: 0 1; }
    #title { background: $panel; }
    #panel { width: 42; padding: 0 1; border-left: solid $secondary; }
    #body.stacked #panel { width: 100%; height: 8; border-left: none; border-top: solid $secondary; }
    ChatApp.-ascii #panel { border-left: ascii $secondary; }
    ChatApp.-ascii #body.stacked #panel { border-left: none; border-top: ascii $secondary; }
    ChatApp.-ascii PromptInput { border: ascii $secondary; }
    ChatApp.-ascii Dialog #box, ChatApp.-ascii Dialog TextArea { border: ascii $secondary; }
    ToastRack { margin-bottom: 6; }
    #title:ansi { background: ansi_default; text-style: reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", id="help"),
        Binding("escape", "stop", "Stop", id="stop"),
        Binding("f2", "panel", "Panel", id="panel"),
        Binding("f3", "edit", "Edit last", id="edit", show=False, tooltip="change the last question and ask again"),
        Binding("ctrl+n", "new", "New", id="new", tooltip="a new conversation"),
        Binding("ctrl+o", "talks", "Open", id="talks", tooltip="conversations on disk"),
        Binding("f4", "settings", "Settings", id="settings", show=False, tooltip="system message and sampling"),
        Binding("f5", "model", "Model", id="model", show=False, tooltip="another model or draft"),
        Binding("f8", "copy_answer", "Copy answer", id="copy_answer", show=False, tooltip="the last one, as Markdown"),
        Binding("f9", "tint", "Mark drafted", id="tint", show=False, tooltip="what was drafted and accepted"),
        Binding("ctrl+t", "thoughts", "Thoughts", id="thoughts", show=False, tooltip="unfold or fold them"),
        Binding("ctrl+g", "editor", "$EDITOR", id="editor", show=False, tooltip="edit the question there"),
        Binding("ctrl+home", "top", "Begin", id="top", show=False, tooltip="of the conversation", priority=True),
        Binding("ctrl+end", "end", "End", id="end", show=False, tooltip="of the conversation", priority=True),
        Binding("ctrl+q", "quit", "Leave", id="leave"),
    ]

    def __init__(
        self,
        open_session: OpenSession,
        places: ChatPlaces,
        look: DisplayOptions,
        *,
        keeps: bool = True,
        tint: bool = False,
    ) -> None:
        """keeps: save conversations automatically. tint: mark drafted text from the start."""
        super().__init__(look)
        self.feed = Feed(by_events=True)
        self.partner = ChatController(open_session, self._tell, self.feed, places.conversations, keeps=keeps)
        self._places = places
        self._progress: LoadProgress | None = None
        self._engine_state = "loading"
        self._model: news.ModelChanged | None = None
        self._talk_name = ""
        self._frame, self._framed_at = PanelFrame(), float("-inf")
        self._interrupted_at = float("-inf")
        self._edited: news.LastQuestion | None = None
        self._attached: tuple[str, ...] = ()  # labels of pictures that go with the next question
        self._is_composed = False
        self._panel_wish: bool | None = None  # shown by the user's choice; None: by the screen's size
        self._tint = tint

    def compose(self) -> ComposeResult:
        yield LinesWidget(id="title")
        with Container(id="body"):
            yield Transcript(id="transcript")
            yield SpeculationPanel(self.look.glyphs, id="panel")
        yield LinesWidget(id="status")
        history = QuestionHistory(self._places.history)
        yield PromptInput(history, dict(self.look.keys), placeholder="Ask something; / begins a command", id="prompt")
        yield Footer()

    def on_mount(self) -> None:
        self.transcript, self.prompt = self.query_one(Transcript), self.query_one(PromptInput)
        self.panel, self._spoken = self.query_one(SpeculationPanel), TranscriptWriter(self.transcript)
        self._title, self._status = self.query_one("#title", LinesWidget), self.query_one("#status", LinesWidget)
        self.theme_changed_signal.subscribe(self, lambda _: self._restyle())
        if self.look.glyphs is ASCII:
            self.transcript.use_ascii()
        self._body, self._is_composed = self.query_one("#body"), True
        self._restyle()
        self._arrange()
        self.prompt.focus()
        self.ticker = RedrawTimer(self, self._tick)
        self.partner.start()
        self.call_after_refresh(_settle_down)

    # ---- drawing
    def _restyle(self) -> None:
        ink = Ink(is_dark=self.current_theme.dark, is_ascii=self.look.glyphs is ASCII)
        self.transcript.view = RenderOptions(ink, self._tint, self.transcript.view.thoughts_shown)

    def _arrange(self, size: Size | None = None) -> None:
        width, height = size or self.size
        self._body.set_class(width < BESIDE_COLUMNS, "stacked")
        fits = width >= BESIDE_COLUMNS or height >= ROOMY_ROWS
        self.panel.display = fits if self._panel_wish is None else self._panel_wish

    def on_resize(self, event: events.Resize) -> None:
        """Rearrange for the new size, also under a dialog."""
        if self._is_composed:
            self._arrange(event.size)

    def _tick(self, now: float) -> bool:
        """Draw what has changed since the last tick. Return True while an answer or a task is running."""
        self._spoken.draw()
        if not 0.0 <= now - self._framed_at < FIGURES_S:
            self._frame, self._framed_at = self.feed.frame(now, seconds=60), now
            if self.panel.display:
                self.panel.show(self._frame)
            self._title.paint([title_line(self._model, self._talk_name, self._title.content_size.width)])
        frame = self._frame
        situation = (self._progress, self._engine_state, self.partner)
        hides_state = self.panel.display
        self._status.paint(
            [status_line(*situation, None if hides_state else frame, self._status.content_size.width, self.look.glyphs)]
        )
        self.prompt.show_waiting(self.partner.waiting)
        return frame.is_moving or self.partner.is_busy

    # ---- events of the partner
    def _tell(self, what: news.News) -> None:
        """Pass an event to the screen's thread, from any thread."""
        self.post_message(ControllerMessage(what))

    def on_controller_message(self, message: ControllerMessage) -> None:
        match message.what:
            case news.ModelChanged() as changed:
                self._on_model(changed)
            case news.QuestionSent(question, live):
                self._spoken.ask(question, live)
            case news.Heard():
                self._spoken.draw()
            case news.AnswerEnded(asked, n_ctx, name):
                self._talk_name = name
                self._spoken.end(asked, n_ctx)
            case news.NoteWritten(text):
                self._spoken.note(text)
            case news.ErrorShown(error):
                self._spoken.wrong(error)
            case news.Progressed(progress):
                self._progress = progress
            case _:
                self._on_change(message.what)
        self._tick(time.monotonic())

    def _on_change(self, what: news.News) -> None:
        match what:
            case news.TookBack():
                self._spoken.take_back()
            case news.Turned(turns, name):
                self._on_turned(turns, name)
            case news.Copied(text):
                self._copy(text)
            case news.Attached(labels):
                self._attached = labels
                self._retitle()
            case news.StateChanged(state, restarts):
                self._on_state(state, restarts)
            case news.Left():
                self.exit(0)

    def _on_model(self, changed: news.ModelChanged) -> None:
        is_first = self._model is None  # the command that loads a later one reports it
        self._model, self._engine_state = changed, "ready"
        if is_first:
            self._note_model()

    def _note_model(self) -> None:
        if self._model is not None:
            model = self._model.model
            for text in model_lines(model.info, model.plan):
                self._spoken.note(text)

    def _on_turned(self, turns: tuple[Turn, ...], name: str) -> None:
        """Show another conversation in place of the present one; for an empty one, name the model."""
        self._talk_name = name
        self._spoken.turn_to(turns)
        if not turns:
            self._note_model()

    def _on_state(self, state: str, restarts: int) -> None:
        before, self._engine_state = self._engine_state, state
        if state == "restarting":
            self._spoken.note("the engine has ended and is started again; what is asked meanwhile waits for it")
        elif state == "ready" and before == "restarting":
            self._spoken.note(f"the engine is back (started again {restarts} {'time' if restarts == 1 else 'times'})")
        elif state == DISCONNECTED:
            self._spoken.note("the server does not answer any more; /model REF loads a model here")
        elif state == "ready" and before == DISCONNECTED:
            self._spoken.note("the server answers again")

    # ---- user input
    def on_prompt_input_submitted(self, message: PromptInput.Submitted) -> None:
        text = message.text
        if self._edited is not None:
            self.partner.ask_instead(text.strip(), self._edited)
            self._end_editing()
        elif find_dropped_pictures(text):
            self.partner.run_command(f"/image {text}")
        elif is_command(text):
            self.partner.run_command(text)
        else:
            self.partner.ask(text.strip())
        self._tick(time.monotonic())

    def on_prompt_input_dropped(self, message: PromptInput.Dropped) -> None:
        """Attach dropped pictures. If the model reads no images, insert their paths as text."""
        if self._model is None or self._model.model.info.sees_images:
            self.partner.run_command(f"/image {message.text}")
        else:
            self.prompt.take_text(message.text)

    def on_prompt_input_leaving(self) -> None:
        self.exit(0)

    def on_transcript_thought_clicked(self) -> None:
        self.action_thoughts()

    def action_stop(self) -> None:
        """Stop the answer; else move waiting questions back into the prompt; else end editing."""
        if self.partner.stop():
            return
        if taken := self.partner.take_back():
            self.prompt.replace_text("\n".join([*taken, self.prompt.text]).rstrip("\n"))
        elif self._edited is not None:
            self._end_editing()
            self.prompt.replace_text("")

    def action_interrupt(self) -> None:
        """Copy the selection; else stop the answer; else clear the prompt; else leave, at the second ctrl-c."""
        marked = self.screen.get_selected_text() or self.prompt.selected_text
        now, last = time.monotonic(), self._interrupted_at
        if marked:
            self._copy(marked)
        elif self.partner.stop():
            self._interrupted_at = now
        elif self.prompt.text:
            self.prompt.replace_text("")
        elif now - last < LEAVE_WITHIN_S:
            self.exit(INTERRUPTED)
        else:
            self._interrupted_at = now
            self.notify("ctrl+c again, ctrl+d or ctrl+q leaves", timeout=LEAVE_WITHIN_S)

    def action_help(self) -> None:
        self.partner.run_command("/help")

    def action_retry(self) -> None:
        self.partner.run_command("/retry")

    def action_new(self) -> None:
        self.partner.run_command("/clear")

    def action_edit(self) -> None:
        if self.partner.is_busy or self.partner.waiting:
            self.notify("what runs must end first; esc stops an answer")
            return
        last = self.partner.last_question
        if last is None:
            self.notify("nothing was asked yet")
            return
        self._edited = last
        self.prompt.replace_text(last.text)
        self._retitle()

    def _end_editing(self) -> None:
        self._edited = None
        self._retitle()

    def _retitle(self) -> None:
        """Show above the prompt if the last question is being edited, and what is attached."""
        editing = [EDITING] if self._edited is not None else []
        self.prompt.show_title("  ".join([*editing, *self._attached]))

    def action_panel(self) -> None:
        self._panel_wish = not self.panel.display
        self._arrange()

    def action_tint(self) -> None:
        self._tint = not self._tint
        self._restyle()
        self.notify("drafted and accepted text is marked" if self._tint else "text is not marked")

    def action_thoughts(self) -> None:
        view = self.transcript.view
        self.transcript.view = replace(view, thoughts_shown=not view.thoughts_shown)

    def action_copy_answer(self) -> None:
        answer = self.partner.last_answer
        if answer:
            self._copy(answer)
        else:
            self.notify("there is no answer yet")

    def _copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        clipboard.fill(text)
        self.screen.clear_selection()
        self.notify(copy_message(text))

    def action_editor(self) -> None:
        try:
            text = edited(self.prompt.whole_text, self.suspend)
        except EagleLocalError as error:
            self._spoken.wrong(error)
        except SuspendNotSupported:
            self.notify("this terminal cannot be lent to an editor")
        else:
            self.prompt.replace_text(self.prompt.text if text is None else text.rstrip("\n"))

    def action_page_up(self) -> None:
        self.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.transcript.scroll_page_down(animate=False)

    def action_top(self) -> None:
        self.transcript.scroll_to(y=0, animate=False)

    def action_end(self) -> None:
        self.transcript.follow()

    def action_talks(self) -> None:
        from eaglelocal.tui.chat.chat_dialogs import TalksDialog

        self.push_screen(TalksDialog(self._places.conversations, self.partner))

    def action_settings(self) -> None:
        from eaglelocal.tui.chat.chat_dialogs import SettingsDialog

        self._with_model(lambda model: SettingsDialog(model, self.partner))

    def action_model(self) -> None:
        from eaglelocal.tui.chat.chat_dialogs import ModelDialog

        self._with_model(lambda model: ModelDialog(model, self.partner))

    def _with_model(self, dialog: Callable[[news.ModelChanged], ModalScreen[None]]) -> None:
        if self._model is None:
            self.notify("no model is loaded yet")
        else:
            self.push_screen(dialog(self._model))


def _settle_down() -> None:
    """Do slow start-up work once the first screen is drawn, before the user waits for it."""
    import_module("eaglelocal.tui.transcript.markdown_rows").lexer_of("python")
    gc.collect()
    gc.freeze()  # later collections skip all modules, which would delay a frame


def run_chat(app: ChatApp) -> int:
    """Show the screen until the user leaves and return the exit code. Raises the error that ended it otherwise."""
    try:
        code = app.show()
    finally:
        app.partner.close()
    return app.return_code or 0 if code is None else code

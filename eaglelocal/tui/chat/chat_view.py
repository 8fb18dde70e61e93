"""The drawing half of the chat screen: shows events and figures in its widgets. Reads no keys."""

from __future__ import annotations

import time

from eaglelocal.client.server_reading import DISCONNECTED
from eaglelocal.conversation.answer_stats import model_lines, system_line
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.plurals import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_events import (
    AnswerEnded,
    ChatEvent,
    ConversationReplaced,
    EngineStateChanged,
    FirstTokensReceived,
    LoadProgressed,
    ModelChanged,
    NoteWritten,
    QuestionRemoved,
    QuestionSent,
    TaskFailed,
)
from eaglelocal.tui.chat.chat_lines import format_current_work, format_status, format_title
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.panel.speculation_panel import SpeculationPanel
from eaglelocal.tui.prompt.prompt_input import PromptInput
from eaglelocal.tui.styled_lines import make_line
from eaglelocal.tui.transcript.transcript import Transcript
from eaglelocal.tui.transcript.transcript_writer import TranscriptWriter

FIGURES_S = 0.5  # between updates of figures: faster ones cannot be read, and cost as much as text


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWidgets:
    """The widgets of the chat screen."""

    title: LinesWidget
    transcript: Transcript
    panel: SpeculationPanel
    status: LinesWidget
    prompt: PromptInput


class ChatView:
    """The contents of the chat screen. For the screen's thread only."""

    def __init__(
        self, widgets: ChatWidgets, controller: ChatController, feed: Feed, glyphs: Glyphs, *, stop_key: str
    ) -> None:
        self.feed, self._stop_key = feed, stop_key
        self._widgets, self._controller, self._glyphs = widgets, controller, glyphs
        self._writer = TranscriptWriter(widgets.transcript)
        self.model: ModelChanged | None = None  # with its settings; None until one is loaded
        self._progress: LoadProgress | None = None
        self._engine_state = "loading"
        self._notice = ""
        self._conversation_name = ""
        self._frame, self._framed_at = PanelFrame(), float("-inf")

    # ---- figures
    def draw(self, now: float) -> bool:
        """Draw what has changed since the last call. Return True while an answer or a task is running."""
        widgets, activity = self._widgets, self._controller.activity
        self._writer.draw_answer()
        if not 0.0 <= now - self._framed_at < FIGURES_S:
            self._frame, self._framed_at = self.feed.make_frame(now, seconds=60), now
            if widgets.panel.display:
                widgets.panel.show(self._frame)
            width = widgets.title.content_size.width
            widgets.title.show_lines([format_title(self.model, self._conversation_name, width)])
        hides_figures = widgets.panel.display or not self.has_figures  # the panel shows the same
        frame = None if hides_figures else self._frame
        width = widgets.status.content_size.width
        work = format_current_work(self._progress, self._engine_state, activity, self._glyphs, stop_key=self._stop_key)
        left = make_line((self._notice, "accent")) if self._notice else work
        widgets.status.show_lines([format_status(left, frame, width, self._glyphs)])
        widgets.prompt.show_waiting(activity.waiting)
        return self._frame.is_moving or activity.is_busy

    @property
    def has_figures(self) -> bool:
        return self._writer.has_figures

    def show_figures(self, shown: bool) -> None:
        """Show or hide the line of figures below the next answers, and the figures of the status line."""
        self._writer.has_figures = shown

    def show_notice(self, text: str) -> None:
        """Show a notice in the status line, in place of what is going on; "" removes it."""
        if text != self._notice:
            self._notice = text
            self.draw(time.monotonic())

    # ---- events
    def show(self, event: ChatEvent) -> None:
        """Apply an event; `draw` shows what it changes."""
        match event:
            case QuestionSent(question, live):
                self._writer.add_question(question, live)
            case FirstTokensReceived():
                self._writer.draw_answer()
            case AnswerEnded(result, n_ctx, name):
                self._conversation_name = name
                self._writer.end_answer(result, n_ctx)
            case QuestionRemoved():
                self._writer.remove_question()
            case NoteWritten(text):
                self._writer.note(text)
            case TaskFailed(error):
                self.show_error(error)
            case ConversationReplaced():
                self._replace_conversation(event)
            case _:
                self._show_engine_event(event)

    def _show_engine_event(self, event: ChatEvent) -> None:
        match event:
            case LoadProgressed(progress):
                self._progress = progress
            case ModelChanged():
                self._change_model(event)
            case EngineStateChanged(state, restarts):
                self._change_state(state, restarts)

    def show_error(self, error: EagleLocalError) -> None:
        self._writer.show_error(error)

    def _change_model(self, model: ModelChanged) -> None:
        is_first = self.model is None  # the command that loads a later one reports it
        self.model, self._engine_state = model, "ready"
        if is_first:
            self._note_model()

    def _note_model(self) -> None:
        if self.model is not None:
            model = self.model.model
            for text in model_lines(model.info, model.plan):
                self._writer.note(text)
            if self.model.system:
                self._writer.note(system_line(self.model.system))

    def _replace_conversation(self, event: ConversationReplaced) -> None:
        """Show the conversation in place of the present one; if it is empty, name the model."""
        self._conversation_name = event.name
        self._writer.replace_conversation(event.turns)
        if not event.turns:
            self._note_model()

    def _change_state(self, state: str, restarts: int) -> None:
        before, self._engine_state = self._engine_state, state
        if state == "restarting":
            self._writer.note("the engine has ended and is being restarted; new questions wait for it")
        elif state == "ready" and before == "restarting":
            self._writer.note(f"the engine is running again ({count_noun(restarts, 'restart')})")
        elif state == DISCONNECTED:
            self._writer.note("the server no longer answers; /model REF loads a model here")
        elif state == "ready" and before == DISCONNECTED:
            self._writer.note("the server answers again")

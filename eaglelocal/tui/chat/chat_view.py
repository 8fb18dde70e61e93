"""The drawing half of the chat screen: shows events and figures in its widgets. Reads no keys."""

from __future__ import annotations

import time
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Size

from eaglelocal.client.server_reading import AWAY_TEXTS
from eaglelocal.conversation.answer_stats import model_line, system_line, unusual_lines
from eaglelocal.conversation.ask import AskResult
from eaglelocal.conversation.conversation import ContextUse, Turn
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.events import Finished, LoadProgress
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_events import (
    Activity,
    AnswerEnded,
    CallsCompleted,
    ChatEvent,
    ConversationReplaced,
    EngineStateChanged,
    LoadProgressed,
    ModelChanged,
    NoteWritten,
    QuestionSent,
    SummaryMade,
    TaskFailed,
    TurnsReplaced,
)
from eaglelocal.tui.chat.prompt_input import PromptInput
from eaglelocal.tui.chat.status_line import format_figures, format_rest, format_work, justify, shorten
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.panel.chat_panel import ChatFigures, format_chat_panel
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.styled_lines import Line, cell_width, make_line
from eaglelocal.tui.transcript.transcript import Transcript

FIGURES_S = 0.5  # between updates of figures: faster ones cannot be read, and cost as much as text


class ChatView:
    """The widgets above the prompt, and what they and the prompt's borders show. For the screen's thread only."""

    def __init__(
        self, controller: ChatController, feed: Feed, prompt: PromptInput, glyphs: Glyphs, *, stop_key: str
    ) -> None:
        self.status = LinesWidget(id="status")
        self.transcript, self.panel = Transcript(), SpeculationPanel(glyphs)
        self.panes = ChatPanes(self.transcript, self.panel)
        self.feed, self._controller, self._prompt = feed, controller, prompt
        self._glyphs, self._stop_key = glyphs, stop_key
        self.model: ModelChanged | None = None  # with its settings; None until one is loaded
        self._question = ""  # the last one that was sent
        self._progress: LoadProgress | None = None
        self._engine_state = "loading"
        self._notice = ""
        self._context = ContextUse()  # between two questions
        self._answers: tuple[Finished, ...] = ()  # of the model, in this chat
        self._frame, self._framed_at = PanelFrame(), float("-inf")

    # ---- figures
    def draw(self, now: float) -> bool:
        """Draw what has changed since the last call. Return True while an answer or a task is running."""
        activity = self._controller.activity
        self.transcript.draw_answer()
        if not 0.0 <= now - self._framed_at < FIGURES_S:
            self._frame, self._framed_at = self.feed.make_frame(now, seconds=60), now
            self.panes.show(
                ChatFigures(context=self._measure_context(activity), frame=self._frame, answers=self._answers)
            )
        self.status.show_lines([self._format_status(activity, self.status.content_size.width)])
        self._prompt.show_waiting(activity.waiting)
        return self._frame.is_moving or activity.is_busy

    @property
    def free_tokens(self) -> int | None:
        """The tokens of the context that are not used; None: not known."""
        return self._context.free if self._context.size else None

    def _measure_context(self, activity: Activity) -> ContextUse:
        """Return how full the context is now, with the tokens of a running answer."""
        used = activity.answer.num_cached if activity.answer is not None else 0
        history = max(used - self._context.system, self._context.history)
        return replace(self._context, history=history)

    def _format_status(self, activity: Activity, width: int) -> Line:
        """Return the notice or the work in progress with its figures, else the state of the chat and its name."""
        hides_figures = self.panel.display or not self.transcript.has_figures  # the panel shows the same
        frame, dot = None if hides_figures else self._frame, self._glyphs.dot
        work = format_work(self._progress, self._engine_state, activity, width, self._glyphs, stop_key=self._stop_key)
        left = make_line((self._notice, "accent")) if self._notice else work
        if left:
            figures = f" {dot} ".join(format_figures(frame)) if frame is not None else ""
            return justify(left, make_line((figures, "quiet")), width)
        frame = frame if self._answers else None  # another conversation's figures are not those of this one
        left = format_rest(self.model, self._context, frame, width, self._glyphs)
        name = shorten(clean_line(self._controller.conversation_name), width - cell_width(left) - 2)
        return justify(left, make_line((name, "quiet")), width)

    def show_notice(self, text: str) -> None:
        """Show a notice in the status line, in place of the work in progress; "" removes it."""
        if text != self._notice:
            self._notice = text
            self.draw(time.monotonic())

    # ---- events
    def show(self, event: ChatEvent) -> None:
        """Apply an event; `draw` shows what it changes."""
        self._add_to_transcript(event)
        self._apply(event)
        if isinstance(event, AnswerEnded | TurnsReplaced | ConversationReplaced | ModelChanged | SummaryMade):
            self._context, self._framed_at = self._controller.context_use, float("-inf")

    def _add_to_transcript(self, event: ChatEvent) -> None:
        match event:
            case QuestionSent(question, live, turn):
                self._question = question
                self.transcript.add_question(question, live, turn)
            case TurnsReplaced(index, turns, first_code):
                self.transcript.replace_turns(index, turns, first_code)
            case CallsCompleted(done, live):
                self.transcript.add_calls(done, live)
            case SummaryMade(text, num_turns):
                self.transcript.fold_turns(text, num_turns)
            case NoteWritten(text):
                self.transcript.note(text)
            case TaskFailed(error):
                self.transcript.reply(error)

    def _apply(self, event: ChatEvent) -> None:
        match event:
            case AnswerEnded(result, answered, n_ctx):
                self._end_answer(result, answered, n_ctx)
            case ConversationReplaced():
                self._replace_conversation(event)
            case LoadProgressed(progress):
                self._progress = progress
            case ModelChanged():
                self._change_model(event)
            case EngineStateChanged(state, restarts):
                self._change_state(state, restarts)

    def _end_answer(self, result: AskResult, turn: Turn | None, n_ctx: int) -> None:
        self.transcript.end_answer(result, turn, n_ctx)
        if result.outcome.finished is not None:
            self._answers = (*self._answers, result.outcome.finished)
        if result.outcome.refused and turn is None and not self._prompt.text:
            self._prompt.replace_text(self._question)  # to be shortened

    def _show_switch(self, model: ActiveModel) -> None:
        """Draw a rule that names the model which answers from here on, and what is to be noted of it."""
        self.transcript.add_rule(model.info.target if model.plan is None else model_line(model.info, model.plan))
        for text in unusual_lines(model.info, model.plan):
            self.transcript.note(text)

    def _change_model(self, model: ModelChanged) -> None:
        before, self.model, self._engine_state = self.model, model, "ready"
        if before is None:
            self._note_model()
        elif model.model is not before.model:
            self._answers = ()
            self._show_switch(model.model)

    def _note_model(self) -> None:
        """Say what is unusual about the model; the status line names it."""
        if self.model is not None:
            for text in unusual_lines(self.model.model.info, self.model.model.plan):
                self.transcript.note(text)
            if self.model.system:
                self.transcript.note(system_line(self.model.system))

    def _replace_conversation(self, event: ConversationReplaced) -> None:
        """Replace the conversation on the screen; the answers of the panel are those of this one."""
        self._answers = self._answers if event.is_same else ()
        self.transcript.replace_conversation(event.turns)
        if not event.turns:
            self._note_model()

    def _change_state(self, state: str, restarts: int) -> None:
        before, self._engine_state = self._engine_state, state
        if state == "restarting":
            self.transcript.note("the engine has ended and is being restarted; new questions wait for it")
        elif state == "ready" and before == "restarting":
            self.transcript.note(f"the engine is running again ({count_noun(restarts, 'restart')})")
        elif state in AWAY_TEXTS and state != before:
            self.transcript.note(f"{AWAY_TEXTS[state]}; questions wait for it, and /model REF loads a model here")
        elif state == "ready" and before in AWAY_TEXTS:
            self.transcript.note("the server answers again")


# ---- the middle of the chat screen: the transcript, and the speculation panel beside or below it
MIN_SIDE_PANEL_COLUMNS = 140  # from here on the panel is beside the transcript, and shown once there is an answer
SIDE_PANEL_COLUMNS = 46


class SpeculationPanel(LinesWidget):
    """A panel with the context, the answers and the gain of drafting, formatted for its own width and height."""

    DEFAULT_CSS = "SpeculationPanel { height: 100%; width: 100%; }"

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(id="panel")
        self._glyphs = glyphs
        self.has_details = False

    def format(self, chat: ChatFigures, width: int, height: int) -> list[Line]:
        return format_chat_panel(chat, width, height, self._glyphs, has_details=self.has_details)


class ChatPanes(Container):
    """A container of the transcript and the panel, arranged for the size of the screen."""

    DEFAULT_CSS = f"""
    ChatPanes {{
        height: 1fr; layout: horizontal;
        &.stacked {{ layout: vertical; }}
        & #panel {{ width: {SIDE_PANEL_COLUMNS}; padding: 0 1; border-left: solid $secondary; }}
        &.stacked #panel {{ width: 100%; border-left: none; border-top: solid $secondary; }}
    }}
    """

    def __init__(self, transcript: Transcript, panel: SpeculationPanel) -> None:
        super().__init__(id="body")
        self._transcript, self._panel = transcript, panel
        self._wants_panel: bool | None = None  # the user's choice; None: it depends on the screen's size
        self._chat = ChatFigures(context=ContextUse(), frame=PanelFrame())

    def compose(self) -> ComposeResult:
        yield self._transcript
        yield self._panel

    def show(self, chat: ChatFigures) -> None:
        """Show these figures. The panel is never higher than what it has to say."""
        self._chat = chat
        self._show()

    def adapt_to(self, screen_size: Size) -> None:
        self.set_class(screen_size.width < MIN_SIDE_PANEL_COLUMNS, "stacked")
        self._show()

    def toggle_panel(self) -> None:
        self._wants_panel = not self._panel.display
        self._show()

    def toggle_details(self, shows: bool) -> None:
        self._panel.has_details = shows
        self._show()

    def _show(self) -> None:
        is_stacked = self.has_class("stacked")
        has_answers = bool(self._chat.answers) and not is_stacked
        self._panel.display = has_answers if self._wants_panel is None else self._wants_panel
        if not self._panel.display:
            return
        width = self.size.width - 2 if is_stacked else SIDE_PANEL_COLUMNS - 3
        height = self.size.height // 2 if is_stacked else self.size.height
        lines = self._panel.format(self._chat, width, height)
        self._panel.styles.height = len(lines) + 1 if is_stacked else "100%"
        self._panel.show_lines(lines)

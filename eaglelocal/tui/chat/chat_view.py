"""The drawing half of the chat screen: shows events and figures in its widgets. Reads no keys."""

from __future__ import annotations

import time

from rich.cells import cell_len, set_cell_size
from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Size

from eaglelocal.client.server_reading import DISCONNECTED
from eaglelocal.conversation.answer_stats import model_lines, system_line
from eaglelocal.core.adapters import describe_adapters
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.draft import describe_drafting
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.tui.chat.chat_controller import ChatController
from eaglelocal.tui.chat.chat_events import (
    Activity,
    AnswerEnded,
    ChatEvent,
    ConversationReplaced,
    EngineStateChanged,
    LoadProgressed,
    ModelChanged,
    NoteWritten,
    QuestionRemoved,
    QuestionSent,
    TaskFailed,
)
from eaglelocal.tui.chat.prompt_input import PromptInput
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.panel.panel_text import format_bar, format_panel, format_percent, format_tok_s
from eaglelocal.tui.styled_lines import ELLIPSIS, Line, cell_width, fit_line, make_line
from eaglelocal.tui.transcript.transcript import Transcript

FIGURES_S = 0.5  # between updates of figures: faster ones cannot be read, and cost as much as text


class ChatView:
    """The widgets above the prompt, and what they and the prompt's borders show. For the screen's thread only."""

    def __init__(
        self, controller: ChatController, feed: Feed, prompt: PromptInput, glyphs: Glyphs, *, stop_key: str
    ) -> None:
        self.title, self.status = LinesWidget(id="title"), LinesWidget(id="status")
        self.transcript, self.panel = Transcript(), SpeculationPanel(glyphs)
        self.panes = ChatPanes(self.transcript, self.panel)
        self.feed, self._controller, self._prompt = feed, controller, prompt
        self._glyphs, self._stop_key = glyphs, stop_key
        self.model: ModelChanged | None = None  # with its settings; None until one is loaded
        self._progress: LoadProgress | None = None
        self._engine_state = "loading"
        self._notice = ""
        self._conversation_name = ""
        self._frame, self._framed_at = PanelFrame(), float("-inf")

    # ---- figures
    def draw(self, now: float) -> bool:
        """Draw what has changed since the last call. Return True while an answer or a task is running."""
        activity = self._controller.activity
        self.transcript.draw_answer()
        if not 0.0 <= now - self._framed_at < FIGURES_S:
            self._frame, self._framed_at = self.feed.make_frame(now, seconds=60), now
            if self.panel.display:
                self.panel.show(self._frame)
            width = self.title.content_size.width
            self.title.show_lines([format_title(self.model, self._conversation_name, width)])
        hides_figures = self.panel.display or not self.transcript.has_figures  # the panel shows the same
        frame = None if hides_figures else self._frame
        width = self.status.content_size.width
        work = format_current_work(self._progress, self._engine_state, activity, self._glyphs, stop_key=self._stop_key)
        left = make_line((self._notice, "accent")) if self._notice else work
        self.status.show_lines([format_status(left, frame, width, self._glyphs)])
        self._prompt.show_waiting(activity.waiting)
        return self._frame.is_moving or activity.is_busy

    def show_notice(self, text: str) -> None:
        """Show a notice in the status line, in place of the work in progress; "" removes it."""
        if text != self._notice:
            self._notice = text
            self.draw(time.monotonic())

    # ---- events
    def show(self, event: ChatEvent) -> None:
        """Apply an event; `draw` shows what it changes."""
        match event:
            case QuestionSent(question, live):
                self.transcript.add_question(question, live)
            case AnswerEnded(result, n_ctx, name):
                self._conversation_name = name
                self.transcript.end_answer(result, n_ctx)
            case QuestionRemoved():
                self.transcript.remove_question()
            case NoteWritten(text):
                self.transcript.note(text)
            case TaskFailed(error):
                self.transcript.show_error(error)
            case ConversationReplaced():
                self._replace_conversation(event)
            case LoadProgressed(progress):
                self._progress = progress
            case ModelChanged():
                self._change_model(event)
            case EngineStateChanged(state, restarts):
                self._change_state(state, restarts)

    def _change_model(self, model: ModelChanged) -> None:
        is_first = self.model is None  # the command that loads a later one reports it
        self.model, self._engine_state = model, "ready"
        if is_first:
            self._note_model()

    def _note_model(self) -> None:
        if self.model is not None:
            model = self.model.model
            for text in model_lines(model.info, model.plan):
                self.transcript.note(text)
            if self.model.system:
                self.transcript.note(system_line(self.model.system))

    def _replace_conversation(self, event: ConversationReplaced) -> None:
        """Replace the conversation on the screen; if the new one is empty, name the model."""
        self._conversation_name = event.name
        self.transcript.replace_conversation(event.turns)
        if not event.turns:
            self._note_model()

    def _change_state(self, state: str, restarts: int) -> None:
        before, self._engine_state = self._engine_state, state
        if state == "restarting":
            self.transcript.note("the engine has ended and is being restarted; new questions wait for it")
        elif state == "ready" and before == "restarting":
            self.transcript.note(f"the engine is running again ({count_noun(restarts, 'restart')})")
        elif state == DISCONNECTED:
            self.transcript.note("the server no longer answers; /model REF loads a model here")
        elif state == "ready" and before == DISCONNECTED:
            self.transcript.note("the server answers again")


# ---- chat lines: format the title line and the status line of the chat screen. Pure: state in, spans out
BAR_CELLS = 16
MIN_NAME_CELLS = 10
STATE_TEXTS = {  # by state of the engine
    "loading": "loading the model",
    "restarting": "restarting the engine",
    DISCONNECTED: "the server does not answer",
    "failed": "the engine has failed; /model REF loads another",
    "closed": "the engine has ended",
}


def format_title(changed: ModelChanged | None, name: str, width: int) -> Line:
    """Return the model, its adapters and its draft on the left, the conversation's name on the right."""
    if changed is None:
        return fit_line(make_line(("eaglelocal", "strong")), width)
    info = changed.model.info
    draft = info.draft if info.draft != "none" else "no draft"
    target = shorten(clean_line(info.target), width)
    adapters = shorten(clean_line(describe_adapters(changed.adapters)), width - cell_len(target) - 2)
    left = make_line((target, "strong"))
    if adapters:
        left = make_line(*left, (f"  {adapters}", "accent"))
    draft = shorten(clean_line(draft), width - cell_width(left) - 2)
    left = make_line(*left, (f"  {draft}" if draft else "", "quiet"))
    return justify(left, make_line((shorten(clean_line(name), width - cell_width(left) - 2), "quiet")), width)


def shorten(name: str, width: int) -> str:
    """Return a name, cut to `width` cells with an ellipsis; "" if it would be cut to fewer than MIN_NAME_CELLS."""
    if cell_len(name) <= width:
        return name
    return set_cell_size(name, width - len(ELLIPSIS)).rstrip() + ELLIPSIS if width >= MIN_NAME_CELLS else ""


def format_status(left: Line, frame: PanelFrame | None, width: int, glyphs: Glyphs) -> Line:
    """Return the status line: on the right, as far as they fit, the figures of `frame`, if given."""
    if frame is None:
        return fit_line(left, width)
    available = width - cell_width(left) - 2
    spans = format_figures(frame, glyphs)
    fitting = (spans[:number] for number in range(len(spans), 0, -1) if cell_width(spans[:number]) <= available)
    return justify(left, next(fitting, ()), width)


def format_current_work(
    progress: LoadProgress | None, state: str, activity: Activity, glyphs: Glyphs, *, stop_key: str
) -> Line:
    """Describe the work in progress, and the number of waiting questions."""
    spans = format_progress(progress, glyphs) if progress is not None else format_activity(state, activity, stop_key)
    hint = "" if activity.is_answering or not stop_key else f", {stop_key} takes back"
    return (*spans, *format_waiting(len(activity.waiting), hint, glyphs))


def format_progress(progress: LoadProgress, glyphs: Glyphs) -> Line:
    fraction = min(max(progress.fraction, 0.0), 1.0)
    bar = format_bar(fraction, BAR_CELLS, glyphs, "accent")
    return make_line(*bar, f" {format_percent(fraction):>5}  ", (progress.what, "quiet"))


def format_activity(state: str, activity: Activity, stop_key: str) -> Line:
    if state in STATE_TEXTS:
        return make_line((STATE_TEXTS[state], "warn"))
    if activity.is_answering:
        seconds = activity.image_reading_s
        working = f"thinking, {activity.thinking}" if activity.thinking else "answering"
        text = working if seconds is None else f"reading images, {seconds:.0f} s"
        hint = f", {stop_key} stops" if stop_key else ""
        if activity.is_looping:
            text = "repeating itself"
        return make_line(
            (text, "warn" if activity.is_looping else "accent"),
            (", stopping" if activity.is_stopping else hint, "quiet"),
        )
    return make_line(("busy" if activity.is_busy else "ready", "quiet"))


def format_waiting(number: int, hint: str, glyphs: Glyphs) -> Line:
    return make_line((f" {glyphs.dot} {number} waiting{hint}", "quiet")) if number else ()


def format_figures(frame: PanelFrame, glyphs: Glyphs) -> Line:
    """Return a quiet span for each figure of the answer, the less important ones last; empty before the first one."""
    figures, drafting = frame.figures, frame.drafting
    parts = [f"{format_tok_s(frame.tok_s)} tok/s"] if frame.tok_s else []
    parts += [f"{figures.gain:.2f}x plain"] if figures.gain else []
    parts += [f"acceptance {format_percent(figures.acceptance)}"] if figures.acceptance is not None else []
    if drafting.state != "on" and frame.tok_s and (text := describe_drafting(drafting.state, drafting.reason)):
        parts.append(text)
    return make_line(*((f" {glyphs.dot} {part}" if index else part, "quiet") for index, part in enumerate(parts)))


def justify(left: Line, right: Line, width: int) -> Line:
    """Return a line of `width` cells with its parts at the two ends; the right one is cut if it does not fit."""
    available = max(width - cell_width(left) - 2, 0)
    right = right if cell_width(right) <= available else fit_line(right, available)
    return (*fit_line(left, max(width - cell_width(right), 0)), *right)


# ---- the middle of the chat screen: the transcript, and the speculation panel beside or below it
MIN_SIDE_PANEL_COLUMNS = 100  # from this width on the panel is right of the transcript, else below it
MIN_SHOWN_COLUMNS = 140  # from this width on the panel is shown unless the user hides it; below it, only on request


class SpeculationPanel(LinesWidget):
    """A panel with the state and the gain of drafting, formatted for its own width and height."""

    DEFAULT_CSS = "SpeculationPanel { height: 100%; width: 100%; }"

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(id="panel")
        self._glyphs = glyphs
        self._frame = PanelFrame()

    def show(self, frame: PanelFrame) -> None:
        self._frame = frame
        width, height = self.content_size
        self.show_lines(format_panel(frame, width, height, self._glyphs))

    def on_resize(self) -> None:
        self.show(self._frame)


class ChatPanes(Container):
    """A container of the transcript and the panel, arranged for the size of the screen."""

    DEFAULT_CSS = """
    ChatPanes {
        height: 1fr; layout: horizontal;
        &.stacked { layout: vertical; }
        & #panel { width: 46; padding: 0 1; border-left: solid $secondary; }
        &.stacked #panel { width: 100%; height: 9; border-left: none; border-top: solid $secondary; }
    }
    """

    def __init__(self, transcript: Transcript, panel: SpeculationPanel) -> None:
        super().__init__(id="body")
        self._transcript, self._panel = transcript, panel
        self._wants_panel: bool | None = None  # the user's choice; None: it depends on the screen's size

    def compose(self) -> ComposeResult:
        yield self._transcript
        yield self._panel

    def adapt_to(self, screen_size: Size) -> None:
        has_room_beside = screen_size.width >= MIN_SIDE_PANEL_COLUMNS
        self.set_class(not has_room_beside, "stacked")
        is_wide = screen_size.width >= MIN_SHOWN_COLUMNS
        self._panel.display = is_wide if self._wants_panel is None else self._wants_panel

    def toggle_panel(self) -> None:
        self._panel.display = self._wants_panel = not self._panel.display

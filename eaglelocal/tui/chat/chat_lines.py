"""Format the title line and the status line of the chat screen. Pure: state in, spans out."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from eaglelocal.client.server_reading import DISCONNECTED
from eaglelocal.core.events import LoadProgress
from eaglelocal.tui.chat.chat_events import Activity, ModelChanged
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import format_percent, format_state
from eaglelocal.tui.styled_lines import Line, cell_width, fit_line, make_line, sanitize

BAR_CELLS = 16
ELLIPSIS, MIN_NAME_CELLS = "...", 10  # cells
STATE_TEXTS = {  # by state of the engine
    "loading": "loading the model",
    "restarting": "restarting the engine",
    DISCONNECTED: "the server does not answer",
    "failed": "the engine has failed; /model REF loads another",
    "closed": "the engine has ended",
}


def format_title(changed: ModelChanged | None, name: str, width: int) -> Line:
    """Return the model and its draft on the left, the conversation's name on the right."""
    if changed is None:
        return fit_line(make_line(("eaglelocal", "strong")), width)
    info = changed.model.info
    draft = info.draft if info.draft != "none" else "no draft"
    target = shorten(sanitize(info.target), width)
    draft = shorten(sanitize(draft), width - cell_len(target) - 2)
    left = make_line((target, "strong"), (f"  {draft}" if draft else "", "quiet"))
    return justify(left, make_line((shorten(sanitize(name), width - cell_width(left) - 2), "quiet")), width)


def shorten(name: str, width: int) -> str:
    """Return a name, cut to `width` cells with an ellipsis; "" if it would be cut to fewer than MIN_NAME_CELLS."""
    if cell_len(name) <= width:
        return name
    return set_cell_size(name, width - len(ELLIPSIS)).rstrip() + ELLIPSIS if width >= MIN_NAME_CELLS else ""


def format_status(
    progress: LoadProgress | None, state: str, activity: Activity, frame: PanelFrame | None, width: int, glyphs: Glyphs
) -> Line:
    """Return the activity and the number of waiting questions; on the right the speculation of `frame`, if given."""
    activity_spans = format_progress(progress, glyphs) if progress is not None else format_activity(state, activity)
    left = (*activity_spans, *format_waiting(len(activity.waiting), activity.is_answering, glyphs))
    if frame is None:
        return fit_line(left, width)
    available = width - cell_width(left) - 2
    spans = format_speculation(frame, glyphs)
    fitting = [spans[:number] for number in range(len(spans), 0, -1) if cell_width(spans[:number]) <= available]
    return justify(left, fitting[0] if fitting else spans[:1], width)


def format_progress(progress: LoadProgress, glyphs: Glyphs) -> Line:
    fraction = min(max(progress.fraction, 0.0), 1.0)
    bar = glyphs.draw_bar(fraction, BAR_CELLS)
    return make_line((bar, "accent"), f" {format_percent(fraction):>5}  ", (sanitize(progress.what), "quiet"))


def format_activity(state: str, activity: Activity) -> Line:
    if state in STATE_TEXTS:
        return make_line((STATE_TEXTS[state], "warn"))
    if activity.is_answering:
        seconds = activity.image_reading_s
        text = "answering" if seconds is None else f"reading images, {seconds:.0f} s"
        return make_line((text, "accent"), (", stopping" if activity.is_stopping else ", esc stops", "quiet"))
    return make_line(("busy" if activity.is_busy else "ready", "quiet"))


def format_waiting(number: int, is_answering: bool, glyphs: Glyphs) -> Line:
    hint = "" if is_answering else ", esc takes back"
    return make_line((f" {glyphs.dot} {number} waiting{hint}", "quiet")) if number else ()


def format_speculation(frame: PanelFrame, glyphs: Glyphs) -> Line:
    """Return a span for the state and one for each figure, the less important ones last."""
    gain = frame.figures.gain
    parts = [f"{frame.tok_s:.1f} tok/s"] if frame.tok_s else []
    parts += [f"{gain:.2f}{glyphs.times} plain"] if gain else []
    return (format_state(frame), *make_line(*((f" {glyphs.dot} {part}", "quiet") for part in parts)))


def justify(left: Line, right: Line, width: int) -> Line:
    """Return a line of `width` cells with its parts at the two ends; the right one is cut if it does not fit."""
    available = max(width - cell_width(left) - 2, 0)
    right = right if cell_width(right) <= available else fit_line(right, available)
    return (*fit_line(left, max(width - cell_width(right), 0)), *right)

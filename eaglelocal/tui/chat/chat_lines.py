"""Format the title line and the status line of the chat screen. Pure: state in, spans out."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from eaglelocal.client.server_reading import DISCONNECTED
from eaglelocal.core.adapters import describe_adapters
from eaglelocal.core.drafting_words import describe_drafting
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.tui.chat.chat_events import Activity, ModelChanged
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.graph_text import format_bar
from eaglelocal.tui.panel.panel_text import format_percent, format_tok_s
from eaglelocal.tui.styled_lines import ELLIPSIS, Line, cell_width, fit_line, make_line

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
    """Return what is going on, and the number of waiting questions."""
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
        text = "answering" if seconds is None else f"reading images, {seconds:.0f} s"
        hint = f", {stop_key} stops" if stop_key else ""
        return make_line((text, "accent"), (", stopping" if activity.is_stopping else hint, "quiet"))
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

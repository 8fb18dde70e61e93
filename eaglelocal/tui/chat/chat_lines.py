"""Format the title line and the status line of the chat screen. Pure: state in, spans out."""

from __future__ import annotations

from typing import Protocol

from rich.cells import cell_len, set_cell_size

from eaglelocal.client.server_reading import DISCONNECTED
from eaglelocal.core.events import LoadProgress
from eaglelocal.tui.chat.chat_events import ModelChanged
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import percent, state_span
from eaglelocal.tui.styled_lines import Line, fitted, harmless, line, width_of

BAR_CELLS = 16
CUT, LEAST_NAME = "...", 10  # cells
STATES = {
    "loading": "loading the model",
    "restarting": "restarting the engine",
    DISCONNECTED: "the server does not answer",
    "failed": "the engine has failed; /model REF loads another",
    "closed": "the engine has ended",
}


class Activity(Protocol):
    """The properties of `ChatController` that the status line shows."""

    @property
    def is_answering(self) -> bool: ...

    @property
    def is_stopping(self) -> bool: ...

    @property
    def image_reading_s(self) -> float | None: ...

    @property
    def is_busy(self) -> bool: ...

    @property
    def waiting(self) -> tuple[str, ...]: ...


def title_line(changed: ModelChanged | None, name: str, width: int) -> Line:
    """Return the model and its draft on the left, the conversation's name on the right."""
    if changed is None:
        return fitted(line(("eaglelocal", "strong")), width)
    info = changed.model.info
    draft = info.draft if info.draft != "none" else "no draft"
    target = shortened(harmless(info.target), width)
    draft = shortened(harmless(draft), width - cell_len(target) - 2)
    left = line((target, "strong"), (f"  {draft}" if draft else "", "quiet"))
    return apart(left, line((shortened(harmless(name), width - width_of(left) - 2), "quiet")), width)


def shortened(name: str, room: int) -> str:
    """Return a name, cut to `room` cells with an ellipsis; "" if fewer than LEAST_NAME are left for a cut one."""
    if cell_len(name) <= room:
        return name
    return set_cell_size(name, room - len(CUT)).rstrip() + CUT if room >= LEAST_NAME else ""


def status_line(
    progress: LoadProgress | None, state: str, activity: Activity, frame: PanelFrame | None, width: int, glyphs: Glyphs
) -> Line:
    """Return the activity and the number of waiting questions; on the right the speculation of `frame`, if given."""
    doing = progress_spans(progress, glyphs) if progress is not None else activity_spans(state, activity)
    left = (*doing, *waiting_spans(len(activity.waiting), activity.is_answering, glyphs))
    if frame is None:
        return fitted(left, width)
    room = width - width_of(left) - 2
    told = speculation_spans(frame, glyphs)
    fitting = [told[:number] for number in range(len(told), 0, -1) if width_of(told[:number]) <= room]
    return apart(left, fitting[0] if fitting else told[:1], width)


def progress_spans(progress: LoadProgress, glyphs: Glyphs) -> Line:
    fraction = min(max(progress.fraction, 0.0), 1.0)
    bar = glyphs.bar(fraction, BAR_CELLS)
    return line((bar, "accent"), f" {percent(fraction):>5}  ", (harmless(progress.what), "quiet"))


def activity_spans(state: str, activity: Activity) -> Line:
    if state in STATES:
        return line((STATES[state], "warn"))
    if activity.is_answering:
        seconds = activity.image_reading_s
        doing = "answering" if seconds is None else f"reading images, {seconds:.0f} s"
        return line((doing, "accent"), (", stopping" if activity.is_stopping else ", esc stops", "quiet"))
    return line(("busy" if activity.is_busy else "ready", "quiet"))


def waiting_spans(number: int, is_answering: bool, glyphs: Glyphs) -> Line:
    way_out = "" if is_answering or not number else ", esc takes back"
    return line((f" {glyphs.dot} {number} waiting{way_out}", "quiet")) if number else ()


def speculation_spans(frame: PanelFrame, glyphs: Glyphs) -> Line:
    """Return a span for the state and one for each figure, the less important ones last."""
    gain = frame.figures.gain
    parts = [f"{frame.tok_s:.1f} tok/s"] if frame.tok_s else []
    parts += [f"{gain:.2f}{glyphs.times} plain"] if gain else []
    return (state_span(frame), *line(*((f" {glyphs.dot} {part}", "quiet") for part in parts)))


def apart(left: Line, right: Line, width: int) -> Line:
    """Return two lines at the two ends of `width` cells; the right one is cut if there is no room."""
    room = max(width - width_of(left) - 2, 0)
    right = right if width_of(right) <= room else fitted(right, room)
    return (*fitted(left, max(width - width_of(right), 0)), *right)

"""Format the status line of the chat screen: what happens now, or else the state of the chat. Pure.

It is the only line with figures while the panel is closed. Each figure has a name, so that it needs no legend:
`answering · 87 tokens · 4 s · esc stops`, then `smollm2 · 1.2k/8.2k (15 %) · 31.2 tok/s · drafts 1.42x`.
"""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from eaglelocal.client.server_reading import AWAY_TEXTS
from eaglelocal.conversation.chat_hints import word_for_chat
from eaglelocal.conversation.conversation import ContextUse
from eaglelocal.core.adapters import describe_adapters
from eaglelocal.core.amounts import count_noun, format_duration
from eaglelocal.core.draft import LOOKUPS_GO_ON
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.errors import EagleLocalError
from eaglelocal.tui.chat.chat_events import Activity, AnswerWork, ModelChanged
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import (
    format_bar,
    format_count,
    format_gain,
    format_percent,
    format_thousands,
    format_tok_s,
)
from eaglelocal.tui.styled_lines import ELLIPSIS, Line, StyledSpan, cell_width, cut_line, fit_line, make_line

BAR_CELLS = 16
MIN_NAME_CELLS = 10
NO_GAIN = {"asleep": "drafts paused", "off": "no drafts"}  # by state of drafting
STATE_TEXTS = {  # by state of the engine
    "loading": "loading the model",
    "restarting": "restarting the engine",
    **AWAY_TEXTS,
    "failed": "the engine has failed; /model REF loads another",
    "closed": "the engine has ended",
}


def format_work(
    progress: LoadProgress | None, state: str, activity: Activity, width: int, glyphs: Glyphs, *, stop_key: str
) -> Line:
    """Describe the work in progress, and the number of waiting questions; empty if there is none.

    width  that the work is cut to, in cells, so that the keys after it are seen
    """
    spans: Line = ()
    after: Line = ()
    if progress is not None:
        spans = format_progress(progress, glyphs)
    elif state in STATE_TEXTS:
        spans = make_line((STATE_TEXTS[state], "warn"))
    elif activity.answer is not None:
        spans = format_answer(activity.answer, glyphs, stop_key)
    elif activity.tool_work:
        spans = make_line((activity.tool_work, "accent"))
        after = make_line((f" {glyphs.dot} {stop_key} stops" if stop_key else "", "quiet"))
    elif activity.is_busy:
        spans = make_line(("busy", "quiet"))
    if activity.waiting:
        hint = "" if activity.answer is not None or not stop_key else f", {stop_key} takes back"
        dot = f" {glyphs.dot} " if spans else ""
        after = (*after, StyledSpan(f"{dot}{len(activity.waiting)} waiting{hint}", "quiet"))
    room = max(width - cell_width(after), 0)
    return (*(spans if cell_width(spans) <= room else cut_line(spans, room)), *after)


def format_progress(progress: LoadProgress, glyphs: Glyphs) -> Line:
    fraction = min(max(progress.fraction, 0.0), 1.0)
    bar = format_bar(fraction, BAR_CELLS, glyphs, "accent")
    return make_line(*bar, f" {format_percent(fraction):>5}  ", (progress.what, "quiet"))


def format_answer(work: AnswerWork, glyphs: Glyphs, stop_key: str) -> Line:
    """Return `reading 640/1 930 · 12 s · esc stops`, then `answering · 87 tokens · 4 s · esc stops`."""
    name, count = work.phase, ""
    if work.phase == "reading" and work.total:
        name = f"reading {format_count(work.count)}/{format_count(work.total)}"
    elif work.count:
        limit = f"{format_count(min(work.count, work.total))} of " if work.total else ""
        count = limit + count_noun(work.total or work.count, "token")
    stops = f"{stop_key} stops" if stop_key else ""
    parts = [count, format_duration(work.seconds), "stopping" if work.is_stopping else stops]
    return make_line((name, "accent"), *((f" {glyphs.dot} {part}", "quiet") for part in parts if part))


def format_rest(
    model: ModelChanged | None, context: ContextUse, frame: PanelFrame | None, width: int, glyphs: Glyphs
) -> Line:
    """Return the model, how full its context is, and the figures of `frame`, if given, as far as they fit."""
    if model is None:
        return make_line(("eaglelocal", "strong"))
    figures = [format_context_use(context), *(() if frame is None else format_figures(frame))]
    spans = [StyledSpan(f" {glyphs.dot} {figure}", "quiet") for figure in figures if figure]
    while spans and cell_width(tuple(spans)) > width - MIN_NAME_CELLS:
        spans.pop()
    return (*format_model(model, width - cell_width(tuple(spans))), *spans)


def format_model(model: ModelChanged, width: int) -> Line:
    """Return the model's name and its adapters, cut to `width` cells."""
    target = shorten(clean_line(model.model.info.target), width)
    adapters = shorten(clean_line(describe_adapters(model.adapters)), width - cell_len(target) - 2)
    return make_line((target, "strong"), (f"  {adapters}" if adapters else "", "accent"))


def format_context_use(context: ContextUse) -> str:
    if not context.size:
        return f"{format_count(context.used)} tokens" if context.used else ""
    about = "" if context.is_counted or not context.used else "~"
    used = f"{about}{format_thousands(context.used)}/{format_thousands(context.size)}"
    return f"{used} ({format_percent(context.share)})"


def format_figures(frame: PanelFrame) -> list[str]:
    """Return the speed, and what drafts gain or that they are paused: of the same tokens; empty before the first.

    Lookups that go on while a head is paused are named, with their gain.
    """
    if not frame.tok_s:
        return []
    state, reason, gain = frame.drafting.state, frame.drafting.reason, frame.figures.gain
    names = {"asleep": "lookups" if reason.endswith(LOOKUPS_GO_ON) else "", "off": ""}
    name = names.get(state, "drafts")
    drafts = f"{name} {format_gain(gain)}" if name and gain else NO_GAIN.get(state, "")
    return [f"{format_tok_s(frame.tok_s)} tok/s", *([drafts] if drafts else [])]


def list_notices(reply: str | EagleLocalError) -> list[str]:
    """Return the notices for what a command says: of an error one with its hint, then one without."""
    if isinstance(reply, str):
        return [reply]
    line = f"error: {reply.message}"
    return [f"{line} ({word_for_chat(reply.hint)})", line] if reply.hint else [line]


def format_download(reference: str, progress: LoadProgress) -> str:
    """Return the progress of a download in a line: `qwen3-8b:Q4_K_M 38 %, fetching 4.7 GB, 38.2 MB/s`."""
    parts = [f"{reference} {format_percent(progress.fraction)}", progress.what, progress.detail]
    return ", ".join(filter(None, parts))


def shorten(name: str, width: int) -> str:
    """Return a name, cut to `width` cells with an ellipsis; "" if it would be cut to fewer than MIN_NAME_CELLS."""
    if cell_len(name) <= width:
        return name
    return set_cell_size(name, width - len(ELLIPSIS)).rstrip() + ELLIPSIS if width >= MIN_NAME_CELLS else ""


def justify(left: Line, right: Line, width: int) -> Line:
    """Return a line of `width` cells with its parts at the two ends; the right one only if it fits."""
    if not right or cell_width(left) + 2 + cell_width(right) > width:
        return fit_line(left, width)
    return (*fit_line(left, width - cell_width(right)), *right)

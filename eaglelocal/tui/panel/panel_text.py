"""Format the figures of drafting: a frame in, lines with roles out. Pure; does not know widgets.

The monitor shows speed and drafting in frames of their own, the chat the drafts alone. Only known values are drawn.
Roles mean the same everywhere: good is faster than plain, bad is slower or broken, warn asks for attention, accent is a
bar or a graph, and quiet is rare or old. Figures from before a server stopped answering are quiet.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.cells import cell_len

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.core.draft import NOT_REPORTED, describe_drafting
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.styled_lines import (
    EMPTY_LINE,
    Line,
    Role,
    StyledSpan,
    cell_width,
    cut_line,
    fit_line,
    fit_lines,
    join_columns,
    make_line,
)

LABEL_CELLS = 11
MAX_STATE_LINES = 2
MAX_POSITIONS = 8
MAX_GRAPH_ROWS = 12
MIN_LARGE_ROWS = 5  # of a speed in large digits: three, the labels and a graph
RARE_SHARE = 0.2  # of drafts: a position that fewer reach is rare
UNKNOWN = "-"
# states in which nothing new is reported
STATES_WITHOUT_DATA = frozenset({DISCONNECTED, "loading", "restarting", "failed", "closed"})
STATE_ROLES: Mapping[str, Role] = MappingProxyType({"on": "good", "asleep": "warn"})


def fade_old(frame: PanelFrame, lines: Sequence[Line]) -> list[Line]:
    """Return the lines; without colors if they are of the time before the server stopped reporting."""
    if frame.connection not in STATES_WITHOUT_DATA:
        return list(lines)
    return [tuple(StyledSpan(text, "track" if role == "track" else "quiet") for text, role in line) for line in lines]


# ---- the state
def format_state(frame: PanelFrame, width: int) -> list[Line]:
    """Return the state of drafting, in two lines if it is long; no line for what is unknown."""
    role = "bad" if frame.connection in (DISCONNECTED, "failed") else STATE_ROLES.get(frame.drafting.state, "strong")
    lines = textwrap.wrap(describe_state(frame), max(width, 1), max_lines=MAX_STATE_LINES, placeholder="")
    return [make_line((line, role)) for line in lines]


def describe_state(frame: PanelFrame) -> str:
    """Return `drafting, 3.1 tokens at a time`, or why nothing is drafted; "" if the server does not report it."""
    drafting, length = frame.drafting, frame.figures.draft_length
    if frame.reading is not None and frame.connection in STATES_WITHOUT_DATA:
        return describe_connection(frame.reading)
    if drafting.state == "on":
        nothing = "drafting on, nothing drafted lately" if frame.drafted else "drafting on, nothing drafted yet"
        return f"drafting, {length:.1f} tokens at a time" if length else nothing
    return describe_drafting(drafting.state, drafting.reason) or ("drafting" if frame.drafted else "")


def describe_connection(reading: ServerReading) -> str:
    """Return the state of the server, or that it does not answer."""
    if reading.state != DISCONNECTED:
        return reading.state
    return "server gone, retrying" if reading.kind else "no answer yet, retrying"


# ---- the speed
def format_speed(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return tok/s and the gain, large if there is room, and below them a graph of tok/s."""
    if frame.tok_s is None:
        is_silent = frame.reading is None or frame.connection in STATES_WITHOUT_DATA
        text = "" if is_silent else frame.tok_s_window or NOT_REPORTED
        return fit_lines([make_line((text, "quiet"))] if text else [], width, height)
    is_large = height >= MIN_LARGE_ROWS and bool(glyphs.digits)
    figures = (_format_large if is_large else _format_small)(frame, width, glyphs)
    rows = min(height - len(figures), MAX_GRAPH_ROWS)
    known = [value for value in frame.tok_s_history if value is not None]
    graph = format_graph(frame.tok_s_history, width, rows, glyphs, top=max(known)) if rows > 0 and known else []
    return fit_lines(fade_old(frame, [*figures, *graph]), width, height)


def _format_large(frame: PanelFrame, width: int, glyphs: Glyphs) -> list[Line]:
    gain, gain_label = describe_gain(frame)
    label = f"tok/s, {frame.tok_s_window}"
    digits, digits_gain = glyphs.draw_large(format_tok_s(frame.tok_s)), glyphs.draw_large(gain)
    at = max(min(width // 2, width - len(digits_gain[2])), len(label) + 2, len(digits[0]) + 2)
    left = [*(make_line((row, choose_speed_role(frame))) for row in digits), make_line((label, "quiet"))]
    right = [*(make_line((row, choose_gain_role(frame))) for row in digits_gain), make_line((gain_label, "quiet"))]
    return join_columns(left, right, at=at)


def _format_small(frame: PanelFrame, width: int, glyphs: Glyphs) -> list[Line]:
    gain, gain_label = describe_gain(frame)
    line = make_line(
        (f"{format_tok_s(frame.tok_s)} ", choose_speed_role(frame)),
        (f"tok/s, {frame.tok_s_window}", "quiet"),
        (f"   {gain}", choose_gain_role(frame)),
    )
    longer = (*line, StyledSpan(f" {gain_label}", "quiet"))
    return [longer if cell_width(longer) <= width else line]


def describe_gain(frame: PanelFrame) -> tuple[str, str]:
    """Return the gain, and what it is over; while a head is paused, what is drafted instead."""
    gain, state = frame.figures.gain, frame.drafting.state
    if state == "asleep" and gain is None:
        return "", "paused, plain speed"
    if state == "off" or gain is None:
        return "", ""
    return format_gain(gain), "gain of lookups" if state == "asleep" else "gain over plain"


def choose_speed_role(frame: PanelFrame) -> Role:
    return "strong" if frame.is_moving else "quiet"


def choose_gain_role(frame: PanelFrame) -> Role:
    gain = frame.figures.gain
    return "quiet" if gain is None else "good" if gain >= 1.0 else "bad"


# ---- the drafts
def format_drafting(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return the state of drafting, what the server learns and notices of drafts, and their fate."""
    state, reading = format_state(frame, width), frame.reading
    texts = () if reading is None else (reading.learning, "; ".join(reading.drift))
    notes = [cut_line(make_line((text, "quiet")), width) for text in texts if text]
    drafts = format_drafts(frame, width, height - len(state) - len(notes), glyphs)
    return fit_lines([*state, *notes, *drafts] or [make_line((NOT_REPORTED, "quiet"))], width, height)


def format_window(frame: PanelFrame) -> str:
    """Name the tokens that the figures of drafting cover; "" if there are none."""
    if not frame.num_figure_tokens:
        return ""
    return (
        f"{'before: ' * (frame.connection in STATES_WITHOUT_DATA)}last {format_count(frame.num_figure_tokens)} tokens"
    )


def format_drafts(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return the known figures of the drafts: the positions, then acceptance, totals, time, and a graph."""
    lines = (format_acceptance(frame, width), format_totals(frame, width), format_time_shares(frame, width))
    below = [line for line in lines if line]
    max_rows = min(max(height - len(below), 0), MAX_POSITIONS)
    above = format_positions(frame.figures.per_position, width, max_rows, glyphs)
    left = height - len(above) - len(below)
    graph = format_timed_graph("acceptance, each second", frame.acceptance_history, width, left, glyphs)
    return fade_old(frame, [*above, *below, *graph][: max(height, 0)])


def format_positions(shares: Sequence[float] | None, width: int, max_rows: int, glyphs: Glyphs) -> list[Line]:
    """Return the share of drafts that were accepted at least so far, for each position: bars, or all in one line."""
    if not shares or max_rows < 1:
        return []
    if max_rows < min(len(shares), 3):
        label, end = StyledSpan(f"{'positions':<{LABEL_CELLS}}", "quiet"), StyledSpan("%", "quiet")
        spans = [StyledSpan(f"{share * 100:.0f} ", _choose_role(share, "text")) for share in shares[:MAX_POSITIONS]]
        while cell_width((label, *spans, end)) > width and spans:
            spans.pop()
        return [(label, *spans, end)]
    cells = max(min(width - LABEL_CELLS - 7, 40), 4)
    return [
        make_line(
            (f"position {depth:<2}", "quiet"),
            *format_bar(share, cells, glyphs, _choose_role(share, "accent")),
            f" {format_percent(share):>5}",
        )
        for depth, share in enumerate(shares[:max_rows], 1)
    ]


def _choose_role(share: float, role: Role) -> Role:
    return role if share >= RARE_SHARE else "quiet"


def format_acceptance(frame: PanelFrame, width: int) -> Line:
    """Return `acceptance 60 %, 2.80 tokens a pass`: the acceptance rate and the acceptance length."""
    rate, length = frame.figures.acceptance, frame.figures.acceptance_length
    if rate is None:
        return EMPTY_LINE
    text = format_percent(rate)
    longer = (
        [] if length is None else [f"{text}, {f'{length:.2f}' if length < 9.995 else f'{length:.1f}'} tokens a pass"]
    )
    return _format_labelled("acceptance", [*longer, text], width)


def format_totals(frame: PanelFrame, width: int) -> Line:
    """Return how many of the drafted tokens were accepted since the start."""
    if not frame.drafted:
        return EMPTY_LINE
    drafted = format_count(frame.drafted)
    text = f"{drafted} drafted" if frame.accepted is None else f"{format_count(frame.accepted)} of {drafted} accepted"
    return _format_labelled("in all", [text], width)


def format_time_shares(frame: PanelFrame, width: int) -> Line:
    """Return how the time was spent: on drafts if there were some, in the model, and outside llama.cpp."""
    if frame.figures.time_shares is None:
        return EMPTY_LINE
    names = zip(("drafts", "model", "other"), frame.figures.time_shares, strict=True)
    shown = [f"{name} {share * 100:.0f}" for name, share in names if name != "drafts" or frame.figures.draft_length]
    return _format_labelled("time", [f"{', '.join(shown[:number])} %" for number in (3, 2)], width)


def _format_labelled(label: str, texts: Sequence[str], width: int) -> Line:
    """Return the first text that fits behind the label: below those of other lines if possible, else close to it."""
    places = ((text, cells) for cells in (LABEL_CELLS, len(label) + 1) for text in texts)
    text, cells = next((each for each in places if each[1] + cell_len(each[0]) <= width), (texts[-1], len(label) + 1))
    return make_line((label.ljust(cells), "quiet"), text)


# ---- figures
def format_percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}".replace("%", " %")


def format_tok_s(tok_s: float | None) -> str:
    if tok_s is None:
        return UNKNOWN
    return f"{tok_s:.1f}" if tok_s < 1000 else f"{tok_s:.0f}"


def format_gain(gain: float) -> str:
    """Return a gain as `1.42x` or `11.8x`."""
    return f"{gain:.2f}x" if gain < 9.995 else f"{gain:.1f}x"


def format_seconds(value: float | None) -> str:
    """Return a duration as `0.3 s`, `12 s`, `5 min` or `3 h`."""
    if value is None:
        return UNKNOWN
    if value < 9.95:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 99.5 else f"{value / 60:.0f} min" if value < 5970 else f"{value / 3600:.0f} h"


def format_thousands(value: int) -> str:
    """Return a count with few characters: `987`, `1.2k`, `131k`."""
    return str(value) if value < 1000 else f"{value / 1000:.1f}k" if value < 99_950 else f"{value / 1000:.0f}k"


def format_count(value: float | None) -> str:
    """Return a count as `1 234`, `12.3 k` or `4.5 M`."""
    if value is None:
        return UNKNOWN
    if value < 10_000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value / 1000:.1f} k" if value < 999_950 else f"{value / 1e6:.1f} M"


# ---- bars, and graphs over the last seconds with the axes that say what height and width mean
MIN_TIMED_ROWS, MAX_TIMED_ROWS = 4, 8  # of a graph of shares with its title and its axis
AXIS_CELLS = 7  # right of the graph: the highest value and zero
MIN_ROWS_WITH_SPAN = 2  # with fewer, the axis of time has no row of its own


def format_bar(share: float, width: int, glyphs: Glyphs, role: Role) -> Line:
    """Return a bar of `width` cells: the share in its role, and the rest, so that the whole is visible."""
    filled, rest = glyphs.draw_bar(share, width)
    return make_line(StyledSpan(filled, role), StyledSpan(rest, "track"))


def format_graph(
    values: Sequence[float | None], width: int, height: int, glyphs: Glyphs, *, top: float, unit: str = ""
) -> list[Line]:
    """Return `height` lines: a graph of one value a second, `top` and 0 at its right, and below it the span of time.

    A graph of one row has its span at the right too. With a `top` of zero nothing has happened yet.
    """
    highest = f"{top:.0f}{unit}" if top > 0 else ""
    if height < MIN_ROWS_WITH_SPAN:
        scale = f" 0-{highest}," if highest else ""
        cells = max(width - len(scale) - len(" 999 s"), 1)
        (row,) = glyphs.draw_graph(values, cells, 1, top=top)
        return [fit_line(make_line((row, "accent"), (f"{scale} {cells} s", "quiet")), width)]
    cells = max(width - AXIS_CELLS, 1)
    rows = glyphs.draw_graph(values, cells, height - 1, top=top)
    labels = [f" {highest}", *[""] * (height - 2)]
    if height > MIN_ROWS_WITH_SPAN:
        labels[-1] = " 0"
    begin, end = f"{cells} s ago ", " now"
    axis = f"{begin}{glyphs.rule * max(cells - len(begin) - len(end), 0)}{end}"
    drawn = [make_line((row, "accent"), (label, "quiet")) for row, label in zip(rows, labels, strict=True)]
    return [fit_line(line, width) for line in (*drawn, make_line((axis[:cells], "quiet")))]


def format_timed_graph(
    title: str, shares: Sequence[float | None], width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """Return a graph of shares over the last seconds with its title, at most `height` lines.

    Nothing without room for it, or if no share is known.
    """
    if height < MIN_TIMED_ROWS or all(share is None for share in shares):
        return []
    gap = [EMPTY_LINE] if height > MIN_TIMED_ROWS else []
    rows = min(height - len(gap), MAX_TIMED_ROWS)
    values = [None if share is None else 100 * share for share in shares]
    graph = format_graph(values, width, rows - 1, glyphs, top=100.0, unit=" %")
    return [*gap, make_line((title, "quiet")), *graph]

"""Format the speculation panel: a frame in, lines with roles out. Pure; does not know widgets.

The monitor shows the two halves, speed and drafting, in frames of their own; the chat one above the other, or side by
side from 76 cells on. Only known values are drawn. Roles mean the same everywhere: good is faster than plain, or most
drafts accepted; warn is under 60 %; quiet is rare or old.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from rich.cells import cell_len

from eaglelocal.client.server_reading import DISCONNECTED
from eaglelocal.core.draft import NOT_REPORTED, describe_drafting
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.styled_lines import (
    EMPTY_LINE,
    Line,
    Role,
    StyledSpan,
    cell_width,
    fit_line,
    join_columns,
    make_line,
)

MIN_TWO_COLUMNS = 76
MIN_LEFT, MAX_LEFT = 38, 84  # cells of the left column, the gap included
LABEL_CELLS = 11
MAX_STATE_LINES = 2
MAX_POSITIONS = 8
MAX_GRAPH_ROWS = 12
MIN_LARGE_ROWS = 5  # of a speed in large digits: three, the labels and a graph
GOOD_SHARE, RARE_SHARE = 0.6, 0.2  # shares of drafts: from the first on a position is good, below the second it is rare
UNKNOWN, GAIN_LABEL = "-", "gain over plain"
# states in which nothing new is reported
STATES_WITHOUT_DATA = frozenset({DISCONNECTED, "loading", "restarting", "failed", "closed"})
STATE_ROLES: Mapping[str, Role] = MappingProxyType({"on": "good", "asleep": "warn"})


def format_panel(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return at most `height` lines of `width` cells: the state, the speed, and the fate of the drafts."""
    state = format_state(frame, width)
    left = min(max(width * 2 // 5, MIN_LEFT), MAX_LEFT)
    rows = height - len(state)
    if width >= MIN_TWO_COLUMNS:
        speed = format_speed(frame, left - 2, rows, glyphs)
        body = join_columns(speed, format_drafts(frame, width - left, rows, glyphs), at=left)
    else:
        num_speed = min(max(rows - MAX_POSITIONS - 6, MIN_LARGE_ROWS), MIN_LARGE_ROWS + 4)
        speed = [*format_speed(frame, width, num_speed, glyphs), make_line((format_window(frame), "quiet"))]
        body = [*speed, *format_drafts(frame, width, rows - len(speed), glyphs)]
    return [fit_line(each, width) for each in [*state, *body][: max(height, 0)]]


# ---- the state
def format_state(frame: PanelFrame, width: int) -> list[Line]:
    """Return the state of drafting, in two lines if it is long, and of learning; no line for what is unknown or off."""
    role = "bad" if frame.connection == DISCONNECTED else STATE_ROLES.get(frame.drafting.state, "strong")
    lines = textwrap.wrap(describe_state(frame), max(width, 1), max_lines=MAX_STATE_LINES, placeholder="")
    learning = frame.reading.learning if frame.reading else ""
    more = [fit_line(make_line((learning, "quiet")), width)] if learning else []
    return [*(make_line((line, role)) for line in lines), *more]


def describe_state(frame: PanelFrame) -> str:
    """Return `drafting, 3.1 tokens at a time`, or why nothing is drafted; "" if the server does not report it."""
    drafting, length = frame.drafting, frame.figures.draft_length
    if frame.connection in STATES_WITHOUT_DATA:
        return f"drafting: unknown, {frame.connection}"
    if drafting.state == "on":
        return f"drafting, {length:.1f} tokens at a time" if length else "ready to draft, nothing drafted yet"
    return describe_drafting(drafting.state, drafting.reason) or ("drafting" if frame.drafted else "")


# ---- the speed
def format_speed(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return tok/s and the gain, large if there is room, and below them a graph of tok/s."""
    if not frame.tok_s_window:
        return [fit_line(make_line((NOT_REPORTED, "quiet")), width)][: max(height, 0)] if frame.reading else []
    is_large = height >= MIN_LARGE_ROWS and bool(glyphs.digits)
    figures = _format_large(frame, width, glyphs) if is_large else _format_small(frame, width, glyphs)
    rows = min(height - len(figures), MAX_GRAPH_ROWS)
    known = [value for value in frame.tok_s_history if value is not None]
    graph = format_graph(frame.tok_s_history, width, rows, glyphs, top=max(known)) if rows > 0 and known else []
    return [fit_line(line, width) for line in [*figures, *graph][: max(height, 0)]]


def _format_large(frame: PanelFrame, width: int, glyphs: Glyphs) -> list[Line]:
    speed, gain = _format_figures(frame)
    digits, digits_gain = glyphs.draw_large(speed), glyphs.draw_large(gain)
    if frame.tok_s is None:
        digits = ("", "", speed)  # a large dash would look like a bar
    label, times = _label_speed(frame), ("", "", f" {glyphs.times}" if gain else "")
    at = max(min(width // 2, width - len(digits_gain[2]) - 2), len(label) + 2, len(digits[0]) + 2)
    left = [make_line((row, choose_speed_role(frame))) for row in digits]
    right = [make_line((row + after, choose_gain_role(frame))) for row, after in zip(digits_gain, times, strict=True)]
    labels = make_line((label, "quiet")), make_line((_label_gain(frame), "quiet"))
    return join_columns([*left, labels[0]], [*right, labels[1]], at=at)


def _format_small(frame: PanelFrame, width: int, glyphs: Glyphs) -> list[Line]:
    speed, gain = _format_figures(frame)
    line = make_line(
        (f"{speed} ", choose_speed_role(frame)), (_label_speed(frame), "quiet"),
        (f"   {gain}{glyphs.times}" if gain else "  ", choose_gain_role(frame)),
        (f" {_label_gain(frame)}", "quiet"),
    )  # fmt: skip
    return [fit_line(line, width)]


def _format_figures(frame: PanelFrame) -> tuple[str, str]:
    gain = frame.figures.gain if frame.drafting.state != "off" else None
    return format_tok_s(frame.tok_s), "" if gain is None else f"{gain:.2f}" if gain < 9.995 else f"{gain:.1f}"


def _label_gain(frame: PanelFrame) -> str:
    """Return what the gain is over; while a head is paused, what is drafted instead."""
    if frame.drafting.state == "asleep":
        return "paused, plain speed" if frame.figures.gain is None else "gain of lookups"
    return GAIN_LABEL if frame.drafting.state == "on" and frame.figures.gain is not None else ""


def format_tok_s(tok_s: float | None) -> str:
    if tok_s is None:
        return UNKNOWN
    return f"{tok_s:.1f}" if tok_s < 1000 else f"{tok_s:.0f}"


def _label_speed(frame: PanelFrame) -> str:
    """Return the unit of the speed, with the tokens that it was measured over."""
    return f"tok/s, {frame.tok_s_window}"


def choose_speed_role(frame: PanelFrame) -> Role:
    return "strong" if frame.is_moving else "quiet"


def choose_gain_role(frame: PanelFrame) -> Role:
    gain = frame.figures.gain
    return "quiet" if gain is None or frame.connection in STATES_WITHOUT_DATA else "good" if gain >= 1.0 else "bad"


# ---- the drafts
def format_drafting(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return the state of drafting and the fate of the drafts; the caller shows the context."""
    state = format_state(frame, width)
    drafts = format_drafts(replace(frame, context_used=None, reading=None), width, height - len(state), glyphs)
    lines = [*state, *drafts] or [make_line((NOT_REPORTED, "quiet"))]
    return [fit_line(line, width) for line in lines[: max(height, 0)]]


def format_window(frame: PanelFrame) -> str:
    """Name the tokens that the figures of drafting cover; "" if there are none."""
    return f"last {format_count(frame.num_figure_tokens)} tokens" if frame.num_figure_tokens else ""


def format_drafts(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return the known figures of the drafts: the positions, then acceptance, totals, time and context."""
    lines = [
        format_acceptance(frame, width),
        format_totals(frame, width),
        format_time_shares(frame, width),
        format_context(frame, width, glyphs),
    ]
    below = [line for line in lines if line]
    max_rows = min(max(height - len(below), 0), MAX_POSITIONS)
    above = format_positions(frame.figures.per_position, width, max_rows, glyphs)
    left = height - len(above) - len(below)
    graph = format_timed_graph("acceptance", frame.acceptance_history, width, left, glyphs)
    return [*above, *below, *graph][: max(height, 0)]


def format_positions(shares: Sequence[float] | None, width: int, max_rows: int, glyphs: Glyphs) -> list[Line]:
    """Return the share of drafts that were accepted at least so far, for each position: bars, or all in one line."""
    if not shares or max_rows < 1:
        return []
    if max_rows < min(len(shares), 3):
        label, end = StyledSpan(f"{'positions':<{LABEL_CELLS}}", "quiet"), StyledSpan("%", "quiet")
        spans = [StyledSpan(f"{share * 100:.0f} ", choose_share_role(share)) for share in shares[:MAX_POSITIONS]]
        while cell_width((label, *spans, end)) > width and spans:
            spans.pop()
        return [(label, *spans, end)]
    cells = max(min(width - LABEL_CELLS - 7, 40), 4)
    return [
        make_line(
            (f"position {depth:<2}", "quiet"),
            *format_bar(share, cells, glyphs, choose_share_role(share)),
            f" {format_percent(share):>5}",
        )
        for depth, share in enumerate(shares[:max_rows], 1)
    ]


def choose_share_role(share: float) -> Role:
    """Return the role of a position by the share of drafts that reach it: dim if it is rare, warn if most fail."""
    return "good" if share >= GOOD_SHARE else "warn" if share >= RARE_SHARE else "quiet"


def format_acceptance(frame: PanelFrame, width: int) -> Line:
    """Return `acceptance 60 %, length 2.80`: the acceptance rate and the acceptance length."""
    rate, length = frame.figures.acceptance, frame.figures.acceptance_length
    parts = [format_percent(rate)] if rate is not None else []
    parts += [f"length {length:.2f}"] if length is not None and rate is not None else []
    text = ", ".join(parts)
    return next(_label("acceptance", text, width), make_line(text)) if parts else EMPTY_LINE


def _label(label: str, text: str, width: int) -> Iterator[Line]:
    """Yield the labelled text as a line, if it fits: the texts below each other if possible, else close together."""
    for cells in (LABEL_CELLS, len(label) + 1):
        if cells + cell_len(text) <= width:
            yield make_line((label.ljust(cells), "quiet"), text)


def format_totals(frame: PanelFrame, width: int) -> Line:
    """Return the drafted, accepted and wasted tokens since the start, as many of them as fit."""
    if not frame.drafted:
        return EMPTY_LINE
    pairs = (("drafted", frame.drafted), ("accepted", frame.accepted), ("wasted", frame.wasted))
    texts = [f"{format_count(value)} {name}" for name, value in pairs if value is not None]
    lines = (line for number in range(len(texts), 1, -1) for line in _label("in all", ", ".join(texts[:number]), width))
    return next(lines, make_line(", ".join(texts[:2])))


def format_time_shares(frame: PanelFrame, width: int) -> Line:
    """Return how the time was spent: on drafting, in the model, and on overhead outside llama.cpp."""
    shares = frame.figures.time_shares
    if shares is None:
        return EMPTY_LINE
    names = ("drafting", "model", "overhead")
    texts = [f"{name} {share * 100:.0f}" for name, share in zip(names, shares, strict=True)]
    line = make_line((f"{'time':<{LABEL_CELLS}}", "quiet"), f"{' / '.join(texts)} %")
    return line if cell_width(line) <= width else make_line(f"{', '.join(texts)} %")


def format_context(frame: PanelFrame, width: int, glyphs: Glyphs) -> Line:
    used, size = frame.context_used, frame.context_size
    share = frame.reading.cache_share if frame.reading is not None else None
    if used is not None and size:
        share = used / size
    label = StyledSpan(f"{'context':<{LABEL_CELLS}}", "quiet")
    if share is None:
        return EMPTY_LINE if used is None else make_line(label, f"{format_count(used)} tokens")
    text = f"{format_count(used)} of {format_count(size)}" if used is not None and size else ""
    cells = max(min(width - LABEL_CELLS - len(text) - 8, 16), 0)
    return make_line(label, *format_bar(share, cells, glyphs, "accent"), f" {format_percent(share):>5} {text}")


# ---- figures
def format_percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}".replace("%", " %")


def format_count(value: float | None) -> str:
    """Return a count as `1 234`, `12.3 k` or `4.5 M`."""
    if value is None:
        return UNKNOWN
    if value < 10_000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value / 1000:.1f} k" if value < 999_950 else f"{value / 1e6:.1f} M"


# ---- graph text: format bars, and graphs over the last seconds with the axes that say what height and width mean.
# Pure
MIN_TIMED_ROWS, MAX_TIMED_ROWS = 3, 8  # of a graph of shares with its title and its axis
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

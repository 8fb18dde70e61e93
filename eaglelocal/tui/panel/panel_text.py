"""Format the speculation panel: a frame in, lines with roles out. Pure; does not know widgets.

Two columns from 76 cells on, else one below the other. An unknown value is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from eaglelocal.client.server_reading import DISCONNECTED
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.styled_lines import (
    EMPTY,
    Line,
    Role,
    StyledSpan,
    cell_width,
    fit_line,
    join_columns,
    make_line,
    sanitize,
)

MIN_TWO_COLUMNS = 76
MIN_LEFT, MAX_LEFT = 38, 84  # cells of the left column, the gap included
LABEL_CELLS = 11
MAX_POSITIONS = 8
UNKNOWN = "-"
# states in which nothing new is reported
STATES_WITHOUT_DATA = frozenset({DISCONNECTED, "loading", "restarting", "failed", "closed"})
STATE_ROLES: Mapping[str, Role] = MappingProxyType({"on": "good", "asleep": "warn"})


def format_panel(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return at most `height` lines of `width` cells: the state, the speed, and what became of the drafts."""
    state = [fit_line((format_state(frame),), width)]
    if width >= MIN_TWO_COLUMNS:
        left = min(max(width * 2 // 5, MIN_LEFT), MAX_LEFT)
        right = format_drafts(frame, width - left, height - 1, glyphs)
        body = join_columns(format_speed(frame, left - 2, glyphs), right, at=left)
    else:
        speed = format_speed(frame, width, glyphs)
        body = [*speed, EMPTY, *format_drafts(frame, width, height - len(speed) - 2, glyphs)]
    return [fit_line(each, width) for each in [*state, *body][:height]]


# ---- the state
def format_state(frame: PanelFrame) -> StyledSpan:
    """Return the state of speculation as a span."""
    text, drafting = describe_state(frame), frame.drafting
    if frame.connection == DISCONNECTED:
        return StyledSpan(text, "bad")
    return StyledSpan(text, STATE_ROLES.get(drafting.state, "strong"))


def describe_state(frame: PanelFrame) -> str:
    """Return `speculation on, 3.1 tokens a draft`, or why it is not on."""
    drafting, length = frame.drafting, frame.figures.draft_length
    if frame.connection in STATES_WITHOUT_DATA:
        return f"speculation: unknown, {frame.connection}"
    reason = f": {sanitize(drafting.reason)}" if drafting.reason else ""
    match drafting.state:
        case "on" if length:
            return f"speculation on, {length:.1f} tokens a draft"
        case "on":
            return "speculation on, nothing drafted yet"
        case "asleep" | "off":
            return f"speculation {drafting.state}{reason}"
        case _ if frame.drafted:
            return "speculation: state not reported, drafts are"
        case _:
            return "speculation: not reported" if frame.connection else "speculation: not known yet"


# ---- the speed
def format_speed(frame: PanelFrame, width: int, glyphs: Glyphs) -> list[Line]:
    """Return large digits for tok/s and the gain, and sparklines below."""
    speed = UNKNOWN if frame.tok_s is None else f"{frame.tok_s:.1f}" if frame.tok_s < 1000 else f"{frame.tok_s:.0f}"
    gain = UNKNOWN if frame.figures.gain is None else f"{frame.figures.gain:.2f}"
    half = max(width // 2, 18)
    rows = [
        join_columns(
            [make_line((a, "strong" if frame.is_moving else "quiet"))],
            [make_line((b, choose_gain_role(frame)))],
            at=half,
        )[0]
        for a, b in zip(glyphs.draw_large(speed), _append_times(glyphs.draw_large(gain), glyphs, gain), strict=True)
    ]
    when = "tok/s now" if frame.is_moving else "tok/s, last"
    labels = join_columns([make_line((when, "quiet"))], [make_line(("gain over plain", "quiet"))], at=half)
    return [*rows, *labels, *format_sparklines(frame, width, glyphs)]


def choose_gain_role(frame: PanelFrame) -> Role:
    gain = frame.figures.gain
    return "quiet" if gain is None or frame.connection in STATES_WITHOUT_DATA else "good" if gain >= 1.0 else "bad"


def _append_times(rows: tuple[str, str, str], glyphs: Glyphs, text: str) -> tuple[str, str, str]:
    return rows if text == UNKNOWN else (rows[0], rows[1], f"{rows[2]} {glyphs.times}")


def format_sparklines(frame: PanelFrame, width: int, glyphs: Glyphs) -> list[Line]:
    cells = max(width - LABEL_CELLS - 9, 4)
    speeds = [value for value in frame.tok_s_history[-cells:] if value is not None]
    top = max(speeds, default=0.0)
    return [
        _format_sparkline(
            "tok/s", glyphs.draw_sparkline(frame.tok_s_history, cells, top=top), f"max {top:.0f}" if top else ""
        ),
        _format_sparkline(
            "acceptance",
            glyphs.draw_sparkline(frame.acceptance_history, cells, top=1.0),
            format_percent(frame.figures.acceptance),
        ),
    ]


def _format_sparkline(label: str, draw_sparkline: str, figure: str) -> Line:
    return make_line((f"{label:<{LABEL_CELLS}}", "quiet"), (draw_sparkline, "accent"), f" {figure:<8}")


# ---- the drafts
def format_drafts(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return counts, length, shares and context, and above them bars by position in the lines that are left."""
    below = [
        format_counts(frame, width),
        format_acceptance_length(frame),
        format_time_shares(frame, width),
        format_context(frame, width, glyphs),
    ]
    max_rows = min(max(height - len(below), 0), MAX_POSITIONS)
    return [*format_positions(frame.figures.per_position, width, max_rows, glyphs), *below][: max(height, 0)]


def format_positions(shares: Sequence[float] | None, width: int, max_rows: int, glyphs: Glyphs) -> list[Line]:
    """Return a bar for each draft position: the share of drafts that were accepted at least so far."""
    if not shares:
        return [make_line((f"{'position':<{LABEL_CELLS}}", "quiet"), UNKNOWN)][:max_rows]
    cells = max(min(width - LABEL_CELLS - 7, 40), 4)
    return [
        make_line(
            (f"position {depth:<2}", "quiet"), (glyphs.draw_bar(share, cells), "good"), f" {format_percent(share):>5}"
        )
        for depth, share in enumerate(shares[:max_rows], 1)
    ]


def format_counts(frame: PanelFrame, width: int) -> Line:
    values = (frame.drafted, frame.accepted, frame.wasted)
    whole = _format_counts(("drafted", "accepted", "wasted"), values)
    return whole if cell_width(whole) <= width else _format_counts(("draft", "ok", "waste"), values)


def _format_counts(labels: Sequence[str], values: Sequence[float | None]) -> Line:
    pairs = zip(labels, values, ("  ", "  ", ""), strict=True)
    return tuple(
        span
        for label, value, gap in pairs
        for span in (StyledSpan(f"{label} ", "quiet"), StyledSpan(f"{format_count(value)}{gap}"))
    )


def format_acceptance_length(frame: PanelFrame) -> Line:
    length = frame.figures.acceptance_length
    text = UNKNOWN if length is None else f"{length:.2f} tokens a pass"
    return make_line((f"{'acceptance length':<18}", "quiet"), text)


def format_time_shares(frame: PanelFrame, width: int) -> Line:
    """Return the shares of drafting and verifying, which make a step, and of the host, which is part of both."""
    figures = frame.figures
    verify, host = ("  verify ", "  of it host ") if width >= 44 else (" verify ", " host ")  # two digits each must fit
    return make_line(
        ("step: draft ", "quiet"), format_percent(figures.draft_share),
        (verify, "quiet"), format_percent(figures.verify_share),
        (host, "quiet"), format_percent(figures.host_share),
    )  # fmt: skip


def format_context(frame: PanelFrame, width: int, glyphs: Glyphs) -> Line:
    used, size = frame.context_used, frame.context_size
    share = frame.reading.cache_share if frame.reading is not None else None
    if used is not None and size:
        share = used / size
    text = f"{format_count(used)} of {format_count(size)}" if used is not None else ""
    if share is None:
        return make_line((f"{'context':<{LABEL_CELLS}}", "quiet"), f"{text.replace(' of -', ' tokens')}" or UNKNOWN)
    cells = max(min(width - LABEL_CELLS - len(text) - 8, 16), 0)
    return make_line(
        (f"{'context':<{LABEL_CELLS}}", "quiet"),
        (glyphs.draw_bar(share, cells), "accent"),
        f" {format_percent(share):>5} {text}",
    )


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

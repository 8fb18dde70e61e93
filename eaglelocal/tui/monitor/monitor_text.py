"""Format the monitor's header, titles and log, and `top --once`, which has the same lines. Pure.

Only values that a server reports are drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.core.amounts import format_uptime
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.monitor.log_tail import explain_missing
from eaglelocal.tui.monitor.machine_text import MIN_BAR_ROWS, MonitorSnapshot, format_machine_rows
from eaglelocal.tui.monitor.table_text import TableView, format_table
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import (
    describe_connection,
    format_count,
    format_drafting,
    format_speed,
    format_window,
)
from eaglelocal.tui.styled_lines import (
    EMPTY_LINE,
    Line,
    Role,
    StyledSpan,
    cut_line,
    fit_line,
    join_columns,
    make_line,
    plain_text,
)

LOG_INDENT = 10  # the width of a line's time
MIN_LOG_ROWS = 2
SPEED_TITLE = "speed of all requests"
MIN_TWO_COLUMNS = 76  # of plain text, from which on speed and drafting stand side by side
MAX_FIGURE_ROWS, MAX_ROWS = 14, 20  # of each of them, and of the table of requests with its titles
FIGURE_PURPOSES = {  # for the help
    "tok/s": "tokens per second of all requests, without the time to the first one",
    "gain over plain": "time of the same tokens without drafts (estimated), divided by the time they took",
    "position 1, 2 ...": "share of the drafts that were accepted up to this position or further",
    "acceptance": "share of the drafted tokens that the model kept",
    "tokens a pass": "what a pass with a draft gives on average, the model's own token included",
    "in all": "accepted ones of the drafted tokens, since the engine started",
    "time": "shares of the drafts, of the model, and of everything outside llama.cpp",
    "last ... tokens": "the newest tokens, which gain, positions, acceptance and time are of",
    "KV cache": "tokens of conversations in the engine's cache, and its size",
    "prompts cached": "share of all tokens of prompts that were in the cache already",
    "by draft": "share of an answer's tokens that came from drafts",
    "first token": "time from the request to the first token of its answer",
}
HEALTHY_STATES = frozenset({"ready", "idle"})


def format_server(snapshot: MonitorSnapshot, glyphs: Glyphs) -> Line:
    """Return the first header line: `eaglelocal at http://127.0.0.1:8421 · ready · up 3 h 20 min · demo@1b`.

    A state that asks for attention stands first, where a narrow terminal shows it.
    """
    reading = snapshot.frame.reading
    if reading is None:
        return make_line(("connecting to ", "quiet"), (snapshot.url, "strong"))
    state = (describe_connection(reading), choose_connection_role(reading.state))
    is_healthy = reading.state in HEALTHY_STATES
    parts: list[tuple[str, Role]] = [
        ("", "text") if is_healthy else state,
        (f"{reading.kind or 'server'} at {snapshot.url}", "strong"),
        ("paused" if snapshot.is_paused else "", "warn"),
        state if is_healthy else (reading.detail, "text"),
        (f"up {format_uptime(reading.uptime_s)}" if reading.uptime_s is not None else "", "quiet"),
        (f"restarts {reading.restarts}" if reading.restarts else "", "warn"),
        (name_models(reading), "text"),
    ]
    spans = [span for text, role in parts if text for span in (StyledSpan(f" {glyphs.dot} ", "quiet"), (text, role))]
    return make_line(*spans[1:])


def choose_connection_role(state: str) -> Role:
    return "good" if state in HEALTHY_STATES else "bad" if state in (DISCONNECTED, "failed") else "warn"


def name_models(reading: ServerReading) -> str:
    """Return the model, and how many others are loaded: `demo@1b +2`."""
    return reading.model + f" +{len(reading.other_models)}" * bool(reading.other_models)


def name_setting(setting: str) -> str:
    """Name the drafting setting: `automatic`, `off`, `4 tokens`."""
    words = {"auto": "automatic", "1": "1 token"}
    return words.get(setting, f"{setting} tokens" if setting.isdecimal() else setting)


# ---- the titles of the frames
def format_requests_title(reading: ServerReading | None) -> str:
    """Return `requests: 2 of 4 running, 1 waiting, 37 answered`, with what the server reports of it."""
    if reading is None:
        return "requests"
    counts = {
        f"{f'of {reading.num_slots} ' if reading.num_slots is not None else ''}running": reading.running,
        "waiting": reading.waiting,
        "answered": reading.answered,
        "refused": reading.refused or None,
        "failed": reading.failed or None,
    }
    known = [f"{format_count(count)} {name}" for name, count in counts.items() if count is not None]
    return ": ".join(filter(None, ["requests", ", ".join(known)]))


def format_drafting_title(frame: PanelFrame) -> str:
    """Return `drafting: automatic`: the setting for requests that set none."""
    return ": ".join(filter(None, ["drafting", name_setting(frame.drafting.setting)]))


def format_snapshot(snapshot: MonitorSnapshot, width: int, glyphs: Glyphs) -> str:
    """Return one frame of the monitor as plain text."""
    frame, reading = snapshot.frame, snapshot.frame.reading
    at = width // 2 if width >= MIN_TWO_COLUMNS else 0
    speed = [make_line(SPEED_TITLE), *format_speed(frame, at - 2 if at else width, MAX_FIGURE_ROWS, glyphs)]
    drafting = [make_line(format_drafting_title(frame)), *format_drafting(frame, width - at, MAX_FIGURE_ROWS, glyphs)]
    drafting.append(make_line(format_window(frame)))
    lines = [
        *[cut_line(format_server(snapshot, glyphs), width), EMPTY_LINE],
        *(join_columns(speed, drafting, at=at) if at else [*speed, EMPTY_LINE, *drafting]),
        *[EMPTY_LINE, *format_machine_rows(snapshot, width, MIN_BAR_ROWS - 1, glyphs), EMPTY_LINE],
        make_line(format_requests_title(reading)),
    ]
    if reading is not None:
        lines += format_table(reading, TableView(), width, MAX_ROWS, glyphs)
        lines.append(make_line(explain_missing(reading)) if reading.missing else EMPTY_LINE)
    return "\n".join(map(plain_text, lines)).rstrip()


def format_log(newest: Sequence[str], width: int, height: int) -> list[Line]:
    """Return the newest lines of the log that fit; a long one goes on below its text instead of being cut off.

    Of a line for which too few rows are left, the beginning is shown. In a log of MIN_LOG_ROWS, which one request
    would fill, each line has one row.
    """
    if len(newest) == height == MIN_LOG_ROWS:
        return [cut_line(make_line((line, "quiet")), width) for line in newest]
    rows: list[str] = []
    for line in reversed(newest):
        left = max(height - len(rows), 0)
        rows = [*wrap_log_line(line, width)[:left], *rows]
    return [fit_line(make_line((row, "quiet")), width) for row in rows]


def wrap_log_line(line: str, width: int) -> list[str]:
    """Return the rows of a line that begins with its time.

    >>> wrap_log_line("10:00:00  the engine has restarted", 24)
    ['10:00:00  the engine has', '          restarted']
    """
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, max(width, 2 * LOG_INDENT), subsequent_indent=" " * LOG_INDENT, break_on_hyphens=False)

"""Format the monitor: its header (the server, its load, the machine's load), its titles and its table. Pure.

The plain text of `top --once` is made of the same lines. Only values that a server reports are drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.core.amounts import format_uptime
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.monitor.log_tail import explain_missing
from eaglelocal.tui.monitor.machine_text import MonitorSnapshot, format_bytes, format_machine, join_pairs, list_caches
from eaglelocal.tui.monitor.table_text import TableView, format_table
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_count, format_panel
from eaglelocal.tui.styled_lines import EMPTY_LINE, Line, Role, StyledSpan, cut_line, fit_line, make_line, plain_text

LOG_INDENT = 10  # the width of a line's time
MAX_ROWS = 20  # of the table of requests in plain text, with its titles
HEALTHY_STATES = frozenset({"ready", "idle"})


def format_header(snapshot: MonitorSnapshot, width: int, glyphs: Glyphs) -> list[Line]:
    reading = snapshot.frame.reading
    figures = [format_load(reading, width), format_machine(snapshot, width, glyphs)]
    return [cut_line(format_server(snapshot, glyphs), width), *(fit_line(each, width) for each in figures)]


def format_server(snapshot: MonitorSnapshot, glyphs: Glyphs) -> Line:
    """Return the first header line: `eaglelocal at http://127.0.0.1:8421 · ready · up 3 h 20 min · demo@1b`."""
    reading = snapshot.frame.reading
    if reading is None:
        return make_line(("connecting to ", "quiet"), (snapshot.url, "strong"))
    state: Role = (
        "good" if reading.state in HEALTHY_STATES else "bad" if reading.state in (DISCONNECTED, "failed") else "warn"
    )
    kind = reading.kind or "server"
    parts: list[StyledSpan] = [StyledSpan(f"{kind} at {snapshot.url}", "strong")]
    for text, role in (
        ("paused" if snapshot.is_paused else "", "warn"),
        (reading.state, state),
        (reading.detail if reading.state not in HEALTHY_STATES else "", "text"),
        (f"up {format_uptime(reading.uptime_s)}" if reading.uptime_s is not None else "", "quiet"),
        (f"restarts {reading.restarts}" if reading.restarts else "", "warn"),
        (name_models(reading), "text"),
    ):
        if text:
            parts += [StyledSpan(f" {glyphs.dot} ", "quiet"), StyledSpan(text, role)]  # type: ignore[arg-type]
    return tuple(parts)


def name_models(reading: ServerReading) -> str:
    """Return the model, and how many others are loaded: `demo@1b +2`."""
    return reading.model + f" +{len(reading.other_models)}" * bool(reading.other_models)


def format_load(reading: ServerReading | None, width: int) -> Line:
    """Return the header line of requests, caches and restarts, as many figures as fit."""
    if reading is None or reading.state == DISCONNECTED:
        return EMPTY_LINE
    pairs = [
        *_list_counts(reading),
        ("adapters", reading.adapters or UNKNOWN),  # first, so that narrow screens show it
        *list_caches(reading),
        ("drafting", name_setting(reading.drafting.setting)),
        ("learning", reading.learning or UNKNOWN),
        ("drift", "; ".join(reading.drift) or UNKNOWN),
        ("engine memory", format_bytes(reading.memory_bytes)),
        ("swapped chats", format_bytes(reading.swapped_bytes or None)),
    ]
    return join_pairs(pairs, width)


def _list_counts(reading: ServerReading) -> list[tuple[str, str]]:
    slots = "" if reading.num_slots is None else f" of {reading.num_slots}"
    return [
        ("running", format_count(reading.running) + slots if reading.running is not None else UNKNOWN),
        ("waiting", format_count(reading.waiting)),
        ("answered", format_count(reading.answered)),
        ("refused", format_count(reading.refused or None)),
        ("failed", format_count(reading.failed or None)),
    ]


def name_setting(setting: str) -> str:
    """Name the drafting setting: `automatic`, `off`, `4 tokens`."""
    words = {"": UNKNOWN, "auto": "automatic", "1": "1 token"}
    return words.get(setting) or (f"{setting} tokens" if setting.isdecimal() else setting)


# ---- the titles of the frames
def format_requests_title(reading: ServerReading | None) -> str:
    """Return `requests: 2 of 4 running, 1 waiting, 37 answered`, with what the server reports of it."""
    if reading is None or reading.state == DISCONNECTED:
        return "requests"
    known = [f"{value} {name}" for name, value in _list_counts(reading) if value != UNKNOWN]
    return ": ".join(filter(None, ["requests", ", ".join(known)]))


def format_drafting_title(frame: PanelFrame) -> str:
    """Return `drafting: automatic`: the setting for requests that set none."""
    setting = name_setting(frame.drafting.setting)
    return "drafting" if setting == UNKNOWN else f"drafting: {setting}"


def format_snapshot(snapshot: MonitorSnapshot, width: int, glyphs: Glyphs) -> str:
    """Return one frame of the monitor as plain text."""
    reading = snapshot.frame.reading
    lines = [
        *format_header(snapshot, width, glyphs),
        EMPTY_LINE,
        *format_panel(snapshot.frame, width, 14, glyphs),
        EMPTY_LINE,
    ]
    if reading is not None:
        lines += format_table(reading, TableView(), width, MAX_ROWS, glyphs)
        lines.append(make_line((explain_missing(reading), "quiet")) if reading.missing else EMPTY_LINE)
    return "\n".join(map(plain_text, lines)).rstrip()


def format_log(newest: Sequence[str], width: int, height: int) -> list[Line]:
    """Return the newest lines of the log that fit; a long one goes on below its text instead of being cut off.

    Of a line for which too few rows are left, the beginning is shown.
    """
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

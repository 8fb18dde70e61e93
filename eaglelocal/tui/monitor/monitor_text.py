"""Format the monitor: its header (the server, its load, the machine's load) and its table. Pure.

The plain text of `top --once` is made of the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.probe.load_gauges import GpuGauge, MachineGauge
from eaglelocal.tui.duration_text import format_duration
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.monitor.log_changes import explain_missing
from eaglelocal.tui.monitor.table_text import TableView, arrange_rows, format_row, format_titles
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_count, format_panel, format_percent
from eaglelocal.tui.styled_lines import EMPTY, Line, Role, StyledSpan, fit_line, make_line, plain_text, sanitize

GIB, MIB = 2**30, 2**20
HEALTHY_STATES = frozenset({"ready", "idle"})
NUM_HEADER_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSnapshot:
    """A frame of the monitor, the machine's load, and the server that they belong to."""

    url: str
    frame: PanelFrame
    machine: MachineGauge | None  # None: not known yet
    is_local: bool = True  # else the server is on another machine, whose load is unknown
    is_paused: bool = False


def format_header(snapshot: MonitorSnapshot, width: int, glyphs: Glyphs) -> list[Line]:
    reading = snapshot.frame.reading
    shown = [format_server(snapshot, glyphs), format_load(reading, width), format_machine(snapshot, width, glyphs)]
    return [fit_line(each, width) for each in shown]


def format_server(snapshot: MonitorSnapshot, glyphs: Glyphs) -> Line:
    """Return the first header line: `eaglelocal at http://127.0.0.1:8421 · ready · up 3 h 20 min · demo@1b`."""
    reading = snapshot.frame.reading
    if reading is None:
        return make_line(("connecting to ", "quiet"), (sanitize(snapshot.url), "strong"))
    state: Role = (
        "good" if reading.state in HEALTHY_STATES else "bad" if reading.state in (DISCONNECTED, "failed") else "warn"
    )
    kind = reading.kind or "server"
    parts: list[StyledSpan] = [StyledSpan(f"{kind} at {sanitize(snapshot.url)}", "strong")]
    for text, role in (
        ("paused" if snapshot.is_paused else "", "warn"),
        (reading.state, state),
        (reading.detail if reading.state not in HEALTHY_STATES else "", "text"),
        (f"up {format_duration(reading.uptime_s)}" if reading.uptime_s is not None else "", "quiet"),
        (reading.model + f" +{len(reading.other_models)}" * bool(reading.other_models), "text"),
    ):
        if text:
            parts += [StyledSpan(f" {glyphs.dot} ", "quiet"), StyledSpan(sanitize(text), role)]  # type: ignore[arg-type]
    return tuple(parts)


def format_load(reading: ServerReading | None, width: int) -> Line:
    """Return the header line of requests, caches and restarts, as many figures as fit."""
    if reading is None or reading.state == DISCONNECTED:
        return EMPTY
    slots = "" if reading.num_slots is None else f" of {reading.num_slots}"
    pairs = [
        ("running", format_count(reading.running) + slots),
        ("waiting", format_count(reading.waiting)),
        ("answered", format_count(reading.answered)),
        ("prefix cache", format_percent(compute_prefix_share(reading))),
        ("KV", format_percent(compute_kv_share(reading))),
        ("restarts", format_count(reading.restarts)),
        ("drafting", reading.drafting.setting or UNKNOWN),
        ("engine memory", _format_bytes(reading.memory_bytes)),
        *([("swapped chats", _format_bytes(reading.swapped_bytes))] if reading.swapped_bytes else []),
    ]
    return _join_pairs(pairs, width)


def compute_prefix_share(reading: ServerReading) -> float | None:
    """Return the share of all prompt tokens so far that a prefix cache spared.

    llama-server counts prompt tokens without the cached ones, the others count all of them.
    """
    total, cached = reading.totals.prompt_tokens, reading.totals.cached_prompt_tokens
    if total is None or cached is None:
        return None
    whole = total + cached if reading.kind == "llama-server" else total
    return min(cached / whole, 1.0) if whole else None


def compute_kv_share(reading: ServerReading) -> float | None:
    if reading.cache_share is not None:
        return reading.cache_share
    used, size = reading.cached_tokens, reading.cache_cells
    return used / size if used is not None and size else None


def format_machine(snapshot: MonitorSnapshot, width: int, glyphs: Glyphs) -> Line:
    if not snapshot.is_local:
        return make_line(("the server is on another machine, whose load is unknown", "quiet"))
    machine = snapshot.machine
    if machine is None:
        return EMPTY
    heat = "" if machine.temperature_c is None else f", {machine.temperature_c:.0f} {glyphs.degrees}"
    first = [
        ("CPU", f"{format_percent(machine.cpu_load)}{heat}"),
        ("RAM", _format_used_bytes(machine.used_bytes, machine.total_bytes)),
    ]
    whole = [*first, *((f"GPU{gpu.index}", format_gpu(gpu, glyphs)) for gpu in machine.gpus)]
    if sum(len(label) + len(value) + 3 for label, value in whole) - 2 <= width:
        return _join_pairs(whole, width)
    return _join_pairs([*first, *((f"GPU{gpu.index}", format_percent(gpu.load)) for gpu in machine.gpus)], width)


def format_gpu(gpu: GpuGauge, glyphs: Glyphs) -> str:
    power = UNKNOWN if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    heat = UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} {glyphs.degrees}"
    return f"{format_percent(gpu.load)}, {_format_used_bytes(gpu.used_bytes, gpu.total_bytes)}, {power}, {heat}"


def format_snapshot(snapshot: MonitorSnapshot, width: int, glyphs: Glyphs, *, max_rows: int = 20) -> str:
    """Return one frame of the monitor as plain text."""
    reading = snapshot.frame.reading
    lines = [*format_header(snapshot, width, glyphs), EMPTY, *format_panel(snapshot.frame, width, 14, glyphs), EMPTY]
    if reading is not None:
        lines += format_table(reading, TableView(), width, max_rows, glyphs)
        lines.append(make_line((explain_missing(reading), "quiet")) if reading.missing else EMPTY)
    return "\n".join(map(plain_text, lines)).rstrip()


def format_table(
    reading: ServerReading, view: TableView, width: int, height: int, glyphs: Glyphs, *, selected_id: str = ""
) -> list[Line]:
    """Return titles and rows of the requests, at most `height` lines; the selected row is among them."""
    if reading.requests is None:
        why = "no connection" if reading.state == DISCONNECTED else "requests are not reported"
        return [format_titles(width, view, glyphs), fit_line(make_line((why, "quiet")), width)][:height]
    rows = arrange_rows(reading.requests, reading.recent, view)
    num_shown = max(height - 1, 0)
    selected = next((i for i, row in enumerate(rows) if row.id == selected_id), 0)
    first = find_first_row(len(rows), selected, num_shown)
    shown = [format_row(row, width, is_selected=row.id == selected_id) for row in rows[first : first + num_shown]]
    if not rows:
        text = "no request matches the filter" if view.filter else "no request is running"
        shown = [fit_line(make_line((text, "quiet")), width)][:num_shown]
    return [format_titles(width, view, glyphs), *shown][:height]


def find_first_row(num_rows: int, selected: int, height: int) -> int:
    """Return the index of the first row to show, so that the row `selected` is among `height` rows."""
    return max(min(selected - height + 1, num_rows - height), 0) if selected >= height else 0


def _join_pairs(pairs: list[tuple[str, str]], width: int) -> Line:
    """Return as many labels with values as fit, none of them cut."""
    made: list[StyledSpan] = []
    used = 0
    for label, value in pairs:
        size = len(label) + 1 + len(value) + (2 if made else 0)
        if used + size > width:
            break
        made += [StyledSpan(f"{'  ' if made else ''}{label} ", "quiet"), StyledSpan(value)]
        used += size
    return tuple(made)


def _format_bytes(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"


def _format_used_bytes(used: float | None, total: float | None) -> str:
    if used is None or total is None:
        return _format_bytes(used)
    return f"{used / GIB:.1f}/{total / GIB:.1f} GiB"

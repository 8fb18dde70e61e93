"""Format the monitor: its header (the server, its load, the machine's load) and its table. Pure.

The plain text of `top --once` is made of the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.probe.load_gauges import GpuGauge, MachineGauge
from eaglelocal.tui.duration_text import format_duration
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.monitor.table_text import TableView, ordered, row_line, title_line
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import NOT_TOLD, count, panel_lines, percent
from eaglelocal.tui.styled_lines import EMPTY, Line, Role, StyledSpan, fitted, harmless, line, plain

GIB, MIB = 2**30, 2**20
WELL = frozenset({"ready", "idle"})
NUM_HEADER_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A frame of the monitor, the machine's load, and the server that they belong to."""

    url: str
    frame: PanelFrame
    machine: MachineGauge | None  # None: nothing is known yet
    is_local: bool = True  # else the server is on another machine, whose load is unknown
    is_paused: bool = False


def header_lines(scene: Scene, width: int, glyphs: Glyphs) -> list[Line]:
    reading = scene.frame.reading
    shown = [where_line(scene, glyphs), load_line(reading, width), machine_line(scene, width, glyphs)]
    return [fitted(each, width) for each in shown]


def where_line(scene: Scene, glyphs: Glyphs) -> Line:
    """Return the first header line: `eaglelocal at http://127.0.0.1:8421 · ready · up 3 h 20 min · demo@1b`."""
    reading = scene.frame.reading
    if reading is None:
        return line(("connecting to ", "quiet"), (harmless(scene.url), "strong"))
    state: Role = "good" if reading.state in WELL else "bad" if reading.state in (DISCONNECTED, "failed") else "warn"
    kind = reading.kind or "server"
    parts: list[StyledSpan] = [StyledSpan(f"{kind} at {harmless(scene.url)}", "strong")]
    for text, role in (
        ("paused" if scene.is_paused else "", "warn"),
        (reading.state, state),
        (reading.detail if reading.state not in WELL else "", "text"),
        (f"up {format_duration(reading.uptime_s)}" if reading.uptime_s is not None else "", "quiet"),
        (reading.model + f" +{len(reading.beside)}" * bool(reading.beside), "text"),
    ):
        if text:
            parts += [StyledSpan(f" {glyphs.dot} ", "quiet"), StyledSpan(harmless(text), role)]  # type: ignore[arg-type]
    return tuple(parts)


def load_line(reading: ServerReading | None, width: int) -> Line:
    """Return the header line of requests, caches and restarts, as many figures as fit."""
    if reading is None or reading.state == DISCONNECTED:
        return EMPTY
    pairs = [
        ("running", _of(reading.running, reading.num_slots)),
        ("waiting", count(reading.waiting)),
        ("answered", count(reading.answered)),
        ("prefix cache", percent(prefix_share(reading))),
        ("KV", percent(kv_share(reading))),
        ("restarts", count(reading.restarts)),
        ("drafting", reading.drafting.setting or NOT_TOLD),
        ("engine's memory", _bytes(reading.memory_bytes)),
        *([("chats in it", _bytes(reading.swapped_bytes))] if reading.swapped_bytes else []),
    ]
    return _pairs(pairs, width)


def prefix_share(reading: ServerReading) -> float | None:
    """Return the share of all prompt tokens so far that a prefix cache spared.

    llama-server counts prompt tokens without the cached ones, the others count all of them.
    """
    total, cached = reading.totals.prompt_tokens, reading.totals.cached_prompt_tokens
    if total is None or cached is None:
        return None
    whole = total + cached if reading.kind == "llama-server" else total
    return min(cached / whole, 1.0) if whole else None


def kv_share(reading: ServerReading) -> float | None:
    if reading.cache_share is not None:
        return reading.cache_share
    used, size = reading.cached_tokens, reading.cache_cells
    return used / size if used is not None and size else None


def machine_line(scene: Scene, width: int, glyphs: Glyphs) -> Line:
    if not scene.is_local:
        return line(("machine: another one, its load is not told", "quiet"))
    machine = scene.machine
    if machine is None:
        return EMPTY
    heat = "" if machine.temperature_c is None else f", {machine.temperature_c:.0f} {glyphs.degrees}"
    first = [
        ("CPU", f"{percent(machine.cpu_load)}{heat}"),
        ("RAM", _of_bytes(machine.used_bytes, machine.total_bytes)),
    ]
    whole = [*first, *((f"GPU{gpu.index}", gpu_text(gpu, glyphs)) for gpu in machine.gpus)]
    if sum(len(label) + len(value) + 3 for label, value in whole) - 2 <= width:
        return _pairs(whole, width)
    return _pairs([*first, *((f"GPU{gpu.index}", percent(gpu.load)) for gpu in machine.gpus)], width)


def gpu_text(gpu: GpuGauge, glyphs: Glyphs) -> str:
    power = NOT_TOLD if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    heat = NOT_TOLD if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} {glyphs.degrees}"
    return f"{percent(gpu.load)}, {_of_bytes(gpu.used_bytes, gpu.total_bytes)}, {power}, {heat}"


def missing_line(reading: ServerReading) -> Line:
    """Return a line that names the server's flags that would report more."""
    if not reading.missing:
        return EMPTY
    return line((f"started with {' '.join(reading.missing)}, {reading.kind} would tell more", "quiet"))


def frame_text(scene: Scene, width: int, glyphs: Glyphs, *, max_rows: int = 20) -> str:
    """Return one frame of the monitor as plain text."""
    reading = scene.frame.reading
    lines = [*header_lines(scene, width, glyphs), EMPTY, *panel_lines(scene.frame, width, 14, glyphs), EMPTY]
    if reading is not None:
        lines += table_lines(reading, TableView(), width, max_rows, glyphs)
        lines.append(missing_line(reading))
    return "\n".join(map(plain, lines)).rstrip()


def table_lines(
    reading: ServerReading, view: TableView, width: int, height: int, glyphs: Glyphs, *, chosen: str = ""
) -> list[Line]:
    """Return titles and rows of the requests, at most `height` lines; the chosen row is among them."""
    if reading.requests is None:
        why = "no connection" if reading.state == DISCONNECTED else "requests are not reported"
        return [title_line(width, view, glyphs), fitted(line((why, "quiet")), width)][:height]
    rows = ordered(reading.requests, reading.recent, view)
    room = max(height - 1, 0)
    at = next((i for i, row in enumerate(rows) if row.id == chosen), 0)
    first = first_shown(len(rows), at, room)
    shown = [row_line(row, width, is_chosen=row.id == chosen) for row in rows[first : first + room]]
    if not rows:
        said = "no request fits the filter" if view.wanted else "no request is running"
        shown = [fitted(line((said, "quiet")), width)][:room]
    return [title_line(width, view, glyphs), *shown][:height]


def first_shown(num_rows: int, at: int, room: int) -> int:
    """Return the index of the first row to show, so that the one at `at` is among `room` rows."""
    return max(min(at - room + 1, num_rows - room), 0) if at >= room else 0


def _pairs(pairs: list[tuple[str, str]], width: int) -> Line:
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


def _of(value: int | None, total: int | None) -> str:
    return count(value) if total is None else f"{count(value)} of {total}"


def _bytes(value: float | None) -> str:
    if value is None:
        return NOT_TOLD
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"


def _of_bytes(used: float | None, total: float | None) -> str:
    if used is None or total is None:
        return _bytes(used)
    return f"{used / GIB:.1f}/{total / GIB:.1f} GiB"

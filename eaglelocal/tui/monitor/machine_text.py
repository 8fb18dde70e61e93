"""The state that the monitor shows, and the load of the machine and of the engine as text. Pure.

Loads are bars, or as many figures of a line as fit; only known values are drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field

from eaglelocal.client.server_reading import ServerReading
from eaglelocal.core.amounts import GIB, format_memory
from eaglelocal.core.records import dataclass
from eaglelocal.probe.load_gauges import MachineGauge
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import format_bar, format_count, format_percent, format_timed_graph
from eaglelocal.tui.styled_lines import Line, Role, StyledSpan, cell_width, fit_lines, make_line

LABEL_CELLS, VALUE_CELLS = 9, 8
NOTE_STEP = 4  # the notes after the bars take a multiple of this many cells, so that bars do not move
MAX_BAR_CELLS = 40
MIN_BAR_ROWS = 4  # with fewer, several figures stand in a line
FULL_SHARE = 0.95  # of a memory, from which on its bar warns
REMOTE = "load of the server's machine: unknown"
KEPT_S = 180  # seconds of the load's graph
HELD_S = 3  # seconds without a frame for which the last value is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLoads:
    """The load of the device that answers, in each of the last seconds, the newest last. None: not known."""

    label: str = ""
    shares: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSnapshot:
    """A server at one moment: a frame of its figures, and the load of its machine."""

    url: str
    frame: PanelFrame
    machine: MachineGauge | None = None  # None: not known yet
    loads: RecentLoads = field(default_factory=RecentLoads)
    is_local: bool = True  # else the server is on another machine, whose load is unknown
    is_paused: bool = False


class LoadHistory:
    """The load of the busiest GPU, or of the processor where there is no GPU, in each of the last KEPT_S seconds."""

    def __init__(self) -> None:
        self._label = ""
        self._loads: deque[tuple[int, float]] = deque(maxlen=KEPT_S)  # (second, share)

    def add(self, machine: MachineGauge | None, now: float) -> None:
        """Add a reading; of several in one second the newest counts."""
        if machine is None:
            return
        of_gpus = [gpu.load for gpu in machine.gpus if gpu.load is not None]
        load = max(of_gpus) if of_gpus else machine.cpu_load
        if load is not None:
            self._label = "CPU" if not of_gpus else "GPU" if len(of_gpus) == 1 else "busiest GPU"
            if self._loads and self._loads[-1][0] == int(now):
                self._loads.pop()
            self._loads.append((int(now), load))

    def read(self, now: float) -> RecentLoads:
        """Return the loads of the last KEPT_S full seconds."""
        known = dict(self._loads)
        shares = list[float | None]()
        value, age = None, 0
        for second in range(int(now) - KEPT_S, int(now)):
            value, age = (known[second], 0) if second in known else (value, age + 1)
            shares.append(value if age < HELD_S else None)
        return RecentLoads(label=self._label, shares=tuple(shares))


def compute_prefix_share(reading: ServerReading) -> float | None:
    """Return the share of all prompt tokens so far that the prefix cache saved.

    llama-server's count of prompt tokens leaves out cached ones, other servers count all.
    """
    total, cached = reading.totals.prompt_tokens, reading.totals.cached_prompt_tokens
    if total is None or cached is None:
        return None
    whole = total + cached if reading.kind == "llama-server" else total
    return min(cached / whole, 1.0) if whole else None


def compute_kv_share(reading: ServerReading) -> float | None:
    if reading.cache_share is not None:
        return reading.cache_share
    return _divide(reading.cached_tokens, reading.cache_cells)


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A load or an amount of memory: a bar if its share is known, its value, and a note on what the value is of.

    short      its text where it has no row of its own; "": value and note
    is_memory  it can run out, so a full bar is a warning; a busy processor is not
    """

    label: str
    share: float | None
    value: str
    note: str = ""
    short: str = ""
    is_memory: bool = False


def format_machine_rows(snapshot: MonitorSnapshot, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return the load of the machine, the engine's caches and memory: a bar each, or several in a line."""
    machine, reading = snapshot.machine if snapshot.is_local else None, snapshot.frame.reading
    engine = [] if reading is None else list(list_engine_rows(reading))
    remote = [] if snapshot.is_local else [make_line((REMOTE, "quiet"))]
    lines: list[Line] = []
    for has_room in (True, False):
        rows = [*list_machine_rows(machine, glyphs, has_room=has_room), *engine]
        lines = [*remote, *(_draw_bars(rows, width, glyphs) if height >= MIN_BAR_ROWS else _pack_rows(rows, width))]
        if len(lines) <= height:
            break
    loads = snapshot.loads
    graph = format_timed_graph(f"{loads.label} load", loads.shares, width, height - len(lines), glyphs)
    return fit_lines([*lines, *graph], width, height)


def list_machine_rows(machine: MachineGauge | None, glyphs: Glyphs, *, has_room: bool) -> Iterator[LoadRow]:
    """Yield the known loads of a machine; without room, each GPU in one row."""
    if machine is None:
        return
    if machine.cpu_load is not None:
        heat = _format_heat(machine.temperature_c, glyphs)
        yield LoadRow("CPU", machine.cpu_load, format_percent(machine.cpu_load), heat)
    yield from _memory_rows("RAM", machine.used_bytes, machine.total_bytes)
    for gpu in machine.gpus:
        memory = list(_memory_rows("  memory", gpu.used_bytes, gpu.total_bytes))
        power = "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
        state = [*filter(None, [power, _format_heat(gpu.temperature_c, glyphs)])]
        load = [] if gpu.load is None else [format_percent(gpu.load)]
        if known := [*load, *(row.short for row in memory), *state]:
            short = ", ".join(known if has_room else known[:1])
            yield LoadRow(f"GPU{gpu.index}", gpu.load, "".join(load), " ".join(state), short)
        yield from memory if has_room else ()


def list_engine_rows(reading: ServerReading) -> Iterator[LoadRow]:
    """Yield what is known of the engine's caches and memory."""
    used, size, share = reading.cached_tokens, reading.cache_cells, compute_kv_share(reading)
    if used is not None and size:  # no bar before the first token
        whole = f"of {format_count(size)}"
        yield LoadRow("KV cache", share or None, format_count(used), whole, format_percent(share), is_memory=True)
    elif share is not None:
        yield LoadRow("KV cache", share, format_percent(share), is_memory=True)
    if (prefix := compute_prefix_share(reading)) is not None:
        yield LoadRow("prompts", prefix, format_percent(prefix), "cached")
    if reading.memory_bytes is not None:
        yield LoadRow("engine", None, format_memory(reading.memory_bytes))
    if reading.adapters:
        yield LoadRow("adapters", None, reading.adapters)
    if reading.swapped_bytes:
        yield LoadRow("swapped", None, format_memory(reading.swapped_bytes), "of chats")
    if reading.stored_bytes or reading.store_problem:
        stopped = f", stopped: {reading.store_problem}" if reading.store_problem else ""
        yield LoadRow("on disk", None, format_memory(reading.stored_bytes or 0), f"of chats{stopped}")


def _memory_rows(label: str, used: float | None, total: float | None) -> Iterator[LoadRow]:
    """Yield the row of a memory, unless its use is unknown."""
    if used is not None and total:
        value, whole = f"{used / GIB:.1f}", f"{total / GIB:.1f} GiB"
        yield LoadRow(label, used / total, value, f"of {whole}", f"{value}/{whole}", is_memory=True)
    elif used is not None:
        yield LoadRow(label, None, format_memory(used), short=format_memory(used))


def _draw_bars(rows: Sequence[LoadRow], width: int, glyphs: Glyphs) -> list[Line]:
    """Return a line for each row; the bars take all cells that the notes leave."""
    longest = max((len(row.note) for row in rows if row.share is not None), default=0)
    note_cells = -(-longest // NOTE_STEP) * NOTE_STEP
    cells = min(max(width - LABEL_CELLS - VALUE_CELLS - note_cells, 4), MAX_BAR_CELLS)
    return [_draw_bar(row, cells, glyphs) for row in rows]


def _draw_bar(row: LoadRow, cells: int, glyphs: Glyphs) -> Line:
    label = StyledSpan(f"{row.label:<{LABEL_CELLS}}", "quiet")
    if row.share is None:
        return make_line(label, f"{row.value} ", (row.note, "quiet"))
    role: Role = "warn" if row.is_memory and row.share >= FULL_SHARE else "accent"
    return make_line(label, *format_bar(row.share, cells, glyphs, role), f" {row.value:>6} ", (row.note, "quiet"))


def _pack_rows(rows: Sequence[LoadRow], width: int) -> list[Line]:
    """Return the rows as `label text`, as many in each line as fit; GPUs include their memory."""
    lines: list[Line] = []
    for row in rows:
        if row.label.startswith(" "):
            continue
        pair = make_line((f"{row.label} ", "quiet"), row.short or f"{row.value} {row.note}".rstrip())
        if lines and cell_width(lines[-1]) + 2 + cell_width(pair) <= width:
            lines[-1] = (*lines[-1], StyledSpan("  "), *pair)
        else:
            lines.append(pair)
    return lines


def _divide(used: float | None, total: float | None) -> float | None:
    return used / total if used is not None and total else None


def _format_heat(celsius: float | None, glyphs: Glyphs) -> str:
    return "" if celsius is None else f"{celsius:.0f} {glyphs.degrees}"

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
from eaglelocal.probe.load_gauges import GpuGauge, MachineGauge
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_bar, format_count, format_percent, format_timed_graph
from eaglelocal.tui.styled_lines import EMPTY_LINE, Line, Role, StyledSpan, fit_line, make_line

LABEL_CELLS, SHARE_CELLS = 9, 8
TEXT_STEP = 4  # the text after a bar takes a multiple of this many cells, so that bars do not move
MAX_BAR_CELLS = 40
MIN_BAR_ROWS = 4  # with fewer, the figures stand in two lines
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
    """A frame of the monitor, the machine's load, and the server that they belong to."""

    url: str
    frame: PanelFrame
    machine: MachineGauge | None  # None: not known yet
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


def format_machine(snapshot: MonitorSnapshot, width: int, glyphs: Glyphs) -> Line:
    if not snapshot.is_local:
        return make_line((REMOTE, "quiet"))
    machine = snapshot.machine
    if machine is None:
        return EMPTY_LINE
    heat = f", {_format_heat(machine.temperature_c, glyphs)}" if machine.temperature_c is not None else ""
    first = [
        ("CPU", f"{format_percent(machine.cpu_load)}{heat}" if machine.cpu_load is not None else UNKNOWN),
        ("RAM", _format_used_bytes(machine.used_bytes, machine.total_bytes)),
    ]
    whole = [*first, *((f"GPU{gpu.index}", format_gpu(gpu, glyphs)) for gpu in machine.gpus)]
    if sum(len(label) + len(value) + 3 for label, value in whole) - 2 <= width:
        return join_pairs(whole, width)
    return join_pairs([*first, *((f"GPU{gpu.index}", format_percent(gpu.load)) for gpu in machine.gpus)], width)


def format_machine_rows(snapshot: MonitorSnapshot, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return the load of the machine, the engine's caches and memory: a bar each, or two lines if there is no room."""
    reading = snapshot.frame.reading
    if height < MIN_BAR_ROWS:
        caches = [] if reading is None else [*list_caches(reading), ("engine", format_bytes(reading.memory_bytes))]
        lines = [format_machine(snapshot, width, glyphs), join_pairs(caches, width)]
        return [fit_line(line, width) for line in lines[: max(height, 0)]]
    machine = snapshot.machine if snapshot.is_local else None
    engine = [] if reading is None else list(_engine_bars(reading))
    rows = [*_machine_bars(machine, glyphs), *engine]
    if len(rows) > height:
        rows = [*_machine_bars(machine, glyphs, has_room=False), *engine]
    rows = [row for row in rows if row.share is not None or row.text not in ("", UNKNOWN)]
    remote = [] if snapshot.is_local else [make_line((REMOTE, "quiet"))]
    cells = _count_bar_cells(rows, width)
    lines = [*remote, *(_format_bar(row, cells, glyphs) for row in rows)]
    loads = snapshot.loads
    graph = format_timed_graph(f"{loads.label} load", loads.shares, width, height - len(lines), glyphs)
    return [fit_line(line, width) for line in [*lines, *graph][:height]]


@dataclass(frozen=True, slots=True)
class BarRow:
    """A row of the machine's frame: a share with a bar, and the whole that it is a share of.

    is_memory  it can run out, so a full bar is a warning; a busy processor is not
    """

    label: str
    share: float | None
    text: str = ""
    is_memory: bool = False


def _machine_bars(machine: MachineGauge | None, glyphs: Glyphs, *, has_room: bool = True) -> Iterator[BarRow]:
    """Yield the rows of a machine; without room, each GPU in one row."""
    if machine is None:
        return
    yield BarRow("CPU", machine.cpu_load, _format_heat(machine.temperature_c, glyphs))
    yield BarRow(
        "RAM",
        _divide(machine.used_bytes, machine.total_bytes),
        _format_used_bytes(machine.used_bytes, machine.total_bytes),
        is_memory=True,
    )
    for gpu in machine.gpus:
        power = "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
        state = " ".join(filter(None, [power, _format_heat(gpu.temperature_c, glyphs)]))
        memory = _format_used_bytes(gpu.used_bytes, gpu.total_bytes)
        yield BarRow(f"GPU{gpu.index}", gpu.load, state if has_room else memory)
        if has_room:
            yield BarRow("  memory", _divide(gpu.used_bytes, gpu.total_bytes), memory, is_memory=True)


def _engine_bars(reading: ServerReading) -> Iterator[BarRow]:
    used, size, prefix = reading.cached_tokens, reading.cache_cells, compute_prefix_share(reading)
    tokens = f"{format_count(used)} of {format_count(size)}" if used is not None and size else ""
    yield BarRow("KV cache", compute_kv_share(reading) or None, tokens, is_memory=True)  # no bar before the first token
    yield BarRow("prefix", prefix, "of prompts" if prefix is not None else "")
    yield BarRow("engine", None, format_bytes(reading.memory_bytes))
    yield BarRow("swapped", None, f"{format_bytes(reading.swapped_bytes)} of chats" if reading.swapped_bytes else "")
    if reading.stored_bytes or reading.store_problem:
        stopped = f", stopped: {reading.store_problem}" if reading.store_problem else ""
        yield BarRow("on disk", None, f"{format_bytes(reading.stored_bytes)} of chats{stopped}")


def _count_bar_cells(rows: Sequence[BarRow], width: int) -> int:
    """Return the cells of each bar: all that the texts leave."""
    longest = max((len(row.text) for row in rows if row.share is not None), default=0)
    text_cells = -(-longest // TEXT_STEP) * TEXT_STEP
    return min(max(width - LABEL_CELLS - SHARE_CELLS - text_cells, 4), MAX_BAR_CELLS)


def _format_bar(row: BarRow, cells: int, glyphs: Glyphs) -> Line:
    if row.share is None:
        return make_line((f"{row.label:<{LABEL_CELLS}}", "quiet"), row.text)
    role: Role = "warn" if row.is_memory and row.share >= FULL_SHARE else "accent"
    return make_line(
        (f"{row.label:<{LABEL_CELLS}}", "quiet"),
        *format_bar(row.share, cells, glyphs, role),
        f" {format_percent(row.share):>5}  ",
        (row.text, "quiet"),
    )


def _divide(used: float | None, total: float | None) -> float | None:
    return used / total if used is not None and total else None


def _format_heat(celsius: float | None, glyphs: Glyphs) -> str:
    return "" if celsius is None else f"{celsius:.0f} {glyphs.degrees}"


def format_gpu(gpu: GpuGauge, glyphs: Glyphs) -> str:
    power = UNKNOWN if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    memory, heat = _format_used_bytes(gpu.used_bytes, gpu.total_bytes), _format_heat(gpu.temperature_c, glyphs)
    known = (each for each in (format_percent(gpu.load), memory, power, heat) if each not in ("", UNKNOWN))
    return ", ".join(known) or UNKNOWN


def list_caches(reading: ServerReading) -> list[tuple[str, str]]:
    return [
        ("KV", format_percent(compute_kv_share(reading))),
        ("prefix cache", format_percent(compute_prefix_share(reading))),
    ]


def join_pairs(pairs: list[tuple[str, str]], width: int) -> Line:
    """Return as many labels with known values as fit, none of them cut."""
    made: list[StyledSpan] = []
    used = 0
    for label, value in pairs:
        if value == UNKNOWN:
            continue
        size = len(label) + 1 + len(value) + (2 if made else 0)
        if used + size > width:
            continue
        made += [StyledSpan(f"{'  ' if made else ''}{label} ", "quiet"), StyledSpan(value)]
        used += size
    return tuple(made)


def format_bytes(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return format_memory(value)


def _format_used_bytes(used: float | None, total: float | None) -> str:
    if used is None or total is None:
        return format_bytes(used)
    return f"{used / GIB:.1f}/{total / GIB:.1f} GiB"

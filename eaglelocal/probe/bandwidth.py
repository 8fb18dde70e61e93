"""A measurement of how quickly this machine reads its main memory, which is what limits decoding on a CPU.

Each usable thread reads a buffer of its own, over and over, all of them at the same time; the buffers together are
larger than the caches. The reading is numpy's maximum of 32-bit integers, which is vectorized, needs next to no
arithmetic and releases the GIL. What all threads read is counted in short windows: their median is the figure, their
quartiles the spread, so that one hiccup of a busy machine shows and does not decide.

The figure is kept in the state folder under what it depends on (processor, threads, memory, the machine's name), so
that the next command need not measure again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import platform
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.probe.machine import Bandwidth, Machine

if TYPE_CHECKING:
    import numpy as np

MEASURE_S, FILL_S = 0.25, 0.25
FILL_STEP = 1 << 20  # numbers: 4 MiB
MIN_BYTES, MAX_BYTES = 256 << 20, 1 << 30  # of all buffers together; more where MIN_BYTES_A_THREAD asks for it
MIN_BYTES_A_THREAD = 32 << 20  # so that a pass takes long compared with Python's work between two
SHARE_OF_AVAILABLE = 1 / 8
NUM_WINDOWS = 12
FORMAT = 1
MAX_FILE_BYTES = 4096

Progress = Sequence[tuple[float, float]]  # (seconds, bytes read until then), rising


def bandwidth_of(machine: Machine, *, again: bool = False) -> Bandwidth | None:
    """Return the stored bandwidth, else measure and store it; `again` measures anyway. Never raises.

    A figure from a busy moment is measured anew each time, and the better of the two kept, until a quiet one comes.
    None where it cannot be measured, as with too little memory.
    """
    known = machine.cpu.bandwidth
    if known is not None and not known.is_disturbed and not again:
        return known
    try:
        measured = measure_bandwidth(
            threads=machine.cpu.usable_threads,
            cache_bytes=machine.cpu.last_level_cache_bytes,
            available_bytes=machine.memory.available_bytes,
        )
    except Exception:  # no memory, no threads: commands go on without a figure
        return known
    best = measured if again or known is None else max(known, measured, key=lambda each: each.bytes_s)
    keep(machine, best)
    return best


def add_bandwidth(machine: Machine, *, again: bool = False) -> Machine:
    """Return the machine with its bandwidth in `cpu.bandwidth`."""
    cpu = dataclasses.replace(machine.cpu, bandwidth=bandwidth_of(machine, again=again))
    return dataclasses.replace(machine, cpu=cpu)


# ---- measuring
def measure_bandwidth(
    *, threads: int, cache_bytes: int | None, available_bytes: int | None, seconds: float = MEASURE_S
) -> Bandwidth:
    """Measure for `seconds`, after at most FILL_S of filling. Raises MemoryError, or RuntimeError without threads."""
    size = buffer_bytes(threads=threads, cache_bytes=cache_bytes, available_bytes=available_bytes)
    before = _used_s()
    rates = window_rates(_read_in_threads(threads, size, seconds))
    low, median, high = quartiles(rates)
    return Bandwidth(
        bytes_s=median,
        low_bytes_s=low,
        high_bytes_s=high,
        threads=threads,
        measured_at=round(time.time(), 3),
        others_share=_others_share(before, _used_s()),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Used:
    """Seconds of CPU time since the machine or the process began."""

    machine_s: float
    idle_s: float
    own_s: float


def _used_s() -> _Used:
    import psutil

    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    idle_s = machine.idle + getattr(machine, "iowait", 0.0)
    counted_twice = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)  # within user and nice
    return _Used(sum(machine) - counted_twice, idle_s, own.user + own.system)


def _others_share(before: _Used, after: _Used) -> float | None:
    """Return other processes' share of all CPU time between two moments; None where no time passed."""
    whole = after.machine_s - before.machine_s
    if whole <= 0:
        return None
    others = whole - (after.idle_s - before.idle_s) - (after.own_s - before.own_s)
    return round(min(1.0, max(0.0, others / whole)), 3)


def buffer_bytes(*, threads: int, cache_bytes: int | None, available_bytes: int | None) -> int:
    """Return the bytes of each thread's buffer; raises MemoryError where too few are free.

    Together the buffers are twice the cache, within bounds, and never more than a share of the free memory.
    """
    together = min(max(2 * (cache_bytes or 0), MIN_BYTES), MAX_BYTES)
    wanted = max(together // threads, MIN_BYTES_A_THREAD)
    if available_bytes is None:
        return wanted
    granted = int(available_bytes * SHARE_OF_AVAILABLE) // threads
    if granted < MIN_BYTES_A_THREAD // 8:
        raise MemoryError(f"{available_bytes} bytes are too few to measure with")
    return min(wanted, granted)


def window_rates(progress: Sequence[Progress]) -> list[float]:
    """Return bytes a second of all threads together, in equal windows of the time in which every one of them read.

    A thread that read 4 bytes within 2 s and one that read 6: [5.0, 5.0, ...].
    """
    begin, end = max(each[0][0] for each in progress), min(each[-1][0] for each in progress)
    if not begin < end:
        raise RuntimeError("no time in which all threads read")
    shortest = min(len(each) for each in progress) - 1
    num_windows = max(1, min(NUM_WINDOWS, shortest))  # each window spans at least one pass
    edges = [begin + (end - begin) * i / num_windows for i in range(num_windows + 1)]
    read = [sum(_read_until(each, edge) for each in progress) for edge in edges]
    return [(after - before) / (edges[1] - edges[0]) for before, after in itertools.pairwise(read)]


def quartiles(rates: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(rates) < 2:
        return rates[0], rates[0], rates[0]
    low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    return low, median, high


def _read_until(progress: Progress, moment: float) -> float:
    """Return the bytes read by a moment, interpolated within a pass."""
    for (begin, before), (end, after) in itertools.pairwise(progress):
        if moment <= end:
            return before + (after - before) * max(0.0, moment - begin) / (end - begin)
    return progress[-1][1]


def _read_in_threads(num_threads: int, size: int, seconds: float) -> list[Progress]:
    readers = [_MemoryReader(size, seconds) for _ in range(num_threads)]
    gate = threading.Barrier(num_threads)
    threads = [threading.Thread(target=reader.run, args=(gate,), daemon=True) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failure = next((reader.failure for reader in readers if reader.failure), None)
    if failure is not None:
        raise failure
    return [reader.progress for reader in readers]


class _MemoryReader:
    """A thread's buffer, which it fills itself so that the memory is near to its core, and what it has read."""

    def __init__(self, size: int, seconds: float) -> None:
        self.progress: list[tuple[float, float]] = []
        self.failure: Exception | None = None
        self._size, self._seconds = size, seconds

    def run(self, gate: threading.Barrier) -> None:
        try:
            self._read(self._filled(), gate)
        except Exception as failure:
            self.failure = failure
            gate.abort()  # the others must not wait for this one

    def _filled(self) -> np.ndarray:
        """Return as much as can be filled in time: a virtual machine may get memory slowly, and only on touch."""
        import numpy as np

        buffer = np.empty(self._size // 4, dtype=np.int32)
        until, num_filled = time.perf_counter() + FILL_S, 0
        while num_filled < buffer.size and (num_filled == 0 or time.perf_counter() < until):
            buffer[num_filled : num_filled + FILL_STEP] = 1
            num_filled += FILL_STEP
        return buffer[:num_filled]

    def _read(self, buffer: np.ndarray, gate: threading.Barrier) -> None:
        gate.wait()
        now = time.perf_counter()
        until, read = now + self._seconds, 0.0
        self.progress.append((now, read))
        while now < until:
            buffer.max()
            now, read = time.perf_counter(), read + buffer.nbytes
            self.progress.append((now, read))


# ---- storing
def stored_bandwidth(machine: Machine) -> Bandwidth | None:
    """Return what was measured on this machine; None where nothing was, or the file is not valid."""
    try:
        with _path_of(machine).open("rb") as file:
            return _parse(read_json(file.read(MAX_FILE_BYTES)), _key_of(machine))
    except (OSError, ValueError):
        return None


def keep(machine: Machine, measured: Bandwidth) -> bool:
    """Store a measurement. Returns False if writing failed."""
    content = {"format": FORMAT, "key": _key_of(machine), "measured": dataclasses.asdict(measured)}
    try:
        write_atomically(_path_of(machine), json.dumps(content, indent=1))
    except OSError:
        return False
    return True


def _path_of(machine: Machine) -> Path:
    text = json.dumps(_key_of(machine), sort_keys=True)
    return locations.bandwidths_dir() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def _key_of(machine: Machine) -> dict[str, object]:
    return {
        "machine": platform.node(),  # several machines may share a home folder
        "processor": machine.cpu.name,
        "threads": machine.cpu.usable_threads,
        "memory_gib": round((machine.memory.installed_bytes or 0) / 2**30),  # the kernel's own share varies
    }


def _parse(content: object, key: dict[str, object]) -> Bandwidth | None:
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("key") != key:
        return None
    told = content.get("measured")
    names = {field.name for field in dataclasses.fields(Bandwidth)}
    if not isinstance(told, dict) or set(told) != names:
        return None
    share = told.pop("others_share")
    is_sound = all(_is_figure(value) and value > 0 for value in told.values()) and (share is None or _is_figure(share))
    return Bandwidth(**told, others_share=share) if is_sound else None


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

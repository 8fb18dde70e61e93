"""A measurement of how fast this machine reads its main memory, which limits decoding on a CPU.

All usable threads read at the same time, each a buffer of its own; together the buffers are larger than the caches.
Reading is numpy's maximum of 32-bit integers: vectorized, hardly any arithmetic, and without the GIL. The bytes are
counted in short windows, whose median is the result, so that one interruption on a busy machine does not decide.

The result is stored in the state folder, by processor, threads, memory and the machine's name, for later commands.
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
from eaglelocal.core.own_files import read_own
from eaglelocal.probe.machine import Bandwidth, Machine

if TYPE_CHECKING:
    import numpy as np

MEASURE_S, FILL_S = 0.25, 0.25
FILL_STEP = 1 << 20  # numbers: 4 MiB
MIN_BYTES, MAX_BYTES = 256 << 20, 1 << 30  # of all buffers together; more if MIN_BYTES_A_THREAD requires it
MIN_BYTES_A_THREAD = 32 << 20  # so that a pass takes much longer than Python's work between two passes
SHARE_OF_AVAILABLE = 1 / 8
NUM_WINDOWS = 12
FORMAT = 1
MAX_FILE_BYTES = 4096

Progress = Sequence[tuple[float, float]]  # (seconds, bytes read until then), ascending


def find_bandwidth(machine: Machine, *, remeasure: bool = False) -> Bandwidth | None:
    """Return the stored bandwidth, else measure and store it; with `remeasure` always measure. Never raises.

    A result from a busy machine is measured again every time, and the higher of the two is stored. None if it cannot
    be measured, for example with too little memory.
    """
    known = machine.cpu.bandwidth
    if known is not None and not known.is_disturbed and not remeasure:
        return known
    try:
        measured = measure_bandwidth(
            threads=machine.cpu.usable_threads,
            cache_bytes=machine.cpu.last_level_cache_bytes,
            available_bytes=machine.memory.available_bytes,
        )
    except Exception:  # no memory or no threads: commands go on without a result
        return known
    best = measured if remeasure or known is None else max(known, measured, key=lambda each: each.bytes_s)
    save_bandwidth(machine, best)
    return best


def add_bandwidth(machine: Machine, *, remeasure: bool = False) -> Machine:
    """Return the machine with its bandwidth in `cpu.bandwidth`."""
    cpu = dataclasses.replace(machine.cpu, bandwidth=find_bandwidth(machine, remeasure=remeasure))
    return dataclasses.replace(machine, cpu=cpu)


# ---- measuring
def measure_bandwidth(
    *, threads: int, cache_bytes: int | None, available_bytes: int | None, seconds: float = MEASURE_S
) -> Bandwidth:
    """Measure for `seconds`, after at most FILL_S of filling. Raises MemoryError, or RuntimeError without threads."""
    import psutil

    size = choose_buffer_bytes(threads=threads, cache_bytes=cache_bytes, available_bytes=available_bytes)
    own = psutil.Process()
    psutil.cpu_percent()  # the first calls begin the interval
    own.cpu_percent()
    rates = compute_window_rates(_read_in_threads(threads, size, seconds))
    low, median, high = compute_quartiles(rates)
    others_percent = psutil.cpu_percent() - own.cpu_percent() / (psutil.cpu_count() or 1)
    return Bandwidth(
        bytes_s=median,
        low_bytes_s=low,
        high_bytes_s=high,
        threads=threads,
        measured_at=round(time.time(), 3),
        others_share=round(min(1.0, max(0.0, others_percent / 100)), 3),
    )


def choose_buffer_bytes(*, threads: int, cache_bytes: int | None, available_bytes: int | None) -> int:
    """Return the bytes of each thread's buffer. Raises MemoryError if too little memory is free.

    Together the buffers are twice the cache, within bounds, and at most a share of the free memory.
    """
    together = min(max(2 * (cache_bytes or 0), MIN_BYTES), MAX_BYTES)
    wanted = max(together // threads, MIN_BYTES_A_THREAD)
    if available_bytes is None:
        return wanted
    allowed = int(available_bytes * SHARE_OF_AVAILABLE) // threads
    if allowed < MIN_BYTES_A_THREAD // 8:
        raise MemoryError(f"{available_bytes} bytes of free memory are too few to measure with")
    return min(wanted, allowed)


def compute_window_rates(progress: Sequence[Progress]) -> list[float]:
    """Return the bytes per second of all threads together, in equal windows of the time in which all of them read.

    Two threads that read 4 and 6 bytes within 2 s give [5.0, 5.0, ...].
    """
    begin, end = max(each[0][0] for each in progress), min(each[-1][0] for each in progress)
    if not begin < end:
        raise RuntimeError("the threads never read at the same time")
    shortest = min(len(each) for each in progress) - 1
    num_windows = max(1, min(NUM_WINDOWS, shortest))  # each window spans at least one pass
    edges = [begin + (end - begin) * i / num_windows for i in range(num_windows + 1)]
    read = [sum(_interpolate_bytes(each, edge) for each in progress) for edge in edges]
    return [(after - before) / (edges[1] - edges[0]) for before, after in itertools.pairwise(read)]


def compute_quartiles(rates: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(rates) < 2:
        return rates[0], rates[0], rates[0]
    low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    return low, median, high


def _interpolate_bytes(progress: Progress, moment: float) -> float:
    """Return the bytes read until a moment, interpolated within a pass."""
    for (begin, before), (end, after) in itertools.pairwise(progress):
        if moment <= end:
            return before + (after - before) * max(0.0, moment - begin) / (end - begin)
    return progress[-1][1]


def _read_in_threads(num_threads: int, size: int, seconds: float) -> list[Progress]:
    from concurrent.futures import ThreadPoolExecutor  # takes time of every start

    gate = threading.Barrier(num_threads)
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            readers = [pool.submit(_read_buffer, size, seconds, gate) for _ in range(num_threads)]
        except RuntimeError:  # no thread can be started: the others must not wait for it
            gate.abort()
            raise
        return [reader.result() for reader in readers]


def _read_buffer(size: int, seconds: float, gate: threading.Barrier) -> Progress:
    """Fill a buffer on this thread, so that the memory is near its core, and read it once all threads have theirs."""
    try:
        buffer = _fill_buffer(size)
    except Exception:
        gate.abort()  # the others must not wait for this one
        raise
    gate.wait()
    now = time.perf_counter()
    until, read = now + seconds, 0.0
    progress = [(now, read)]
    while now < until:
        buffer.max()
        now, read = time.perf_counter(), read + buffer.nbytes
        progress.append((now, read))
    return progress


def _fill_buffer(size: int) -> np.ndarray:
    """Return a buffer of what can be filled in time: a virtual machine may get its memory slowly."""
    import numpy as np

    buffer = np.empty(size // 4, dtype=np.int32)
    until, num_filled = time.perf_counter() + FILL_S, 0
    while num_filled < buffer.size and (num_filled == 0 or time.perf_counter() < until):
        buffer[num_filled : num_filled + FILL_STEP] = 1
        num_filled += FILL_STEP
    return buffer[:num_filled]


# ---- storing
def load_bandwidth(machine: Machine) -> Bandwidth | None:
    """Return the result that was stored for this machine; None if there is none, or the file is not valid."""
    try:
        return _parse(read_json(read_own(_make_path(machine), MAX_FILE_BYTES)), _make_key(machine))
    except (OSError, ValueError):
        return None


def save_bandwidth(machine: Machine, measured: Bandwidth) -> bool:
    """Store a measurement. Returns False if writing failed."""
    content = {"format": FORMAT, "key": _make_key(machine), "measured": dataclasses.asdict(measured)}
    try:
        write_atomically(_make_path(machine), json.dumps(content, indent=1))
    except OSError:
        return False
    return True


def _make_path(machine: Machine) -> Path:
    text = json.dumps(_make_key(machine), sort_keys=True)
    return locations.bandwidths_dir() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def _make_key(machine: Machine) -> dict[str, object]:
    return {
        "machine": platform.node(),  # several machines may share a home folder
        "processor": machine.cpu.name,
        "threads": machine.cpu.usable_threads,
        "memory_gib": round((machine.memory.installed_bytes or 0) / 2**30),  # the kernel's own share varies
    }


def _parse(content: object, key: dict[str, object]) -> Bandwidth | None:
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("key") != key:
        return None
    measured = content.get("measured")
    names = {field.name for field in dataclasses.fields(Bandwidth)}
    if not isinstance(measured, dict) or set(measured) != names:
        return None
    share = measured.pop("others_share")
    is_sound = all(_is_number(value) and value > 0 for value in measured.values()) and (
        share is None or _is_number(share)
    )
    return Bandwidth(**measured, others_share=share) if is_sound else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

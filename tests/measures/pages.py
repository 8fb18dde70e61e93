"""What huge pages and layouts for the processor are worth: python tests/measures/pages.py [TARGET ...] [--rounds N]

Each target is loaded four times (mapped and then moved into huge pages, mapped, read, and read into llama.cpp's
layouts where it has any), and all decode 1, 4 and 8 rows in turn. Prints seconds of the load, medians of the decodes in
milliseconds, and how much faster each is.
On a virtual machine memory that was never used before takes long to come by, and how a mapped file fares depends on
where its pages happen to lie.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes as C
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.backend.weight_loading import find_mappings, move_weights
from eaglelocal.core.batch import Batch
from eaglelocal.core.run_options import RunOptions
from eaglelocal.preparation.decision import resolve
from eaglelocal.probe.cpuinfo import count_usable_threads
from eaglelocal.processes.child_process import TUNABLES, tunables

SIZES = (1, 4, 8)
WAYS = {
    "moved": Placement(repack=False, moves_weights=True),  # the first: the moved file must be the only mapped one
    "mapped": Placement(repack=False),
    "read": Placement(repack=False, no_mmap=True),
    "laid out": Placement(no_mmap=True),
}


def opened(path: Path, placement: Placement, around: contextlib.ExitStack) -> tuple[LlamaContext, float]:
    """A context of the model, and the seconds of its load."""
    began_s = time.perf_counter()
    model = LlamaModel(load_library(), path, placement)
    if placement.moves_weights:
        move_weights(find_mappings(path), C.c_int32(0))
    took_s = time.perf_counter() - began_s
    around.callback(model.close)
    context = LlamaContext(model, ContextParams(n_ctx=512, threads=count_usable_threads()))
    around.callback(context.close)
    return context, took_s


def decode_ms(context: LlamaContext, num_rows: int) -> float:
    rows = list(range(num_rows))
    began_s = time.perf_counter()
    context.decode(Batch([7] * num_rows, rows, [(0,)] * num_rows, [True] * num_rows))
    took_ms = (time.perf_counter() - began_s) * 1000
    context.remove(0, 0)
    return took_ms


def medians(contexts: Mapping[str, LlamaContext], rounds: int) -> dict[tuple[str, int], float]:
    seen: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for size in SIZES:
            for name, context in contexts.items():
                seen.setdefault((name, size), []).append(decode_ms(context, size))
    return {key: statistics.median(values) for key, values in seen.items()}


def measure(target: str, rounds: int) -> None:
    path = resolve(RunOptions(target=target), on_progress=lambda fraction, what: None).target
    with contextlib.ExitStack() as around:
        found = {name: opened(path, placement, around) for name, placement in WAYS.items()}
        contexts = {name: context for name, (context, _) in found.items()}
        medians(contexts, 2)  # pages come in with the first decodes
        ms = medians(contexts, rounds)
    sys.stdout.write(f"{target:14} " + f"{'':9}load s" + "".join(f"{n:>8} rows" for n in SIZES) + "\n")
    for name, (_, load_s) in found.items():
        cells = [f"{ms[name, n]:6.1f} {ms['mapped', n] / ms[name, n]:4.2f}x" for n in SIZES]
        sys.stdout.write(f"{'':14} {name:9}{load_s:6.2f}  " + "  ".join(cells) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.environ.get(TUNABLES, "") != tunables(os.environ):  # read when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, TUNABLES: tunables(os.environ)})
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "targets", nargs="*", default=["demo@300m:bf16", "demo@1b:bf16", "demo@1b:q8_0", "demo@1b:q4_0"]
    )
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    for one in given.targets:
        measure(one, given.rounds)

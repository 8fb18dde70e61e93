"""Are weights in huge pages decoded faster than mapped ones? python tests/measures/pages.py [TARGET ...] [--rounds N]

Each target is loaded twice, mapped and read, and both decode 1, 4 and 8 rows in turn. Prints seconds of the load,
medians of the decodes in milliseconds, and how much faster the one that was read is. On a virtual machine memory that
was never used before takes long to come by, and how a mapped file fares depends on where its pages happen to lie.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.backend.context import ContextParams, LlamaContext
from eaglelocal.backend.library import load_library
from eaglelocal.backend.model import Model, Placement
from eaglelocal.core.batch import Batch
from eaglelocal.engine.child import DEFAULTS
from eaglelocal.hub.resolve import resolve
from eaglelocal.hub.wish import Wish
from eaglelocal.probe.threads import usable_threads

SIZES = (1, 4, 8)


def opened(path: Path, *, reads: bool) -> tuple[LlamaContext, float]:
    """A context of the model, and the seconds of its load."""
    began_s = time.perf_counter()
    model = Model(load_library(), path, Placement(repack=False, reads=reads))
    took_s = time.perf_counter() - began_s
    return LlamaContext(model, ContextParams(n_ctx=512, threads=usable_threads())), took_s


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
    path = resolve(Wish(target=target), on_progress=lambda fraction, what: None).target
    contexts, loads = {}, {}
    for name in ("mapped", "read"):
        contexts[name], loads[name] = opened(path, reads=name == "read")
    medians(contexts, 2)  # pages come in with the first decodes
    found = medians(contexts, rounds)
    told = [f"{n} rows {found['mapped', n]:.1f} / {found['read', n]:.1f}" for n in SIZES]
    gains = [f"{found['mapped', n] / found['read', n]:.2f}x" for n in SIZES]
    load = f"load {loads['mapped']:.2f} / {loads['read']:.2f} s"
    sys.stdout.write(f"{target:14} {load}, {', '.join(told)} ms, read is {' '.join(gains)}\n")
    sys.stdout.flush()
    for context in contexts.values():
        context.close()


if __name__ == "__main__":
    if not set(DEFAULTS) <= set(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**DEFAULTS, **os.environ})
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "targets", nargs="*", default=["demo@300m:bf16", "demo@1b:bf16", "demo@1b:q8_0", "demo@1b:q4_0"]
    )
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    for one in given.targets:
        measure(one, given.rounds)

"""What an exchange of the head costs the answers that run, and the memory: engine_client.py TARGET HEAD [--swaps 20]

The head is exchanged again and again for copies of itself while one answer after the other is written, alternating
with answers without exchanges. Prints a table, and one JSON object as the last line.

    python tests/measures/head_swap.py profiles/demo/guide-target.gguf profiles/demo/guide-head.gguf
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Tokens
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, Message, fixed_spec
from eaglelocal.core.sampling import SamplingParams

PROMPT = (Message("user", "Explain what a draft head is."),)
PARAMS = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


def answer(client: EngineClient, name: str) -> tuple[float, list[float]]:
    """Return the tokens per second of an answer, and the milliseconds between its messages."""
    times, num_tokens = [time.perf_counter()], 0
    for event in client.stream(ChatRequest(id=name, messages=PROMPT, params=PARAMS)):
        if isinstance(event, Tokens):
            times.append(time.perf_counter())
            num_tokens += len(event.pieces)
    gaps = [1e3 * (after - before) for before, after in pairwise(times[1:])]
    return num_tokens / (times[-1] - times[1]), gaps


def measure(target: Path, heads: list[Path], swaps: int) -> dict[str, object]:
    plan = Plan(target=target, target_label="t", draft_kind="eagle3", draft=heads[0], spec=fixed_spec(4), n_ctx=1024)
    rates: dict[str, list[float]] = {"plain": [], "swapped": []}
    gaps: dict[str, list[float]] = {"plain": [], "swapped": []}
    swap_s, rss = [], []
    with EngineClient(plan) as client:
        client.start()
        answer(client, "warm")
        process = psutil.Process(client.pid)
        for n in range(swaps):
            for kind in ("plain", "swapped"):
                thread = None
                if kind == "swapped":
                    began = time.perf_counter()

                    def swap(number: int = n, began: float = began) -> None:
                        client.swap_head(heads[(number + 1) % 2], number + 1)
                        swap_s.append(time.perf_counter() - began)

                    thread = threading.Thread(target=swap)
                    thread.start()
                rate, between = answer(client, f"{kind}-{n}")
                if thread is not None:
                    thread.join()
                rates[kind].append(rate)
                gaps[kind] += between
            rss.append(process.memory_info().rss)
        version = client.snapshot().draft_version
    assert version == swaps
    return {
        "swaps": swaps,
        "head_bytes": heads[0].stat().st_size,
        "tok_s": {kind: round(statistics.median(each), 1) for kind, each in rates.items()},
        "worst_gap_ms": {kind: round(max(each), 1) for kind, each in gaps.items()},
        "p99_gap_ms": {kind: round(statistics.quantiles(each, n=100)[-1], 1) for kind, each in gaps.items()},
        "swap_s": round(statistics.median(swap_s), 3),
        "rss_mb": [round(each / 1e6, 1) for each in rss],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("--swaps", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.gguf"
        shutil.copyfile(asked.head, copy)
        found = measure(asked.target, [asked.head, copy], asked.swaps)
    for name, value in found.items():
        print(f"{name:14} {value}")
    print(json.dumps(found))

"""Peak memory of the engine process against what llama.cpp reports: python tests/measures/memory.py [TARGET]

Also 1 000 requests in a row: how much the process grows after the first hundred. Each measurement has a process of
its own. Exits 1 if a figure is over its bound.
"""

from __future__ import annotations

import subprocess
import sys

import psutil

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.preparation.decision import resolve

MIB = 2**20
QUESTIONS = ("What is acceptance length?", "What is 347 + 285?", "Write a function that adds two numbers.")
NUM_REQUESTS = 1000
PEAK_BOUND, GROWTH_BOUND = 0.10, 0.02


def engine(target: str) -> EngineClient:
    return EngineClient(resolve(RunOptions(target=target), on_progress=lambda fraction, what: None))


def ask(client: EngineClient, number: int, max_tokens: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    message = Message("user", QUESTIONS[number % len(QUESTIONS)])
    client.stream(ChatRequest(id=str(number), messages=(message,), params=params)).result()


def peak(target: str) -> bool:
    """Print a line; False if the peak is further from what llama.cpp reports than its bound."""
    with engine(target) as client:
        info = client.start()
        for number in range(6):
            ask(client, number, 64)
        peak_bytes = client.snapshot().peak_rss_bytes
    parts = (info.model_bytes, info.cache_bytes, info.compute_bytes)
    excess = peak_bytes / sum(parts) - 1
    sys.stdout.write(
        f"{target}: weights {parts[0] / MIB:.0f}, caches {parts[1] / MIB:.0f}, buffers {parts[2] / MIB:.0f} MiB as "
        f"llama.cpp reports; peak of the process {peak_bytes / MIB:.0f} MiB, {excess:+.1%}, bound {PEAK_BOUND:.0%}\n"
    )
    return abs(excess) <= PEAK_BOUND


def growth(target: str) -> bool:
    """Print a line; False if the process grows more than its bound."""
    with engine(target) as client:
        client.start()
        process = psutil.Process(client.pid)
        sizes = []
        for number in range(NUM_REQUESTS):
            ask(client, number, 16)
            sizes.append(process.memory_info().rss)
    grown = sizes[-1] / sizes[99] - 1
    sys.stdout.write(
        f"{target}: {NUM_REQUESTS} requests, {sizes[99] / MIB:.1f} MiB after 100, {sizes[-1] / MIB:.1f} at the end, "
        f"{grown:+.2%}, bound {GROWTH_BOUND:.0%}\n"
    )
    return grown <= GROWTH_BOUND


MEASUREMENTS = {"peak": peak, "growth": growth}


def in_a_process(measurement: str, target: str) -> bool:
    command = [sys.executable, __file__, "--only", measurement, target]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--only"]:
        sys.exit(0 if MEASUREMENTS[sys.argv[2]](sys.argv[3]) else 1)
    chosen = sys.argv[1] if len(sys.argv) > 1 else "demo@1b"
    sys.exit(0 if all([in_a_process("peak", chosen), in_a_process("growth", "demo@native")]) else 1)

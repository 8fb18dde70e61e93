"""Peak memory of the engine process against what llama.cpp reports: python tests/measures/memory.py [TARGET]

Also 1 000 requests in a row: how much the process grows after the first hundred.
"""

from __future__ import annotations

import sys

import psutil

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.hub.resolve import resolve
from eaglelocal.hub.wish import Wish

MIB = 2**20
QUESTIONS = ("What is acceptance length?", "What is 347 + 285?", "Write a function that adds two numbers.")


def ask(client: EngineClient, number: int, max_tokens: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    message = Message("user", QUESTIONS[number % len(QUESTIONS)])
    client.stream(ChatRequest(id=str(number), messages=(message,), params=params)).result()


def peak(target: str) -> None:
    with EngineClient(resolve(Wish(target=target), on_progress=lambda fraction, what: None)) as client:
        info = client.start()
        for number in range(6):
            ask(client, number, 64)
        peak_bytes = client.snapshot().peak_rss_bytes
    parts = (info.model_bytes, info.cache_bytes, info.compute_bytes)
    reported = sum(parts)
    sys.stdout.write(
        f"{target}: weights {parts[0] / MIB:.0f}, caches {parts[1] / MIB:.0f}, buffers {parts[2] / MIB:.0f} MiB as "
        f"llama.cpp reports; peak of the process {peak_bytes / MIB:.0f} MiB, {peak_bytes / reported - 1:+.1%}\n"
    )


def growth(num_requests: int) -> None:
    with EngineClient(resolve(Wish(target="demo@native"), on_progress=lambda fraction, what: None)) as client:
        client.start()
        process = psutil.Process(client.pid)
        sizes = []
        for number in range(num_requests):
            ask(client, number, 16)
            sizes.append(process.memory_info().rss)
    sys.stdout.write(
        f"{num_requests} requests: {sizes[99] / MIB:.1f} MiB after 100, {sizes[-1] / MIB:.1f} at the end, "
        f"{sizes[-1] / sizes[99] - 1:+.2%}\n"
    )


if __name__ == "__main__":
    peak(sys.argv[1] if len(sys.argv) > 1 else "demo@1b")
    growth(1000)

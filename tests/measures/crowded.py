"""Seconds to the first token of a new conversation, in an empty and in a crowded house: crowded.py [--target REF] ...

Two servers run side by side: one whose slots all hold long conversations, and one that has as many slots and none. New
short conversations are asked of both in turn; the crowded one must make room for each, and copies the long ones to
RAM. Between two questions it idles for a while, or (--pause 0) not at all. Then the long conversations go on, which
copies them back. Printed are the seconds, the ratio crowded / empty with its 95 % interval, and the RAM of the engines.
Without --cache-ram 0, no long conversation is read again. Exits 1 if the ratio is over its bound.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))  # the doubles

from doubles.serve_process import ServeProcess, serve

from eaglelocal.bench.results import bound_mean

WORDS = ["river", "stone", "paper", "cloud", "window", "garden", "silver", "winter", "morning", "letter", "bridge"]
BOUND = 1.3
MIB = 2**20
Messages = list[dict[str, str]]


def ask(server: ServeProcess, messages: Messages, max_tokens: int) -> tuple[float, int]:
    """Seconds until the first token; tokens of the prompt that were not read."""
    asked = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(asked).encode(), headers)
    started, first_s, num_cached = time.perf_counter(), 0.0, 0
    with urllib.request.urlopen(request, timeout=900) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if not first_s and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first_s = time.perf_counter() - started
            if chunk.get("usage"):
                num_cached = (chunk["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return first_s or time.perf_counter() - started, num_cached


def question(rng: random.Random, num_words: int) -> dict[str, str]:
    return {"role": "user", "content": " ".join(rng.choices(WORDS, k=num_words))}


def rss(server: ServeProcess) -> str:
    engine = server.snapshot()["engine"]
    swapped = engine["swapped_bytes"] if isinstance(engine, dict) and "swapped_bytes" in engine else 0
    return f"{psutil.Process(server.engine_pid).memory_info().rss / MIB:.0f} MiB, of it {swapped / MIB:.0f} swapped"


def measure(crowded: ServeProcess, empty: ServeProcess, given: argparse.Namespace) -> bool:
    rng = random.Random(0)
    for server in (crowded, empty):
        ask(server, [question(rng, 20)], 4)
    long_ones = [[question(rng, given.words)] for _ in range(given.parallel)]
    for chat in long_ones:
        ask(crowded, chat, given.max_tokens)
    sys.stdout.write(f"crowded: {rss(crowded)}; empty: {rss(empty)}\n")
    took: dict[ServeProcess, list[float]] = {crowded: [], empty: []}
    for number in range(given.parallel):
        new = [question(rng, 20)]
        time.sleep(given.pause)
        for server in (crowded, empty) if number % 2 else (empty, crowded):
            took[server].append(ask(server, new, given.max_tokens)[0])
    report("new conversations", took[crowded], took[empty])
    sys.stdout.write(f"crowded: {rss(crowded)}; empty: {rss(empty)}\n")
    returning = [
        ask(crowded, [*chat, {"role": "assistant", "content": "."}, question(rng, 8)], 1) for chat in long_ones
    ]
    seconds = median([each for each, _ in returning])
    sys.stdout.write(f"long ones go on after {seconds:.3f} s; cached tokens {[cached for _, cached in returning]}\n")
    return median(took[crowded]) <= BOUND * median(took[empty])


def report(label: str, crowded: list[float], empty: list[float]) -> None:
    ratio = bound_mean([[one / other for one, other in zip(crowded, empty, strict=True)]])
    each = " ".join(f"{one:.3f}/{other:.3f}" for one, other in zip(crowded, empty, strict=True))
    sys.stdout.write(
        f"{label}: {median(crowded):.3f} s, {median(empty):.3f} s, crowded / empty "
        f"{ratio.mean:.2f} ({ratio.low:.2f}..{ratio.high:.2f}): {each}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo@300m:bf16")
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--words", type=int, default=560, help="of the long conversations")
    parser.add_argument("--max-tokens", type=int, default=24, help="of an answer to the new ones")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two questions")
    given = parser.parse_args()
    flags = ("--parallel", str(given.parallel), "--ctx", str(given.ctx))
    with ExitStack() as servers:
        crowded, empty = (servers.enter_context(serve("--target", given.target, *flags)) for _ in range(2))
        sys.exit(0 if measure(crowded, empty, given) else 1)

"""Gaps in running answers during a long prefill: tests/measures/token_gaps.py [--target REF] [--running N] [--words N]

Some answers stream; then somebody comes with a prompt of N words. Gaps between the chunks of the running ones,
before and meanwhile (median and 95th percentile), the time of a token there (a chunk has as many as were accepted at
once, more where a step is expensive anyway), and the time to first token of the long prompt, alone and meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the doubles

from doubles.serve_process import serve
from doubles.streaming import Json, ask, connections

WORDS = ("river", "stone", "paper", "cloud", "window", "garden", "silver", "winter", "morning", "letter", "bridge")


def long_prompt(num_words: int, seed: int) -> Json:
    rng = random.Random(seed)
    text = " ".join(rng.choice(WORDS) for _ in range(num_words))
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 2}


def running(seed: int) -> Json:
    return {
        "messages": [{"role": "user", "content": f"Tell me about the number {seed}."}],
        "temperature": 0.9,
        "seed": seed,
        "max_tokens": 1200,
        "ignore_eos": True,
        "tell_drafted": True,
    }


Arrival = tuple[float, int]  # seconds, tokens


async def one_round(
    url: str, num_running: int, num_words: int, seed: int
) -> tuple[list[Arrival], list[Arrival], float, float]:
    """Gaps and the tokens behind each, before and meanwhile; time to first token alone and meanwhile, in seconds."""
    async with connections(url, 8) as connection:
        single = await ask(connection, long_prompt(num_words, seed))
        stamps: list[list[Arrival]] = [[] for _ in range(num_running)]
        tasks = [asyncio.create_task(watch(connection, running(seed * 10 + i), stamps[i])) for i in range(num_running)]
        await asyncio.sleep(6)
        asked_at = time.perf_counter()
        beside = await ask(connection, long_prompt(num_words, seed + 1000))
        ended_at = asked_at + (beside.arrivals[0] if beside.arrivals else beside.took_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    quiet, busy = [], []
    for each in stamps:
        for (before, _), (after, num_tokens) in itertools.pairwise(each):
            if after < asked_at and before > asked_at - 5:
                quiet.append((after - before, num_tokens))
            elif before >= asked_at and after <= ended_at:
                busy.append((after - before, num_tokens))
    assert single.usage, single.error
    print(f"a prompt of {single.usage['prompt_tokens']} tokens", flush=True)
    return quiet, busy, single.arrivals[0], ended_at - asked_at


async def watch(connection: object, body: Json, stamps: list[Arrival]) -> None:
    import httpx

    assert isinstance(connection, httpx.AsyncClient)
    async with connection.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        async for line in response.aiter_lines():
            if '"content":' in line:
                stamps.append((time.perf_counter(), len(json.loads(line.removeprefix("data:")).get("drafted", ()))))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo@1b:bf16")
    parser.add_argument("--running", type=int, default=2)
    parser.add_argument("--words", type=int, default=1095)  # words; some 1 500 tokens
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    gaps_quiet: list[Arrival] = []
    gaps_busy: list[Arrival] = []
    alone, beside = [], []
    with serve("--target", chosen.target, "--ctx", "2048") as server:
        for number in range(chosen.rounds):
            found = asyncio.run(one_round(server.url, chosen.running, chosen.words, number))
            gaps_quiet += found[0]
            gaps_busy += found[1]
            alone.append(found[2])
            beside.append(found[3])
    quiet, busy = ([gap for gap, _ in each] for each in (gaps_quiet, gaps_busy))
    before_ms, meanwhile_ms = (
        1000 * sum(gap for gap, _ in each) / sum(n for _, n in each) for each in (gaps_quiet, gaps_busy)
    )
    ratio = statistics.median(busy) / statistics.median(quiet)
    tail = statistics.quantiles(busy, n=20)[-1] / statistics.quantiles(quiet, n=20)[-1]
    print(
        f"gaps: quiet {statistics.median(quiet) * 1000:.0f} ms, meanwhile {statistics.median(busy) * 1000:.0f} ms: "
        f"{ratio:.2f}x (95th percentiles: {tail:.2f}x), {len(busy)} gaps"
    )
    print(f"a token: {before_ms:.1f} ms, meanwhile {meanwhile_ms:.1f} ms: {meanwhile_ms / before_ms:.2f}x")
    print(
        f"first token of the long prompt: alone {statistics.median(alone):.1f} s, meanwhile "
        f"{statistics.median(beside):.1f} s: {statistics.median(beside) / statistics.median(alone):.2f}x"
    )
    return 0 if meanwhile_ms <= 2.5 * before_ms else 1


if __name__ == "__main__":
    raise SystemExit(main())

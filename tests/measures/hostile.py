"""Somebody streams while others attack: python tests/measures/hostile.py [--target REF] [--count N] [--templates N]

Gaps between the chunks of the one who streams: while N constraints of an adversary are asked by a few at once, with as
many hostile chat templates rendered beside as wanted; then for as long while all is quiet; then while as many honest
requests are answered as hostile ones were, for those share the steps too. Quantiles and their ratios, what became of
the requests, and whether the engine is still the same process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))  # the doubles

import httpx
from doubles.hostile_grammars import hostile
from doubles.hostile_templates import try_it
from doubles.serve_process import serve
from doubles.streaming import Json, connections

from eaglelocal.core.constraint import Constraint, Syntax

WARM_UP_S = 30.0
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
HONEST: Json = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "ignore_eos": True}


def bystander(number: int) -> Json:
    return {
        "messages": [{"role": "user", "content": f"Tell me about the number {number}."}],
        "temperature": 0.9,
        "seed": number,
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }


def asked_with(constraint: Constraint) -> Json:
    """A short answer that is bound so."""
    match constraint.syntax:
        case Syntax.JSON_SCHEMA:
            schema = {"name": "x", "schema": json.loads(constraint.source), "strict": constraint.is_strict}
            form: Json = {"type": "json_schema", "json_schema": schema}
        case Syntax.REGEX:
            form = {"type": "regex", "regex": constraint.source}
        case _:
            form = {"type": "grammar", "grammar": constraint.source}
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "response_format": form}


async def stream(connection: httpx.AsyncClient, stamps: list[float], is_over: asyncio.Event) -> None:
    for number in itertools.count():
        async with connection.stream("POST", "/v1/chat/completions", json=bystander(number)) as response:
            stamps.append(float("nan"))  # the time to a first token is no gap
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    stamps.append(time.perf_counter())
                if is_over.is_set():
                    return


async def attack(connection: httpx.AsyncClient, constraints: list[Constraint], outcomes: Counter[str]) -> None:
    while constraints:
        constraint = constraints.pop()
        try:
            response = await connection.post("/v1/chat/completions", json=asked_with(constraint), timeout=300)
            outcomes[str(response.status_code)] += 1
            if response.status_code >= 500:
                print(response.status_code, response.text[:300], repr(constraint)[:300], flush=True)
        except httpx.HTTPError as error:
            outcomes[type(error).__name__] += 1
            print(type(error).__name__, repr(constraint)[:300], flush=True)


async def render(seeds: list[int], outcomes: Counter[str]) -> None:
    """Hostile templates, as an engine runs them: in a process of their own."""
    while seeds:
        result = await asyncio.to_thread(try_it, seeds.pop())
        outcomes[f"template: {str(result['end']).partition(' ')[0]}"] += 1
        outcomes["honest render behind it"] += result["honest"] == "hello"


async def be_honest(connection: httpx.AsyncClient, number: int, duration_s: float) -> None:
    """As many plain requests as were answered, over the same time."""

    async def ask(index: int) -> None:
        await asyncio.sleep(duration_s * index / number)
        await connection.post("/v1/chat/completions", json=HONEST, timeout=300)

    await asyncio.gather(*map(ask, range(number)))


async def measured(url: str, count: int, num_templates: int, num_attackers: int, seed: int) -> None:
    random = Random(seed)
    constraints = [hostile(random) for _ in range(count)]
    outcomes: Counter[str] = Counter()
    async with connections(url, num_attackers + 2) as connection:
        before = (await connection.get("/v1/snapshot")).json()
        is_over, stamps = asyncio.Event(), list[float]()
        streaming = asyncio.create_task(stream(connection, stamps, is_over))
        watching = asyncio.create_task(tell_progress(constraints, count))

        async def gaps_while(work: Awaitable[object]) -> list[float]:
            stamps.clear()
            await work
            return gaps(stamps)

        async def be_attacked() -> None:
            attackers = [attack(connection, constraints, outcomes) for _ in range(num_attackers)]
            await asyncio.gather(*attackers, render(list(range(num_templates)), outcomes))

        await gaps_while(asyncio.sleep(WARM_UP_S))
        began_at = time.perf_counter()
        attacked = await gaps_while(be_attacked())
        duration_s = time.perf_counter() - began_at
        quiet = await gaps_while(asyncio.sleep(duration_s))
        honest = await gaps_while(be_honest(connection, outcomes["200"], duration_s))
        watching.cancel()
        is_over.set()
        await streaming
        after = (await connection.get("/v1/snapshot")).json()
    print(f"{count} constraints in {duration_s:.0f} s: {dict(outcomes)}")
    for name, values in (("quiet", quiet), ("honest", honest), ("attacked", attacked)):
        found = [of(values, quantile) for quantile in QUANTILES]
        print(
            f"{name:<9}{len(values):>7} gaps, ms: {', '.join(f'{value * 1e3:6.1f}' for value in found)}"
            f"  of quiet: {', '.join(f'{a / of(quiet, q):.2f}' for a, q in zip(found, QUANTILES, strict=True))}"
        )
    print(f"engine   {'the same process' if before['engine']['pid'] == after['engine']['pid'] else 'ANOTHER PROCESS'}")


async def tell_progress(constraints: list[Constraint], count: int) -> None:
    while True:
        await asyncio.sleep(60)
        print(f"{count - len(constraints)} of {count}", flush=True)


def gaps(stamps: list[float]) -> list[float]:
    return sorted(b - a for a, b in itertools.pairwise(stamps) if b == b and a == a)


def of(values: list[float], quantile: float) -> float:
    return values[min(int(len(values) * quantile), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="demo@300m:bf16")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--templates", type=int, default=1000)
    parser.add_argument("--attackers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with serve("--target", asked.target, "--parallel", "4") as server:
        asyncio.run(measured(server.url, asked.count, asked.templates, asked.attackers, asked.seed))


if __name__ == "__main__":
    main()

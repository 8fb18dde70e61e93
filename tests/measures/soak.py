"""Half an hour at eight at once: python tests/measures/soak.py [--target REF] [--minutes N] [--clients N]

Resident memory and open files of server and engine, and the time outside llama.cpp per step, at the beginning (after
a tenth of the time) and at the end (the last tenth). Exits 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the doubles

from doubles.serve_process import ServeProcess, num_files, rss_bytes, serve
from doubles.streaming import ask, connections
from measures.disconnecting_clients import questions

GROWTH_BOUND, HOST_BOUND = 0.02, 0.10
MIB = 2**20


@dataclass(frozen=True)
class Look:
    """At one moment."""

    at_s: float
    server_rss: int
    engine_rss: int
    files: int
    steps: float
    host_s: float


def look(server: ServeProcess) -> Look:
    engine = server.engine()
    files = num_files(server.pid) + num_files(int(engine["pid"]))
    pid = int(engine["pid"])
    return Look(time.monotonic(), rss_bytes(server.pid), rss_bytes(pid), files, engine["steps"], engine["host_s"])


async def load(server: ServeProcess, num_clients: int, seconds: float) -> tuple[list[Look], int, int]:
    asked, looks, ends_at = questions(40), [], time.monotonic() + seconds
    failures = 0

    async def client(number: int) -> int:
        nonlocal failures
        count = 0
        async with connections(server.url, 1) as connection:
            while time.monotonic() < ends_at:
                got = await ask(connection, asked[(number * 7 + count) % len(asked)])
                failures += not got.is_complete
                count += 1
        return count

    async def watch() -> None:
        while time.monotonic() < ends_at:
            await asyncio.sleep(seconds / 100)
            looks.append(await asyncio.to_thread(look, server))

    *counts, _ = await asyncio.gather(*(client(i) for i in range(num_clients)), watch())
    return looks, sum(counts), failures


def host_ms(looks: list[Look]) -> float:
    first, last = looks[0], looks[-1]
    return (last.host_s - first.host_s) / (last.steps - first.steps) * 1000


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=8)
    chosen = parser.parse_args()
    with serve("--target", chosen.target) as server:
        looks, num_requests, failures = asyncio.run(load(server, chosen.clients, chosen.minutes * 60))
    tenth = max(len(looks) // 10, 2)
    begin, end = looks[tenth : 2 * tenth], looks[-tenth:]
    growth = {
        name: statistics.median(getattr(one, name) for one in end)
        / statistics.median(getattr(one, name) for one in begin)
        - 1
        for name in ("server_rss", "engine_rss")
    }
    files = (statistics.median(one.files for one in begin), statistics.median(one.files for one in end))
    host = (host_ms(begin), host_ms(end))
    print(f"{num_requests} requests, {failures} failed, in {chosen.minutes:g} minutes with {chosen.clients} clients")
    print(
        f"server {end[-1].server_rss / MIB:.0f} MiB ({growth['server_rss']:+.1%}), engine "
        f"{end[-1].engine_rss / MIB:.0f} MiB ({growth['engine_rss']:+.1%}), open files {files[0]:g} -> {files[1]:g}"
    )
    print(f"outside llama.cpp: {host[0]:.2f} -> {host[1]:.2f} ms a step ({host[1] / host[0] - 1:+.1%})")
    fine = max(growth.values()) < GROWTH_BOUND and files[1] <= files[0] and host[1] / host[0] - 1 < HOST_BOUND
    return 0 if fine and not failures else 1


if __name__ == "__main__":
    raise SystemExit(main())

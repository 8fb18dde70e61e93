"""The engine of a loaded server dies again and again: python tests/measures/engine_kills.py [--target REF] [--kills N]

A death is SIGKILL, SIGSEGV or SIGABRT in turn, at a random moment while eight clients stream. Counted: requests
without an answer or an error, requests that were refused as if they had crashed it, answers that differ from the one
given alone, lines of the log and reports that tell of the deaths, seconds until /health is well again. The supervisor
writes one line for each process, and its report is named by the process: more lines than kills mean that an engine
died which was not killed here (for want of memory, by somebody else, or of a fault); those lines are shown. Exits 1 if
a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent))  # the doubles

from doubles.serve_process import ServeProcess, serve, wait_until_ready
from doubles.streaming import Streamed, ask, connections
from measures.disconnecting_clients import alone, is_near_tie, questions

from eaglelocal.worker.crash_report import MAX_REPORTS

NUM_CLIENTS = 8
BACK_WITHIN_S = 10.0
GAPS_S = (0.2, 4.0)  # of life between two deaths, at random
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
HANG_S = 600.0  # a request that takes longer hangs


async def under_load(
    server: ServeProcess, num_kills: int, moments: random.Random
) -> tuple[list[tuple[int, Streamed]], list[float], list[int]]:
    asked, over = questions(12), asyncio.Event()

    async def client(connection: httpx.AsyncClient, number: int) -> list[tuple[int, Streamed]]:
        got = []
        while not over.is_set():
            question = (number + len(got)) % len(asked)
            async with asyncio.timeout(HANG_S):
                got.append((question, await ask(connection, asked[question])))
            if got[-1][1].error:
                await asyncio.sleep(0.2)
        return got

    killed: list[int] = []

    async def killer() -> list[float]:
        back, pid = [], 0
        for number in range(num_kills):
            pid = await asyncio.to_thread(new_pid, server, pid)
            await asyncio.sleep(moments.uniform(*GAPS_S))
            os.kill(pid, SIGNALS[number % len(SIGNALS)])
            killed.append(pid)
            await asyncio.to_thread(wait_for_other, server, pid)
            back.append(await asyncio.to_thread(wait_until_ready, server))
            print(f"death {number + 1}: back in {back[-1]:.1f} s", flush=True)
        over.set()
        return back

    async with connections(server.url, NUM_CLIENTS) as connection:
        back, *result = await asyncio.gather(killer(), *(client(connection, i) for i in range(NUM_CLIENTS)))
    return [pair for some in result for pair in some], back, killed


def new_pid(server: ServeProcess, old: int) -> int:
    """Of the engine that runs. A busy one's last figures may be the previous engine's, or none (0)."""
    while (pid := server.engine_pid) in (0, old):
        time.sleep(0.05)
    return pid


def wait_for_other(server: ServeProcess, pid: int) -> None:
    """Until the server has noticed."""
    while server.health()[0] == 200:
        if server.engine_pid != pid:
            return
        time.sleep(0.02)


def pid_of(death: str) -> int:
    """Of the process whose end a line of the log tells; 0 where it names no report."""
    found = re.search(r"report: .*-(\d+)\.txt$", death)
    return int(found[1]) if found else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--back-within", type=float, default=BACK_WITHIN_S, metavar="SECONDS")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with serve("--target", chosen.target, log=log) as server:
            single = asyncio.run(alone(server.url, questions(12), ""))
            result, back, killed = asyncio.run(under_load(server, chosen.kills, random.Random(chosen.seed)))
            is_alive = server.process.poll() is None and server.health()[0] == 200
        deaths = [line for line in log.read_text().splitlines() if "the engine process" in line and " after " in line]
    complete = [(q, one) for q, one in result if one.is_complete]
    unanswered = [one for _, one in result if not one.is_complete and not one.error]
    wrong = [(q, one) for q, one in complete if one.text != single[q].text]
    ties = [one for q, one in wrong if is_near_tie(single[q], one.text)]
    sampled = [one for q, one in wrong if questions(12)[q]["temperature"] != 0]
    broken = [one for _, one in result if one.error]
    refused = [one for one in broken if one.status == 400]
    reports = [line for line in deaths if Path(line.rpartition("report: ")[2]).is_file()]
    print(
        f"{len(back)} deaths, {len(result)} requests: {len(complete)} complete, {len(broken)} ended with an error, "
        f"({len(refused)} of them refused), {len(unanswered)} with neither; {len(deaths)} lines in the log, "
        f"{len(reports)} reports; {len(wrong)} differ from the answer given alone ({len(ties)} at near-ties, "
        f"{len(sampled)} sampled); back within {max(back):.1f} s; {'alive' if is_alive else 'LOST'}"
    )
    unforeseen = [line for line in deaths if pid_of(line) not in killed]
    untold = sorted(set(killed) - {pid_of(line) for line in deaths})
    for line in unforeseen:
        print("not killed here:", line)
    if untold:
        print("killed, and not in the log:", *untold)
    for one in [one for one in broken if not one.is_done and one.status == 200][:3]:
        print("broken off:", one.error)
    explained = len(ties) + len(sampled) == len(wrong)
    is_told = not untold and len(deaths) == chosen.kills and len(reports) == min(chosen.kills, MAX_REPORTS)
    return 0 if is_alive and not unanswered and explained and is_told and max(back) <= chosen.back_within else 1


if __name__ == "__main__":
    raise SystemExit(main())

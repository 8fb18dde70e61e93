"""What HTTP costs: python tests/measures/overhead.py [--target REF] [--pairs N]

The same long answer, greedy, streamed by a server and given by `chat --json` (both with one slot), alternating; the
ratio of the rate that a client sees to the one that chat tells. Then the CPU time of a server with 16 streams that
wait for their turn, and of one with nothing to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the doubles

from doubles.serve_process import ServeProcess, serve
from doubles.streaming import ask, connections

QUESTION = "Write a function that adds two numbers."
MAX_TOKENS = 256


def by_chat(target: str) -> float:
    """tok/s from first to last token."""
    command = [sys.executable, "-m", "eaglelocal", "chat", QUESTION, "--target", target, "--json", "--temperature", "0"]
    command += ["--max-tokens", str(MAX_TOKENS)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["timings"]["decode_tok_s"])


async def by_http(url: str) -> float:
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    async with connections(url, 1) as connection:
        got = await ask(connection, body)
    assert got.is_complete, got.error
    return (got.usage["completion_tokens"] - 1) / (got.arrivals[-1] - got.arrivals[0])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_share(server: ServeProcess, seconds: float) -> float:
    before = cpu_s(server.pid)
    time.sleep(seconds)
    return (cpu_s(server.pid) - before) / seconds


async def idle_streams(server: ServeProcess) -> float:
    """CPU share of the server's own process while 16 streams wait for a slot that one long answer holds."""
    long = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": 1900,
    }
    async with connections(server.url, 17) as connection:
        streams = [asyncio.create_task(ask(connection, long)) for _ in range(17)]
        await asyncio.sleep(2)
        with_streams = await asyncio.to_thread(cpu_share, server, 10.0)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return with_streams


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo")
    parser.add_argument("--pairs", type=int, default=6)
    chosen = parser.parse_args()
    with serve("--target", chosen.target, "--parallel", "1", "--ctx", "2048") as server:
        asyncio.run(by_http(server.url))
        pairs = [(asyncio.run(by_http(server.url)), by_chat(chosen.target)) for _ in range(chosen.pairs)]
        ratio = statistics.median(http / chat for http, chat in pairs)
        print(
            f"server / chat --json: {ratio:.3f} (median of {len(pairs)} pairs: "
            + ", ".join(f"{http / chat:.2f}" for http, chat in pairs)
            + ")"
        )
        idle = cpu_share(server, 10.0)
        print(
            f"CPU of the server's process: idle {idle:.2%}; with one answer and 16 streams that wait "
            f"{asyncio.run(idle_streams(server)):.2%}"
        )
    return 0 if ratio >= 0.95 else 1


if __name__ == "__main__":
    raise SystemExit(main())

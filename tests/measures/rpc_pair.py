"""Speed of a model in one process with N threads, against half the threads here and half in an rpc-server.

    RPC_SERVER=.../rpc-server LLAMA_CPP_LIB_PATH=.../lib python tests/measures/rpc_pair.py TARGET --gpu-layers 8

Both servers stay loaded, without drafts, and answer the same prompt in turns. Printed are tokens a second of each, and
the mean ratio of pairs of answers with its 95 % interval.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from doubles.rpc_server import rpc_server, why_not
from doubles.serve_process import ServeProcess, serve

from eaglelocal.bench.results import bound_mean

PROMPT = "The ferry leaves at eight. Its tickets cost nine euros, and those of children five."


def measure_tok_s(server: ServeProcess, num_tokens: int) -> float:
    """Return tokens a second of one answer, whose prompt is in the cache after the first one."""
    fields = {"prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    began_s = time.perf_counter()
    reply = httpx.post(f"{server.url}/v1/completions", json=fields, timeout=300).raise_for_status().json()
    return int(reply["usage"]["completion_tokens"]) / (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--threads", type=int, default=2, help="of both together")
    parser.add_argument("--gpu-layers", default="auto", help="layers of the rpc-server")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    if problem := why_not():
        raise SystemExit(problem)
    half = given.threads // 2
    flags = ["--target", given.target, "--draft", "none", "--ctx", "512", "--parallel", "1"]
    with ExitStack() as stack:
        one = stack.enter_context(serve(*flags, "--threads", str(given.threads)))
        address = stack.enter_context(rpc_server(threads=half)).address
        split = ["--rpc", address, "--gpu-layers", given.gpu_layers, "--threads", str(half)]
        servers = (one, stack.enter_context(serve(*flags, *split)))
        speeds: list[list[float]] = [[], []]
        for turn in range(given.pairs + 2):
            for index in (0, 1) if turn % 2 else (1, 0):
                speed = measure_tok_s(servers[index], given.tokens)
                if turn >= 2:  # both are warm
                    speeds[index].append(speed)
    ratio = bound_mean([[pair / alone for alone, pair in zip(*speeds, strict=True)]])
    alone, pair = map(statistics.mean, speeds)
    sys.stdout.write(
        f"one process {alone:.1f} tokens/s, pair {pair:.1f}: {ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f})\n"
    )


if __name__ == "__main__":
    main()

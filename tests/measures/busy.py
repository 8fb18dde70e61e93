"""How long llama.cpp's threads should spin: python tests/measures/busy.py [--target REF] [--rounds N] [--spec S]

The same answer with several values of GOMP_SPINCOUNT (`default`: as libgomp has it), alternating, on the machine as it
is and beside processes that want the processor too. Prints tok/s relative to `default`, medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

QUESTION = "Write a function that adds two numbers."
VARIABLE = "GOMP_SPINCOUNT"
LONG = "300000"  # what libgomp does by itself


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many processes that never rest."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def tok_s(target: str, spec: str, spins: str) -> float:
    command = [sys.executable, "-m", "eaglelocal", "chat", QUESTION, "--json", "--target", target, "--spec", spec]
    command += ["--temperature", "0", "--max-tokens", "40"]
    environment = {**os.environ, VARIABLE: LONG if spins == "default" else spins}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, env=environment
    )
    return float(json.loads(done.stdout.splitlines()[-1])["timings"]["decode_tok_s"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="demo")
    parser.add_argument("--spec", default="off")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hogs", default="0,1")
    parser.add_argument("--spins", default="default,0,1000,5000,20000")
    chosen = parser.parse_args()
    values = chosen.spins.split(",")
    for count in map(int, chosen.hogs.split(",")):
        with hogs(count):
            rounds = [
                {spins: tok_s(chosen.target, chosen.spec, spins) for spins in values} for _ in range(chosen.rounds)
            ]
        for spins in values:
            ratio = statistics.median(one[spins] / one[values[0]] for one in rounds)
            speed = statistics.median(one[spins] for one in rounds)
            print(f"{count} beside it, {spins}: {speed:.1f} tok/s, {ratio:.2f}x {values[0]}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

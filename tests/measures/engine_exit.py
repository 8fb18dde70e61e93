"""Seconds between a parent's SIGKILL and the end of its engine process: python tests/measures/engine_exit.py

Ten runs each in the middle of an answer of the embedded model, and of a call that does not return. Exits 1 if one
takes longer than a second.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

TESTS = Path(__file__).resolve().parent.parent
NUM_RUNS, BOUND_S, PATIENCE_S = 10, 1.0, 30.0

PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from doubles.scripted_engine import BUILDER, plan
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Tokens
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.preparation.decision import resolve
from eaglelocal.core.run_options import RunOptions

if sys.argv[2] == "real":
    client = EngineClient(resolve(RunOptions(target="demo@native"), on_progress=lambda fraction, what: None))
else:
    client = EngineClient(plan(), builder=BUILDER)
client.start()
endless = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1000)
answer = client.stream(ChatRequest(id="r", text="hang", params=endless))
next(event for event in answer if isinstance(event, Tokens))
print(client.pid, flush=True)
time.sleep(600)
"""


def runs_still(pid: int) -> bool:
    """A process that was not reaped yet has ended all the same."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def seconds_to_end(engine: str) -> float:
    command = [sys.executable, "-c", PARENT, str(TESTS), engine]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        killed_s = time.monotonic()
        while runs_still(pid) and time.monotonic() - killed_s < PATIENCE_S:
            time.sleep(0.0005)
        return time.monotonic() - killed_s


def measure(engine: str, what: str) -> bool:
    """Print a line; False if a run is over the bound."""
    took = sorted(seconds_to_end(engine) for _ in range(NUM_RUNS))
    sys.stdout.write(
        f"{what}: {NUM_RUNS} runs, median {took[NUM_RUNS // 2]:.4f} s, longest {took[-1]:.4f} s, bound {BOUND_S:g} s\n"
    )
    return took[-1] <= BOUND_S


if __name__ == "__main__":
    within = [measure("real", "in the middle of an answer"), measure("scripted", "in a call that does not return")]
    sys.exit(0 if all(within) else 1)

"""Is `auto` never slower than plain where drafting is no use? tests/measures/hard_cases.py [CASE ...] [--pairs N]

Each case is one `eaglelocal bench`, `auto` against plain decoding in turn, answers of 128 tokens of which the first 64
do not count: what it takes to learn that drafting does not pay is the price of trying. Printed is the mean ratio, its
95 % interval and the bound below which it is not, one-sided, 95 %. Exits 1 where that bound is under 0.95.

random     prompts of random tokens, answered at temperature 1 by whatever the model makes of them
other      passages of our documents, in which the head was never trained, likewise
shuffled   the head's own weights, each tensor in another order
switch     questions of the corpus, answered far beyond their end: from easy to hard in the middle
q8_0 q4_0  targets whose costs have cliffs, on `random`
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from eaglelocal.bench.bench_prompts import builtin_prompts
from eaglelocal.core.run_options import RunOptions
from eaglelocal.preparation.decision import resolve

ROOT = Path(__file__).parent.parent.parent
LEAST, SKIP, MAX_TOKENS = 0.95, 64, 128


@dataclass(frozen=True, slots=True)
class Case:
    prompts: Callable[[random.Random], dict[str, object]]
    target_type: str = "bf16"
    temperature: float = 0.0  # 1: an answer without sense does not fall into a loop, which lookup would be glad of
    shuffles_head: bool = False


def random_tokens(rng: random.Random) -> dict[str, object]:
    return {"tokens": [rng.randrange(10, 4000) for _ in range(rng.randrange(16, 48))]}


def passage(rng: random.Random) -> dict[str, object]:
    words = (ROOT / rng.choice(["README.md", "ARCHITECTURE.md", "LICENSE"])).read_text(encoding="utf-8").split()
    first = rng.randrange(len(words) - 60)
    return {"messages": [{"role": "user", "content": " ".join(words[first : first + 50])}]}


def question(rng: random.Random) -> dict[str, object]:
    message = rng.choice(QUESTIONS).messages[-1]
    return {"messages": [{"role": "user", "content": message.content}]}


QUESTIONS = builtin_prompts(["chat", "math", "translate"], 100)
CASES = {
    "random": Case(random_tokens, temperature=1.0),
    "other": Case(passage, temperature=1.0),
    "shuffled": Case(question, shuffles_head=True),
    "switch": Case(question),
    "q8_0": Case(random_tokens, "q8_0", temperature=1.0),
    "q4_0": Case(random_tokens, "q4_0", temperature=1.0),
}


def shuffled(head: Path, copy: Path) -> Path:
    """The same file with the numbers of each matrix in another order; norms and maps stay what they are."""
    copy.write_bytes(head.read_bytes())
    rng = np.random.default_rng(3)
    for tensor in GGUFReader(copy, "r+").tensors:
        if len(tensor.shape) > 1:
            flat = tensor.data.reshape(-1).view(np.uint16)
            flat[:] = rng.permutation(flat)
    return copy


def measure(name: str, case: Case, size: str, num_pairs: int, folder: Path) -> bool:
    """Print a line; False if the bound is missed."""
    rng = random.Random(name)
    prompts = folder / f"{name}.jsonl"
    lines = [json.dumps({**case.prompts(rng), "category": name}) for _ in range(num_pairs)]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    target = f"demo@{size}:{case.target_type}"
    command = [
        sys.executable, "-m", "eaglelocal", "bench", "--target", target, "--prompts", str(prompts), "--spec", "auto",
        "--max-tokens", str(MAX_TOKENS), "--skip", str(SKIP), "--ignore-eos", "--json",
        "--temperature", str(case.temperature),
    ]  # fmt: skip
    if case.shuffles_head:
        head = resolve(RunOptions(target=target, draft_type="file"), on_progress=print).draft
        assert head is not None
        command += ["--draft", str(shuffled(head, folder / "shuffled.gguf")), "--draft-type", "file"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    (run,) = report["runs"]
    interval = f"{run['speedup_low']:.3f}..{run['speedup_high']:.3f}, bound {run['speedup_least']:.3f}"
    asleep = f"asleep at the end {run['asleep']} of {run['answers']}, acceptance length {run['acceptance_length']:.2f}"
    sys.stdout.write(f"{name:9} {target:15} {run['speedup']:.3f} ({interval}), {run['pairs']} pairs, {asleep}\n")
    sys.stdout.flush()
    return bool(run["speedup_least"] >= LEAST)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--size", default="300m")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        names = given.cases or list(CASES)
        within = [measure(name, CASES[name], given.size, given.pairs, Path(temporary)) for name in names]
    sys.exit(0 if all(within) else 1)

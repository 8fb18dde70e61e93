"""Do predicted and observed acceptance agree on real runs? python tests/measures/deciles.py [TARGET] [--prompts N]

The embedded model answers held-out tasks of the six kinds with `auto`; everything that was drafted and then judged by
the text counts, sent or not. Sorted by prediction: mean prediction and share of accepted tokens in each tenth. Ties
are common, for a head that knows its subject is sure of most tokens. Exits 1 where a tenth of at least 100 tokens
disagrees by more than 3 points. Deciles do not depend on speed, so the smallest target will do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from guide.evaluate import SIX_KINDS

from eaglelocal.bench.bench_prompts import builtin_prompts
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve
from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel

POINTS, MIN_WEIGHT = 0.03, 100
Seen = list[tuple[float, bool]]


class Noted(AcceptanceModel):
    """Remembers what was expected of each judged token, and what came."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Seen] = {}

    def learn(
        self, slot: int, drafter: str, depth: int, confidence: float, *, accepted: bool, is_repeat: bool = False
    ) -> float:
        expected = super().learn(slot, drafter, depth, confidence, accepted=accepted, is_repeat=is_repeat)
        self.seen.setdefault(drafter, []).append((expected, accepted))
        return expected


def note(engine: Engine, num_prompts: int, temperature: float) -> Noted:
    """Ask the six kinds in turn, one answer after the other, with a controller that begins knowing nothing."""
    noted = engine.controller.acceptance = Noted()
    by_kind = [builtin_prompts([kind], num_prompts) for kind in SIX_KINDS]
    for at, prompts in enumerate(zip(*by_kind, strict=True)):
        for prompt in prompts:
            params = SamplingParams(temperature=temperature, seed=at, max_tokens=256)
            engine.submit(ChatRequest(id=f"{prompt.category}-{at}", messages=prompt.messages, params=params))
            while engine.has_work:
                engine.step()
    return noted


def tenths(seen: Seen) -> list[Seen]:
    seen = sorted(seen, key=lambda each: each[0])
    return [seen[len(seen) * n // 10 : len(seen) * (n + 1) // 10] for n in range(10)]


def show(name: str, seen: Seen) -> bool:
    """False: a tenth that weighs enough disagrees."""
    agree = True
    sys.stdout.write(f"{name}: {len(seen)} tokens\n  predicted  observed  difference  tokens\n")
    for part in filter(None, tenths(seen)):
        predicted, observed = sum(p for p, _ in part) / len(part), sum(a for _, a in part) / len(part)
        is_off = len(part) >= MIN_WEIGHT and abs(predicted - observed) > POINTS
        agree &= not is_off
        difference = observed - predicted
        row = f"{predicted:11.3f}{observed:10.3f}{difference:+12.3f}{len(part):8}{'  off' if is_off else ''}"
        sys.stdout.write(row + "\n")
    return agree


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", nargs="?", default="demo@native")
    parser.add_argument("--prompts", type=int, default=20, help="of each kind")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    options = RunOptions(target=asked.target, threads=asked.threads)
    engine = build(resolve(options, on_progress=lambda fraction, what: None), lambda _: None)
    try:
        noted = note(engine, asked.prompts, asked.temperature)
    finally:
        engine.close()
    return 0 if all([show(name, seen) for name, seen in noted.seen.items()]) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Trees in one cache, or chains in a cache for each slot? tests/measures/trees.py [REF ...] [--slots N]

Two engines of one model stand side by side, and one or two slots of each answer as many prompts at once: first the one,
then the other, in turns. Printed is the ratio of tokens a second, trees / chains, with its 95 % interval.

auto  short prompts, drafted for
off   short prompts, not drafted for
long  behind texts of so many words that the cells of the other slot count, drafted for
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import replace

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts
from eaglelocal.bench.prompt_run import Side, ask
from eaglelocal.bench.results import bound_mean
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.request import AUTO_SPEC, OFF, Message, Spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.preparation.decision import resolve

PARAMS = SamplingParams(temperature=0.0, max_tokens=48)
CONTEXT, LONG_WORDS = 2048, 900
WORDS = ["river", "stone", "paper", "cloud", "window", "garden", "silver", "winter", "morning", "letter", "bridge"]


def behind_text(prompt: BenchPrompt, number: int) -> BenchPrompt:
    text = " ".join(itertools.islice(itertools.cycle(WORDS[number % 7 :] + WORDS), LONG_WORDS))
    return replace(prompt, messages=(Message("system", text), *prompt.messages))


def compare(reference: str, names: list[str], num_slots: int, num_pairs: int) -> None:
    plan = resolve(RunOptions(target=reference), on_progress=lambda share, what: None)
    plan = replace(plan, num_slots=num_slots, n_ctx=CONTEXT)
    trees, chains = (EngineClient(replace(plan, unified=unified)) for unified in (True, False))
    kinds = len({prompt.category for prompt in builtin_prompts([], 1)})
    prompts = builtin_prompts([], num_slots * -(-num_pairs // kinds))
    with trees, chains:
        trees.start()
        chains.start()
        cases = {
            "auto": (prompts, AUTO_SPEC),
            "off": (prompts, OFF),
            "long": ([behind_text(prompt, i) for i, prompt in enumerate(prompts)], AUTO_SPEC),
        }
        for name in names:
            asked, spec = cases[name]
            ratios = [
                ratio
                for i in range(0, len(asked), num_slots)
                if (ratio := pair(trees, chains, asked[i : i + num_slots], spec, f"{name} {i}"))
            ]
            said = bound_mean([ratios])
            what = f"{reference:14} {name:4} {num_slots} at once, trees / chains"
            sys.stdout.write(f"{what} {said.mean:.3f} ({said.low:.3f}..{said.high:.3f}), {len(ratios)} pairs\n")
            sys.stdout.flush()


def pair(trees: EngineClient, chains: EngineClient, prompts: list[BenchPrompt], spec: Spec, name: str) -> float | None:
    """Asked twice of both, in turns, the other way round the second time."""
    speeds: dict[bool, list[float]] = {True: [], False: []}
    for number, is_tree in enumerate((True, False, False, True)):
        side = Side(name, trees if is_tree else chains, spec)
        speeds[is_tree].append(ask(side, prompts, [PARAMS] * len(prompts), name=f"{name}-{number}").tok_s)
    return sum(speeds[True]) / sum(speeds[False]) if all(speeds[True] + speeds[False]) else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("references", nargs="*", default=["demo@300m:bf16", "demo@300m:q4_0"])
    parser.add_argument("--cases", nargs="*", default=["auto", "off", "long"], choices=["auto", "off", "long"])
    parser.add_argument("--slots", type=int, default=1, choices=[1, 2])
    parser.add_argument("--pairs", type=int, default=28)
    given = parser.parse_args()
    for reference in given.references:
        compare(reference, given.cases, given.slots, given.pairs)

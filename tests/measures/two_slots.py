"""One cache with trees, or a cache for each slot with chains? tests/measures/two_slots.py [REF ...] [--cases CASE ...]

Two engines of one model stand side by side, and two slots of each answer two prompts at once: first the one, then the
other, in turns. Printed is the ratio of tokens a second, one cache / a cache each, with its 95 % interval.

auto  short prompts, drafted for
off   short prompts, not drafted for
long  behind texts of so many words that the cells of the other slot count, drafted for
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import replace

from eaglelocal.bench.asking import Side, ask
from eaglelocal.bench.prompts import Prompt, built_in
from eaglelocal.bench.statistics import bounded_mean
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.request import AUTO, OFF, Message, Spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.hub.resolve import resolve
from eaglelocal.hub.wish import Wish

PARAMS = SamplingParams(temperature=0.0, max_tokens=48)
CONTEXT, LONG_WORDS = 2048, 900
WORDS = ["river", "stone", "paper", "cloud", "window", "garden", "silver", "winter", "morning", "letter", "bridge"]


def behind_text(prompt: Prompt, number: int) -> Prompt:
    text = " ".join(itertools.islice(itertools.cycle(WORDS[number % 7 :] + WORDS), LONG_WORDS))
    return replace(prompt, messages=(Message("system", text), *prompt.messages))


def compare(reference: str, names: list[str], num_pairs: int) -> None:
    plan = replace(resolve(Wish(target=reference), on_progress=lambda share, what: None), num_slots=2, n_ctx=CONTEXT)
    one, each = (EngineClient(replace(plan, unified=unified)) for unified in (True, False))
    kinds = len({prompt.category for prompt in built_in([], 1)})
    prompts = built_in([], 2 * -(-num_pairs // kinds))
    with one, each:
        one.start()
        each.start()
        cases = {
            "auto": (prompts, AUTO),
            "off": (prompts, OFF),
            "long": ([behind_text(prompt, i) for i, prompt in enumerate(prompts)], AUTO),
        }
        for name in names:
            asked, spec = cases[name]
            ratios = [
                ratio
                for i in range(0, len(asked), 2)
                if (ratio := pair(one, each, asked[i : i + 2], spec, f"{name} {i}"))
            ]
            said = bounded_mean([ratios])
            sys.stdout.write(
                f"{reference:14} {name:4} one cache / a cache each {said.mean:.3f} ({said.low:.3f}..{said.high:.3f}),"
                f" {len(ratios)} pairs\n"
            )
            sys.stdout.flush()


def pair(one: EngineClient, each: EngineClient, prompts: list[Prompt], spec: Spec, name: str) -> float | None:
    """Asked twice of both, in turns, the other way round the second time."""
    speeds: dict[bool, list[float]] = {True: [], False: []}
    for number, is_one in enumerate((True, False, False, True)):
        side = Side(name, one if is_one else each, spec)
        speeds[is_one].append(ask(side, prompts, [PARAMS] * 2, name=f"{name}-{number}").tok_s)
    return sum(speeds[True]) / sum(speeds[False]) if all(speeds[True] + speeds[False]) else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("references", nargs="*", default=["demo@300m:bf16", "demo@300m:q4_0"])
    parser.add_argument("--cases", nargs="*", default=["auto", "off", "long"], choices=["auto", "off", "long"])
    parser.add_argument("--pairs", type=int, default=28)
    given = parser.parse_args()
    for reference in given.references:
        compare(reference, given.cases, given.pairs)

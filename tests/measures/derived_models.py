"""How much a derived model differs from its source: logits along the source's own greedy texts.

    PYTHONPATH=tests python tests/measures/derived_models.py MODEL.gguf f16 1b:bf16 drop10 q2_k --texts 6

For each recipe: the largest and the mean difference of the logits, in the model's own standard deviations, at how many
positions the best token is the same (which is the acceptance of a draft model at depth one), and the bytes.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from doubles.engine_harness import drive
from doubles.real_engine import RawLogits

from eaglelocal.bench.bench_prompts import group_by_category, read_prompts
from eaglelocal.core.batch import Floats
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.target_resolver import find_target
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve

N_CTX = 1024
HELD_OUT = Path(__file__).parents[1] / "real" / "questions" / "held_out.jsonl"


@dataclass(frozen=True)
class Comparison:
    """A derived model beside its source; differences in standard deviations of the source's logits."""

    recipe: str
    gigabytes: float
    positions: int
    equal: int
    largest: float
    mean: float


def write_texts(model: Path, num_texts: int, max_tokens: int, threads: int) -> list[tuple[list[int], int]]:
    """Return greedy answers to held-out questions: prompt and answer as tokens, and the length of the prompt."""
    plan = resolve(RunOptions(target=str(model), draft="none", ctx=N_CTX, threads=threads), on_progress=ignore)
    engine = build(plan, lambda _: None)
    groups = group_by_category(read_prompts(HELD_OUT), -(-num_texts // 6))
    prompts = [prompt for group in groups.values() for prompt in group][:num_texts]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    requests = [
        ChatRequest(id=str(number), messages=prompt.messages, params=params) for number, prompt in enumerate(prompts)
    ]
    results = drive(engine, requests)
    texts = []
    for one in requests:
        prompt = list(engine.input_processor.make_prompt(one).tokens)
        texts.append(([*prompt, *results[one.id].tokens[:-1]], len(prompt) - 1))
    engine.close()
    return texts


def ignore(fraction: float, what: str) -> None:
    """Show no progress."""


def compare(path: Path, recipe: str, texts: Sequence[tuple[list[int], int]], small: Sequence[Floats]) -> Comparison:
    scorer = RawLogits(path, n_ctx=N_CTX)
    equal, positions, largest, means = 0, 0, 0.0, []
    for (tokens, first), theirs in zip(texts, small, strict=True):
        ours = scorer.along(tokens, first)
        difference = np.abs(ours - theirs) / theirs.std()
        largest = max(largest, float(difference.max()))
        means.append(float(difference.mean()))
        equal += int((ours.argmax(1) == theirs.argmax(1)).sum())
        positions += len(ours)
    scorer.close()
    return Comparison(recipe, path.stat().st_size / 1e9, positions, equal, largest, float(np.mean(means)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--beside", default="", help="compare with this recipe instead of the model itself")
    parser.add_argument("--texts", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    texts = write_texts(asked.model, asked.texts, asked.max_tokens, asked.threads)
    beside = make(asked.model, asked.beside) if asked.beside else asked.model
    scorer = RawLogits(beside, n_ctx=N_CTX)
    small = [scorer.along(tokens, first) for tokens, first in texts]
    scorer.close()
    found = []
    for recipe in asked.recipes:
        found.append(compare(make(asked.model, recipe), recipe, texts, small))
        one = found[-1]
        share = one.equal / one.positions
        print(
            f"{one.recipe:14} {one.gigabytes:6.2f} GB  equal {one.equal} of {one.positions} ({share:.1%})  "
            f"differences: largest {one.largest:.4f}, mean {one.mean:.4f} standard deviations",
            flush=True,
        )
    print(json.dumps({"model": asked.model.name, "beside": asked.beside, "compared": [asdict(one) for one in found]}))


def make(model: Path, recipe: str) -> Path:
    return find_target(locate_reference(f"{model}@{recipe}"), on_progress=ignore).path


if __name__ == "__main__":
    main()

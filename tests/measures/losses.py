"""Losses of a draft head compared: heads for the embedded model, trained from nothing with each, several seeds.

All learn from the same answers of the model, sampled at 0.7, for as many steps. Acceptance is measured on held-out
answers of it, greedy and sampled at 0.7 and 1, over drafts of five tokens, as verification would count them. A run
that was stopped goes on with what is missing; FOLDER keeps the answers and a line of JSON for each head.

    python tests/measures/losses.py FOLDER --seeds 3
    python tests/measures/losses.py FOLDER --report
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from doubles.eagle_files import head_source
from doubles.engine_harness import drive
from doubles.real_engine import ask, real_engine
from doubles.real_prompts import render

from eaglelocal.core.plan import Plan
from eaglelocal.core.request import OFF, Message
from eaglelocal.demo.corpus.mixture import KINDS, tasks_of
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.training import trainer
from eaglelocal.training.batches import BatchBuilder, Imitation, Unrolling
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.loop import Recipe
from eaglelocal.training.precision import autocast
from eaglelocal.training.target_capture import Captured, TargetCapture
from eaglelocal.training.trainer import HeadTraining, TrainedHead, train_head

TRAIN_PER_KIND, HELD_OUT_PER_KIND, MAX_TOKENS, N_CTX = 57, 14, 128, 1024
TEMPERATURES = (0.0, 0.7, 1.0)
ROWS, EPOCHS, POLICY_STEPS, NUM_DRAFTED = 8, 2, 50, 5
SOFT = Unrolling(chains=32)
# name -> the unrolling, epochs, steps on its own drafts; an epoch has as many steps as the policy's stage
VARIANTS: dict[str, tuple[Unrolling, int, int]] = {
    "soft": (SOFT, EPOCHS, 0),
    "lk": (replace(SOFT, loss="lk"), EPOCHS, 0),
    "soft, an epoch more": (SOFT, EPOCHS + 1, 0),
    "soft, then policy": (SOFT, EPOCHS, POLICY_STEPS),
    "nla": (replace(SOFT, loss="nla"), EPOCHS, 0),
    "tv": (replace(SOFT, loss="tv"), EPOCHS, 0),
    "soft, 7 steps": (replace(SOFT, num_steps=7), EPOCHS, 0),
    "soft, noise 0.05": (replace(SOFT, state_noise=0.05), EPOCHS, 0),
}

Conversations = tuple[TrainingConversation, ...]


class RememberingCapture(TargetCapture):
    """A target that reads each text once: all heads learn from the same ones."""

    _found: ClassVar[dict[tuple[object, ...], Captured]] = {}

    def read(self, tokens: Sequence[int], first: int) -> Captured:
        key = (tuple(tokens), first)
        if key not in self._found:
            self._found[key] = super().read(tokens, first)
        return self._found[key]


def collect(split: str, per_kind: int, temperature: float) -> Conversations:
    """Return the model's own answers to tasks of every kind."""
    target, _ = demo_sources()
    engine = real_engine(target, spec=OFF, num_slots=8, n_ctx=N_CTX, n_batch=512, threads=2)
    asked = []
    for kind in KINDS:
        for number, task in enumerate(islice(tasks_of(kind, 5, split), per_kind)):  # type: ignore[arg-type]
            prompt = render(engine, tuple(Message(each.role, each.content) for each in task.messages))
            params = {"temperature": temperature, "max_tokens": MAX_TOKENS, "ignore_eos": False, "seed": number}
            if len(prompt) + MAX_TOKENS < N_CTX:
                asked.append(ask(f"{kind} {number}", prompt, **params))
    found = []
    for first in range(0, len(asked), 64):
        result = drive(engine, asked[first : first + 64])
        found += [
            TrainingConversation(one.id, (*one.tokens, *result[one.id].tokens), len(one.tokens))
            for one in asked[first : first + 64]
        ]
    engine.close()
    return tuple(one for one in found if not one.is_short)


def load_answers(folder: Path) -> dict[str, Conversations]:
    """Return the answers to learn from, and those held out at each temperature; asked for once."""
    path = folder / "answers.json"
    if not path.is_file():
        sets = {"train": collect("train", TRAIN_PER_KIND, 0.7)}
        sets |= {str(t): collect("held_out", HELD_OUT_PER_KIND, t) for t in TEMPERATURES}
        path.write_text(json.dumps({name: [(one.key, one.tokens, one.num_prompt) for one in found]
                                    for name, found in sets.items()}))  # fmt: skip
    return {
        name: tuple(TrainingConversation(key, tuple(tokens), first) for key, tokens, first in found)
        for name, found in json.loads(path.read_text()).items()
    }


def make_training(name: str, seed: int, answers: dict[str, Conversations], folder: Path) -> HeadTraining:
    target, _ = demo_sources()
    unrolling, epochs, policy_steps = VARIANTS[name]
    plan = Plan(
        target=target, target_label="demo", n_ctx=N_CTX, threads=1, draft_kind="none", draft_label="none", spec=OFF
    )
    return HeadTraining(
        plan=plan,
        source=head_source(target),
        train_set=answers["train"],
        held_out=answers["0.7"][:8],
        checkpoint=folder / f"{name.replace(' ', '-')}-{seed}.state",
        epochs=epochs,
        rows_per_step=ROWS,
        recipe=Recipe(warmup_steps=10),
        device="cpu",
        seed=seed,
        unrolling=unrolling,
        num_policy_steps=policy_steps,
    )


@torch.no_grad()
def measure(trained: TrainedHead, training: HeadTraining, held_out: Conversations) -> float:
    """Return the acceptance length over drafts of NUM_DRAFTED tokens."""
    objective = Imitation(trained.draft_head, Unrolling(num_steps=NUM_DRAFTED, chains=10_000))
    total = None
    with RememberingCapture(training.plan, trained.draft_head.head.shape.taps, trained.vocabulary.tokens) as capture:
        builder = BatchBuilder(capture.read, trained.vocabulary, device="cpu")
        for first in range(0, len(held_out), 4):
            with autocast("cpu"):
                found = objective.measure_acceptance(builder.build(held_out[first : first + 4], seed=first))
            total = found if total is None else total + found
    assert total is not None
    return total.length


def run(name: str, seed: int, answers: dict[str, Conversations], folder: Path) -> dict[str, object]:
    trainer.TargetCapture = RememberingCapture  # type: ignore[misc]
    training, began_at = make_training(name, seed, answers, folder), time.monotonic()
    trained = train_head(training)
    lengths = {str(t): measure(trained, training, answers[str(t)]) for t in TEMPERATURES}
    training.checkpoint.unlink(missing_ok=True)
    steps = sum(stage.num_steps for stage in training.stages())
    return {"variant": name, "seed": seed, "steps": steps, "s": time.monotonic() - began_at, "lengths": lengths}


def read_runs(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def report(runs: list[dict[str, object]]) -> None:
    """Print means with standard errors, and the paired difference to `soft` of the same seeds."""
    by_variant: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for one in runs:
        by_variant[str(one["variant"])][int(one["seed"])] = one["lengths"]  # type: ignore[call-overload,assignment]
    print(f"{'variant':<22}{'heads':>6}" + "".join(f"{f'at {t:g}':>16}{'to soft':>18}" for t in TEMPERATURES))
    for name in VARIANTS:
        found, cells = by_variant.get(name, {}), ""
        for temperature in map(str, TEMPERATURES):
            values = [lengths[temperature] for lengths in found.values()]
            shared = [seed for seed in found if seed in by_variant["soft"]]
            gains = [found[seed][temperature] - by_variant["soft"][seed][temperature] for seed in shared]
            cells += f"{with_error(values):>16}{with_error(gains, sign=True):>18}"
        if found:
            print(f"{name:<22}{len(found):>6}{cells}")


def with_error(values: list[float], *, sign: bool = False) -> str:
    """Return `2.31 +- 0.02`: mean and standard error; without an error for a single value."""
    if not values:
        return "-"
    mean = sum(values) / len(values)
    text = f"{mean:+.3f}" if sign else f"{mean:.3f}"
    if len(values) == 1:
        return text
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return f"{text} +- {math.sqrt(variance / len(values)):.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="print what is finished, and train nothing")
    asked = parser.parse_args()
    results = asked.folder / "heads.jsonl"
    if not asked.report:
        asked.folder.mkdir(parents=True, exist_ok=True)
        answers = load_answers(asked.folder)
        for seed in range(1, asked.seeds + 1):
            done = {(one["variant"], one["seed"]) for one in read_runs(results)}
            for name in VARIANTS:
                if (name, seed) not in done:
                    with results.open("a") as file:
                        file.write(json.dumps(run(name, seed, answers, asked.folder)) + "\n")
    report(read_runs(results))

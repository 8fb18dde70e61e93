"""Losses of a draft head compared: heads for the embedded model, trained from nothing with each, several seeds.

All learn from the same answers of the model, sampled at 0.7, for as many steps. Acceptance is measured on held-out
answers of it, greedy and sampled at 0.7 and 1, over drafts of five tokens, as verification would count them. A run
that was stopped goes on with what is missing; FOLDER keeps the answers and a line of JSON for each head.

    python tests/measures/losses.py FOLDER --seeds 3
    python tests/measures/losses.py FOLDER --report

With a target and a head of your own each loss goes on from that head, one pass over the answers, which are a file that
`eaglelocal train --work` keeps, without those that the head has learned from:

    python tests/measures/losses.py FOLDER --target FILE --head FILE --answers work/answers.jsonl \\
        --learned earlier/answers.jsonl --texts 256 --variants "as it was" soft lk tv nla --temperatures 0 --seeds 2
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from doubles.eagle_files import head_source
from doubles.engine_harness import drive
from doubles.real_engine import ask, real_engine
from doubles.real_prompts import HELD_OUT, render
from guide.corpus.mixture import KINDS, tasks_of

from eaglelocal.bench.bench_prompts import group_by_category, read_prompts
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import OFF, Message
from eaglelocal.engine.engine import Engine
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.training import trainer
from eaglelocal.training.batches import BatchBuilder, Imitation, Unrolling
from eaglelocal.training.conversations import TrainingConversation, read_conversations
from eaglelocal.training.device import autocast
from eaglelocal.training.draft_head import DraftHead, DraftVocabulary, choose_vocabulary, make_draft_head
from eaglelocal.training.head_file import read_source
from eaglelocal.training.loop import Recipe, scale_recipe
from eaglelocal.training.target_capture import Captured, TargetCapture
from eaglelocal.training.trainer import HeadTraining, train_head

TRAIN_PER_KIND, HELD_OUT_PER_KIND, MAX_TOKENS, N_CTX = 57, 14, 128, 1024
OWN_HELD_OUT_PER_KIND, OWN_CTX = 8, 384  # with a target of one's own
TEMPERATURES = (0.0, 0.7, 1.0)
ROWS, EPOCHS, POLICY_STEPS, NUM_DRAFTED = 8, 2, 50, 5
SOFT = Unrolling(chains=32)
# name -> the unrolling, epochs, steps on its own drafts; an epoch has as many steps as the policy's stage
AS_IT_WAS = "as it was"  # the head with which training begins
VARIANTS: dict[str, tuple[Unrolling, int, int]] = {
    AS_IT_WAS: (SOFT, 0, 0),
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
Prompts = list[tuple[str, tuple[int, ...]]]  # with names


@dataclass(frozen=True)
class Pair:
    """A target, and the head from which training goes on; None: from nothing.

    scale  share of the learning rates of a new head
    """

    target: Path
    head: Path | None = None
    n_ctx: int = N_CTX
    scale: float = 1.0


class RememberingCapture(TargetCapture):
    """A target that reads each text once: all heads learn from the same ones."""

    _found: ClassVar[dict[tuple[object, ...], Captured]] = {}

    def read(self, tokens: Sequence[int], first: int) -> Captured:
        key = (tuple(tokens), first)
        if key not in self._found:
            self._found[key] = super().read(tokens, first)
        return self._found[key]


def corpus_prompts(engine: Engine, split: str, per_kind: int) -> Prompts:
    """Return tasks of every kind that the embedded model knows."""
    return [
        (f"{kind} {number}", render(engine, tuple(Message(each.role, each.content) for each in task.messages)))
        for kind in KINDS
        for number, task in enumerate(islice(tasks_of(kind, 5, split), per_kind))  # type: ignore[arg-type]
    ]


def held_out_questions(engine: Engine) -> Prompts:
    return [
        (f"{kind} {number}", render(engine, prompt.messages))
        for kind, prompts in group_by_category(read_prompts(HELD_OUT)).items()
        for number, prompt in enumerate(prompts[:OWN_HELD_OUT_PER_KIND])
    ]


def collect(pair: Pair, make_prompts: Callable[[Engine], Prompts], temperature: float) -> Conversations:
    """Return the target's own answers to these prompts, as far as they fit."""
    engine = real_engine(pair.target, spec=OFF, num_slots=8, n_ctx=pair.n_ctx, n_batch=512, threads=1)
    asked = []
    for number, (name, prompt) in enumerate(make_prompts(engine)):
        params = {"temperature": temperature, "max_tokens": MAX_TOKENS, "ignore_eos": False, "seed": number}
        if len(prompt) + MAX_TOKENS < pair.n_ctx:
            asked.append(ask(name, prompt, **params))
    found = []
    for first in range(0, len(asked), 64):
        result = drive(engine, asked[first : first + 64])
        found += [
            TrainingConversation(one.id, (*one.tokens, *result[one.id].tokens), len(one.tokens))
            for one in asked[first : first + 64]
        ]
    engine.close()
    return tuple(one for one in found if not one.is_short)


def ask_demo(pair: Pair, temperatures: Sequence[float]) -> dict[str, Conversations]:
    sets = {"train": collect(pair, lambda engine: corpus_prompts(engine, "train", TRAIN_PER_KIND), 0.7)}
    return sets | {
        str(t): collect(pair, lambda engine: corpus_prompts(engine, "held_out", HELD_OUT_PER_KIND), t)
        for t in temperatures
    }


def take_answers(
    pair: Pair, kept: Path, learned: Path | None, most: int, temperatures: Sequence[float]
) -> dict[str, Conversations]:
    """Return kept answers that the head has not learned from, and new ones to held-out questions."""
    known = read_conversations(learned) if learned else {}
    new = [one.cut(pair.n_ctx) for key, one in read_conversations(kept).items() if key not in known]
    sets = {"train": tuple([one for one in new if not one.is_short][:most])}
    return sets | {str(t): collect(pair, held_out_questions, t) for t in temperatures}


def load_answers(folder: Path, make_sets: Callable[[], dict[str, Conversations]]) -> dict[str, Conversations]:
    """Return the answers to learn from, and those held out at each temperature; asked for once."""
    path = folder / "answers.json"
    if not path.is_file():
        path.write_text(json.dumps({name: [(one.key, one.tokens, one.num_prompt) for one in found]
                                    for name, found in make_sets().items()}))  # fmt: skip
    return {
        name: tuple(TrainingConversation(key, tuple(tokens), first) for key, tokens, first in found)
        for name, found in json.loads(path.read_text()).items()
    }


def make_training(pair: Pair, name: str, seed: int, train_set: Conversations, folder: Path) -> HeadTraining:
    unrolling, epochs, policy_steps = VARIANTS[name]
    epochs = epochs if pair.head is None else epochs // EPOCHS
    source = head_source(pair.target) if pair.head is None else read_source(pair.target, pair.head)
    num_steps = epochs * math.ceil(len(train_set) / ROWS)
    warm = scale_recipe(source.target.n_embd, num_steps, scale=pair.scale, decay_share=1.0)
    plan = Plan(
        target=pair.target,
        target_label="target",
        n_ctx=pair.n_ctx,
        threads=1,
        draft_kind="none",
        draft_label="none",
        spec=OFF,
    )
    return HeadTraining(
        plan=plan,
        source=source,
        train_set=train_set,
        held_out=(),
        checkpoint=folder / f"{name.replace(' ', '-')}-{seed}.state",
        epochs=epochs,
        rows_per_step=ROWS,
        recipe=Recipe(warmup_steps=10) if pair.head is None else warm,
        device="cpu",
        seed=seed,
        unrolling=unrolling,
        num_policy_steps=policy_steps,
    )


def train_or_take(training: HeadTraining) -> tuple[DraftHead, DraftVocabulary]:
    """Return the trained head; without an epoch the one with which training would begin."""
    if training.epochs:
        trained = train_head(training)
        return trained.draft_head, trained.vocabulary
    vocabulary = choose_vocabulary(training.source, None)
    return make_draft_head(training.source, vocabulary, max_context=training.plan.n_ctx), vocabulary


@torch.no_grad()
def measure(head: DraftHead, vocabulary: DraftVocabulary, plan: Plan, held_out: Conversations) -> float:
    """Return the acceptance length over drafts of NUM_DRAFTED tokens."""
    objective = Imitation(head, Unrolling(num_steps=NUM_DRAFTED, chains=10_000))
    total = None
    with RememberingCapture(plan, head.head.shape.taps, vocabulary.tokens) as capture:
        builder = BatchBuilder(capture.read, vocabulary, device="cpu")
        for first in range(0, len(held_out), 4):
            with autocast("cpu"):
                found = objective.measure_acceptance(builder.build(held_out[first : first + 4], seed=first))
            total = found if total is None else total + found
    assert total is not None
    return total.length


def run(pair: Pair, name: str, seed: int, answers: dict[str, Conversations], folder: Path) -> dict[str, object]:
    trainer.TargetCapture = RememberingCapture  # type: ignore[misc]
    training, began_at = make_training(pair, name, seed, answers["train"], folder), time.monotonic()
    head, vocabulary = train_or_take(training)
    held_out = {each: found for each, found in answers.items() if each != "train"}
    lengths = {each: measure(head, vocabulary, training.plan, found) for each, found in held_out.items()}
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
    temperatures = list(runs[0]["lengths"]) if runs else []  # type: ignore[call-overload]
    print(f"{'variant':<22}{'heads':>6}" + "".join(f"{f'at {t}':>16}{'to soft':>18}" for t in temperatures))
    for name in VARIANTS:
        found, cells = by_variant.get(name, {}), ""
        for temperature in temperatures:
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


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=[*VARIANTS][1:])
    parser.add_argument("--temperatures", nargs="+", type=float, default=TEMPERATURES)
    parser.add_argument("--target", type=Path, help="a model of your own; with --head and --answers")
    parser.add_argument("--head", type=Path)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--learned", type=Path, help="answers that the head has learned from")
    parser.add_argument("--texts", type=int, default=256, help="of --answers, at most")
    parser.add_argument("--scale", type=float, default=0.25, help="of a new head's rates; 0.1 is what --learn has")
    parser.add_argument("--report", action="store_true", help="print what is finished, and train nothing")
    return parser.parse_args()


def main() -> None:
    asked = read_arguments()
    results = asked.folder / "heads.jsonl"
    if not asked.report:
        asked.folder.mkdir(parents=True, exist_ok=True)
        pair = Pair(asked.target, asked.head, OWN_CTX, asked.scale) if asked.target else Pair(demo_sources()[0])
        take = partial(take_answers, pair, asked.answers, asked.learned, asked.texts, asked.temperatures)
        answers = load_answers(asked.folder, take if asked.target else partial(ask_demo, pair, asked.temperatures))
        for seed in range(1, asked.seeds + 1):
            done = {(one["variant"], one["seed"]) for one in read_runs(results)}
            for name in asked.variants:
                if (name, seed) not in done:
                    with results.open("a") as file:
                        file.write(json.dumps(run(pair, name, seed, answers, asked.folder)) + "\n")
    report(read_runs(results))


if __name__ == "__main__":
    main()

"""`python -m guide.build`: the embedded model and its draft head, from generated corpus to two GGUF files.

Builds tokenizer, target and head, in this order; each step leaves its result in the work folder, and a run that was
stopped resumes there. Defines the order, the budgets and the file names; the corpus, the training and the file formats
are elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch

from eaglelocal import locations
from eaglelocal.core.atomic_file import SHARED, make_folder
from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.gguf.reader import read_header
from eaglelocal.training.draft_head import fill_head
from eaglelocal.training.eagle_head import EagleHead, HeadShape
from eaglelocal.training.loop import Objective, Recipe, TrainingRun, train
from eaglelocal.training.progress import TrainingProgress
from guide.corpus.mixture import conversations, render
from guide.document_packing import PackedBatch, Pieces
from guide.gguf_export import export_head, export_target, round_to_bfloat16
from guide.gguf_reload import fill_target, read_tokenizer
from guide.head_objective import ChainPlan, TrainingTimeTest
from guide.held_out import HeldOutEvaluation
from guide.llama_target import LlamaTarget, TargetShape
from guide.next_token import NextToken
from guide.token_shards import Shards, ShardWriter, Stage
from guide.tokenizer import GuideTokenizer, load_tokenizer, train_tokenizer

TARGET_NAME, HEAD_NAME = "eaglelocal guide", "eaglelocal guide EAGLE-3.1 head"
TARGET_FILE, HEAD_FILE = "guide-target.gguf", "guide-head.gguf"
NUM_TOKENIZER_CONVERSATIONS, NUM_HELD_OUT_CONVERSATIONS = 40_000, 1_500
TARGET_TOKENS_PER_HOUR, HEAD_TOKENS_PER_HOUR = 36_000_000, 36_000_000  # on two cores with AMX; other machines vary
TARGET_SHARE, HEAD_SHARE = 0.65, 0.30  # of the hours; the rest is corpus, tokenizer and compilation
LONG_SHARE = 0.15  # of the tokens, trained last, in rows of the full context
# A quarter of the learning rates, decaying from the first step on, so that little is forgotten.
CONTINUED_RECIPE = Recipe(muon_lr=0.005, adam_lr=7.5e-4, attention_lr=4e-4, decay_share=1.0)


def make_embedded_head_shape(
    target: TargetShape,
    *,
    taps: tuple[int, ...] = (1, 3, 5),
    num_heads: int = 4,
    num_kv_heads: int = 4,
    ffn: int = 704,
) -> HeadShape:
    """Return the shape of the embedded model's head, as wide as the target, whose embedding and lm_head it borrows."""
    return HeadShape(
        width=target.width,
        tap_width=target.width,
        taps=taps,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=target.head_size,
        ffn=ffn,
        max_context=target.max_context,
        norm_eps=target.norm_eps,
        rope_theta=target.rope_theta,
    )


def can_compile() -> bool:
    """Return whether there is a C++ compiler, which torch.compile needs; without one training runs eagerly (slower)."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of a build: its folders, planned hours, seed, and the model to start from."""

    out: Path
    work: Path
    hours: float
    seed: int
    start: Path | None = None  # folder of the model to continue from; None: from scratch

    @property
    def recipe(self) -> Recipe:
        return Recipe() if self.start is None else CONTINUED_RECIPE

    @property
    def tokenizer_file(self) -> Path:
        return self.work / "tokenizer.json"

    def target_stages(self) -> tuple[Stage, ...]:
        return make_stages(int(self.hours * TARGET_SHARE * TARGET_TOKENS_PER_HOUR))

    def head_stages(self) -> tuple[Stage, ...]:
        return make_stages(int(self.hours * HEAD_SHARE * HEAD_TOKENS_PER_HOUR))


def make_stages(num_tokens: int) -> tuple[Stage, ...]:
    long_tokens = int(num_tokens * LONG_SHARE)
    return (
        Stage("short", row_length=512, num_tokens=num_tokens - long_tokens),
        Stage("long", row_length=TargetShape().max_context, num_tokens=long_tokens),
    )


def documents(seed: int) -> Iterator[Pieces]:
    return (render(task) for task in conversations(seed, "train"))


def build_tokenizer(build: BuildOptions) -> GuideTokenizer:
    if not build.tokenizer_file.is_file() and build.start is not None:
        read_tokenizer(build.start / TARGET_FILE).save(build.tokenizer_file)
    elif not build.tokenizer_file.is_file():
        texts = ("".join(text for text, _ in pieces) for pieces in documents(build.seed))
        train_tokenizer(islice(texts, NUM_TOKENIZER_CONVERSATIONS)).save(build.tokenizer_file)
    return load_tokenizer(build.tokenizer_file)


def build_target(build: BuildOptions, tokenizer: GuideTokenizer) -> LlamaTarget:
    torch.manual_seed(build.seed)
    target = LlamaTarget(TargetShape(vocab=tokenizer.num_tokens))
    if build.start is not None:
        fill_target(target, build.start / TARGET_FILE)
    evaluation = make_held_out_evaluation(tokenizer, build.seed)
    with TrainingProgress("target") as progress:
        progress.note(f"{target.num_parameters() / 1e6:.2f} M parameters, {build.hours:g} hours planned for the build")

        def on_milestone(done: int) -> None:
            progress.note(f"held out at step {done}: {evaluation.evaluate_target(target)}")
            export_target(target, tokenizer, build.work / f"early-{TARGET_FILE}", name=f"{TARGET_NAME} (step {done})")

        shards = Shards(build.work / "target-rows", build.target_stages(), build.seed)
        train_on_shards(build, NextToken(target, compiled=can_compile()), shards, (progress, on_milestone))
        round_to_bfloat16(target)
        progress.note(f"held out at the end: {evaluation.evaluate_target(target)}")
    export_target(target, tokenizer, build.out / TARGET_FILE, name=TARGET_NAME)
    return target


def build_head(build: BuildOptions, tokenizer: GuideTokenizer, target: LlamaTarget) -> None:
    torch.manual_seed(build.seed)
    head = EagleHead(make_embedded_head_shape(target.shape))
    if build.start is not None:
        fill_head(head, read_header(build.start / HEAD_FILE))
    evaluation = make_held_out_evaluation(tokenizer, build.seed)
    objective = TrainingTimeTest(head, target, ChainPlan(), compiled=can_compile())
    # held-out rows have many shapes, and compiling for each would cost more than it saves
    uncompiled = TrainingTimeTest(head, target, ChainPlan(), compiled=False)
    with TrainingProgress("head") as progress:

        def on_milestone(done: int) -> None:
            progress.note(f"held out at step {done}: {evaluation.evaluate_head(uncompiled)}")
            export_head(head, tokenizer, build.work / f"early-{HEAD_FILE}", name=f"{HEAD_NAME} (step {done})")

        shards = Shards(build.work / "head-rows", build.head_stages(), build.seed + 1)
        train_on_shards(build, objective, shards, (progress, on_milestone))
        round_to_bfloat16(head)
        progress.note(f"held out at the end: {evaluation.evaluate_head(uncompiled)}")
    export_head(head, tokenizer, build.out / HEAD_FILE, name=HEAD_NAME)


def train_on_shards(
    build: BuildOptions,
    objective: Objective,
    shards: Shards,
    reports: tuple[TrainingProgress, Callable[[int], None]],
) -> None:
    """Train on the stages of the shards, which another process writes ahead; the checkpoint lies next to them."""
    progress, on_milestone = reports
    writer = ShardWriter(shards, build.tokenizer_file, documents)

    def batches(stage: Stage, step: int) -> tuple[PackedBatch]:
        writer.wait_for(stage, step)
        return (shards.batch(stage, step),)

    checkpoint = shards.folder.with_suffix(".checkpoint")
    try:
        train(TrainingRun(objective, shards.stages, batches, checkpoint, build.recipe, on_milestone), progress)
    finally:
        writer.close()


def load_trained_target(build: BuildOptions, tokenizer: GuideTokenizer) -> LlamaTarget:
    """Return the target from an earlier run's last checkpoint. Raises UsageError if there is none."""
    checkpoint = build.work / "target-rows.checkpoint"
    if not checkpoint.is_file():
        raise UsageError(f"no trained target in {build.work}", hint="python -m guide.build --only target")
    target = LlamaTarget(TargetShape(vocab=tokenizer.num_tokens))
    target.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["module"])
    round_to_bfloat16(target)
    return target


def make_held_out_evaluation(tokenizer: GuideTokenizer, seed: int) -> HeldOutEvaluation:
    tasks = islice(conversations(seed, "held_out"), NUM_HELD_OUT_CONVERSATIONS)
    return HeldOutEvaluation.of(((task.kind, render(task)) for task in tasks), tokenizer)


def corpus_digest() -> str:
    """Return a hash of all facts, word lists and generators of the corpus."""
    folder = Path(__file__).parent
    files = sorted([folder / "facts.toml", *(folder / "corpus").glob("*.py"), *(folder / "corpus").glob("*.toml")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def claim_work_folder(build: BuildOptions) -> None:
    """Mark the work folder as this build's. Raises UsageError if it holds a build with other options or corpus."""
    stamp = build.work / "build.json"
    ours = {"seed": build.seed, "corpus": corpus_digest(), "start": str(build.start or "")}
    if not stamp.is_file():
        make_folder(build.work, SHARED)
        stamp.write_text(json.dumps(ours))
        return
    theirs = read_object(stamp.read_text())
    changed = [key for key, value in ours.items() if theirs.get(key) != value]
    if changed:
        message = f"{build.work} holds a build with another {' and '.join(changed)}"
        raise UsageError(message, hint=f"`rm -r {build.work}`")


def run(build: BuildOptions, only: str | None) -> None:
    claim_work_folder(build)
    tokenizer = build_tokenizer(build)
    target = load_trained_target(build, tokenizer) if only == "head" else build_target(build, tokenizer)
    if only != "target":
        build_head(build, tokenizer, target)


def parse_arguments(arguments: Sequence[str] | None) -> tuple[BuildOptions, str | None]:
    parser = argparse.ArgumentParser(prog="python -m guide.build", description="build the embedded model")
    parser.add_argument("--out", type=Path, default=locations.profiles_dir() / "demo", help="folder for the GGUF files")
    parser.add_argument(
        "--work", type=Path, default=locations.cache_dir() / "demo-build", help="folder for the state of the build"
    )
    parser.add_argument("--hours", type=float, default=2.0, help="approximate duration of the build on two cores")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--from", dest="start", type=Path, metavar="FOLDER", help="continue from the GGUF files in this folder"
    )
    parser.add_argument("--only", choices=("target", "head"))
    chosen = parser.parse_args(arguments)
    return BuildOptions(chosen.out, chosen.work, chosen.hours, chosen.seed, chosen.start), chosen.only


def main(arguments: Sequence[str] | None = None) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    build, only = parse_arguments(arguments)
    try:
        run(build, only)
    except EagleLocalError as error:
        sys.exit(f"error: {error.message}\n\nhint: {error.hint}")


if __name__ == "__main__":
    main()

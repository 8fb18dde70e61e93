"""`eaglelocal train`: train an EAGLE-3.1 head on a target's own answers; `--draft auto` then finds it.

Collects answers of the target, trains a new or an existing head on them, and compares it with the draft used so
far on held-out questions. A head that is no better is not kept.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.amounts import duration_text
from eaglelocal.cli.import_head import check_asked, progress_of
from eaglelocal.cli.load_model import sampling_of, settings_of, start_engine
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.cli.train_options import TrainOptions, check_there_is_room, digest_of, lessons_of
from eaglelocal.core.events import LoadProgress
from eaglelocal.errors import UsageError
from eaglelocal.training.device import DEVICES, device_of

if TYPE_CHECKING:
    from eaglelocal.cli.reports.train import TrainResult
    from eaglelocal.cli.train_questions import TrainQuestions
    from eaglelocal.client.client import Client
    from eaglelocal.core.request import ChatRequest
    from eaglelocal.hub.heads.trial_verdict import TrialAcceptance
    from eaglelocal.training.conversations import Collected, TrainingConversation
    from eaglelocal.training.loop import Recipe
    from eaglelocal.training.trainer import HeadTraining, TrainedHead

DEFAULT_SLOTS = 4
LEAST_CONVERSATIONS = 40
HELD_OUT_EVERY, LEAST_HELD_OUT, MOST_HELD_OUT = 20, 8, 64
ROWS_PER_STEP = 8
TRIAL_TOKENS = 3000
OWN = frozenset({"start", "prompts", "tokens", "epochs", "out", "type", "work", "torch_device", "as_json"})

Start = Annotated[
    str, typer.Option("--from", metavar="auto|none|REF", help="The head that goes on learning; none: a new one.")
]
Prompts = Annotated[
    str | None, typer.Option(metavar="FILE", help="Questions, as `bench` reads them; unset: your chats, built-in ones.")
]
Tokens = Annotated[int, typer.Option(metavar="N", min=1000, help="Of answers to learn from.")]
Epochs = Annotated[int, typer.Option(metavar="N", min=1, help="How often each answer is seen.")]
Out = Annotated[str | None, typer.Option(metavar="FILE", help="Unset: where `--draft auto` finds it.")]
Type = Annotated[str, typer.Option(metavar="f16|bf16|q8_0|f32", help="Of the weights.")]
Work = Annotated[str | None, typer.Option(metavar="FOLDER", help="For answers, and the state of a stopped run.")]
TorchDevice = Annotated[str, typer.Option(metavar="|".join(DEVICES), help="What the head learns on.")]


def train(
    context: typer.Context,
    target: flags.Target = None,
    start: Start = "auto",
    prompts: Prompts = None,
    tokens: Tokens = 200_000,
    epochs: Epochs = 4,
    out: Out = None,
    type: Type = "bf16",
    work: Work = None,
    torch_device: TorchDevice = "auto",
    threads: flags.Threads = None,
    gpu_layers: flags.GpuLayers = None,
    n_cpu_moe: flags.NCpuMoe = None,
    device: flags.Device = None,
    split: flags.Split = None,
    kv_type: flags.KvType = None,
    flash_attn: flags.FlashAttn = None,
    ctx: flags.Ctx = None,
    parallel: flags.Parallel = None,
    as_json: flags.AsJson = False,
) -> None:
    """Train a draft head for a target of yours, on what it says itself.

    The target answers questions, a head learns to foresee it, and is then tried beside the one before. Stopped, the
    same command goes on where it was. It needs torch: pip install ".[train]"

    \b
    eaglelocal train --target ./Qwen3-8B-Q4_K_M.gguf --prompts questions.txt
    """
    from eaglelocal.cli.reports.train import begin_lines, report_object, result_lines
    from eaglelocal.cli.train_questions import asked_of

    settings = settings_of({name: value for name, value in context.params.items() if name not in OWN})
    output = standard_output(colour=settings.colour)
    check_asked(settings.target, type, hint="eaglelocal train --target FILE.gguf")
    on = device_of(torch_device)
    lessons = lessons_of(settings, output, on, start=start, work=work, out=out, kind=type)
    params = dataclasses.replace(sampling_of(settings), max_tokens=lessons.ctx // 2)
    has_template = lessons.found.info.chat_template is not None
    asked = asked_of(prompts, params, has_template=has_template, least=LEAST_CONVERSATIONS)
    tell = output.message if as_json else output.data
    for line in begin_lines(lessons, asked, most_tokens=tokens):
        tell(line)
    trained = trained_for(lessons, asked, tokens=tokens, epochs=epochs)
    for line in result_lines(trained):
        tell(line)
    if as_json:
        output.object(report_object(lessons, trained))


def trained_for(lessons: TrainOptions, asked: TrainQuestions, *, tokens: int, epochs: int) -> TrainResult:
    """Collect answers, train and try the head; resumes from the files in the folder. Returns the result."""
    from eaglelocal.training.trainer import train_head
    from eaglelocal.training.training_folder import enter_folder

    with enter_folder(lessons.folder, lessons.found.label), resumable(lessons.output):
        check_there_is_room(lessons)
        collected = collect_answers(lessons, asked, most_tokens=tokens)
        study = study_of(lessons, collected, epochs=epochs)
        trained = keep(lessons, study, train_head(study), asked, collected)
        study.checkpoint.unlink(missing_ok=True)
    return trained


@contextmanager
def resumable(output: Output) -> Iterator[None]:
    """Tell the user on interruption that the same command resumes the run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        output.message("\nstopped: the same command goes on from here")
        raise


def collect_answers(lessons: TrainOptions, asked: TrainQuestions, *, most_tokens: int) -> Collected:
    """Collect the target's answers, up to `most_tokens` tokens. Raises UsageError if they are too few."""
    from eaglelocal.training.conversations import gather_answers, question_key
    from eaglelocal.training.training_folder import ANSWERS

    slots, output = lessons.settings.parallel or DEFAULT_SLOTS, lessons.output
    progress = output.progress()

    @contextmanager
    def open_client() -> Iterator[Client]:
        client, _info = start_engine(lessons.plan("auto", ctx=lessons.ctx, parallel=slots), output)
        with client:
            yield client

    began_at, known = time.monotonic(), list[int]()  # known: the first count, of earlier answers

    def show(num_tokens: int) -> None:
        known[:] = known or [num_tokens]
        left = time_left(num_tokens - known[0], most_tokens - num_tokens, time.monotonic() - began_at)
        told = f"{num_tokens} of {most_tokens} tokens{left}"
        progress(LoadProgress(min(num_tokens / most_tokens, 1.0), "the target answers", told))

    try:
        collected = gather_answers(
            asked.requests,
            lessons.folder / ANSWERS,
            open_client,
            at_once=slots,
            most_tokens=most_tokens,
            on_tokens=show,
        )
    finally:
        progress.finish()
    collected = fitting(collected, lessons.ctx)
    check_enough(collected, num_asked=len(set(map(question_key, asked.requests))), most_tokens=most_tokens)
    return collected


def time_left(done: int, rest: int, spent_s: float) -> str:
    """Return the remaining time at the pace so far; "" in the first three seconds."""
    return f", {duration_text(rest * spent_s / done)} left" if done > 0 and spent_s > 3.0 and rest > 0 else ""


def check_enough(collected: Collected, *, num_asked: int, most_tokens: int) -> None:
    num = len(collected.conversations)
    if num >= LEAST_CONVERSATIONS:
        return
    are_left = num + collected.num_refused + collected.num_short < num_asked
    raise UsageError(
        f"{num} answers are too few to learn from ({collected.num_refused} questions did not fit, "
        f"{collected.num_short} answers were too short)",
        hint=f"--tokens {most_tokens * 2 * LEAST_CONVERSATIONS // max(num, 1)}"
        if are_left
        else "more questions, or a larger --ctx",
    )


def fitting(collected: Collected, ctx: int) -> Collected:
    """Leave out conversations that are too short once cut to `ctx`: they come from a run with a larger context."""
    fit = tuple(one for one in collected.conversations if not one.cut(ctx).is_short)
    num_short = collected.num_short + len(collected.conversations) - len(fit)
    return dataclasses.replace(collected, conversations=fit, num_short=num_short)


def study_of(lessons: TrainOptions, collected: Collected, *, epochs: int) -> HeadTraining:
    """Return the description of the training run: training and held-out conversations, recipe, checkpoint.

    The checkpoint's name depends on the start, the epochs, the context and the conversations.
    """
    from eaglelocal.training.trainer import HeadTraining
    from eaglelocal.training.training_folder import CHECKPOINT

    taught, held_out = parted(collected.conversations)
    start = lessons.school.start
    came = [one.key for one in collected.conversations]
    digest = digest_of([str(start.path.resolve()) if start else "", str(epochs), str(lessons.ctx), *came])
    num_steps = epochs * math.ceil(len(taught) / ROWS_PER_STEP)
    return HeadTraining(
        plan=lessons.reading_plan(),
        school=lessons.school,
        taught=taught,
        held_out=held_out,
        checkpoint=lessons.folder / f"{digest}{CHECKPOINT}",
        epochs=epochs,
        rows_per_step=ROWS_PER_STEP,
        recipe=recipe_of(lessons, num_steps),
        device=lessons.device,
    )


def parted(
    conversations: Sequence[TrainingConversation],
) -> tuple[tuple[TrainingConversation, ...], tuple[TrainingConversation, ...]]:
    """Split conversations into training and held-out ones, at most MOST_HELD_OUT.

    One in HELD_OUT_EVERY is held out, more of few: otherwise a handful of drafts would decide the comparison.
    """
    every = min(HELD_OUT_EVERY, max(len(conversations) // LEAST_HELD_OUT, 2))
    held = set(conversations[::every][:MOST_HELD_OUT])
    return tuple(one for one in conversations if one not in held), tuple(one for one in conversations if one in held)


def recipe_of(lessons: TrainOptions, num_steps: int) -> Recipe:
    """Return the learning rates. A pre-trained head gets a quarter of them, decaying from the first step on."""
    from eaglelocal.training.loop import Recipe

    width = lessons.found.info.n_embd
    narrower = min(1.0, 256 / width)  # AdamW's steps, unlike Muon's, do not shrink with a matrix's width
    gentle = 1.0 if lessons.school.start is None else 0.25
    return Recipe(
        muon_lr=0.02 * gentle,
        adam_lr=3e-3 * gentle * max(narrower, 0.1),
        attention_lr=1.5e-3 * gentle * narrower,
        warmup_steps=max(1, min(100, num_steps // 10)),
        decay_share=0.5 if lessons.school.start is None else 1.0,
    )


class _NoBetter(Exception):
    """A signal that the new head is no better and is discarded; not raised if --out names a file."""


def keep(
    lessons: TrainOptions, study: HeadTraining, learned: TrainedHead, asked: TrainQuestions, collected: Collected
) -> TrainResult:
    """Write the head, compare it with the draft used so far in a real engine, and keep it if it is better.

    Raises IncompatibleError if it predicts the target too badly.
    """
    from eaglelocal.cli.head_trial import check_knows_target
    from eaglelocal.cli.reports.train import TrainResult
    from eaglelocal.gguf.draft_pairing import read_draft
    from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY
    from eaglelocal.gguf.header_patch import patch_header
    from eaglelocal.gguf.reader import read_header
    from eaglelocal.hub.heads.head_store import write_head_file
    from eaglelocal.training.conversations import question_key
    from eaglelocal.training.draft_head import head_entries, head_name, head_tensors

    found, school, path, kind = lessons.found, lessons.school, lessons.path, lessons.kind
    name = head_name(school)
    held = {one.key for one in study.held_out}
    requests = [request for request in asked.requests if question_key(request) in held]
    entries = head_entries(learned.pupil.head, school, name=name, kind=kind)
    tensors = head_tensors(learned.pupil, learned.words, kind)
    is_kept, before = True, None
    try:
        with write_head_file(
            path, entries, tensors, on_progress=progress_of(lessons.output, "writing the head")
        ) as partial:
            read_draft(read_header(partial), target_header=found.header, target=found.info)
            after = tried(lessons, str(partial.resolve()), requests, "the new head")
            check_knows_target(name, after, hint="it has learned too little: more --tokens, or more --epochs")
            patch_header(read_header(partial), {ACCEPTANCE_LENGTH_KEY: after.length})
            if lessons.rival is not None:
                before = tried(lessons, lessons.rival, requests, "the draft before")
                if after.length <= before.length and not lessons.is_named:
                    raise _NoBetter
    except _NoBetter:
        is_kept = False
    return TrainResult(path, name, is_kept, learned.before, learned.after, before, after, collected, len(study.taught))


def tried(lessons: TrainOptions, draft: str, requests: Sequence[ChatRequest], what: str) -> TrialAcceptance:
    """Answer the held-out questions greedily with a draft (as --draft takes it) of fixed length; return its figures."""
    from eaglelocal.cli.head_trial import DRAFT_LENGTH, as_trial, ask_all

    progress = lessons.output.progress()
    plan = lessons.plan(draft, ctx=lessons.ctx, spec=DRAFT_LENGTH)
    client, _info = start_engine(plan, lessons.output)
    try:
        figures, _num = ask_all(
            client,
            [as_trial(request, number) for number, request in enumerate(requests)],
            on_tokens=lambda share: progress(LoadProgress(share, f"trying {what}")),
            num_tokens=TRIAL_TOKENS,
        )
    finally:
        progress.finish()
        client.close()
    return figures

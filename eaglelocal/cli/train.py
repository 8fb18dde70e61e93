"""`eaglelocal train`: train an EAGLE-3.1, P-EAGLE or Medusa head on a target's own answers, for `--draft auto`.

Collects answers of the target, trains a new or an existing head on them, and compares it with the current draft
on held-out questions. A head that is no better is not kept.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.import_head import check_head_flags, make_chat_command, show_fraction
from eaglelocal.cli.load_model import LoadingEngine, default_sampling, load_settings
from eaglelocal.cli.output import LABEL, Output, ShowProgress, label_text, shown_progress, standard_output
from eaglelocal.cli.train_options import (
    TrainFlags,
    TrainOptions,
    TrainQuestions,
    check_resources,
    hash_parts,
    load_questions,
    resolve_options,
)
from eaglelocal.cli.train_report import TrainResult, begin_lines, report_object, result_lines
from eaglelocal.core.amounts import format_duration
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError, UsageError
from eaglelocal.training.device import choose_device
from eaglelocal.training.rounds import MIN_CONVERSATIONS

if TYPE_CHECKING:
    from eaglelocal.client.client import Client
    from eaglelocal.core.request import ChatRequest
    from eaglelocal.hub.heads.version_records import TrialAcceptance
    from eaglelocal.training.conversations import Collected
    from eaglelocal.training.draft_head import HeadSource
    from eaglelocal.training.loop import Recipe
    from eaglelocal.training.rounds import LearningCurve
    from eaglelocal.training.trainer import HeadTraining, TrainedHead

DEFAULT_SLOTS = 8
ROWS_PER_STEP = 8
TRIAL_TOKENS = 3000
MAX_SEED = 1 << 31


@flags.takes("target", "parallel", *flags.MACHINE, before="as_json")
def train(context: typer.Context, given: TrainFlags, as_json: flags.AsJson = False) -> None:
    """Train a draft head for your target, on the target's own answers.

    The target answers questions, a head learns to predict the answers, and a trial compares it with your current
    draft. If you stop it, the same command resumes. Training needs torch: pip install ".[train]"

    \b
    eaglelocal train --target ./Qwen3-8B-Q4_K_M.gguf --prompts questions.txt
    """
    settings = load_settings(context.params)
    output = standard_output(colour=settings.colour)
    check_head_flags(settings.target, given.type, hint="eaglelocal train --target FILE.gguf")
    options = resolve_options(settings, output, choose_device(given.torch_device), given)
    params = dataclasses.replace(default_sampling(settings), max_tokens=options.ctx // 2)
    template = options.found.info.chat_template
    questions = load_questions(given.prompts, params, has_template=template is not None, least=MIN_CONVERSATIONS)
    output.report(begin_lines(options, questions, max_answer_tokens=given.tokens), beside_object=as_json)
    trained = run_training(options, questions, tokens=given.tokens, epochs=given.epochs, seed=given.seed)
    command = make_chat_command(settings.target or "", options.found, trained.path) if trained.is_kept else None
    next_line = [f"{'next':<{LABEL}}{command}"] if command else []
    output.report([*result_lines(trained), *next_line], beside_object=as_json)
    if as_json:
        output.object({**report_object(options, trained), "next": command})


def run_training(
    options: TrainOptions, questions: TrainQuestions, *, tokens: int, epochs: int, seed: int
) -> TrainResult:
    """Train a head in rounds and try it. Resumes from the files in the folder."""
    from eaglelocal.training.training_folder import WEAK, enter_folder

    fingerprint = read_fingerprint(options.found.path)
    with enter_folder(options.folder, options.found.label, fingerprint), mention_resuming(options.output):
        check_resources(options)
        training, head, questions, collected = learn_in_rounds(
            options, questions, max_answer_tokens=tokens, epochs=epochs, seed=seed
        )
        trained = keep_if_better(options, training, head, questions, collected)
        forget_run(options.folder, training)
        (options.folder / WEAK).unlink(missing_ok=True)
    return trained


def forget_run(folder: Path, training: HeadTraining) -> None:
    """Remove what a finished run no longer needs; questions and answers stay."""
    from eaglelocal.training.training_folder import CURVE, MOMENT, STATES

    curve = training.checkpoint.with_suffix(CURVE)
    for path in (training.checkpoint, curve, folder / MOMENT, *folder.glob(f"*{STATES}")):
        path.unlink(missing_ok=True)


def learn_in_rounds(
    options: TrainOptions, questions: TrainQuestions, *, max_answer_tokens: int, epochs: int, seed: int
) -> tuple[HeadTraining, TrainedHead, TrainQuestions, Collected]:
    """Collect answers and train on them, in rounds, until there are enough or further ones would hardly help.

    From the second round on, answers are drafted with the head so far. Returns the last round, the head, and all
    questions and answers.
    """
    from eaglelocal.training.rounds import list_goals
    from eaglelocal.training.training_folder import MOMENT

    moment, every = options.folder / MOMENT, list_goals(max_answer_tokens)
    for goals in (every[: number + 1] for number in range(len(every))):
        began_at = time.monotonic()
        draft = str(moment) if moment.exists() and options.is_drafted_anew else "auto"
        asked, collected = collect_answers(options, questions, max_answer_tokens=goals[-1], seed=seed, draft=draft)
        training = make_training(options, collected, goals, epochs=epochs, seed=seed)
        curve = open_curve(training)
        is_last = goals[-1] >= max_answer_tokens or collected.num_tokens < goals[-1]
        if len(goals) <= len(curve.points) and not is_last:
            continue  # an earlier run has learned from it
        is_last = is_last or curve.is_flat
        share_done = 1.0 if is_last else collected.num_tokens / max_answer_tokens
        head = train_round(training, share_done, curve, began_at)
        if is_last:
            return training, head, asked, collected
        curve.add(collected.num_tokens, time.monotonic() - began_at, head.after.length)
        for line in label_text("round", describe_round(curve)):
            options.output.message(line)
        write_head(options, head, moment)
    raise AssertionError("the last round returns")


def open_curve(training: HeadTraining) -> LearningCurve:
    """Return the curve of the checkpoint; one without a checkpoint is of a run that cannot be resumed."""
    from eaglelocal.training.rounds import LearningCurve
    from eaglelocal.training.training_folder import CURVE

    path = training.checkpoint.with_suffix(CURVE)
    if not training.checkpoint.exists():
        path.unlink(missing_ok=True)
    return LearningCurve(path)


def train_round(training: HeadTraining, share_done: float, curve: LearningCurve, began_at: float) -> TrainedHead:
    """Train to the end of the last round so far, at which the share `share_done` of all steps is done."""
    from eaglelocal.training.trainer import train_head

    num_steps = math.ceil(training.num_steps / share_done)
    recipe = choose_recipe(training.source, num_steps)
    try:
        return train_head(dataclasses.replace(training, planned_steps=num_steps, recipe=recipe))
    except (KeyboardInterrupt, SystemExit):
        curve.add_time(time.monotonic() - began_at)
        raise


def describe_round(curve: LearningCurve) -> str:
    """Return the result of the last round, and what as much time again would bring."""
    point, more = curve.points[-1], curve.expect(curve.seconds)
    hope = "" if more is None else f"; as long again: about {more:.2f} more"
    end = ", so the next round is the last" if curve.is_flat else ""
    return f"{point.tokens} tokens, {format_duration(point.seconds)}: acceptance length {point.length:.2f}{hope}{end}"


def read_fingerprint(path: Path) -> str:
    """Return the target's fingerprint. Raises ModelFileError if it can no longer be read."""
    from eaglelocal.gguf.model_info import fingerprint_model

    try:
        return fingerprint_model(path)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def mention_resuming(output: Output) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        output.message()
        output.message("stopped: the same command resumes here")
        raise


def collect_answers(
    options: TrainOptions, questions: TrainQuestions, *, max_answer_tokens: int, seed: int, draft: str
) -> tuple[TrainQuestions, Collected]:
    """Collect the target's answers to given questions and its own, until there are `max_answer_tokens` to learn from.

    draft  that the answers are drafted with, as --draft takes it

    Return all questions, and the answers. Raises UsageError if these are too few.
    """
    from eaglelocal.training.conversations import question_key
    from eaglelocal.training.gathering import AnswerGoal, gather_answers
    from eaglelocal.training.self_questions import SelfQuestions
    from eaglelocal.training.training_folder import ANSWERS, QUESTIONS

    slots, output = options.settings.parallel or DEFAULT_SLOTS, options.output
    own = SelfQuestions(
        options.folder / QUESTIONS,
        seed=seed,
        has_template=questions.has_template,
        make_request=lambda talk: seed_request(questions.make_request(talk), seed),
    )
    with shown_progress(output) as show:

        @contextmanager
        def open_client() -> Iterator[Client]:
            try:
                client, _info = LoadingEngine(options.plan(draft, ctx=options.ctx, parallel=slots)).wait(output)
            except EagleLocalError:
                if draft == "auto":
                    raise
                client, _info = LoadingEngine(options.plan("auto", ctx=options.ctx, parallel=slots)).wait(output)
            with client:
                yield client

        collected = gather_answers(
            [seed_request(request, seed) for request in questions.requests],
            options.folder / ANSWERS,
            open_client,
            concurrency=slots,
            goal=AnswerGoal(max_answer_tokens, MIN_CONVERSATIONS, options.ctx),
            on_progress=show_answers(show, max_answer_tokens),
            own=own if questions.asks_itself else None,
        )
    questions = questions.add(own.talks if questions.asks_itself else ())
    num_questions = len(set(map(question_key, questions.requests)))
    check_enough(collected, num_questions=num_questions, max_answer_tokens=max_answer_tokens, ctx=options.ctx)
    return questions, collected


def seed_request(request: ChatRequest, seed: int) -> ChatRequest:
    """Let the answer follow from the question and the seed, unless another seed is set."""
    from eaglelocal.training.conversations import question_key

    if request.params.seed is not None:
        return request
    own_seed = int(hash_parts([question_key(request), str(seed)])[:8], 16) % MAX_SEED
    return dataclasses.replace(request, params=dataclasses.replace(request.params, seed=own_seed))


def show_answers(show: ShowProgress, max_answer_tokens: int) -> Callable[[int, int], None]:
    """Return a function that shows how many tokens there are to learn from, and the time left; once these are enough,
    how many conversations.
    """
    began_at, first_count = time.monotonic(), list[int]()  # of the answers of earlier runs

    def show_tokens(num_tokens: int, num_conversations: int) -> None:
        if num_tokens >= max_answer_tokens and num_conversations < MIN_CONVERSATIONS:
            share = num_conversations / MIN_CONVERSATIONS
            show(share, "the target answers", f"{num_conversations} of at least {MIN_CONVERSATIONS} questions")
            return
        first_count[:] = first_count or [num_tokens]
        done, rest = num_tokens - first_count[0], max_answer_tokens - num_tokens
        left = format_time_left(done, rest, time.monotonic() - began_at)
        share = min(num_tokens / max_answer_tokens, 1.0)
        show(share, "the target answers", f"{num_tokens} of {max_answer_tokens} tokens{left}")

    return show_tokens


def format_time_left(done: int, rest: int, spent_s: float) -> str:
    """Return the remaining time at the pace so far; "" in the first three seconds."""
    return f", {format_duration(rest * spent_s / done)} left" if done > 0 and spent_s > 3.0 and rest > 0 else ""


def check_enough(collected: Collected, *, num_questions: int, max_answer_tokens: int, ctx: int) -> None:
    """Raise UsageError if the conversations are too few, with what would bring more."""
    num = len(collected.conversations)
    if num >= MIN_CONVERSATIONS:
        return
    are_left = num + collected.num_refused + collected.num_short < num_questions
    raise UsageError(
        f"{num} answers are too few to train on ({collected.num_refused} questions did not fit, "
        f"{collected.num_short} answers were too short)",
        hint=f"--tokens {max_answer_tokens * 2 * MIN_CONVERSATIONS // max(num, 1)}"
        if are_left
        else f"more questions, or --ctx {2 * ctx}",
    )


def make_training(
    options: TrainOptions, collected: Collected, goals: Sequence[int], *, epochs: int, seed: int
) -> HeadTraining:
    """Return the description of the training so far: conversations, recipe, checkpoint.

    The checkpoint's name depends on the start, the epochs, the context, the seed and the first round's conversations.

    goals  tokens to learn from at the end of each round so far
    """
    from eaglelocal.training.batches import make_unrolling
    from eaglelocal.training.loop import Recipe
    from eaglelocal.training.rounds import split_rounds
    from eaglelocal.training.trainer import HeadTraining
    from eaglelocal.training.training_folder import CHECKPOINT

    rounds, start = split_rounds(collected.conversations, goals), options.source.start
    begun_from = str(start.header.path.resolve()) if start else ""
    parts = [begun_from, str(epochs), str(options.ctx), str(options.draft_vocab or ""), str(seed)]
    kind = [options.source.method.lower()] if options.source.num_depths > 1 else []
    kind += [f"taps {options.source.taps}"] if options.source.taps else []
    digest = hash_parts([*parts, *kind, *(one.key for one in rounds.train_set[: rounds.ends[0]])])
    return HeadTraining(
        plan=options.reading_plan(),
        source=options.source,
        device=options.device,
        draft_vocab=options.draft_vocab,
        train_set=rounds.train_set,
        held_out=rounds.held_out,
        checkpoint=options.folder / f"{digest}{CHECKPOINT}",
        epochs=epochs,
        rows_per_step=ROWS_PER_STEP,
        recipe=Recipe(),
        unrolling=make_unrolling(options.source),
        round_ends=rounds.ends,
        states=options.folder if epochs > 1 else None,
    )


def choose_recipe(source: HeadSource, num_steps: int) -> Recipe:
    """Return the learning rates.

    A head that already drafts in the same way gets a quarter of them, decaying from the first step on. One that is to
    draft in another way, or has learned little yet, has as much to learn as a new one.
    """
    from eaglelocal.training.loop import scale_recipe

    scale, decay_share = (0.25, 1.0) if source.begins_alike and not source.begins_weak else (1.0, 0.5)
    return scale_recipe(source.target.n_embd, num_steps, scale=scale, decay_share=decay_share)


class _NotBetter(Exception):
    """A signal that the new head is not better and is discarded; not raised if --out names a file."""


@contextmanager
def written_head(options: TrainOptions, head: TrainedHead, path: Path, kind: str) -> Iterator[Path]:
    """Write a head; yield the file before it gets its name, which it does if the block does not raise."""
    from eaglelocal.hub.heads.head_store import write_head_file
    from eaglelocal.training.head_file import make_head_entries, make_head_name, make_head_tensors

    entries = make_head_entries(head.draft_head.head, options.source, name=make_head_name(options.source), kind=kind)
    tensors = make_head_tensors(head.draft_head, head.vocabulary, kind)
    show = show_fraction(options.output, "writing the head")
    with write_head_file(path, entries, tensors, on_progress=show) as partial:
        yield partial


def write_head(options: TrainOptions, head: TrainedHead, path: Path) -> None:
    with written_head(options, head, path, options.kind):
        pass


def keep_if_better(
    options: TrainOptions,
    training: HeadTraining,
    trained_head: TrainedHead,
    questions: TrainQuestions,
    collected: Collected,
) -> TrainResult:
    """Write the head, compare it with the current draft in a real engine, and keep it if it is better.

    Raises IncompatibleError if it predicts the target too badly.
    """
    from eaglelocal.gguf.draft_pairing import read_draft
    from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY
    from eaglelocal.gguf.reader import read_header
    from eaglelocal.gguf.writer import patch_header
    from eaglelocal.training.conversations import question_key
    from eaglelocal.training.head_file import make_head_name

    path, name = options.path, make_head_name(options.source)
    held_out_keys = {one.key for one in training.held_out}
    requests = [request for request in questions.requests if question_key(request) in held_out_keys]
    is_kept, before = True, None
    try:
        with written_head(options, trained_head, path, options.kind) as partial:
            read_draft(read_header(partial), options.found.info)
            after = try_draft(options, str(partial.resolve()), requests, "the new head")
            patch_header(read_header(partial), {ACCEPTANCE_LENGTH_KEY: after.length})
            if not after.is_clear:
                raise keep_weak_head(partial, options, after, training, collected.num_tokens)
            if options.current_draft is not None:
                before = try_draft(options, options.current_draft, requests, "the current draft")
                if after.length <= before.length and not options.is_named:
                    raise _NotBetter
    except _NotBetter:
        is_kept = False
    return TrainResult(
        path, name, is_kept, trained_head.before, trained_head.after, before, after, collected, len(training.train_set)
    )


def keep_weak_head(
    path: Path, options: TrainOptions, figures: TrialAcceptance, training: HeadTraining, num_tokens: int
) -> IncompatibleError:
    """Keep a copy of a head that has learned too little, and return the error that says how to go on from it.

    A Medusa head is not trained further: its run is kept, and goes on with more tokens.
    """
    from eaglelocal.training.training_folder import PARTIAL, WEAK

    weak, more = options.folder / WEAK, f"--tokens {2 * num_tokens}"
    if not options.source.is_medusa:
        shutil.copyfile(path, weak.with_suffix(PARTIAL))
        weak.with_suffix(PARTIAL).replace(weak)
        forget_run(options.folder, training)
        more = f"--from {quote_path(weak)} {more}"
    what = f"{figures.first:.0%} of the new head's first tokens are accepted so far ({figures.drafts} drafts)"
    return IncompatibleError(f"{what}, too few to gain anything", hint=more)


def try_draft(options: TrainOptions, draft: str, requests: Sequence[ChatRequest], what: str) -> TrialAcceptance:
    """Answer the held-out questions greedily with a draft (as --draft takes it) of fixed length; return its figures."""
    from eaglelocal.cli.head_trial import DRAFT_LENGTH, ask_all, make_trial_request

    plan = options.plan(draft, ctx=options.ctx, spec=DRAFT_LENGTH)
    client, _info = LoadingEngine(plan).wait(options.output)
    with closing(client), shown_progress(options.output) as show:
        figures, _num = ask_all(
            client,
            [make_trial_request(request, number) for number, request in enumerate(requests)],
            on_tokens=lambda share: show(share, f"trying {what}"),
            num_tokens=TRIAL_TOKENS,
        )
    return figures

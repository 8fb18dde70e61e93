"""What learning from answers gives, and what it costs the person who asks.

    python tests/measures/learning.py shift [--kind translate] [--seed 1] [--answers 500,1000,2000] [--general 400]
    python tests/measures/learning.py experience [--pairs 20] [--target FILE --head FILE --folder FOLDER]

shift: trains a head for the embedded demo without one kind of work (and one with it, to compare with), lets the demo
answer only this kind, and shows the head's acceptance length on it and elsewhere, on answers that nothing learned from,
after each number of answers. Of the general questions that are rehearsed none is of this kind.

experience: time to first token and tokens a second of single answers, alternating: while a process learns, and with no
learning at all. With the embedded demo and a head made worse, or with a model and a head of your own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median, stdev

sys.path.insert(0, str(Path(__file__).parents[1]))
from doubles.learning_demo import OWNER, TARGET, keep_answers, make_job, make_plan, make_requests, write_worse_head
from doubles.shift_kinds import KINDS, tasks_of
from guide.corpus import mixture

from eaglelocal import locations
from eaglelocal.bench.bench_prompts import read_prompts
from eaglelocal.bench.results import Bound, bound_mean
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Finished, Tokens
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, Spec, parse_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.gguf.draft_pairing import read_model
from eaglelocal.gguf.model_info import fingerprint_model
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.hub.heads.version_records import BASE
from eaglelocal.hub.heads.versions import HeadVersions
from eaglelocal.learning.idle_learning import ANSWERS, IdleLearning, LearningOptions
from eaglelocal.learning.kept_answers import KeptAnswer
from eaglelocal.learning.learner import LearningJob, LearningSession, SessionReport
from eaglelocal.probe.cpuinfo import count_usable_threads
from eaglelocal.training.batches import Unrolling
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.draft_head import HeadSource
from eaglelocal.training.head_file import (
    compare_heads,
    make_head_entries,
    make_head_name,
    make_head_tensors,
    read_source,
)
from eaglelocal.training.loop import scale_recipe
from eaglelocal.training.trainer import HeadTraining, train_head

CORPUS = tuple(mixture.KINDS)  # without those that are only learned
TRAINED_PER_KIND, EPOCHS = 150, 6  # of the head that does not know the shifted kind
JUDGED_PER_KIND = 40
ASKED_AT_ONCE = 125  # answers between two chances to learn
LEAST_NEW = 32  # answers that are learned from
QUESTIONS, OWN_LEARNED = Path(__file__).parents[1] / "real" / "questions", 48  # answers of a model of one's own


def as_text(answer: KeptAnswer) -> TrainingConversation:
    return TrainingConversation(answer.key, tuple(answer.tokens), answer.num_prompt)


def collect(folder: Path, kinds: Sequence[str], per_kind: int, seed: int) -> tuple[TrainingConversation, ...]:
    plan = replace(make_plan(TARGET), draft_kind="none", draft=None)
    return tuple(map(as_text, keep_answers(plan, folder, make_requests(kinds, per_kind, seed=seed)).read()))


def train_on(kinds: Sequence[str], folder: Path, seed: int) -> Path:
    """Train a new head on these kinds of work."""
    texts = collect(folder / "trained", kinds, TRAINED_PER_KIND, seed=10 + seed)
    header = read_header(TARGET)
    source = HeadSource(read_model(header))
    num_steps = EPOCHS * math.ceil(len(texts) / 8)
    training = HeadTraining(
        plan=make_job(make_plan(TARGET), TARGET, folder).reading_plan,
        source=source,
        train_set=texts,
        held_out=(),
        checkpoint=folder / "base.checkpoint",
        epochs=EPOCHS,
        rows_per_step=8,
        recipe=scale_recipe(source.target.n_embd, num_steps, scale=1.0, decay_share=0.5),
        device="cpu",
        seed=seed,
        unrolling=Unrolling(),
    )
    trained = train_head(training)
    path, head = folder / "base.gguf", trained.draft_head
    entries = make_head_entries(head.head, source, name=make_head_name(source), kind="bf16")
    with write_head_file(
        path, entries, make_head_tensors(head, trained.vocabulary, "bf16"), on_progress=lambda _: None
    ):
        pass
    return path


@dataclass(frozen=True)
class Length:
    """An acceptance length, and its standard error over texts."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


def measure(job: LearningJob, head: Path, texts: Sequence[TrainingConversation]) -> Length:
    found = [one for (one,) in compare_heads(job.reading_plan, [read_source(TARGET, head)], texts, "cpu")]
    lengths = [one.length for one in found if one.drafts]
    return Length(fmean(lengths), stdev(lengths) / math.sqrt(len(lengths)))


def learn_all(job: LearningJob) -> list[str]:
    """Run sessions until there is nothing to do; return what they said."""
    notes = []
    while True:
        reports: list[SessionReport] = []
        LearningSession(job, reports.append).run()
        if len(reports) < 2:
            return notes
        notes.append(f"version {reports[-1].version}: {reports[-1].note}")


def general_questions(kind: str, num: int) -> tuple[str, ...]:
    """Return questions to rehearse, of all other kinds."""
    kinds = [each for each in CORPUS if each != kind]
    tasks = [islice(tasks_of(each, 5, "train"), num) for each in kinds]
    turns = (task.messages for turn in zip(*tasks, strict=True) for task in turn)
    return tuple(islice((messages[0].content for messages in turns if len(messages) == 1), num))


def measure_shift(kind: str, first_seed: int, steps: Sequence[int], num_general: int) -> list[dict[str, object]]:
    folder, usual = Path(tempfile.mkdtemp()), [each for each in CORPUS if each != kind]
    base = train_on(usual, folder / "without", first_seed)
    whole = train_on([*usual, kind], folder / "with", first_seed)
    job, rows = make_job(make_plan(base), base, folder, general=general_questions(kind, num_general)), []
    judged = {name: collect(folder / f"judged-{name}", [name], JUDGED_PER_KIND, seed=99) for name in [*usual, kind]}
    elsewhere = [text for name, texts in judged.items() if name != kind for text in texts]
    there, others = measure(job, whole, judged[kind]), measure(job, whole, elsewhere)
    print(f"trained with {kind} from the start: {kind} {there}  elsewhere {others}")
    num_answers, seed, versions = 0, 1000 * first_seed, HeadVersions(job.versions)
    for step in (0, *steps):
        notes = []
        while num_answers < step:
            per_kind = min(ASKED_AT_ONCE, step - num_answers)
            keep_answers(job.plan, job.answers, make_requests([kind], per_kind, seed=seed))
            num_answers, seed = num_answers + per_kind, seed + 1
            notes += learn_all(job)
        current = versions.read()[0].current
        head = base if current == BASE else versions.path(current)
        there, others = measure(job, head, judged[kind]), measure(job, head, elsewhere)
        rows.append({"answers": step, "version": current, kind: there.mean, "elsewhere": others.mean})
        print(f"{step:6} answers  version {current:2}  {kind} {there}  elsewhere {others}  {'; '.join(notes)}")
    return rows


@dataclass(frozen=True)
class Timing:
    """The times of one answer, in seconds, and its speed."""

    first_s: float
    tok_s: float


def time_answer(client: EngineClient, request: ChatRequest) -> Timing:
    began = time.perf_counter()
    first = 0.0
    with client.stream(request) as events:
        for event in events:
            if isinstance(event, Tokens) and not first:
                first = time.perf_counter()
            elif isinstance(event, Finished):
                decode_s = time.perf_counter() - first
                return Timing(first - began, (event.completion_tokens - 1) / decode_s)
    raise AssertionError("no answer")


@dataclass(frozen=True)
class Experience:
    """A pair, the questions whose answers are learned from, and those that are timed.

    learns_s  how long the process has learned when a question comes; it loads the target first
    spec      of the timed answers: the speed of plain ones does not hang on what drafts find
    """

    plan: Plan
    learned: Sequence[ChatRequest]
    timed: Sequence[ChatRequest]
    learns_s: float
    spec: Spec | None = None


def use_demo(pairs: int, folder: Path) -> Experience:
    plan = make_plan(write_worse_head(folder / "worse.gguf", 0.5))
    timed = make_requests(["summarise", "passage"], -(-pairs // 2), seed=77, owner="who asks")
    return Experience(plan, make_requests(CORPUS, 60), timed, learns_s=1.0)


def use_own(target: Path, head: Path, pairs: int) -> Experience:
    plan = make_plan(head, target=target, threads=count_usable_threads())
    learned = ask_file(QUESTIONS / "train.jsonl", OWN_LEARNED, OWNER)
    return Experience(plan, learned, ask_file(QUESTIONS / "held_out.jsonl", pairs, "who asks"), learns_s=5.0)


def ask_file(path: Path, num: int, owner: str) -> list[ChatRequest]:
    """Return the first questions of a file."""
    params = SamplingParams(temperature=0.7, max_tokens=96, seed=1)
    return [
        ChatRequest(id=f"{owner}-{number}", messages=prompt.messages, params=params, owner=owner)
        for number, prompt in enumerate(read_prompts(path)[:num])
    ]


def measure_experience(given: Experience, folder: Path) -> dict[str, Bound]:
    """Return what learning does to an answer: each question is asked while a process learns, and alone.

    The mean ratio of each figure, with its 95% interval.
    """
    os.environ["XDG_STATE_HOME"] = str(folder)
    plan = given.plan
    place = locations.learning_dir() / fingerprint_model(plan.target)
    if not (place / ANSWERS).is_dir():
        keep_answers(plan, place / ANSWERS, given.learned)
    options = LearningOptions(idle_s=0.5, min_new=LEAST_NEW, owners=frozenset({OWNER}))
    learning = IdleLearning(options, on_battery=lambda: False)
    model = learning.open(plan)
    timings: dict[bool, list[Timing]] = {True: [], False: []}
    with EngineClient(plan, watch=model.submit) as client:
        client.start()
        for number, request in enumerate(given.timed):
            for learns in (number % 2 == 0, number % 2 == 1):
                model.client = client if learns else None
                shutil.rmtree(model.make_job(1, LEAST_NEW).folder, ignore_errors=True)  # or a round would end
                while learns and learning.status().state != "learning":
                    time.sleep(0.05)
                time.sleep(given.learns_s)
                again = replace(request, id=f"{number} {learns}", reuses_cache=False, spec=given.spec)
                timings[learns].append(time_answer(client, again))
                model.retry_at = 0.0
    learning.close()
    both = list(zip(timings[True], timings[False], strict=True))
    ratios = {
        "first token": bound_mean([[one.first_s / other.first_s for one, other in both]]),
        "tok/s": bound_mean([[one.tok_s / other.tok_s for one, other in both]]),
    }
    for learns, each in timings.items():
        first, speed = [one.first_s * 1000 for one in each], [one.tok_s for one in each]
        name, slowest = "while learning" if learns else "alone", max(first)
        print(f"{name:15} first token {median(first):.1f} ms (slowest {slowest:.1f}), {median(speed):.1f} tok/s")
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["shift", "experience"])
    parser.add_argument("--kind", default="translate", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answers", default="500,1000,2000")
    parser.add_argument("--general", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--target", type=Path, help="of `experience`, with --head")
    parser.add_argument("--head", type=Path)
    parser.add_argument("--spec", help="of `experience`: how the timed answers are drafted, as in `chat`")
    parser.add_argument("--folder", type=Path, help="of `experience`: keeps the answers for its next run")
    given = parser.parse_args()
    if given.what == "shift":
        steps = [int(each) for each in given.answers.split(",")]
        print(json.dumps(measure_shift(given.kind, given.seed, steps, given.general)))
    else:
        folder = given.folder or Path(tempfile.mkdtemp())
        used = use_own(given.target, given.head, given.pairs) if given.target else use_demo(given.pairs, folder)
        used = replace(used, spec=parse_spec(given.spec) if given.spec else None)
        for name, ratio in measure_experience(used, folder).items():
            print(f"{name:15} {ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f})")

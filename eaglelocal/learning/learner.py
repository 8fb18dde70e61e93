"""A session of learning: judge the watched version, or continue a round to its end. It may be killed at any moment.

    answers -> round -> train (checkpoints) -> candidate on disk -> judge -> current, on watch -> judge on live answers

Each step leaves a state on disk from which the next session goes on. learning_round.py chooses the answers, and
judgement.py gives the verdicts.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import OFF
from eaglelocal.errors import EagleLocalError
from eaglelocal.hub.heads.requantized_copy import make_light_copy
from eaglelocal.hub.heads.version_records import BASE, HeldBackFigures, LearnedFrom, VersionState
from eaglelocal.hub.heads.versions import HeadVersions
from eaglelocal.learning.judgement import MIN_TEXTS, HeadVerdict, JudgedFile, JudgedText, judge
from eaglelocal.learning.kept_answers import KeptAnswer, KeptAnswers, name_kind
from eaglelocal.learning.learning_round import (
    CHECKPOINT,
    MIN_NEW,
    LearningRound,
    LearningState,
    VersionWatch,
    choose_judges,
    choose_round,
    choose_since,
    delete_checkpoints,
    find_new,
    fit_window,
    hold_folder,
    read_state,
    write_state,
)
from eaglelocal.training.conversations import TrainingConversation

WATCH_TOKENS, WATCH_ANSWERS = 2000, 2 * MIN_TEXTS  # live answers needed before a new version is judged again
LEARNING_CTX = 2048  # tokens of a text
ROWS_PER_STEP, EPOCHS = 8, 2
SCALE = 0.1  # of the learning rates of a new head
CHECKPOINT_S = 30.0
HEAD_TYPE = "bf16"
LIGHT_KINDS = ("q4_0", "q8_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningJob:
    """The task of a learning process.

    plan      of the engine that serves, whose target is read
    base      the head from which the first version began
    answers   folder of kept answers
    folder    of the state and the checkpoints
    versions  folder of the versions
    threads   to compute with
    owners    hashes of the owners who agree; None: all whose answers are kept
    general   questions to rehearse, so that the head does not forget subjects that no user asks about now
    """

    plan: Plan
    base: Path
    answers: Path
    folder: Path
    versions: Path
    threads: int
    min_new: int = MIN_NEW
    owners: frozenset[str] | None = None
    general: tuple[str, ...] = ()

    @property
    def reading_plan(self) -> Plan:
        """The plan of the target alone, in RAM: the engine has the GPUs."""
        n_ctx = min(LEARNING_CTX, self.plan.n_ctx)
        alone = replace(self.plan, draft_kind="none", draft=None, draft_origin=None, lookups=(), projector=None)
        alone = replace(alone, cache_disk=0.0, cache_ram=0, lookup_memory=0, is_brief=True)
        return replace(alone, spec=OFF, n_ctx=n_ctx, num_slots=1, threads=self.threads, gpu_layers=0, rollback=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """A message of a session to its parent.

    state    learning, judging; at the end: done
    version  the version that is current; of the end
    head     its file, in as few bits as the engine's own head; "" if no such copy could be written
    missing  new answers until there is something to do
    note     for people
    trouble  why there is no such copy
    """

    state: str
    version: int | None = None
    head: str = ""
    missing: int = 0
    note: str = ""
    trouble: str = ""


Tell = Callable[[SessionReport], None]


class LearningSession:
    """A session with its files. Torch is imported when something is learned or judged."""

    def __init__(self, job: LearningJob, tell: Tell) -> None:
        self._job, self._tell = job, tell
        self._versions = HeadVersions(job.versions)
        kept = KeptAnswers(job.answers, max_bytes=0, max_age_s=math.inf).read()
        self._answers = [answer for answer in kept if job.owners is None or answer.owner in job.owners]
        self._state = LearningState()  # read by `run`
        self._trouble = ""  # for people

    def run(self) -> None:
        """Take the next step, if there are enough answers for it. Raises EagleLocalError and OSError."""
        with hold_folder(self._job.folder):
            self._state = read_state(self._job.folder)
            self._take_step()

    def _take_step(self) -> None:
        self._complete()
        if self._state.watch is not None:
            self._check_watched(self._state.watch)
        elif (chosen := self._resume_round() or self._begin_round()) is not None:
            candidate = self._state.candidate or self._learn(chosen)
            self._judge_candidate(chosen, candidate)
        else:
            num_new = len(find_new(self._answers, self._state.learned_until))
            self._finish(missing=max(self._job.min_new - num_new, 1))

    # ---- rounds
    def _complete(self) -> None:
        """Finish what a killed session left: judge its candidate, and stop watching a replaced version."""
        known, state = self._versions.read()[0], self._state
        candidate = known.find(state.candidate) if state.candidate else None
        if state.candidate and (candidate is None or not self._versions.path(state.candidate).is_file()):
            self._save(replace(state, candidate=None))
        elif state.round is not None and candidate is not None and candidate.state is not VersionState.CANDIDATE:
            self._end_round(state.round, candidate.number if candidate.state is VersionState.CURRENT else None)
        if self._state.watch is not None and self._state.watch.version != known.current:
            self._save(replace(self._state, watch=None))

    def _resume_round(self) -> LearningRound | None:
        """Return the round in progress, if its answers are still kept and its start is still current."""
        chosen = self._state.round
        if chosen is None:
            return None
        is_whole = set(chosen.keys) <= {answer.key for answer in self._answers}
        if is_whole and chosen.start == self._versions.read()[0].current:
            return chosen
        self._save(replace(self._state, round=None, candidate=None))
        return None

    def _begin_round(self) -> LearningRound | None:
        start = self._versions.read()[0].current
        chosen = choose_round(
            self._answers, start=start, learned_until=self._state.learned_until, min_new=self._job.min_new
        )
        if chosen is not None:
            delete_checkpoints(self._job.folder)
            self._save(replace(self._state, round=chosen, candidate=None))
        return chosen

    def _end_round(self, chosen: LearningRound, version: int | None) -> None:
        """Forget the round, and watch the version that it made, if that is current."""
        watch = None if version is None else VersionWatch(version, chosen.start, time.time())
        self._save(LearningState(learned_until=chosen.until, watch=watch))
        delete_checkpoints(self._job.folder)

    def _save(self, state: LearningState) -> None:
        if self._answers and not self._job.answers.is_dir():
            delete_checkpoints(self._job.folder)
            raise EagleLocalError("the answers were deleted meanwhile: nothing is learned from them")
        write_state(self._job.folder, state)
        self._state = state

    # ---- learning
    def _learn(self, chosen: LearningRound) -> int:
        """Train from the round's start, or from its checkpoint; write the candidate and return its number."""
        from eaglelocal.hub.heads.head_store import write_head_file
        from eaglelocal.training.batches import make_unrolling
        from eaglelocal.training.head_file import make_head_entries, make_head_name, make_head_tensors, read_source
        from eaglelocal.training.loop import scale_recipe
        from eaglelocal.training.memory_check import check_memory_and_disk
        from eaglelocal.training.trainer import HeadTraining, train_head

        job, plan = self._job, self._job.reading_plan
        answers = self._find(chosen.keys)
        source = read_source(plan.target, self._head_path(chosen.start))
        check_memory_and_disk(source, plan, job.folder, "cpu")
        self._tell(SessionReport(state="learning"))
        texts = (*map(self._as_text, answers), *self._rehearse(chosen))
        num_steps = EPOCHS * math.ceil(len(texts) / ROWS_PER_STEP)
        recipe = scale_recipe(source.target.n_embd, num_steps, scale=SCALE, decay_share=1.0)
        digest = hash_round(chosen)
        training = HeadTraining(
            plan=plan,
            source=source,
            train_set=texts,
            held_out=(),
            checkpoint=job.folder / f"{digest}{CHECKPOINT}",
            epochs=EPOCHS,
            rows_per_step=ROWS_PER_STEP,
            recipe=replace(recipe, checkpoint_every_s=CHECKPOINT_S, milestone_every_s=math.inf),
            device="cpu",
            unrolling=make_unrolling(source),
        )
        try:
            trained = train_head(training)
        except EagleLocalError:  # of a checkpoint that cannot be resumed, for one: the next session starts anew
            delete_checkpoints(job.folder)
            raise
        label, base = plan.target_label, job.base
        self._versions.name(target=plan.target, target_label=label, base=base, base_label=base.stem)
        scratch = self._versions.scratch_path()
        head = trained.draft_head
        entries = make_head_entries(head.head, source, name=make_head_name(source), kind=HEAD_TYPE)
        tensors = make_head_tensors(head, trained.vocabulary, HEAD_TYPE)
        with write_head_file(scratch, entries, tensors, on_progress=lambda fraction: None):
            pass
        self._save(self._state)  # raises if the answers were deleted meanwhile
        made = self._versions.add_candidate(scratch, made_at=time.time(), learned_from=describe_answers(answers))
        self._save(replace(self._state, candidate=made.number))
        return made.number

    def _rehearse(self, chosen: LearningRound) -> tuple[TrainingConversation, ...]:
        """Return general texts to learn with this round: as many as it has new answers."""
        from eaglelocal.learning.learning_round import gather_rehearsal

        if not self._job.general:
            return ()
        try:
            texts = gather_rehearsal(self._job.reading_plan, self._job.general, self._job.folder.parent)
        except EagleLocalError as error:  # too little memory for an engine, for one
            self._trouble = f" (nothing was rehearsed: {error.message})"
            return ()
        num_new = sum(answer.kept_at > self._state.learned_until for answer in self._find(chosen.keys))
        return tuple(random.Random(hash_round(chosen)).sample(texts, min(num_new, len(texts))))

    # ---- judging
    def _judge_candidate(self, chosen: LearningRound, candidate: int) -> None:
        """Make the candidate current if it is better on answers that neither head learned from."""
        judges = choose_judges(self._answers, chosen, self._state.learned_until)
        texts, verdict = self._compare(chosen.start, candidate, judges)
        figures = summarize(texts)
        if figures is not None:
            self._versions.judge(candidate, figures)
        if verdict.is_better:
            self._versions.make_current(candidate, verdict.why)
        else:
            self._versions.refuse(candidate, verdict.why)
        self._end_round(chosen, candidate if verdict.is_better else None)
        self._finish(missing=self._job.min_new, note=verdict.why + self._trouble)

    def _check_watched(self, watch: VersionWatch) -> None:
        """Judge the current version by live answers, once there are enough; go back if it is worse."""
        live = choose_since(self._answers, watch.since, min_tokens=WATCH_TOKENS, min_answers=WATCH_ANSWERS)
        if not live:
            self._finish(missing=1)
            return
        _, verdict = self._compare(watch.before, watch.version, live)
        if verdict.is_worse:
            self._versions.roll_back(f"on live answers {verdict.why}")
        self._save(replace(self._state, watch=None))
        delete_checkpoints(self._job.folder)
        self._finish(missing=1, note=verdict.why)

    def _compare(self, old: int, new: int, answers: Sequence[KeptAnswer]) -> tuple[list[JudgedText], HeadVerdict]:
        from eaglelocal.training.head_file import compare_heads, read_source

        self._tell(SessionReport(state="judging"))
        plan = self._job.reading_plan
        sources = [read_source(plan.target, self._head_path(number)) for number in (new, old)]
        texts = [self._as_text(answer) for answer in answers]
        known = range(sources[0].target.n_vocab)  # a damaged file may have others
        usable = [
            (answer, text)
            for answer, text in zip(answers, texts, strict=True)
            if not text.is_short and min(text.tokens) in known and max(text.tokens) in known
        ]
        done = JudgedFile(self._job.folder, old, new)
        left = [(answer, text) for answer, text in usable if answer.key not in done.texts]
        measured = compare_heads(plan, sources, [text for _, text in left], "cpu") if left else iter(())
        for (answer, text), (by_new, by_old) in zip(left, measured, strict=True):
            judged = None
            if drafts := by_new.drafts:
                first = by_new.per_position[0] / drafts, by_old.per_position[0] / drafts
                lengths = by_new.length, by_old.length
                judged = JudgedText(answer.owner, answer.kind, text.num_answer_tokens, *lengths, *first)
            done.add(answer.key, judged)
        found = [one for answer, _ in usable if (one := done.texts.get(answer.key)) is not None]
        return found, judge(found, name_kind)

    # ---- files
    def _finish(self, *, missing: int, note: str = "") -> None:
        """Report the end, and which head to draft with from now on; writes its quantized copy if needed."""
        version, head, trouble = self._versions.read()[0].current, "", ""
        try:
            head = str(lighten(self._head_path(version), self._job.plan))
        except EagleLocalError as error:
            trouble = error.message
        except OSError as error:  # the version was deleted meanwhile
            trouble = str(error)
        self._tell(SessionReport(state="done", version=version, head=head, missing=missing, note=note, trouble=trouble))

    def _head_path(self, number: int) -> Path:
        return self._job.base if number == BASE else self._versions.path(number)

    def _find(self, keys: Sequence[str]) -> list[KeptAnswer]:
        by_key = {answer.key: answer for answer in self._answers}
        return [by_key[key] for key in keys]

    def _as_text(self, answer: KeptAnswer) -> TrainingConversation:
        tokens, num_prompt = fit_window(answer, self._job.reading_plan.n_ctx)
        return TrainingConversation(answer.key, tokens, num_prompt)


def lighten(path: Path, plan: Plan) -> Path:
    """Return a copy of a head quantized like the plan's own head, written if needed. Raises EagleLocalError."""
    if plan.draft is None or plan.draft_origin is None:
        return path
    kind = next((kind for kind in LIGHT_KINDS if plan.draft.stem.endswith(f"-{kind}")), None)
    return path if kind is None else make_light_copy(path, kind, on_progress=lambda fraction: None)


def hash_round(chosen: LearningRound) -> str:
    return hashlib.blake2b(repr(chosen).encode(), digest_size=8).hexdigest()


def describe_answers(answers: Sequence[KeptAnswer]) -> LearnedFrom:
    kinds: Counter[str] = Counter()
    for answer in answers:
        kinds[name_kind(answer.kind)] += answer.num_answer_tokens
    return LearnedFrom(
        num_answers=len(answers),
        num_tokens=sum(answer.num_answer_tokens for answer in answers),
        num_owners=len({answer.owner for answer in answers}),
        kinds=dict(kinds),
    )


def summarize(texts: Sequence[JudgedText]) -> HeldBackFigures | None:
    """Return the average figures of a version; None if nothing was judged."""
    num_tokens = sum(text.num_tokens for text in texts)
    if not num_tokens:
        return None
    return HeldBackFigures(
        acceptance=sum(text.first_new * text.num_tokens for text in texts) / num_tokens,
        predecessor=sum(text.first_old * text.num_tokens for text in texts) / num_tokens,
        num_tokens=num_tokens,
    )

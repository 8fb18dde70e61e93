"""Learning over the embedded demo: a head made worse gets better, and a process that is killed loses nothing it had."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

torch = pytest.importorskip("torch")

from doubles.deadly_calls import Fault, write_program  # noqa: E402
from doubles.learning_demo import TARGET, keep_answers, make_job, make_plan, make_requests, write_worse_head  # noqa: E402
from doubles.timeouts import PATIENCE_S, wait_until  # noqa: E402

from eaglelocal.core.plan import Plan  # noqa: E402
from eaglelocal.errors import EagleLocalError  # noqa: E402
from eaglelocal.hub.heads.version_records import BASE, VersionState  # noqa: E402
from eaglelocal.hub.heads.versions import HeadVersions  # noqa: E402
from eaglelocal.learning import learner, learning_process  # noqa: E402
from eaglelocal.learning.kept_answers import KeptAnswers, hash_owner, make_answer  # noqa: E402
from eaglelocal.learning.learner import LearningJob, LearningSession, SessionReport  # noqa: E402
from eaglelocal.learning.learning_process import LearningChild  # noqa: E402
from eaglelocal.learning.learning_round import (  # noqa: E402
    CHECKPOINT,
    REHEARSAL,
    VersionWatch,
    read_state,
)
from eaglelocal.training import trainer  # noqa: E402
from eaglelocal.training.conversations import read_conversations  # noqa: E402
from eaglelocal.training.head_file import read_source  # noqa: E402
from eaglelocal.training.trainer import HeadTraining  # noqa: E402

pytestmark = pytest.mark.full

KINDS = ("chat", "translate", "math", "passage")
PER_KIND = 30


@pytest.fixture(scope="module")
def worse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_worse_head(tmp_path_factory.mktemp("head") / "worse.gguf", 0.5)


@pytest.fixture(scope="module")
def plan(worse: Path) -> Plan:
    return make_plan(worse)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    keep_answers(plan, folder, make_requests(KINDS, PER_KIND))
    return folder


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def job(tmp_path: Path, plan: Plan, worse: Path, answered: Path) -> LearningJob:
    """A job over a copy of the answers."""
    (tmp_path / "answers").symlink_to(answered)
    return make_job(plan, worse, tmp_path)


def run(job: LearningJob) -> list[SessionReport]:
    reports: list[SessionReport] = []
    LearningSession(job, reports.append).run()
    return reports


def run_child(job: LearningJob, watch: Callable[[LearningChild, SessionReport], None]) -> list[SessionReport]:
    child, reports = LearningChild(job), []
    for report in child.reports():
        reports.append(report)
        watch(child, report)
    child.close()
    return reports


def test_general_questions_are_rehearsed_with_each_round(job: LearningJob, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []

    def count_texts(training: HeadTraining) -> None:
        learned.append(len(training.train_set))
        raise EagleLocalError("enough")

    monkeypatch.setattr(trainer, "train_head", count_texts)
    questions = tuple(f"How much is {number} plus 4?" for number in range(20))
    for general in ((), questions, questions):
        with pytest.raises(EagleLocalError, match="enough"):
            LearningSession(replace(job, general=general), lambda report: None).run()
    alone, rehearsed, again = learned
    assert rehearsed == again > alone
    answered = read_conversations(job.folder.parent / REHEARSAL)
    assert rehearsed - alone == len(answered) <= len(questions)


def check_loadable(job: LearningJob) -> None:
    """Every version of the record is a whole head, and the state is one from which learning goes on."""
    known, note = HeadVersions(job.versions).read()
    assert note == ""
    for version in known.versions:
        assert read_source(TARGET, HeadVersions(job.versions).path(version.number)).start is not None
    read_state(job.folder)


@pytest.mark.slow
def test_a_worse_head_becomes_better_and_proves_itself(job: LearningJob, plan: Plan) -> None:
    reports = run(job)
    assert [report.state for report in reports] == ["learning", "judging", "done"]
    known, _ = HeadVersions(job.versions).read()
    (version,) = known.versions
    assert reports[-1].version == known.current == version.number == 1
    assert version.figures is not None and version.figures.acceptance > version.figures.predecessor
    assert version.learned_from.num_owners == 1 and version.learned_from.num_answers > 64
    state = read_state(job.folder)
    assert state.round is None and state.watch is not None and state.watch.before == BASE
    assert not list(job.folder.glob(f"*{CHECKPOINT}"))

    assert [report.state for report in run(job)] == ["done"]  # nothing new was answered
    keep_answers(plan, job.answers, make_requests(KINDS, 40, seed=2))
    assert [report.state for report in run(job)] == ["judging", "done"]
    assert read_state(job.folder).watch is None and HeadVersions(job.versions).read()[0].current == 1


@pytest.mark.slow
def test_a_version_that_is_worse_on_live_answers_is_rolled_back(job: LearningJob, plan: Plan, tmp_path: Path) -> None:
    versions = HeadVersions(job.versions)
    bad = write_worse_head(job.versions / "bad.gguf", 1.0)
    made = versions.add_candidate(bad, made_at=1.0, learned_from=learner.describe_answers([]))
    versions.make_current(made.number, "slipped through")
    watched = VersionWatch(made.number, BASE, time.time())
    learner.write_state(job.folder, learner.LearningState(watch=watched))
    keep_answers(plan, job.answers, make_requests(KINDS, 40, seed=3))
    reports = run(job)
    assert reports[-1].version == BASE
    known, _ = versions.read()
    assert known.current == BASE and known.versions[0].state is VersionState.ROLLED_BACK
    assert "on live answers worse: acceptance length -" in known.versions[0].why


@pytest.mark.slow
def test_a_stream_of_random_tokens_changes_nothing_for_others(
    tmp_path: Path, plan: Plan, worse: Path, answered: Path
) -> None:
    """A hostile owner sends five times as much as both others; what comes of it is no worse for them."""
    job = make_job(plan, worse, tmp_path)
    own = KeptAnswers(answered, max_bytes=10**9, max_age_s=1e9).read()
    kept = KeptAnswers(job.answers, max_bytes=10**9, max_age_s=1e9)
    for number, answer in enumerate(own):
        kept.append("ann" if number % 2 else "bob", answer)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5 * len(own)):
        tokens = tuple(torch.randint(300, 4200, (60,), generator=generator).tolist())  # some are none of the target's
        kept.append("eve", make_answer(tokens, 20, now=own[-1].kept_at))
    run(job)
    known, _ = HeadVersions(job.versions).read()
    (version,) = known.versions
    assert version.learned_from.num_answers <= 2 * len(own)  # no owner more than twice as much as another
    assert version.state in (VersionState.CURRENT, VersionState.ROLLED_BACK)
    if version.state is VersionState.CURRENT:
        judged = learner.LearningSession(job, lambda report: None)
        mine = [answer for answer in judged._answers if answer.owner != hash_owner("eve")][-60:]
        _, verdict = judged._compare(BASE, version.number, mine)
        assert not verdict.is_worse


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["start", "learning", "judging"])
def test_a_killed_process_leaves_a_state_from_which_the_next_goes_on(job: LearningJob, phase: str) -> None:
    def kill(child: LearningChild, report: SessionReport) -> None:
        if report.state == phase:
            time.sleep(0.5)
            os.kill(child.pid, signal.SIGKILL)

    if phase == "start":
        child = LearningChild(job)
        time.sleep(0.3)
        child.close()
    else:
        run_child(job, kill)
    check_loadable(job)
    before = HeadVersions(job.versions).read()[0]
    reports = run_child(job, lambda child, report: None)
    assert reports[-1].state == "done" and reports[-1].version is not None
    check_loadable(job)
    if phase == "judging":  # the candidate was there already: nothing is learned again
        assert [report.state for report in reports] == ["judging", "done"]
        assert len(HeadVersions(job.versions).read()[0].versions) == len(before.versions) == 1


# in the order of a round, each in the session after the one before
FAULTS = {
    "reading the target's states": Fault("eaglelocal.training.target_capture:TargetCapture.read", call=3),
    "a training step": Fault("eaglelocal.training.loop:update", call=4),
    "saving a checkpoint": Fault("torch:save", call=3, cuts=1),
    "writing the candidate": Fault("eaglelocal.hub.heads.head_store:write_streamed", cuts=0),
    "moving the candidate": Fault("eaglelocal.hub.heads.versions:flush_and_rename"),
    "recording the candidate": Fault("eaglelocal.hub.heads.versions:write_atomically", call=2),
    "after that record": Fault("eaglelocal.hub.heads.versions:write_atomically", call=2, is_after=True),
    "judging": Fault("eaglelocal.learning.judgement:JudgedFile.add", call=3, cuts=0),
    "making it current": Fault("eaglelocal.hub.heads.versions:write_atomically", call=2),
    "after it became current": Fault("eaglelocal.hub.heads.versions:write_atomically", call=2, is_after=True),
    "writing its copy in fewer bits": Fault("eaglelocal.hub.heads.head_store:write_streamed", cuts=0),
}


@pytest.mark.slow
def test_killed_in_every_phase_of_a_round_learning_still_comes_to_its_end(
    job: LearningJob, worse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of a real process in one phase after the other: no head is lost, and no step that had been saved."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    light = replace(job.plan, draft=tmp_path / "head-q8_0.gguf", draft_origin=worse)
    job = replace(job, plan=light)
    steps_done: dict[str, int] = {}
    for phase, fault in FAULTS.items():
        monkeypatch.setattr(learning_process, "MODULE", write_program(tmp_path, fault))
        reports = run_child(job, lambda child, report: None)
        assert reports[-1].note == f"the learning process ended with status {-signal.SIGKILL}", phase
        check_loadable(job)
        for checkpoint in job.folder.glob(f"*{CHECKPOINT}"):
            steps_done[phase] = torch.load(checkpoint, weights_only=True)["done"]
    assert (steps_done["a training step"], steps_done["saving a checkpoint"]) == (3, 5)
    monkeypatch.setattr(learning_process, "MODULE", write_program(tmp_path, None))
    report = run_child(job, lambda child, report: None)[-1]
    known, _ = HeadVersions(job.versions).read()
    assert (report.state, report.version) == ("done", known.current) and known.current != BASE
    assert read_source(TARGET, Path(report.head)).start is not None
    left = {path.name for folder in (job.folder, job.versions, Path(report.head).parent) for path in folder.iterdir()}
    heads = {version.file_name for version in known.versions} | {Path(report.head).name}
    assert left - heads == {"learning.json", "versions.json", ".lock"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["add_candidate", "judge", "make_current", "write_state"])
def test_a_session_cut_off_between_two_writes_is_completed_by_the_next(
    job: LearningJob, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if kind == "write_state":  # after the candidate has become current
            make_current = HeadVersions.make_current

            def make_current_and_die(self: HeadVersions, number: int, why: str) -> None:
                make_current(self, number, why)
                patch.setattr(learner, "write_state", die)

            patch.setattr(HeadVersions, "make_current", make_current_and_die)
        else:
            patch.setattr(HeadVersions, kind, die)
        with pytest.raises(Killed):
            run(job)
    check_loadable(job)
    run(job)
    assert HeadVersions(job.versions).read()[0].current == 1
    state = read_state(job.folder)
    assert state.watch is not None and state.watch.version == 1 and state.round is None


@pytest.mark.slow
def test_sigterm_saves_what_was_learned(job: LearningJob) -> None:
    def stop_soon(child: LearningChild, report: SessionReport) -> None:
        if report.state == "learning":
            threading.Timer(4.0, os.kill, (child.pid, signal.SIGTERM)).start()

    reports = run_child(job, stop_soon)
    assert [report.state for report in reports] in (["learning"], ["learning", "failed"])
    (checkpoint,) = job.folder.glob(f"*{CHECKPOINT}")
    assert torch.load(checkpoint, weights_only=True)["done"] > 0


def test_too_few_answers_are_waited_for(tmp_path: Path, plan: Plan, worse: Path) -> None:
    job = make_job(plan, worse, tmp_path)
    KeptAnswers(job.answers, max_bytes=10**9, max_age_s=1e9).append("ann", make_answer(tuple(range(30)), 10))
    (report,) = run(job)
    assert report.state == "done" and 62 < report.missing <= 64


def read_state_and_time(pid: int) -> tuple[str, float]:
    process = psutil.Process(pid)
    times = process.cpu_times()
    return process.status(), times.user + times.system


def test_a_process_that_gives_way_is_frozen_until_all_is_quiet(job: LearningJob) -> None:
    quiet, used = threading.Event(), []

    def give_way(child: LearningChild, report: SessionReport) -> None:
        if report.state == "learning":
            time.sleep(1.0)  # in the middle of reading or of a step
            child.give_way(quiet.is_set)
            wait_until(lambda: read_state_and_time(child.pid)[0] == psutil.STATUS_STOPPED, "it is frozen")
            for wait_s in (0.0, 0.5):
                time.sleep(wait_s)
                used.append(read_state_and_time(child.pid))
            quiet.set()

    reports = run_child(job, give_way)
    assert [report.state for report in reports] == ["learning"], "it ends by itself, which is no failure"
    (state, before), (state_later, after) = used
    assert state == state_later == psutil.STATUS_STOPPED
    assert after == before, "it takes no processor time from an answer"
    check_loadable(job)


def test_a_process_that_was_frozen_saves_what_it_learned(job: LearningJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_process, "SAVE_S", PATIENCE_S)  # on a busy machine a checkpoint takes longer

    def give_way(child: LearningChild, report: SessionReport) -> None:
        if report.state == "learning":
            enough_s = read_state_and_time(child.pid)[1] + 4.0  # of the processor, which others may use too
            wait_until(
                lambda: read_state_and_time(child.pid)[1] > enough_s, "a step is done", patience_s=10 * PATIENCE_S
            )
            child.give_way(lambda: True)

    run_child(job, give_way)
    (checkpoint,) = job.folder.glob(f"*{CHECKPOINT}")
    assert torch.load(checkpoint, weights_only=True)["done"] > 0


def test_a_frozen_process_is_killed_where_it_never_gets_quiet(
    job: LearningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_process, "FROZEN_S", 0.5)
    reports = run_child(job, lambda child, report: child.give_way(lambda: False))
    assert [report.state for report in reports] == ["learning"]


FREEZE = """
import pickle, sys, threading, time
from eaglelocal.learning.learning_process import LearningChild
child = LearningChild(pickle.load(sys.stdin.buffer))
for report in child.reports():
    child.give_way(lambda: False)
    print(child.pid, flush=True)
"""


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt processes whose parents end, in this session, as the first process of a container does (Linux)."""
    set_subreaper = partial(ctypes.CDLL(None).prctl, 36)  # PR_SET_CHILD_SUBREAPER
    assert set_subreaper(1, 0, 0, 0) == 0
    try:
        yield
    finally:
        set_subreaper(0, 0, 0, 0)


ADOPTERS = [
    nullcontext(),
    pytest.param(adopting_orphans(), marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux")),
]


@pytest.mark.parametrize("adopter", ADOPTERS, ids=["init", "container"])
def test_a_frozen_process_ends_with_its_parent(job: LearningJob, adopter: AbstractContextManager[None]) -> None:
    with adopter:
        command = [sys.executable, "-c", FREEZE]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdin is not None and parent.stdout is not None
            parent.stdin.write(pickle.dumps(job))
            parent.stdin.close()
            child = psutil.Process(int(parent.stdout.readline()))
            parent.kill()
        psutil.wait_procs([child], timeout=10)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

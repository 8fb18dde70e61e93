"""Learning begins when no request runs, ends when one arrives, and exchanges the head of the running engine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from doubles.deadly_calls import write_program
from doubles.learning_demo import OWNER, keep_answers, make_plan, make_requests, write_worse_head

from eaglelocal import locations
from eaglelocal.client.client import OnEvent
from eaglelocal.core.events import Embeddings, Failed, Finished
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError
from eaglelocal.gguf.model_info import fingerprint_model
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.heads import requantized_copy
from eaglelocal.hub.heads.version_records import BASE, LearnedFrom
from eaglelocal.hub.heads.versions import find_versions
from eaglelocal.learning import idle_learning, learning_process
from eaglelocal.learning.idle_learning import CHECK_S, IdleLearning, LearningOptions, ModelLearning
from eaglelocal.learning.kept_answers import DAY_S, KeptAnswers, make_answer, read_target

pytestmark = pytest.mark.full

KINDS = ("chat", "translate", "math", "passage")
PATIENCE_S = 240.0
OPTIONS = LearningOptions(idle_s=0.2, min_new=32, owners=frozenset({OWNER}))


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a process of the lowest priority on a machine that may be busy."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


class SwappingClient:
    """An engine's client that records which heads it is given."""

    def __init__(self) -> None:
        self.state = "ready"
        self.swapped: list[tuple[Path, int]] = []
        self.error: EngineError | None = None

    def swap_head(self, path: Path, version: int) -> None:
        if self.error is not None:
            raise self.error
        self.swapped.append((path, version))


class SilentEngine:
    """An engine that never answers by itself."""

    def __init__(self) -> None:
        self.waiting: list[OnEvent] = []

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None:
        self.waiting.append(on_event)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(write_worse_head(tmp_path_factory.mktemp("head") / "worse.gguf", 0.5))


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    keep_answers(plan, folder, make_requests(KINDS, 20))
    return folder


@pytest.fixture
def folder(tmp_path: Path, plan: Plan, answered: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the target in a state folder of its own, with answers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = locations.learning_dir() / fingerprint_model(plan.target)
    shutil.copytree(answered, folder / "answers")
    return folder


@pytest.fixture
def learning(folder: Path) -> Iterator[IdleLearning]:
    learning = IdleLearning(OPTIONS, on_battery=lambda: False)
    yield learning
    learning.close()


def open_model(learning: IdleLearning, plan: Plan) -> tuple[ModelLearning, SwappingClient]:
    model, client = learning.open(plan), SwappingClient()
    model.begin(client)
    return model, client


@pytest.mark.slow
def test_an_idle_engine_gets_a_better_head(learning: IdleLearning, plan: Plan) -> None:
    model, client = open_model(learning, plan)
    wait_until(lambda: client.swapped)
    assert model.versions is not None
    assert client.swapped == [(model.versions.path(1), 1)]
    wait_until(lambda: learning.status().version == 1)
    assert learning.status().kept_answers > 32 and learning.status().kept_bytes > 0


@pytest.mark.slow
def test_a_request_ends_learning_and_does_not_wait_for_it(learning: IdleLearning, plan: Plan) -> None:
    model, _ = open_model(learning, plan)
    wait_until(lambda: learning.status().state == "learning")
    running = learning._running
    assert running is not None and running.child.is_running
    engine = SilentEngine()
    model.submit(engine.submit, ChatRequest(id="1", text="hi"), lambda event: None)
    assert len(engine.waiting) == 1  # submitted by the time the call returns
    wait_until(lambda: not running.child.is_running)
    wait_until(lambda: learning.status().state == "idle")
    assert learning._choose_model() is None  # as long as it runs
    engine.waiting[0](Failed("1", EngineError("gone")))
    wait_until(lambda: learning.status().state == "learning")


@pytest.mark.slow
def test_a_head_that_cannot_be_exchanged_now_is_used_later(learning: IdleLearning, plan: Plan) -> None:
    model, client = open_model(learning, plan)
    client.error = EngineError("the engine is away")
    wait_until(lambda: "after the next start" in model.note)
    assert model.version == BASE and model.versions is not None
    assert model.versions.read()[0].current == 1


def test_old_answers_of_a_model_that_is_never_loaded_are_deleted(folder: Path) -> None:
    """Once a day, by the limits with which they were kept: not by those of this process, which are tighter here."""
    options, now = LearningOptions(max_bytes=10, max_age_s=1.0), [0.0]
    old, new = (keep_elsewhere(folder.with_name(name), age_s=age_s) for name, age_s in (("o", 5000.0), ("n", 60.0)))
    learning = IdleLearning(options, now=lambda: now[0])
    try:
        wait_until(lambda: not old.read())
        late = keep_elsewhere(folder.with_name("l"), age_s=5000.0)
        time.sleep(2 * CHECK_S)
        assert len(late.read()) == 1
        now[0] += DAY_S
        wait_until(lambda: not late.read())
    finally:
        learning.close()
    assert len(new.read()) == 1


def keep_elsewhere(folder: Path, *, age_s: float) -> KeptAnswers:
    """Keep an answer of another model for an hour."""
    answers = KeptAnswers(folder / "answers", max_bytes=10**6, max_age_s=3600.0, target=Path("other.gguf"))
    answers.append(OWNER, make_answer(tuple(range(40)), 8, now=time.time() - age_s))
    return answers


def test_a_folder_that_cannot_be_pruned_does_not_end_learning(
    folder: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_learning, "prune_noted", fail)
    folder.with_name("other").mkdir()
    learning = IdleLearning(OPTIONS, on_battery=lambda: True)
    try:
        open_model(learning, plan)
        wait_until(lambda: learning.status().state == "paused")
        assert learning._thread.is_alive()
    finally:
        learning.close()


def fail(folder: Path, now: float) -> None:
    raise ValueError("a damaged folder")


def test_the_model_is_noted_beside_its_answers(learning: IdleLearning, folder: Path, plan: Plan) -> None:
    model, _ = open_model(learning, plan)
    engine = SilentEngine()
    model.submit(engine.submit, ChatRequest(id="1", text="hi", owner=OWNER), lambda event: None)
    assert read_target(folder) == ""
    tokens = tuple(range(5, 45))
    engine.waiting[0](Finished("1", "stop", "", 8, 32, Timings(), SpeculationStats(), tokens=tokens))
    wait_until(lambda: read_target(folder) == str(plan.target))


def test_nothing_is_learned_on_a_battery(folder: Path, plan: Plan) -> None:
    learning = IdleLearning(OPTIONS, on_battery=lambda: True)
    try:
        open_model(learning, plan)
        wait_until(lambda: learning.status().state == "paused")
        assert learning._running is None and "battery" in learning.status().note
    finally:
        learning.close()


def test_a_draft_without_an_eagle_head_is_not_learned_from(learning: IdleLearning, plan: Plan) -> None:
    model = learning.open(replace(plan, draft_kind="ngram", draft=None))
    model.begin(SwappingClient())
    assert not model.is_due(1e9) and "eaglelocal train" in learning.status().note


def test_a_failure_is_reported_and_not_repeated_at_once(learning: IdleLearning, plan: Plan, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(400))
    model, client = open_model(learning, replace(plan, draft=damaged))
    wait_until(lambda: model.note)
    assert model.retry_at > 0 and not client.swapped and learning.status().state == "paused"


@pytest.mark.slow
def test_answers_of_owners_who_withdrew_consent_are_not_learned(folder: Path, plan: Plan) -> None:
    learning = IdleLearning(replace(OPTIONS, owners=frozenset({"another"})), on_battery=lambda: False)
    model, client = open_model(learning, plan)
    wait_until(lambda: model.due_at_kept)  # the first session has ended
    assert (model.due_at_kept, client.swapped, model.note) == (OPTIONS.min_new, [], "")
    learning.close()


def test_nothing_is_learned_while_another_model_embeds(folder: Path, plan: Plan) -> None:
    learning = IdleLearning(replace(OPTIONS, idle_s=0.0), on_battery=lambda: True)  # it never begins by itself
    try:
        model, _ = open_model(learning, plan)
        engine = SilentEngine()
        learning.count_request(engine.submit, EmbedRequest(id="1", inputs=("hi",)), lambda event: None)
        assert learning._activity.idle_s() == 0.0
        engine.waiting[0](Embeddings("1", b"", 0, 3))
        assert learning._activity.num_running == 1
        engine.waiting[0](Failed("1", EngineError("gone")))
        assert learning._activity.num_running == 0 and model.keeper.num_kept == 0
    finally:
        learning.close()


def test_the_copy_in_fewer_bits_is_written_by_the_learning_process(
    folder: Path, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call waits for it: this process would fail at it."""
    copies = tmp_path / "cache" / "eaglelocal" / "heads"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(locations, "light_heads_dir", lambda: copies)  # again where it is for the other process
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(learning_process, "MODULE", write_program(tmp_path, None))
    light = replace(plan, draft=tmp_path / "worse-0123-q8_0.gguf", draft_origin=plan.draft)
    made = find_versions(plan.target, light.base_head)
    made.folder.mkdir(parents=True)
    candidate = write_worse_head(made.scratch_path(), 0.1)
    made.add_candidate(candidate, made_at=1.0, learned_from=LearnedFrom())
    made.make_current(1, "better")
    monkeypatch.setattr(requantized_copy, "_write", None)
    learning = IdleLearning(replace(OPTIONS, min_new=10_000), on_battery=lambda: False)  # no round begins
    try:
        model, client = open_model(learning, light)
        wait_until(lambda: client.swapped or model.note)
        ((path, version),) = client.swapped
    finally:
        learning.close()
    assert version == 1 and path == requantized_copy.make_copy_path(made.path(1), "q8_0")
    assert {tensor.type.name for tensor in read_header(path).tensors.values()} >= {"Q8_0"}


def test_a_closed_model_is_left_alone(learning: IdleLearning, plan: Plan) -> None:
    model, client = open_model(learning, plan)
    client.state = "closed"
    wait_until(lambda: model not in learning._models)

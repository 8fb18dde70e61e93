"""Learn while no request runs: watch the requests of this process, start a learning process, and apply its result.

One thread; at most one learning process, which is frozen as soon as a request arrives, and ends after that request. The
process itself (learner.py) decides what to learn, and whether the result is better.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from eaglelocal import locations
from eaglelocal.client.client import OnEvent
from eaglelocal.client.engine_client import Submit
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest
from eaglelocal.core.stats import LearningStatus
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.model_info import fingerprint_model
from eaglelocal.hub.heads.version_records import BASE
from eaglelocal.hub.heads.versions import HeadVersions, find_versions
from eaglelocal.learning.answer_keeper import AnswerKeeper, RequestActivity
from eaglelocal.learning.kept_answers import DAY_S, KeptAnswers, hash_owner, prune_noted
from eaglelocal.learning.learner import LearningJob, SessionReport
from eaglelocal.learning.learning_process import FAILED, LearningChild
from eaglelocal.learning.learning_round import MIN_NEW
from eaglelocal.probe.cpuinfo import count_usable_threads
from eaglelocal.probe.machine import runs_on_battery

ANSWERS = "answers"  # folder of a target's kept answers
CHECK_S = 1.0
RETRY_S = 600.0  # after a failure, such as too little memory
QUIET_S = 1.0  # seconds without a request, until a frozen process may write its checkpoint
GIGABYTE = 1_000_000_000

_log = logging.getLogger(__name__)


class HeadClient(Protocol):
    """The part of an engine's client that learning uses."""

    @property
    def state(self) -> str: ...

    def swap_head(self, path: Path, version: int) -> None:
        """Draft with another head from now on. Raises EagleLocalError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningOptions:
    """The user's settings of learning.

    general  questions that the head rehearses
    """

    max_bytes: int = GIGABYTE
    max_age_s: float = 30 * DAY_S
    idle_s: float = 60.0
    min_new: int = MIN_NEW
    owners: frozenset[str] = frozenset({""})
    general: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class ModelLearning:
    """The learning of one model: its keeper, and when there will be something to do.

    base  the head to train further; None: this draft cannot learn, and `why` gives the reason
    """

    plan: Plan
    keeper: AnswerKeeper
    folder: Path
    base: Path | None
    versions: HeadVersions | None
    why: str = ""
    client: HeadClient | None = None  # once the model is loaded
    due_at_kept: int = 0  # learning starts when this many answers were kept since the start
    retry_at: float = 0.0
    version: int = BASE  # that drafts
    note: str = ""

    def submit(self, submit: Submit, request: AnyRequest, on_event: OnEvent) -> None:
        self.keeper.submit(submit, request, on_event)

    def begin(self, client: HeadClient) -> None:
        """Let the head learn, now that its engine is ready."""
        self.client = client

    @property
    def is_closed(self) -> bool:
        return self.client is not None and self.client.state == "closed"

    def is_due(self, now: float) -> bool:
        can_learn = self.base is not None and self.client is not None
        return can_learn and now >= self.retry_at and self.keeper.num_kept >= self.due_at_kept

    def make_job(self, threads: int, min_new: int, general: tuple[str, ...] = ()) -> LearningJob:
        assert self.base is not None and self.versions is not None
        return LearningJob(
            plan=self.plan,
            base=self.base,
            answers=self.folder / ANSWERS,
            folder=self.folder / self.versions.folder.name,
            versions=self.versions.folder,
            threads=threads,
            min_new=min_new,
            owners=frozenset(map(hash_owner, self.keeper.owners)),
            general=general,
        )


@dataclass(slots=True)
class _RunningSession:
    model: ModelLearning
    child: LearningChild
    state: str = "learning"


class IdleLearning:
    """The learning of all models of this process. Close it before their engines.

    on_battery  whether the machine runs on a battery now
    """

    def __init__(
        self,
        options: LearningOptions,
        *,
        on_battery: Callable[[], bool] = runs_on_battery,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._on_battery, self._now = options, on_battery, now
        self._activity = RequestActivity(self._interrupt, now)
        self._models: list[ModelLearning] = []
        self._running: _RunningSession | None = None
        self._ending = threading.Event()
        self._paused, self._prune_at = "", now()
        self._thread = threading.Thread(target=self._run, name="idle-learning", daemon=True)
        self._thread.start()

    # ---- models
    def open(self, plan: Plan) -> ModelLearning:
        """Return the learning of a model that is about to be loaded. Raises OSError where its file cannot be read."""
        folder = locations.learning_dir() / fingerprint_model(plan.target)
        max_bytes, max_age_s = self._options.max_bytes, self._options.max_age_s
        answers = KeptAnswers(folder / ANSWERS, max_bytes=max_bytes, max_age_s=max_age_s, target=plan.target)
        base, why = find_base(plan)
        versions = find_versions(plan.target, base) if base is not None else None
        for failed in [model for model in self._models if model.client is None and model.folder == folder]:
            self._models.remove(failed)  # it was never loaded
            failed.keeper.close()
        owners = frozenset[str]() if plan.adapters else self._options.owners
        keeper = AnswerKeeper(answers, owners, self._activity)
        model = ModelLearning(plan, keeper, folder, base, versions, why, version=plan.draft_version)
        self._models.append(model)
        return model

    def _prune_daily(self) -> None:
        """Delete expired answers once a day, by the limit beside them, also of models that are not loaded here."""
        if self._now() < self._prune_at:
            return
        self._prune_at = self._now() + DAY_S
        models = list(self._models)
        for model in models:
            model.keeper.prune()
        with suppress(OSError):
            for folder in set(locations.learning_dir().glob("*")) - {model.folder for model in models}:
                with suppress(OSError):
                    prune_noted(folder / ANSWERS, time.time())

    def count_request(self, submit: Submit, request: AnyRequest, on_event: OnEvent) -> None:
        """Submit to an engine that keeps no answers, such as an embedding engine; no learning runs meanwhile."""
        self._activity.submit(submit, request, on_event)

    def status(self) -> LearningStatus:
        """Return what is kept of all models, and the state of the model that learns now, or else of the first one."""
        running, models = self._running, list(self._models)
        kept = [model.keeper.size for model in models]
        shown = running.model if running is not None else next(iter(models), None)
        state, version, note = "idle", BASE, self._paused
        if shown is not None:
            version, note = shown.version, shown.keeper.trouble or shown.why or self._paused or shown.note
            is_paused = bool(self._paused or shown.why) or self._now() < shown.retry_at
            learns = running is not None and not running.child.was_stopped
            state = running.state if running is not None and learns else "paused" if is_paused else "idle"
        return LearningStatus(
            kept_answers=sum(size.num_answers for size in kept),
            kept_bytes=sum(size.num_bytes for size in kept),
            state=state,
            version=version,
            note=note,
        )

    def close(self) -> None:
        """End the learning process and the threads."""
        self._ending.set()
        if (running := self._running) is not None:
            running.child.stop()
        self._thread.join()
        for model in list(self._models):
            model.keeper.close()

    # ---- learning
    def _interrupt(self) -> None:
        """Freeze the learning process because a request arrived; it ends later."""
        if (running := self._running) is not None:
            running.child.give_way(self._is_quiet)

    def _is_quiet(self) -> bool:
        return self._activity.idle_s() >= QUIET_S

    def _run(self) -> None:
        while not self._ending.wait(CHECK_S):
            model = self._choose_model()
            try:
                self._prune_daily()
                if model is not None:
                    self._learn(model)
            except Exception:
                _log.exception("learning failed")
                if model is not None:
                    model.retry_at = self._now() + RETRY_S

    def _choose_model(self) -> ModelLearning | None:
        now = self._now()
        for model in [model for model in self._models if model.is_closed]:
            self._models.remove(model)
            model.keeper.close()
        due = next((model for model in list(self._models) if model.is_due(now)), None)
        if due is None or self._activity.idle_s() < self._options.idle_s:
            self._paused = ""
            return None
        self._paused = "the machine runs on its battery" if self._on_battery() else ""
        return None if self._paused else due

    def _learn(self, model: ModelLearning) -> None:
        """Run one session, from the start of its process to its end."""
        model.keeper.prune()
        threads = max(count_usable_threads() - 1, 1)
        job = model.make_job(threads, self._options.min_new, self._options.general)
        num_kept, last = model.keeper.num_kept, None
        self._running = running = _RunningSession(model, LearningChild(job))
        if self._activity.num_running or self._ending.is_set():  # since the process was started
            running.child.kill()
        try:
            for last in running.child.reports():
                running.state = last.state if last.state in ("learning", "judging") else running.state
        finally:
            running.child.close()
            self._running = None
        if last is not None:
            self._apply(model, last, num_kept)

    def _apply(self, model: ModelLearning, last: SessionReport, num_kept: int) -> None:
        """Note what the session ended with, and exchange the head if another one is current now."""
        if last.state == FAILED:
            model.note, model.retry_at = last.note, self._now() + RETRY_S
            _log.warning("learning is put off: %s", last.note)
        elif last.state == "done":
            model.note, model.due_at_kept = last.note, num_kept + last.missing
            if last.note:
                _log.info("learning: %s", last.note)
            self._use_current(model, last)

    def _use_current(self, model: ModelLearning, last: SessionReport) -> None:
        """Make the engine draft with the current version, also after an exchange that failed or was interrupted."""
        assert model.versions is not None
        version, known = last.version, model.versions.read()[0]
        if known.pinned is not None or known.current != version:  # changed since by another process
            return
        if model.client is None or version is None or version == model.version:
            return
        try:
            if not last.head:
                raise EagleLocalError(last.trouble)
            model.client.swap_head(Path(last.head), version)
        except EagleLocalError as error:
            model.note = f"version {version} is used after the next start: {error.message}"
            _log.warning("%s", model.note)
        else:
            model.version = version
            _log.info("version %d of the head drafts now", version)


def find_base(plan: Plan) -> tuple[Path | None, str]:
    """Return the file of the head that learning starts from; None with the reason if there is none."""
    if plan.adapters:
        return None, "nothing is kept or learned while LoRA adapters are loaded: their texts are another model's"
    if plan.draft_kind != "eagle3" or plan.draft is None:
        return None, "only an EAGLE head goes on learning: eaglelocal train makes one"
    if plan.base_head is not None and plan.base_head.parent == locations.generated_models_dir():
        return None, "a head that was generated to a size does not learn; the one it was made of does, in its target"
    return plan.base_head, ""

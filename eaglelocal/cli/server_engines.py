"""The engines of a server: makes the plans of its models and loads them.

The first one is loaded ahead of the server: its process works while the server's own modules are imported here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING

from eaglelocal.cli.load_model import LoadingEngine, write_plan
from eaglelocal.conversation.answer_stats import model_line
from eaglelocal.core.plan import NO_OWNERS, Owners, Plan
from eaglelocal.core.stats import LEARNING_OFF, LearningStatus

if TYPE_CHECKING:
    from eaglelocal.cli.output import Output
    from eaglelocal.learning.idle_learning import IdleLearning
    from eaglelocal.preparation.coresidency import EvictionPolicy
    from eaglelocal.preparation.decision import Decision
    from eaglelocal.server.loaded_models import LoadResult
    from eaglelocal.worker.child import SpareProcess

ENGINE_RETRIES = 12  # of an engine that keeps failing: about eleven minutes
AHEAD_S = 2.0  # most seconds in which nothing else is imported, so that the first plan is made quickly


class ServerEngines:
    """Loads the models of a server by their names in requests; the first name is loaded first.

    most      the most models loaded at once; None: as many as fit
    spare     the first engine's process
    learning  of the heads of all models
    owners    of what the engines keep
    """

    def __init__(
        self,
        decisions: Mapping[str, Decision],
        output: Output,
        *,
        most: int | None,
        spare: SpareProcess | None = None,
        learning: IdleLearning | None = None,
        owners: Owners = NO_OWNERS,
    ) -> None:
        self._learning, self._owners = learning, owners
        self._decisions, self._output, self._most, self._spare = decisions, output, most, spare
        self._lock = threading.Lock()  # held while plans are made: the first load may begin on another thread
        self._plans: Mapping[str, Plan] = {}
        self._policy: EvictionPolicy | None = None
        self._first: Future[LoadingEngine] | None = None  # begun, and not yet waited for
        self._is_closed = False

    def find_plan(self, name: str) -> Plan | None:
        """Return the plan of a model; None before the first load has made the plans. Safe from any thread."""
        return self._plans.get(name)

    def begin(self) -> None:
        """Begin to load the first model. If a model file has to be written for that, this does not wait for it."""
        self._first = Future()
        threading.Thread(target=self._begin_first, args=(self._first,), name="first-engine", daemon=True).start()
        wait([self._first], AHEAD_S)

    def load(self, name: str) -> LoadResult:
        """Load a model and wait until it can answer. Raises EagleLocalError."""
        from eaglelocal.server.loaded_models import LoadResult

        begun = None
        if name == next(iter(self._decisions)):
            begun, self._first = self._first, None
        engine = self._begin_loading(name) if begun is None else begun.result()
        client, info = engine.wait(self._output)
        self._output.message(model_line(info, self._plans[name]))
        for note in info.notes:
            self._output.note(f"note: {note}")
        return LoadResult(client, info)

    def choose_victims(self, name: str, loaded: Sequence[str]) -> Sequence[str]:
        """Return the loaded models to unload before this one is loaded."""
        return self._make_plans().victims(name, loaded) if loaded else []

    def read_learning(self) -> LearningStatus:
        return LEARNING_OFF if self._learning is None else self._learning.status()

    def close(self) -> None:
        """End learning, and an engine that was begun but never awaited."""
        self._is_closed = True
        if self._learning is not None:
            self._learning.close()
        first, self._first = self._first, None
        if first is not None and first.done() and first.exception() is None:
            first.result().close()

    def _begin_first(self, begun: Future[LoadingEngine]) -> None:
        try:
            engine = self._begin_loading(next(iter(self._decisions)))
        except BaseException as error:
            begun.set_exception(error)  # raised by `load`
            return
        begun.set_result(engine)
        if self._is_closed:
            engine.close()

    def _begin_loading(self, name: str) -> LoadingEngine:
        with self._lock:
            self._make_plans()
            spare, self._spare = self._spare, None
        return LoadingEngine(self._plans[name], num_retries=ENGINE_RETRIES, spare=spare, learning=self._learning)

    def _make_plans(self) -> EvictionPolicy:
        """Make the plans of all models, with all their files on disk before the first request, and weigh them."""
        from eaglelocal.preparation.coresidency import EvictionPolicy

        if self._policy is None:
            plans = {
                name: replace(write_plan(decision, self._output), owners=self._owners)
                for name, decision in self._decisions.items()
            }
            self._policy = EvictionPolicy(plans, most=self._most)
            self._plans = plans
        return self._policy

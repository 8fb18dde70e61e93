"""The real engine over a target that a device computes, with a clock of its own; no llama.cpp.

A decode takes DEVICE_S from its submission, but no thread waits for it: the device's clock is set forward. What the
doubles themselves take counts as the native library's time, and so does what the engine does while the device computes:
its host time is then that for which the device waits. Ranking logits counts as host time, and is done by the native
code as over llama.cpp. All of it is processor time of the engine's thread, so that other programs hardly add to it.
"""

from __future__ import annotations

import dataclasses
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from eaglelocal.backend.native_step import SYMBOLS, NativeStep, make_block_maxima
from eaglelocal.backend.top_tokens import TopTokens, num_ranked
from eaglelocal.core.batch import Batch, Floats, Proposals, State
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.plan import Plan
from eaglelocal.core.sampling import Sampled, SamplingParams
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.engine import step_timing
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import Scheduler
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DrafterSet

from .engine_harness import INFO
from .scripted_context import (
    LetterConstraints,
    LetterVocabulary,
    ScriptedContext,
    ScriptedHead,
    ScriptedOutputs,
    ScriptedSampler,
    Table,
)

AT_ONCE, ASYNCHRONOUS = "doubles.device_engine:build_at_once", "doubles.device_engine:build_asynchronous"
DEVICE_S = 0.008
now = time.thread_time
NUM_ROWS = 13  # distinct rows of logits: few, so that caches keep them as they keep llama.cpp's buffer


class WideTable(Table):
    """A table of few rows, for any size of vocabulary. No row ends an answer."""

    def __init__(self, n_vocab: int) -> None:
        super().__init__(n_vocab)
        self._rows = np.random.default_rng(0).normal(size=(NUM_ROWS, n_vocab)).astype(np.float32)
        self._rows[:, 0] = -9.0

    def logits(self, state: int) -> Floats:
        return self._rows[state % NUM_ROWS]  # type: ignore[no-any-return]


class NumberVocabulary(LetterVocabulary):
    """A vocabulary whose tokens are numbers, written out."""

    def piece(self, token: int) -> bytes:
        return b" %d" % token

    def is_end(self, token: int) -> bool:
        return False


class Ranking:
    """The native ranking of logits; `seconds` in it so far, which are host time."""

    def __init__(self, n_vocab: int) -> None:
        self._native, self._maxima, self._top = (
            NativeStep([None] * len(SYMBOLS)),
            make_block_maxima(n_vocab),
            TopTokens(),
        )
        self.seconds = 0.0

    def rank(self, logits: Floats, num_choices: int, *, confident: bool) -> Proposals:
        count, top, at = num_ranked(num_choices, len(logits), confident=confident), self._top, logits.ctypes.data
        started_at = now()
        self._native.rank(at, len(logits), count, self._maxima, top.tokens_at, top.shares_at)
        self.seconds += now() - started_at
        return top.read(1, count, num_choices, confident=confident)


class DeviceSampler(ScriptedSampler):
    """A greedy sampler."""

    def sample(self, row: int) -> Sampled:
        assert isinstance(self.context, DeviceContext)
        return Sampled(self.context.best_token(row))


class DeviceContext(ScriptedContext):
    """A target on a device, whose work `collect` waits for."""

    def __init__(self, table: Table, *, is_asynchronous: bool, **sizes: Any) -> None:
        super().__init__(table, **sizes)
        self.is_asynchronous, self._ranking = is_asynchronous, Ranking(table.n_vocab)
        self._submitted_at = 0.0

    def submit(self, batch: Batch) -> None:
        started_at = now()
        super().submit(batch)
        self._submitted_at = now()
        self.native_s += self._submitted_at - started_at

    def collect(self) -> ScriptedOutputs:
        """Return the outputs. What the engine did in the meantime cost nothing, up to the time that a decode takes."""
        started_at = now()
        outputs = super().collect()
        self.native_s += now() - started_at + min(started_at - self._submitted_at, DEVICE_S)
        return outputs

    def best_token(self, row: int) -> int:
        started_at, ranked_s = now(), self._ranking.seconds
        best = self._ranking.rank(self.logits_of(row), 1, confident=False)
        self.native_s += now() - started_at - (self._ranking.seconds - ranked_s)
        return best.tokens[0][0]

    def sampler(self, params: SamplingParams, *more: Any) -> DeviceSampler:
        assert params.is_greedy
        return DeviceSampler(self, params)


class DeviceHead(ScriptedHead):
    """A head whose own time counts as native, except the ranking."""

    def __init__(self, table: Table, **sizes: Any) -> None:
        super().__init__(table, **sizes)
        self._ranking, self._depth = Ranking(table.n_vocab), 0

    @contextmanager
    def _clock(self) -> Iterator[None]:
        started_at, ranked_s = now(), self._ranking.seconds
        self._depth += 1
        yield
        self._depth -= 1
        if not self._depth:
            self.native_s += now() - started_at - (self._ranking.seconds - ranked_s)

    def encode(self, *arguments: Any) -> list[State]:
        with self._clock():
            return super().encode(*arguments)

    def decode(self, *arguments: Any, **options: Any) -> Proposals:
        with self._clock():
            return super().decode(*arguments, **options)

    def _propose(self, rows: list[Floats], num_choices: int, states: list[State]) -> Proposals:
        ranked = [self._ranking.rank(row, num_choices, confident=True) for row in rows]
        return Proposals([each.tokens[0] for each in ranked], [each.confidences[0] for each in ranked], states)


def build_at_once(plan: Plan, report: Callable[[LoadProgress], None]) -> Engine:
    return build(plan, is_asynchronous=False)


def build_asynchronous(plan: Plan, report: Callable[[LoadProgress], None]) -> Engine:
    return build(plan, is_asynchronous=True)


def build(plan: Plan, *, is_asynchronous: bool) -> Engine:
    """Build the engine of a plan whose label is the size of the vocabulary."""
    step_timing.time = types.SimpleNamespace(perf_counter=now)  # type: ignore[assignment]
    n_vocab = int(plan.target_label)
    table = WideTable(n_vocab)
    sizes = {"n_ctx": plan.n_ctx, "n_batch": plan.n_batch}
    context = DeviceContext(table, is_asynchronous=is_asynchronous, num_slots=plan.num_slots, **sizes)
    drafter = Eagle3(DeviceHead(table, **sizes), (0,))
    prefix_cache = PrefixCache(plan.num_slots, reuse_margin=drafter.traits.reuse_margin)
    return Engine(
        context=context,
        input_processor=InputProcessor(NumberVocabulary(n_vocab), plan.n_ctx, LetterConstraints()),
        drafters=(drafter,),
        controller=Controller(plan.spec, DrafterSet(drafter.traits.name), StepCosts(), leveled=True),
        scheduler=Scheduler(**sizes, prefix_cache=prefix_cache),
        info=dataclasses.replace(INFO, num_slots=plan.num_slots, n_vocab=n_vocab, n_ctx=plan.n_ctx),
    )

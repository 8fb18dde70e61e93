"""Conversations of several requests over a scripted engine: their questions, cancellations and events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from eaglelocal.core.request import ChatRequest, Spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.ngram import Ngram

from .drafters import DrafterOnly, NoDrafter
from .engine_harness import AnswerResult, EngineHarness, plain_text
from .scripted_context import ScriptedContext, ScriptedHead, Table

TABLE, WRONG = Table(seed=1), Table(seed=1, sharpness=-2.0)
KINDS = ("none", "eagle3", "prompt ends", "model", "ngram", "no slot state")


def make_drafter(kind: str, *, branches: int = 0) -> Drafter:
    """Return a drafter that is right; of the kind "wrong" one that is always wrong, and soon asleep."""
    if kind == "wrong":
        return Eagle3(ScriptedHead(WRONG), (0,))
    if kind == "eagle3":
        return Eagle3(ScriptedHead(TABLE), (0,), num_choices=1 + (branches > 0))
    if kind == "prompt ends":
        return Eagle3(ScriptedHead(TABLE), (0,), num_choices=1 + (branches > 0), max_prompt_rows=20)
    if kind == "no slot state":
        return DrafterOnly(Eagle3(ScriptedHead(TABLE), (0,)))
    if kind == "model":
        return DraftModel(ScriptedContext(TABLE, gives_features=False, num_branches=branches), num_choices=1)
    return Ngram(128) if kind == "ngram" else NoDrafter()


def ask(
    name: str, prompt: tuple[int, ...], *, owner: str = "", max_tokens: int = 6, spec: Spec | None = None
) -> ChatRequest:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return ChatRequest(id=name, tokens=prompt, params=params, owner=owner, spec=spec)


def cached(results: AnswerResult) -> int:
    assert results.started is not None
    return results.started.cached_tokens


def check_counts(harness: EngineHarness) -> None:
    assert harness.engine.miscounted_slots() == []


@dataclass
class Conversing:
    """Requests to a harness, whose books are checked after every step."""

    harness: EngineHarness
    check: Callable[[EngineHarness], None] = check_counts
    asked: list[ChatRequest] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    results: dict[str, AnswerResult] = field(default_factory=dict)

    def submit(self, *requests: ChatRequest) -> None:
        for request in requests:
            self.asked.append(request)
            self.harness.engine.submit(request)

    def cancel(self, name: str) -> None:
        self.cancelled.add(name)
        self.harness.engine.cancel(name)
        self.check(self.harness)

    def step(self) -> None:
        for event in self.harness.engine.step():
            self.results.setdefault(event.request_id, AnswerResult()).add(event)
        self.check(self.harness)

    def finish(self) -> dict[str, AnswerResult]:
        """Step to the end: every text is the plain one, or begins as it does if it was cancelled or failed."""
        for _ in range(3000):
            if not self.harness.engine.has_work:
                break
            self.step()
        else:
            raise AssertionError("the engine does not come to an end")
        for one in self.asked:
            plain, got = plain_text(TABLE, one), self.results[one.id]
            assert got.tokens == plain[: len(got.tokens)], one.id
            assert got.failed or one.id in self.cancelled or got.tokens == plain, one.id
        return self.results

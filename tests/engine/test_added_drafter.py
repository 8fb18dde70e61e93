"""A drafter is added in three files: its class, its name in `core/draft.py`, and what opens it in `draft_loader.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from doubles.engine_harness import drive

from eaglelocal.core import draft
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.drafter import (
    NO_EXTRA_LEVELS,
    Committed,
    Continuation,
    DraftTraits,
    ExtraLevels,
    Lookup,
    Node,
)
from eaglelocal.errors import UsageError
from eaglelocal.loading import draft_loader
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve


class Echo(Lookup):
    """A drafter without a model that expects the last token again and again."""

    traits = DraftTraits(name="echo")

    def may_match(self, root: Node, length: int) -> bool:
        return True

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return [Continuation([node.token] * depth, [0.5] * depth) for node in nodes]

    def commit(self, committed: Sequence[Committed]) -> None: ...

    def rollback(self, slot: int, position: int) -> None: ...


def answer(reference: str) -> tuple[list[int], int]:
    """Return the tokens of an answer, and how many were drafted for it."""
    sources = draft.parse_draft(reference)
    options = RunOptions(target="demo", draft=sources.model, lookups=sources.lookups, spec=3, ctx=256, threads=1)
    engine = build(resolve(options, on_progress=lambda share, what: None), lambda progress: None)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    result = drive(engine, [ChatRequest(id="a", tokens=tuple(range(40, 60)), params=params)])
    drafted = engine.snapshot().speculation.draft_tokens
    engine.close()
    return result["a"].tokens, drafted


def test_a_drafter_without_a_model_is_added_in_three_files(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = answer("none")
    with pytest.raises(UsageError, match="unknown draft"):
        answer("echo")
    monkeypatch.setitem(draft.LOOKUPS, "echo", "echo of the last token")
    monkeypatch.setitem(draft_loader.LOOKUP_OPENERS, "echo", lambda loader, target: Echo())
    echoed, num_drafted = answer("echo")
    assert echoed == plain and num_drafted > 0
    assert draft.describe_draft("", ["echo"]) == "echo of the last token"

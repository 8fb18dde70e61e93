"""A drafter is added in three files: its class, its name in `run_options.py`, its opener in `draft_loader.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from doubles.engine_harness import drive

from eaglelocal.cli.completion import complete_draft
from eaglelocal.core import run_options
from eaglelocal.core.draft import describe_draft
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

    def estimate(self, root: Node) -> float:
        return 0.5

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return [Continuation([node.token] * depth, [0.5] * depth) for node in nodes]

    def commit(self, committed: Sequence[Committed]) -> None: ...

    def rollback(self, slot: int, position: int) -> None: ...


def answer(reference: str) -> tuple[list[int], int]:
    """Return the tokens of an answer, and how many were drafted for it."""
    sources = run_options.parse_draft(reference)
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
    monkeypatch.setitem(run_options.LOOKUPS, "echo", "echo of the last token")
    monkeypatch.setitem(draft_loader.LOOKUP_OPENERS, "echo", lambda loader, target: Echo())
    echoed, num_drafted = answer("echo")
    assert echoed == plain and num_drafted > 0
    assert describe_draft("", ["echo"]) == "echo of the last token"
    assert complete_draft("ech") == ["echo"] and complete_draft("ngram,e") == ["ngram,echo"]
    with pytest.raises(UsageError, match="unknown draft") as raised:
        answer("ecko")
    assert raised.value.hint.startswith("did you mean `echo`? use `auto`, `ngram`, `lookahead`, `echo`, ")


HELP = """
from eaglelocal.core.run_options import LOOKUPS
LOOKUPS["echo"] = "echo of the last token"
from eaglelocal.conversation.slash_commands import COMMANDS
from eaglelocal.settings import Settings
print(COMMANDS["/draft"].arguments, Settings.__dataclass_fields__["draft"].metadata["flag"].help)
"""


def test_help_names_an_added_drafter() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=120, check=True)
    slash, _, flag = done.stdout.partition(" ")
    assert slash == "[auto|ngram|lookahead|echo|mtp|none|REF],..."
    assert flag.startswith("What drafts: auto (unset), ngram, lookahead, echo, mtp, none, or ")

"""How a chat starts: the model is chosen and planned once, while all memory is still free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.scripted_client import ScriptedClient, says

from eaglelocal.cli import chat
from eaglelocal.cli.output import standard_output
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.conversation import Conversation
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import ModelChoice, RunOptions
from eaglelocal.preparation.decision import Decision
from eaglelocal.settings import Settings
from eaglelocal.worker.child import SpareProcess


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """Those that were planned; the planner finds the embedded model with a context of 700."""
    seen: list[RunOptions] = []

    def planned(options: RunOptions) -> Decision:
        seen.append(options)
        return Decision(replace(options, target=options.target or "demo@native", ctx=700))

    def loaded(plan: Plan, _output: MessageOutput, _spare: SpareProcess, learning: object) -> ActiveModel:
        assert learning is None
        client = ScriptedClient((says("yes"),))
        return ActiveModel(client, plan, client.info)

    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr("eaglelocal.preparation.autoplan.autoplan", planned)
    monkeypatch.setattr(chat, "load_model", loaded)
    return seen


@pytest.mark.parametrize("target", [None, "demo@native"])
def test_the_model_is_planned_once_and_loaded_so(asked: list[RunOptions], target: str | None) -> None:
    session = chat.open_session(Settings(url="none", target=target), standard_output(), ModelChoice())
    assert [options.target for options in asked] == [target]
    assert session.model.plan is not None and session.model.plan.n_ctx == 700


@pytest.mark.parametrize(("given", "expected"), [(None, True), (True, True), (False, False)])
def test_the_engine_ends_loops_unless_that_is_switched_off(
    asked: list[RunOptions], given: bool | None, expected: bool
) -> None:
    settings = Settings(url="none", stop_loops=given)
    assert chat.open_session(settings, standard_output(), ModelChoice()).params.stop_loops is expected


@pytest.mark.parametrize(
    ("given", "effort", "budget"),
    [("512", "medium", 512), ("off", "", 0), ("high", "high", None), ("auto", "", None)],
)
def test_a_limit_of_thinking_means_what_think_does(
    asked: list[RunOptions], given: str, effort: str, budget: int | None
) -> None:
    settings = Settings(url="none", thinking_budget=given, thinking_message="Enough.")
    thinking = chat.open_session(settings, standard_output(), ModelChoice()).params.thinking
    assert (thinking.effort, thinking.budget, thinking.message) == (effort, budget, "Enough.")


@pytest.mark.parametrize("target", [None, "demo@native"])
@pytest.mark.parametrize("is_brief", [False, True])
def test_the_plan_knows_that_it_is_for_one_answer(asked: list[RunOptions], target: str | None, is_brief: bool) -> None:
    settings = Settings(url="none", target=target)
    start = chat.ChatStart(Conversation(), is_brief=is_brief)
    session = chat.open_session(settings, standard_output(), ModelChoice(), start=start)
    assert session.model.plan is not None and session.model.plan.is_brief is is_brief

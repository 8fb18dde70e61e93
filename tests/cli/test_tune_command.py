"""`eaglelocal tune`: every draft length is run, and the figures come from a real engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doubles.commands import run_command

from eaglelocal.cli.tune import LENGTH_S, PATIENCE, STEPS, run_rounds
from eaglelocal.core.events import EngineSnapshot, Failed, RequestEvent, TextPiece, Tokens
from eaglelocal.core.request import ChatRequest
from eaglelocal.errors import EngineError

pytestmark = pytest.mark.full


def tune(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("tune", "--target", "demo@native", *arguments, environ=environ)


@dataclass
class Endless:
    """Tokens until it is cancelled, one a second; then what was under way."""

    request: ChatRequest
    client: Machine
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    def __iter__(self) -> Iterator[RequestEvent]:
        if self.client.fails:
            yield Failed(self.request.id, EngineError("the engine ended"))
        while not self.cancelled:
            self.client.now += self.client.step_s
            self.client.steps[str(self.request.spec)] = self.client.steps.get(str(self.request.spec), 0) + 1
            yield Tokens(self.request.id, (TextPiece(1, "a", False),))
        yield Tokens(self.request.id, (TextPiece(1, "a", False),))


@dataclass
class Machine:
    step_s: float = 1.0
    fails: bool = False
    now: float = 0.0
    steps: dict[str, int] = field(default_factory=dict)  # by spec
    restarts: int = 0

    def stream(self, request: ChatRequest) -> Endless:
        return Endless(request, self)

    def snapshot(self) -> EngineSnapshot:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def test_a_slow_machine_has_one_round() -> None:
    machine, shown = Machine(step_s=0.5), []
    run_rounds(machine, range(4), clock=lambda: machine.now, on_progress=lambda done, _: shown.append(done))
    assert machine.steps == {"off": STEPS, "1": STEPS, "2": STEPS, "3": STEPS}
    assert shown == sorted(shown)
    assert max(shown) <= 1.0


def test_patience_ends_on_a_machine_that_is_starved() -> None:
    machine = Machine(step_s=10.0)
    run_rounds(machine, range(17), clock=lambda: machine.now, on_progress=lambda *_: None)
    assert machine.now <= (PATIENCE * LENGTH_S * 17) + STEPS * 10.0
    assert "off" in machine.steps


def test_a_fast_machine_has_rounds_until_the_time_is_over() -> None:
    machine = Machine(step_s=0.01)
    run_rounds(machine, range(17), clock=lambda: machine.now, on_progress=lambda *_: None)
    assert 17 * LENGTH_S <= machine.now < 17 * LENGTH_S + 17 * STEPS * 0.01 + 0.01
    assert len(set(machine.steps.values())) == 1
    assert len(machine.steps) == 17


def test_an_engine_that_fails_is_reported() -> None:
    machine = Machine(fails=True)
    with pytest.raises(EngineError, match="the engine ended"):
        run_rounds(machine, range(2), clock=lambda: machine.now, on_progress=lambda *_: None)


def test_the_embedded_model_is_measured(environ: dict[str, str]) -> None:
    done = tune(environ, "--threads", "1", "--ctx", "512", "--json")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 80
    report = json.loads(done.stdout)
    assert [entry["rows"] for entry in report["rows"]][:4] == [1, 2, 3, 4]
    assert max(entry["rows"] for entry in report["rows"]) == 17
    assert all(entry["seconds"] > 0 and entry["samples"] >= 3 for entry in report["rows"])
    assert report["draft_steps"][0]["seconds"] > 0
    assert len(report["implied"]) == 5
    assert report["threads"] == 1
    kept = Path(environ["XDG_STATE_HOME"]) / "eaglelocal" / "calibrations"
    assert len(list(kept.glob("*.json"))) == 3  # of costs, of acceptance, and of the chat template


def test_without_a_draft_one_row_is_all_there_is(environ: dict[str, str]) -> None:
    done = tune(environ, "--draft", "none", "--json")
    assert done.returncode == 0, done.stderr
    assert "drafting counts as free" in done.stderr
    report = json.loads(done.stdout)
    assert report["draft_steps"] == []
    assert [entry["rows"] for entry in report["rows"]] == [1]

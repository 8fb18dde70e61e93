"""How many slots `eaglelocal serve` plans if the user did not set --parallel."""

from __future__ import annotations

from pathlib import Path

import pytest

import eaglelocal.preparation.autoplan
from eaglelocal.cli.serve import describe_first, plan_first
from eaglelocal.core.run_options import RunOptions
from eaglelocal.preparation.decision import Decision
from eaglelocal.settings import Settings


@pytest.mark.parametrize(
    ("flags", "room", "num_slots", "target", "said"),
    [
        ({}, 4, 4, "best", ""),
        ({}, 2, 2, "best", "2 at once, because memory is short"),
        ({}, 1, 1, "best", "1 at once, because memory is short"),
        ({}, 0, 4, "demo", "nothing fits"),
        ({"parallel": "8"}, 2, 8, "demo", "nothing fits"),
    ],
)
def test_fewer_answers_at_once_rather_than_another_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, str],
    room: int,
    num_slots: int,
    target: str,
    said: str,
) -> None:
    def autoplan(options: RunOptions, *, other_needs: object = ()) -> Decision:
        if options.parallel <= room:
            return Decision(options, chosen="best")
        return Decision(options, chosen="demo", intro="nothing fits", fits=False)

    monkeypatch.setattr(eaglelocal.preparation.autoplan, "autoplan", autoplan)
    settings = Settings.load(flags, {}, tmp_path / "none.toml")
    decision = plan_first(settings)
    assert (decision.options.parallel, decision.target) == (num_slots, target)
    assert describe_first(decision, settings) == said

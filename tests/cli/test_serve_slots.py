"""How many answers at once `eaglelocal serve` plans for, where nobody said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import eaglelocal.as_planned
from eaglelocal.as_planned import Settled
from eaglelocal.cli.serve import note_of_first, settle_first
from eaglelocal.hub.wish import Wish
from eaglelocal.settings import Settings


@pytest.mark.parametrize(
    ("flags", "room", "num_slots", "target", "said"),
    [
        ({}, 4, 4, "best", ""),
        ({}, 2, 2, "best", "2 at once, for want of memory"),
        ({}, 1, 1, "best", "1 at once, for want of memory"),
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
    def as_planned(wish: Wish) -> Settled:
        if wish.parallel <= room:
            return Settled(replace(wish, target="best"))
        return Settled(replace(wish, target="demo"), "nothing fits", fits=False)

    monkeypatch.setattr(eaglelocal.as_planned, "as_planned", as_planned)
    settings = Settings.load(flags, {}, tmp_path / "none.toml")
    settled = settle_first(settings)
    assert (settled.wish.parallel, settled.wish.target) == (num_slots, target)
    assert note_of_first(settled, settings) == said

"""Snapshots of the chat screen, cell by cell, without the panel and with it. `pytest --snapshot-update` renews them."""

from __future__ import annotations

import datetime
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles.chat_screen import ChatHarness, ChatObserver
from doubles.scripted_client import Script, says
from textual.pilot import Pilot

from eaglelocal.client.server_reading import DraftingState
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.errors import EngineError
from eaglelocal.tui.chat import start_list, status_line
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.snapshot_rates import SnapshotRates

pytestmark = pytest.mark.full

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 45)], ids=lambda size: f"{size[0]}x{size[1]}")
ANSWER = (
    "Each *draft* is verified in **one pass**:\n\n1. the head drafts\n2. the target verifies\n\n"
    "```python\ndef gain(tokens, passes):\n    return tokens / passes\n```\n\n"
    "| way | tok/s |\n|---|---|\n| plain | 8.2 |\n| drafted | 32.5 |\n\n> Nothing changes but the speed."
)
BUSY = PanelFrame(
    connection="ready",
    drafting=DraftingState(state="on"),
    tok_s=32.5,
    tok_s_window="last 2 s",
    is_moving=True,
    figures=SnapshotRates(
        acceptance=0.81,
        acceptance_length=4.1,
        draft_length=3.8,
        per_position=(0.95, 0.88, 0.7, 0.55),
        gain=3.45,
        draft_share=0.14,
        verify_share=0.86,
        host_share=0.01,
    ),
    num_figure_tokens=283,
    drafted=1234,
    accepted=999,
    acceptance_history=tuple(0.5 + second % 5 / 10 for second in range(60)),
)
QUIET = PanelFrame(connection="ready", drafting=DraftingState(state="on"), tok_s_window="no answer yet")
OFF = PanelFrame(
    connection="ready",
    drafting=DraftingState(state="asleep", reason="it would be slower (0.94x)"),
    tok_s=8.2,
    tok_s_window="last answer",
)


class StillFeed:
    """Always the same moment: rates of a test are those of the machine it runs on."""

    def __init__(self, frame: PanelFrame) -> None:
        self._frame = frame

    def make_frame(self, now: float, *, seconds: int) -> PanelFrame:
        return self._frame


@pytest.fixture(autouse=True)
def still_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show every answer as if it had taken four seconds so far, and every conversation as if it were as old."""
    shown = status_line.format_answer
    monkeypatch.setattr(status_line, "format_answer", lambda work, *more: shown(replace(work, seconds=4.0), *more))
    monkeypatch.setattr(start_list, "format_age", lambda seconds: "11 mo")


SnapCompare = Any  # of pytest-textual-snapshot: compares an app with the picture that is kept


async def settled(pilot: Pilot[int]) -> None:
    """A dialog lays itself out in several steps, which a busy machine parts: until a picture stays what it is."""
    shown: list[str] = []
    while len(shown) < 3 or len(set(shown[-3:])) > 1:
        assert len(shown) < 100, "the screen does not come to rest"
        await pilot.pause(0.05)
        shown.append(pilot.app.export_screenshot())


def compare(snap_compare: SnapCompare, stage: ChatHarness, frame: PanelFrame, scenario: Any) -> None:
    stage.app.view.feed = StillFeed(frame)  # type: ignore[assignment]

    async def before(pilot: Pilot[int]) -> None:
        await scenario(ChatObserver(stage.app, pilot))
        stage.app.view.draw(0.0)
        await settled(pilot)

    try:
        assert snap_compare(stage.app, terminal_size=stage.size, run_before=before)
    finally:
        stage.gate.set()
        stage.app.controller.close()


@SIZES
def test_loading(snap_compare: SnapCompare, tmp_path: Path, size: tuple[int, int]) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.ask("typed while it loads")
        await person.type("and more")
        await person.sees("62 %", "1 waiting", "and more")

    compare(snap_compare, ChatHarness(tmp_path, size=size, is_held=True), PanelFrame(connection="loading"), scenario)


@SIZES
def test_empty(snap_compare: SnapCompare, tmp_path: Path, size: tuple[int, int]) -> None:
    compare(snap_compare, ChatHarness(tmp_path, size=size), QUIET, ChatObserver.ready)


@SIZES
def test_streaming(snap_compare: SnapCompare, tmp_path: Path, size: tuple[int, int]) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.ready()
        await person.ask("what is that?")
        await person.sees("Nothing changes but the speed.", "answering")

    stage = ChatHarness(tmp_path, size=size, scripts=(Script(tuple(ANSWER.splitlines(keepends=True)), hangs=True),))
    compare(snap_compare, stage, BUSY, scenario)


@SIZES
def test_off(snap_compare: SnapCompare, tmp_path: Path, size: tuple[int, int]) -> None:
    async def scenario(person: ChatObserver) -> None:
        await person.ready()
        await person.ask("what is that?")
        await person.sees("plainly said")
        await person.idle()

    compare(snap_compare, ChatHarness(tmp_path, size=size, scripts=(says("plainly said"),)), OFF, scenario)


@SIZES
def test_failed(snap_compare: SnapCompare, tmp_path: Path, size: tuple[int, int]) -> None:
    fails = Script(("half", " an"), fails=EngineError("the engine process ended with signal 9", hint="ask again"))

    async def scenario(person: ChatObserver) -> None:
        await person.ready()
        await person.ask("what is that?")
        await person.sees("hint: ask again")
        await person.idle()

    compare(snap_compare, ChatHarness(tmp_path, size=size, scripts=(fails,)), QUIET, scenario)


@SIZES
def test_restarting(snap_compare: SnapCompare, tmp_path: Path, size: tuple[int, int]) -> None:
    stage = ChatHarness(tmp_path, size=size)

    async def scenario(person: ChatObserver) -> None:
        await person.ready()
        stage.client.state = "restarting"
        await person.sees("is being restarted", "restarting the engine")

    compare(snap_compare, stage, PanelFrame(connection="restarting"), scenario)


@SIZES
def test_disconnected(snap_compare: SnapCompare, tmp_path: Path, size: tuple[int, int]) -> None:
    stage = ChatHarness(tmp_path, size=size)

    async def scenario(person: ChatObserver) -> None:
        await person.ready()
        stage.client.state = "disconnected"
        await person.sees("no longer answers", " the server no longer answers")

    compare(snap_compare, stage, replace(BUSY, connection="disconnected", is_moving=False), scenario)


@SIZES
@pytest.mark.parametrize(
    ("key", "shown"), [("ctrl+o", "2026-01-02"), ("f4", "repeat penalty"), ("f5", "no model is known")]
)
def test_dialogs(snap_compare: SnapCompare, tmp_path: Path, size: tuple[int, int], key: str, shown: str) -> None:
    for day, name in enumerate(("what is acceptance length", "a list, reversed"), 2):
        path = tmp_path / "conversations" / f"{name}.json"
        conversation_file.save(Conversation(turns=[Turn(f"{name}?", "answer")]), path, target="m")
        when = datetime.datetime(2026, 1, day, 12, 30).timestamp()
        os.utime(path, (when, when))

    async def scenario(person: ChatObserver) -> None:
        await person.sees("scripted model")
        await settled(person.pilot)  # a dialog keeps what was painted below it
        await person.pilot.press(key)
        await person.sees(shown)

    compare(snap_compare, ChatHarness(tmp_path, size=size), QUIET, scenario)

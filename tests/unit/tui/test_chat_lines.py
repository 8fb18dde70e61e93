"""Lines of the chat screen that have less room than they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.scripted_client import ScriptedClient, scripted_plan
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eaglelocal.client.server_reading import DraftingState
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.draft import SWITCHED_OFF
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.tui.chat.chat_events import Activity, ModelChanged
from eaglelocal.tui.chat.chat_view import MIN_NAME_CELLS, format_activity, format_status, format_title, shorten
from eaglelocal.tui.glyphs import UNICODE
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.snapshot_rates import SnapshotRates
from eaglelocal.tui.styled_lines import make_line, plain_text

ANSWERING = Activity(is_answering=True, is_busy=True)


@pytest.mark.parametrize(
    ("name", "room", "shown"),
    [
        ("Write a function", 16, "Write a function"),
        ("Write a function", 15, "Write a func..."),
        ("Write a function", 11, "Write a..."),
        ("Write a function", 9, ""),
        ("日本語の文章をここに書く", 12, "日本語の..."),
        ("short", 5, "short"),
        ("short", -3, ""),
    ],
)
def test_names_are_shortened(name: str, room: int, shown: str) -> None:
    assert shorten(name, room) == shown


@given(st.text(max_size=60), st.integers(-5, 60))
def test_a_shortened_name_fits_and_says_something_or_nothing(name: str, room: int) -> None:
    shown = shorten(name, room)
    assert cell_len(shown) <= max(room, 0)
    assert shown == name or shown == "" or room >= MIN_NAME_CELLS


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (61, "a model of some name  scripted head            Who flies high"),
        (42, "a model of some name  scripted head"),
        (33, "a model of some name  scripted..."),
        (26, "a model of some name"),
        (18, "a model of some..."),
    ],
)
def test_what_is_cut_from_the_title_is_marked(width: int, shown: str) -> None:
    client = ScriptedClient((), label="a model of some name")
    model = ActiveModel(client, scripted_plan(client.label), client.info)
    title = format_title(ModelChanged(model, ModelChoice(), SamplingParams(), ""), "Who flies high", width)
    assert "".join(span[0] for span in title).rstrip() == shown


@pytest.mark.parametrize(
    ("width", "shown"),
    [(70, "a model of some name  0 poems.gguf x 0.5  scripted head"), (38, "a model of some name  0 poems.gguf...")],
)
def test_the_title_names_the_adapters(width: int, shown: str) -> None:
    client = ScriptedClient((), label="a model of some name")
    model = ActiveModel(client, scripted_plan(client.label), client.info)
    adapters = (AdapterFile(Path("poems.gguf"), 0.5),)
    title = format_title(ModelChanged(model, ModelChoice(), SamplingParams(), "", adapters), "", width)
    assert plain_text(title) == shown


@pytest.mark.parametrize(
    ("doing", "expected"),
    [
        (ANSWERING, "answering, esc stops"),
        (replace(ANSWERING, is_stopping=True), "answering, stopping"),
        (replace(ANSWERING, thinking="312 of 512 tokens"), "thinking, 312 of 512 tokens, esc stops"),
        (replace(ANSWERING, is_looping=True), "repeating itself, esc stops"),
        (replace(ANSWERING, image_reading_s=12.7), "reading images, 13 s, esc stops"),
        (replace(ANSWERING, image_reading_s=3.2, is_stopping=True), "reading images, 3 s, stopping"),
        (replace(ANSWERING, is_answering=False, image_reading_s=3.2), "busy"),
        (replace(ANSWERING, is_answering=False, is_busy=False), "ready"),
    ],
)
def test_the_status_shows_the_current_work(doing: Activity, expected: str) -> None:
    assert "".join(span[0] for span in format_activity("ready", doing, "esc")) == expected


FIGURES = PanelFrame(
    drafting=DraftingState(state="on"), tok_s=32.5, figures=SnapshotRates(gain=1.45, acceptance=0.81, draft_length=3.0)
)


@pytest.mark.parametrize(
    ("frame", "width", "figures"),
    [
        (FIGURES, 60, "32.5 tok/s · 1.45x plain · acceptance 81 %"),
        (FIGURES, 40, "32.5 tok/s · 1.45x plain"),
        (FIGURES, 20, "32.5 tok/s"),
        (FIGURES, 12, ""),
        (replace(FIGURES, tok_s=None, figures=SnapshotRates()), 60, ""),
        (
            PanelFrame(drafting=DraftingState(state="off", reason=SWITCHED_OFF), tok_s=8.2),
            60,
            "8.2 tok/s · drafting off (your setting)",
        ),
        (
            PanelFrame(drafting=DraftingState(state="asleep", reason="it would be slower (0.68x)"), tok_s=8.2),
            80,
            "8.2 tok/s · drafting paused: it would be slower (0.68x)",
        ),
    ],
)
def test_the_figures_of_an_answer_are_a_quiet_line(frame: PanelFrame, width: int, figures: str) -> None:
    line = format_status(make_line(("ready", "quiet")), frame, width, UNICODE)
    assert plain_text(line) == f"ready{figures.rjust(width - 5)}".rstrip()
    assert {span.role for span in line if span.text.strip()} == {"quiet"}

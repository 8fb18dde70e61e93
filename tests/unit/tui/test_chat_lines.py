"""The status line and the panel of the chat screen, also with less room than they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.scripted_client import ScriptedClient, scripted_plan
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eaglelocal.client.server_reading import DraftingState
from eaglelocal.conversation.conversation import ContextUse
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.draft import LOOKUPS_GO_ON, SWITCHED_OFF
from eaglelocal.core.events import Finished, LoadProgress
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.tui.chat.chat_events import Activity, AnswerWork, ModelChanged
from eaglelocal.tui.chat.start_list import EMBEDDED_NOTE
from eaglelocal.tui.chat.status_line import (
    MIN_NAME_CELLS,
    format_answer,
    format_context_use,
    format_figures,
    format_rest,
    format_work,
    justify,
    shorten,
)
from eaglelocal.tui.glyphs import UNICODE
from eaglelocal.tui.panel.chat_panel import ChatFigures, describe_saving, format_chat_panel
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.snapshot_rates import SnapshotRates
from eaglelocal.tui.styled_lines import cell_width, make_line, plain_text


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


def changed(*adapters: AdapterFile) -> ModelChanged:
    client = ScriptedClient((), label="a model of some name")
    return ModelChanged(
        ActiveModel(client, scripted_plan(client.label), client.info), ModelChoice(), SamplingParams(), "", adapters
    )


FIGURES = PanelFrame(
    drafting=DraftingState(state="on"), tok_s=32.5, figures=SnapshotRates(gain=1.45, acceptance=0.81, draft_length=3.0)
)
CONTEXT = ContextUse(8192, 200, 1029)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, "a model of some name · 1.2k/8.2k (15 %) · 32.5 tok/s · drafts 1.45x"),
        (66, "a model of some... · 1.2k/8.2k (15 %) · 32.5 tok/s · drafts 1.45x"),
        (56, "a model of some name · 1.2k/8.2k (15 %) · 32.5 tok/s"),
        (32, "a model of... · 1.2k/8.2k (15 %)"),
        (18, "a model of some..."),
    ],
)
def test_at_rest_the_status_is_the_state_of_the_chat(width: int, shown: str) -> None:
    assert plain_text(format_rest(changed(), CONTEXT, FIGURES, width, UNICODE)) == shown


@pytest.mark.parametrize(
    ("width", "shown"),
    [(70, "a model of some name  0 poems.gguf x 0.5"), (38, "a model of some name  0 poems.gguf...")],
)
def test_the_status_names_the_adapters(width: int, shown: str) -> None:
    adapter = AdapterFile(Path("poems.gguf"), 0.5)
    assert plain_text(format_rest(changed(adapter), ContextUse(), None, width, UNICODE)) == shown


@pytest.mark.parametrize(
    ("context", "shown"),
    [
        (ContextUse(), ""),
        (ContextUse(0, 0, 512), "512 tokens"),
        (ContextUse(2048, 0, 999, is_counted=False), "~999/2.0k (49 %)"),
        (ContextUse(512, 0, 512), "512/512 (100 %)"),
        (ContextUse(131072, 0, 999), "999/131k (1 %)"),
        (ContextUse(8192, 0, 9000), "9.0k/8.2k (100 %)"),
    ],
)
def test_how_full_the_context_is(context: ContextUse, shown: str) -> None:
    assert format_context_use(context) == shown


ANSWERING = AnswerWork(phase="answering", seconds=3.6, count=87)
READING = AnswerWork(phase="reading", seconds=12.2, count=640, total=1930)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (ANSWERING, "answering · 87 tokens · 4 s · esc stops"),
        (replace(ANSWERING, is_stopping=True), "answering · 87 tokens · 4 s · stopping"),
        (replace(ANSWERING, phase="thinking", count=312, total=512), "thinking · 312 of 512 tokens · 4 s · esc stops"),
        (replace(ANSWERING, phase="thinking", count=516, total=512), "thinking · 512 of 512 tokens · 4 s · esc stops"),
        (READING, "reading 640/1 930 · 12 s · esc stops"),
        (AnswerWork(phase="waiting", seconds=0.4), "waiting · 0 s · esc stops"),
        (AnswerWork(phase="reading images", seconds=12.7), "reading images · 13 s · esc stops"),
    ],
)
def test_the_status_says_how_far_an_answer_has_come(work: AnswerWork, expected: str) -> None:
    assert plain_text(format_answer(work, UNICODE, "esc")) == expected


@pytest.mark.parametrize(
    ("state", "activity", "expected"),
    [
        ("ready", Activity(answer=ANSWERING), "answering · 87 tokens · 4 s · esc stops"),
        ("ready", Activity(answer=ANSWERING, waiting=("a",)), "answering · 87 tokens · 4 s · esc stops · 1 waiting"),
        ("restarting", Activity(answer=ANSWERING), "restarting the engine"),
        ("ready", Activity(is_busy=True), "busy"),
        ("ready", Activity(is_busy=True, waiting=("a", "b")), "busy · 2 waiting, esc takes back"),
        ("ready", Activity(), ""),
    ],
)
def test_the_status_shows_the_current_work(state: str, activity: Activity, expected: str) -> None:
    assert plain_text(format_work(None, state, activity, 80, UNICODE, stop_key="esc")) == expected


@pytest.mark.parametrize(
    ("progress", "activity", "end"),
    [
        (LoadProgress(0.5, "loading " + "x" * 80), Activity(waiting=("a",)), "xxx... · 1 waiting, esc takes back"),
        (None, Activity(tool_work="calling " + "x" * 80), "xxx... · esc stops"),
    ],
)
def test_the_keys_after_long_work_are_seen(progress: LoadProgress | None, activity: Activity, end: str) -> None:
    shown = plain_text(format_work(progress, "ready", activity, 80, UNICODE, stop_key="esc"))
    assert shown.endswith(end) and len(shown) == 80


def test_the_first_note_fits() -> None:
    assert len(EMBEDDED_NOTE) <= 78


LOOKUPS_ONLY = DraftingState(state="asleep", reason=f"(0.68x){LOOKUPS_GO_ON}")


@pytest.mark.parametrize(
    ("frame", "figures"),
    [
        (FIGURES, ["32.5 tok/s", "drafts 1.45x"]),
        (replace(FIGURES, tok_s=None, figures=SnapshotRates()), []),
        (replace(FIGURES, drafting=DraftingState(state="off", reason=SWITCHED_OFF)), ["32.5 tok/s", "no drafts"]),
        (replace(FIGURES, drafting=DraftingState(state="asleep", reason="(0.68x)")), ["32.5 tok/s", "drafts paused"]),
        (replace(FIGURES, drafting=LOOKUPS_ONLY), ["32.5 tok/s", "lookups 1.45x"]),
        (replace(FIGURES, drafting=LOOKUPS_ONLY, figures=SnapshotRates()), ["32.5 tok/s", "drafts paused"]),
    ],
)
def test_gain_is_shown_only_while_drafts_are_made(frame: PanelFrame, figures: list[str]) -> None:
    assert format_figures(frame) == figures


@pytest.mark.parametrize(("width", "shown"), [(20, "left           right"), (10, "left"), (3, "lef")])
def test_the_right_part_of_a_line_gives_way(width: int, shown: str) -> None:
    assert plain_text(justify(make_line("left"), make_line("right"), width)) == shown


# ---- the panel
def answer(seconds: float, gain: float | None) -> Finished:
    timings = Timings(ttft_s=0.5, decode_s=seconds, decode_tok_s=30.0)
    stats = SpeculationStats(state="on", drafts=9, speedup_estimate=gain)
    return Finished("a", "stop", "", 20, round(30 * seconds), timings, stats)


def paused(reason: str) -> PanelFrame:
    return replace(FIGURES, drafting=DraftingState(state="asleep", reason=reason))


SLOWER = "it would be slower (0.83x)"


@pytest.mark.parametrize(
    ("answers", "frame", "sentence"),
    [
        ((), FIGURES, "No answer yet."),
        ((answer(10, 2.0), answer(10, 1.0)), FIGURES, "Drafts save 33 % of the time."),
        ((answer(10, 2.0), answer(20, None)), FIGURES, "Drafts save 25 % of the time."),
        ((answer(10, 1.01),), FIGURES, "Drafts neither save nor cost time so far."),
        ((answer(10, 0.8),), FIGURES, "Drafts have cost 25 % of the time so far."),
        ((answer(10, 1.0),), paused(SLOWER), f"Paused, plain speed: {SLOWER}."),
        ((answer(10, 2.0),), paused(SLOWER), f"Paused, plain speed: {SLOWER}. Before, drafts saved 50 % of the time."),
        ((), paused(SLOWER + LOOKUPS_GO_ON), f"Paused: {SLOWER}, only lookups draft."),
        (
            (answer(10, 2.0),), paused(SLOWER + LOOKUPS_GO_ON),
            f"Paused: {SLOWER}, only lookups draft. So far, drafts saved 50 % of the time.",
        ),
        (
            (answer(10, 2.0),), replace(FIGURES, drafting=DraftingState(state="off", reason=SWITCHED_OFF)),
            "No drafts (your setting): plain speed.",
        ),
    ],
)  # fmt: skip
def test_a_sentence_says_what_drafts_are_worth(answers: tuple[Finished, ...], frame: PanelFrame, sentence: str) -> None:
    assert describe_saving(answers, frame) == sentence


def test_the_panel_is_about_the_chat_and_no_higher_than_it_has_to_be() -> None:
    chat = ChatFigures(context=CONTEXT, frame=FIGURES, answers=(answer(10, 2.0), answer(2, None)))
    lines = [plain_text(line) for line in format_chat_panel(chat, 43, 40, UNICODE)]
    assert lines == [
        "context  ━━╸───────────── 15 % of 8 192",
        "system 200, history 1 029, free 6 963",
        "",
        "answer     time  tokens   tok/s   gain",
        "     1     10 s     300    30.0  2.00x",
        "     2    2.5 s      60    30.0  plain",
        "Drafts save 45 % of the time.",
    ]
    empty = ChatFigures(context=ContextUse(8192), frame=PanelFrame())
    lines = [plain_text(line) for line in format_chat_panel(empty, 43, 40, UNICODE)]
    assert lines == ["context  0 % of 8 192", "free 8 192", "No answer yet."]


@given(st.integers(0, 30), st.integers(0, 20), st.integers(0, 60), st.booleans())
def test_a_panel_fits_its_room(num_answers: int, height: int, width: int, has_details: bool) -> None:
    chat = ChatFigures(context=CONTEXT, frame=FIGURES, answers=(answer(1, 1.5),) * num_answers)
    lines = format_chat_panel(chat, width, height, UNICODE, has_details=has_details)
    assert len(lines) <= height and all(cell_width(line) <= width for line in lines)

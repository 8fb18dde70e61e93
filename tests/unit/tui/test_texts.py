"""Texts of panel, header and table: correct, within their width, readable in ASCII, without control sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.monitor_states import EMPTY, GONE, MACHINE, RESTARTING, ROWS, URL, busy, off
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eaglelocal.client.server_reading import DraftingState, RequestRow, ServerReading, ServerTotals
from eaglelocal.probe.load_gauges import GpuGauge, MachineGauge
from eaglelocal.tui.frame_rate import CPU_SHARE, FASTEST_S, IDLE_S, LONGEST_S, SLOWEST_S, FrameRate
from eaglelocal.tui.glyphs import ASCII, UNICODE, Glyphs
from eaglelocal.tui.monitor.log_changes import describe_changes
from eaglelocal.tui.monitor.log_tail import KEPT_LINES, LogTail
from eaglelocal.tui.monitor.monitor_text import (
    MonitorSnapshot,
    compute_prefix_share,
    format_header,
    format_snapshot,
    format_table,
)
from eaglelocal.tui.monitor.table_text import COLUMNS, TableView, arrange_rows, format_seconds
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.panel.panel_text import describe_state, format_count, format_panel
from eaglelocal.tui.styled_lines import cell_width, fit_line, join_columns, make_line, plain_text

LLAMA = ServerReading(
    kind="llama-server", state="ready", totals=ServerTotals(generated_tokens=5.0), missing=("--metrics",)
)
READINGS = (EMPTY, busy(), off(), RESTARTING, GONE, LLAMA)


def frame_of(*readings: ServerReading) -> PanelFrame:
    feed = Feed()
    for i, reading in enumerate(readings):
        feed.add_reading(reading, float(i))
    return feed.make_frame(float(len(readings)))


def scene_of(reading: ServerReading, machine: MachineGauge | None = MACHINE) -> MonitorSnapshot:
    return MonitorSnapshot(url=URL, frame=frame_of(reading), machine=machine, is_local=machine is not None)


# ---- the state
@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (busy(), "speculation on, 3.0 tokens a draft"),
        (EMPTY, "speculation on, nothing drafted yet"),
        (off(), "speculation asleep: 0.94x over the last 256 tokens, acceptance 0.21"),
        (replace(EMPTY, drafting=DraftingState(state="off", reason="switched off")), "speculation off: switched off"),
        (RESTARTING, "speculation: unknown, restarting"),
        (GONE, "speculation: unknown, disconnected"),
        (LLAMA, "speculation: not reported"),
        (replace(busy(), drafting=DraftingState()), "speculation: state not reported, drafts are"),
    ],
)
def test_the_state_line_is_true(reading: ServerReading, said: str) -> None:
    assert describe_state(frame_of(reading)) == said


# ---- widths
@given(
    reading=st.sampled_from(READINGS),
    width=st.integers(1, 220),
    height=st.integers(1, 60),
    glyphs=st.sampled_from([UNICODE, ASCII]),
)
def test_nothing_is_wider_or_higher_than_its_place(
    reading: ServerReading, width: int, height: int, glyphs: Glyphs
) -> None:
    scene = scene_of(reading)
    panel = format_panel(scene.frame, width, height, glyphs)
    table = format_table(reading, TableView(), width, height, glyphs)
    assert len(panel) <= height and len(table) <= height
    for each in (*panel, *table, *format_header(scene, width, glyphs)):
        assert cell_width(each) <= width


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("width", [80, 200])
def test_ascii_is_ascii(reading: ServerReading, width: int) -> None:
    assert format_snapshot(scene_of(reading), width, ASCII).isascii()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_everything_that_the_issue_names_is_there(width: int) -> None:
    text = format_snapshot(scene_of(busy()), width, UNICODE)
    for word in ("tok/s", "gain over plain", "position 1", "acceptance length", "step: draft", "verify", "host"):
        assert word in text
    for word in ("running 2 of 4", "waiting 1", "prefix cache 60 %", "KV 32 %", "restarts 0", "CPU 42 %", "anna"):
        assert word in text


def test_the_gpu_is_reported_with_units() -> None:
    text = format_snapshot(scene_of(busy()), 80, UNICODE)
    two_gpus = replace(MACHINE, gpus=(MACHINE.gpus[0], replace(MACHINE.gpus[0], index=1)))
    assert "GPU0 87 %, 18.0/24.0 GiB, 312 W, 66 °C" in text
    assert "GPU0 87 %  GPU1" in format_snapshot(scene_of(busy(), two_gpus), 80, UNICODE)


def test_conversations_in_main_memory_are_reported_where_there_are_some() -> None:
    assert "swapped chats" not in format_snapshot(scene_of(busy()), 140, UNICODE)
    waiting = replace(busy(), memory_bytes=6 * 2**30, swapped_bytes=300.0 * 2**20)
    assert "engine memory 6.0 GiB  swapped chats 300 MiB" in format_snapshot(scene_of(waiting), 140, UNICODE)


def test_what_is_not_reported_is_a_dash() -> None:
    bare = scene_of(ServerReading(kind="vLLM", state="ready"), MachineGauge(gpus=(GpuGauge(index=0),)))
    text = format_snapshot(bare, 100, UNICODE).replace(URL, "")
    assert "running -" in text and "prefix cache -" in text and "GPU0 -, -, -, -" in text
    assert "0 %" not in text and "0.0" not in text


def test_a_server_elsewhere_does_not_show_this_machine() -> None:
    assert "another machine" in format_snapshot(scene_of(busy(), None), 100, UNICODE)


def test_what_could_be_switched_on_is_said() -> None:
    assert "--metrics" in format_snapshot(scene_of(LLAMA), 80, UNICODE)


def test_names_from_elsewhere_do_not_steer_the_terminal() -> None:
    evil = "a\x1b[2Jb\r\x9bc"
    reading = replace(
        busy(),
        model=evil,
        detail=evil,
        kind="vLLM",
        drafting=DraftingState(state="asleep", reason=evil),
        requests=(RequestRow(id="1", owner=evil, state=evil),),
    )
    text = format_snapshot(replace(scene_of(reading), url=f"http://{evil}"), 200, UNICODE)
    assert not {"\x1b", "\r", "\x9b"} & set(text)


# ---- the table
def names(rows: list[RequestRow]) -> list[str]:
    return [row.id for row in rows]


def test_running_requests_stand_before_those_that_have_ended() -> None:
    assert names(arrange_rows(busy().requests or (), busy().recent, TableView())) == ["r1", "r2", "r3", "r0", "f0"]


def test_figures_are_sorted_from_the_largest_and_unknown_ones_stand_last() -> None:
    assert names(arrange_rows(ROWS, (), TableView("prompt"))) == ["r2", "r1", "r3"]
    assert names(arrange_rows(ROWS, (), TableView("prompt", is_reversed=True))) == ["r1", "r2", "r3"]
    assert names(arrange_rows(ROWS, (), TableView("key"))) == ["r1", "r3", "r2"]
    assert names(arrange_rows(ROWS, (), TableView("key", is_reversed=True))) == ["r2", "r1", "r3"]


@pytest.mark.parametrize(("wanted", "found"), [("ANNA", ["r1", "r3"]), ("wait", ["r3"]), ("r2", ["r2"]), ("none", [])])
def test_a_filter_looks_at_key_state_model_and_id(wanted: str, found: list[str]) -> None:
    assert names(arrange_rows(ROWS, (), TableView(filter=wanted))) == found


def test_sorting_goes_through_all_columns_and_back() -> None:
    view, seen = TableView(), []
    for _ in range(len(COLUMNS) + 1):
        view = view.choose_next_sort(COLUMNS)
        seen.append(view.sort)
    assert seen == [*(column.title for column in COLUMNS), ""]


@given(at=st.integers(0, 39), height=st.integers(2, 12))
def test_the_chosen_row_is_always_shown(at: int, height: int) -> None:
    rows = tuple(RequestRow(id=f"id{i}", owner=f"owner{i}.", state="running") for i in range(40))
    lines = format_table(replace(EMPTY, requests=rows), TableView(), 80, height, UNICODE, selected_id=f"id{at}")
    assert f"owner{at}." in "\n".join(map(plain_text, lines))
    assert len(lines) == height


def test_no_text_of_a_request_can_be_in_the_table() -> None:
    """Only what RequestRow has; it has no text."""
    assert not {"text", "prompt", "messages", "answer"} & set(RequestRow.__dataclass_fields__)


# ---- what changed
def test_what_is_noticed() -> None:
    assert describe_changes(None, EMPTY) == ["eaglelocal is ready"]
    assert describe_changes(EMPTY, EMPTY) == []
    assert describe_changes(EMPTY, RESTARTING) == ["eaglelocal is restarting", "the engine has restarted (1 so far)"]
    assert describe_changes(EMPTY, GONE)[0].startswith("cannot reach")
    lacking = replace(EMPTY, missing=("--metrics",))
    said = ["eaglelocal reports more when started with --metrics"]
    assert describe_changes(EMPTY, lacking) == describe_changes(GONE, lacking)[1:] == said
    assert describe_changes(lacking, lacking) == []
    assert describe_changes(GONE, EMPTY) == ["eaglelocal is ready again"]
    assert describe_changes(busy(), off()) == [
        "speculation is asleep: 0.94x over the last 256 tokens, acceptance 0.21",
    ]
    switched = replace(EMPTY, drafting=DraftingState(state="on", setting="4"))
    assert describe_changes(EMPTY, switched) == ["drafting was set to 4"]


# ---- small things
@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "-"), (0, "0"), (9999, "9 999"), (10_000, "10.0 k"), (999_949, "999.9 k"), (999_950, "1.0 M")],
)
def test_counts(value: float | None, said: str) -> None:
    assert format_count(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(None, "-"), (0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (300, "5 min"), (7300, "2 h")]
)
def test_seconds(value: float | None, said: str) -> None:
    assert format_seconds(value) == said


def test_cached_prompt_tokens_are_counted_apart_by_llama_server() -> None:
    counted = ServerTotals(prompt_tokens=60.0, cached_prompt_tokens=40.0)
    assert compute_prefix_share(ServerReading(kind="llama-server", state="ready", totals=counted)) == pytest.approx(0.4)
    assert compute_prefix_share(ServerReading(kind="vLLM", state="ready", totals=counted)) == pytest.approx(2 / 3)


@given(st.floats(-1, 2), st.integers(0, 60), st.sampled_from([UNICODE, ASCII]))
def test_bars_have_their_width_and_grow(share: float, width: int, glyphs: Glyphs) -> None:
    bar = glyphs.draw_bar(share, width)
    assert cell_len(bar) == width
    assert bar.count(glyphs.full) <= glyphs.draw_bar(min(share + 0.3, 1.0), width).count(glyphs.full)


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=50), st.integers(0, 40), st.floats(0, 1e6))
def test_sparklines_have_their_width(values: list[float | None], width: int, top: float) -> None:
    assert cell_len(UNICODE.draw_sparkline(values, width, top=top)) == width


@given(st.text("0123456789.-x ", max_size=8), st.sampled_from([UNICODE, ASCII]))
def test_large_digits_are_three_even_rows(text: str, glyphs: Glyphs) -> None:
    rows = glyphs.draw_large(text)
    assert len({cell_len(row) for row in rows}) == 1
    assert len({glyphs.draw_large(digit) for digit in "0123456789-"}) == 11


@given(st.text(max_size=30), st.integers(0, 20))
def test_fitting_counts_cells_not_characters(text: str, width: int) -> None:
    clean = "".join(char for char in text if char.isprintable())
    assert cell_width(fit_line(make_line(clean), width)) == width


def test_blocks_stand_side_by_side() -> None:
    left, right = [make_line("a"), make_line("bb")], [make_line("1"), make_line("2"), make_line("3")]
    assert [plain_text(each) for each in join_columns(left, right, at=4)] == ["a   1", "bb  2", "    3"]


def test_a_tail_keeps_the_newest_lines() -> None:
    tail = LogTail()
    tail.add("one\n\ntwo")
    assert (tail.newest(5), tail.num_lines, tail.newest(0)) == (["one", "two"], 2, [])
    for i in range(2 * KEPT_LINES):
        tail.add(str(i))
    assert tail.newest(10**6)[-1] == str(2 * KEPT_LINES - 1)
    assert len(tail.newest(10**6)) == KEPT_LINES


# ---- the pace
@given(cost_s=st.floats(0.0001, 0.2))
def test_drawing_takes_its_share_and_no_more(cost_s: float) -> None:
    pace = FrameRate()
    for _ in range(50):
        pace.add_cpu_time(cost_s)
        pace.add_frame_cost(cost_s)
    gap_s = pace.next_gap_s(is_moving=True)
    assert FASTEST_S <= gap_s <= LONGEST_S
    assert cost_s / gap_s <= CPU_SHARE * 1.01 or gap_s == LONGEST_S


def test_a_load_or_typing_holds_up_nothing_and_dear_frames_are_forgotten_at_once() -> None:
    pace = FrameRate()
    for made_s in (0.001, 0.4, 0.2, 0.001, 0.001):
        pace.add_cpu_time(0.4)  # somebody types and scrolls
        pace.add_frame_cost(made_s)
        assert pace.next_gap_s(is_moving=True) <= SLOWEST_S
    for _ in range(3):
        pace.add_frame_cost(0.06)
    assert pace.next_gap_s(is_moving=True) == pytest.approx(0.06 / CPU_SHARE)
    pace.add_frame_cost(0.001)
    assert pace.next_gap_s(is_moving=True) <= SLOWEST_S


def test_a_late_frame_makes_the_next_one_later_and_idleness_too() -> None:
    pace = FrameRate()
    assert pace.next_gap_s(is_moving=True) == FASTEST_S
    assert pace.next_gap_s(is_moving=True, late_s=0.3) == pytest.approx(0.6)
    assert pace.next_gap_s(is_moving=False) == IDLE_S

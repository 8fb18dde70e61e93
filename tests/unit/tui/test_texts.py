"""Texts of panel, header and table: correct, within their width, readable in ASCII, without control sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.monitor_states import EMPTY, GONE, MACHINE, RESTARTING, ROWS, URL, busy, off, totals
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eaglelocal.client.server_reading import DraftingState, RequestRow, ServerReading, ServerTotals
from eaglelocal.client.servers.eaglelocal_server import parse_snapshot
from eaglelocal.core.draft import LOOKUPS_GO_ON, MEASURING, SWITCHED_OFF
from eaglelocal.probe.load_gauges import GpuGauge, MachineGauge
from eaglelocal.tui.base_app import CPU_SHARE, FASTEST_S, IDLE_S, LONGEST_S, SLOWEST_S, FrameRate
from eaglelocal.tui.glyphs import ASCII, UNICODE, Glyphs
from eaglelocal.tui.monitor.log_tail import KEPT_LINES, ChangeLog, LogTail, describe_changes, describe_drafting_change
from eaglelocal.tui.monitor.machine_text import MonitorSnapshot, RecentLoads, compute_prefix_share, format_machine_rows
from eaglelocal.tui.monitor.monitor_text import (
    FIGURE_PURPOSES,
    format_log,
    format_requests_title,
    format_snapshot,
)
from eaglelocal.tui.monitor.table_text import (
    COLUMNS,
    TableView,
    arrange_rows,
    fit_columns,
    format_table,
)
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.panel.panel_text import (
    describe_state,
    format_count,
    format_drafting,
    format_graph,
    format_positions,
    format_seconds,
    format_speed,
)
from eaglelocal.tui.panel.snapshot_rates import SnapshotRates
from eaglelocal.tui.styled_lines import cell_width, cut_line, fit_line, join_columns, make_line, plain_text

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
        (busy(), "drafting, 3.0 tokens at a time"),
        (EMPTY, "drafting on, nothing drafted yet"),
        (off(), "drafting paused: it would be slower (0.94x)"),
        (replace(EMPTY, drafting=DraftingState(state="off", reason=SWITCHED_OFF)), "drafting off (your setting)"),
        (
            replace(EMPTY, drafting=DraftingState(state="off", reason="no head is known")),
            "drafting off: no head is known",
        ),
        (replace(EMPTY, drafting=DraftingState(state="asleep", reason=MEASURING)), "measuring whether drafting pays"),
        (RESTARTING, "restarting"),
        (GONE, "server gone, retrying"),
        (replace(GONE, kind=""), "no answer yet, retrying"),
        (LLAMA, ""),
        (replace(busy(), drafting=DraftingState()), "drafting"),
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
    table = format_table(reading, TableView(), width, height, glyphs)
    assert len(table) <= height
    frames = [
        format_speed(scene.frame, width, height, glyphs),
        format_drafting(scene.frame, width, height, glyphs),
        format_machine_rows(scene, width, height, glyphs),
    ]
    assert all(len(lines) <= height for lines in frames)
    for each in (*table, *(line for lines in frames for line in lines)):
        assert cell_width(each) <= width


def test_the_title_of_the_requests_counts_them() -> None:
    assert format_requests_title(busy()) == "requests: 2 of 4 running, 1 waiting, 37 answered"
    assert format_requests_title(LLAMA) == format_requests_title(GONE) == format_requests_title(None) == "requests"


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("width", [80, 200])
def test_ascii_is_ascii(reading: ServerReading, width: int) -> None:
    assert format_snapshot(scene_of(reading), width, ASCII).isascii()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_everything_that_the_issue_names_is_there(width: int) -> None:
    text = format_snapshot(scene_of(busy()), width, UNICODE)
    for word in (
        "tok/s",
        "gain over plain",
        "position 1",
        "acceptance 60 %, 2.80 tokens a pass",
        "drafts 18, model 80",
    ):
        assert word in text
    for word in ("2 of 4 running", "1 waiting", "prompts 60 % cached", "KV cache 32 %", "CPU 42 %", "qwen3-8b"):
        assert word in text


def test_the_gpu_is_reported_with_units() -> None:
    text = format_snapshot(scene_of(busy()), 80, UNICODE)
    two_gpus = replace(MACHINE, gpus=(MACHINE.gpus[0], replace(MACHINE.gpus[0], index=1)))
    assert "GPU0 87 %, 18.0/24.0 GiB, 312 W, 66 °C" in text
    lines = [format_machine_rows(scene_of(busy(), two_gpus), 76, height, UNICODE) for height in (2, 3)]
    assert "GPU0 87 %  GPU1 87 %" in plain_text(lines[0][0]) and "GPU1 87 %, 18.0/24.0 GiB" in plain_text(lines[1][1])


def test_nothing_drafted_is_no_gain_whatever_the_times_suggest() -> None:
    plain = replace(totals(200), drafts=0.0, draft_tokens=0.0, accepted_tokens=0.0, per_position=None)
    off_by_choice = DraftingState(state="off", reason=SWITCHED_OFF)
    text = format_snapshot(scene_of(replace(busy(), totals=plain, drafting=off_by_choice)), 80, UNICODE)
    for word in ("gain", "acceptance ", "in all", "drafts"):
        assert word not in text


def test_figures_that_have_little_room_are_not_cut() -> None:
    figures = SnapshotRates(acceptance=1.0, acceptance_length=11.83, draft_share=0.12, verify_share=0.9, host_share=0.1)
    frame = PanelFrame(figures=figures, drafted=1333.0, accepted=1292.0, drafting=DraftingState(state="on"))
    lines = [plain_text(line) for line in format_drafting(frame, 36, 5, UNICODE)]
    assert lines[1:] == [
        "acceptance 100 %, 11.8 tokens a pass",
        "in all     1 292 of 1 333 accepted",
        "time       model 88, other 10 %",
    ]


def test_a_rare_position_is_dim() -> None:
    lines = format_positions((0.9, 0.6, 0.59, 0.2, 0.19), 60, 8, UNICODE)
    assert [line[1].role for line in lines] == [*["accent"] * 4, "quiet"]
    (one_line,) = format_positions((0.9, 0.3, 0.1), 36, 1, UNICODE)
    assert plain_text(one_line) == "positions  90 30 10 %"
    assert [span.role for span in one_line[1:4]] == ["text", "text", "quiet"]
    (cut,) = format_positions((1.0, 1.0, 1.0, 0.91, 0.91, 0.91, 0.82, 0.7), 36, 1, UNICODE)
    assert plain_text(cut) == "positions  100 100 100 91 91 91 82 %"  # no figure is cut in two


def test_shares_of_time_are_of_the_whole() -> None:
    for draft, verify, host in ((0.14, 0.86, 0.01), (0.01, 0.99, 0.03), (0.0, 1.0, 0.0)):
        shares = SnapshotRates(draft_share=draft, verify_share=verify, host_share=host).time_shares
        assert shares is not None and sum(shares) == pytest.approx(1.0) and min(shares) >= 0.0
    assert SnapshotRates(draft_share=0.2, verify_share=0.8).time_shares is None


@given(
    values=st.lists(st.none() | st.floats(0, 500), max_size=90),
    width=st.integers(0, 90),
    height=st.integers(1, 9),
    glyphs=st.sampled_from([UNICODE, ASCII]),
)
def test_a_graph_has_its_size_and_says_what_it_spans(
    values: list[float | None], width: int, height: int, glyphs: Glyphs
) -> None:
    lines = format_graph(values, width, height, glyphs, top=500.0)
    assert len(lines) == height and all(cell_width(line) == width for line in lines)
    if width >= 40:
        text = "\n".join(map(plain_text, lines))
        assert "500" in text and " s" in text


def test_a_graph_rises_with_its_values() -> None:
    rows = UNICODE.draw_graph([None, 0.0, 25.0, 50.0, 100.0, 200.0], 6, 2, top=100.0)
    assert rows == ["    ██", " ▁▄███"]


def test_conversations_in_main_memory_are_reported_where_there_are_some() -> None:
    assert "swapped" not in format_snapshot(scene_of(busy()), 140, UNICODE)
    waiting = replace(busy(), memory_bytes=6 * 2**30, swapped_bytes=300.0 * 2**20)
    text = format_snapshot(scene_of(waiting), 140, UNICODE)
    assert "engine 6.0 GiB" in text and "swapped 300 MiB of chats" in text


def test_what_is_not_reported_is_not_drawn() -> None:
    bare = scene_of(ServerReading(kind="vLLM", state="ready"), MachineGauge(gpus=(GpuGauge(index=0),)))
    text = format_snapshot(bare, 100, UNICODE).replace(URL, "")
    for word in ("running", "prefix cache", "GPU0", "position", "in all", "gain", "time ", "drafting: ", "0 %", "0.0"):
        assert word not in text
    assert list(map(plain_text, format_drafting(bare.frame, 40, 6, UNICODE))) == ["not reported by the server"]


def test_the_bars_of_the_machine_take_the_space_that_their_texts_leave() -> None:
    for width, cells in ((36, 7), (60, 31), (90, 40)):
        lines = format_machine_rows(scene_of(busy()), width, 8, UNICODE)
        bars = [line for line in map(plain_text, lines) if "━" in line]
        assert len(bars) == 6 and {sum(char in "━╸─" for char in bar) for bar in bars} == {cells}
        assert all(cell_width(line) == width for line in lines)
        assert any(bar.endswith("18.0 of 24.0 GiB") for bar in bars)


@pytest.mark.parametrize("height", [1, 8])
@pytest.mark.parametrize(
    ("reason", "gain", "shown"),
    [
        ("it would be slower (0.83x)", None, "paused, plain speed"),
        (f"it would be slower (0.83x){LOOKUPS_GO_ON}", None, "paused, plain speed"),
        (f"it would be slower (0.83x){LOOKUPS_GO_ON}", 1.2, "gain of lookups"),
    ],
)
def test_a_paused_head_has_no_gain(reason: str, gain: float | None, shown: str, height: int) -> None:
    drafting = DraftingState(state="asleep", reason=reason)
    frame = replace(frame_of(busy()), drafting=drafting, figures=SnapshotRates(gain=gain))
    text = "\n".join(map(plain_text, format_speed(frame, 60, height, UNICODE)))
    assert shown in text and "over plain" not in text and ("x" in text) is (gain is not None)


def test_an_empty_cache_has_no_bar() -> None:
    lines = list(map(plain_text, format_machine_rows(scene_of(EMPTY), 60, 12, UNICODE)))
    assert "KV cache 0 of 16.4 k" in lines


def test_an_unknown_speed_draws_no_bar() -> None:
    assert list(map(plain_text, format_speed(frame_of(EMPTY), 40, 10, UNICODE))) == ["waiting for tokens"]


def test_only_a_memory_that_is_almost_full_is_a_warning() -> None:
    gpu = GpuGauge(index=0, load=1.0, used_bytes=99, total_bytes=100)
    machine = MachineGauge(cpu_load=1.0, used_bytes=10, total_bytes=100, gpus=(gpu,))
    totals = ServerTotals(prompt_tokens=100.0, cached_prompt_tokens=99.0)
    reading = ServerReading(kind="vLLM", state="ready", totals=totals, cache_share=0.97)
    lines = format_machine_rows(scene_of(reading, machine), 60, 12, UNICODE)
    roles = {line[0].text.strip(): line[1].role for line in lines}
    assert {label for label, role in roles.items() if role == "warn"} == {"memory", "KV cache"}
    assert all(roles[label] == "accent" for label in ("CPU", "RAM", "GPU0", "prompts"))


def test_the_machine_s_load_has_a_graph_where_there_is_room() -> None:
    loads = RecentLoads(label="GPU", shares=(None, *[0.5] * 60))
    scene = replace(scene_of(busy()), loads=loads)
    for height, has_graph in ((5, False), (10, False), (11, True), (14, True)):
        lines = list(map(plain_text, format_machine_rows(scene, 36, height, UNICODE)))
        assert ("GPU load" in lines) is has_graph, height
        assert lines[-1].endswith(" now") is has_graph and len(lines) <= height
    assert "GPU load" not in list(map(plain_text, format_machine_rows(scene_of(busy()), 36, 14, UNICODE)))


def test_a_server_elsewhere_does_not_show_this_machine() -> None:
    assert "load of the server's machine: unknown" in format_snapshot(scene_of(busy(), None), 100, UNICODE)


def test_a_server_without_metrics_gets_the_flag_suggested() -> None:
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
    assert names(arrange_rows(ROWS, (), TableView("client"))) == ["r1", "r3", "r2"]
    assert names(arrange_rows(ROWS, (), TableView("client", is_reversed=True))) == ["r2", "r1", "r3"]


def test_the_state_says_how_an_answer_ended() -> None:
    lines = format_table(busy(), TableView(), 80, 9, UNICODE)
    assert [plain_text(line).split()[0] for line in lines] == [
        "state",
        "running",
        "reading",
        "waiting",
        "stop",
        "failed",
    ]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_prompt_that_is_read_has_a_bar_in_place_of_what_is_unknown(width: int) -> None:
    titles, _, reading, waiting, *_ = map(plain_text, format_table(busy(), TableView(), width, 9, UNICODE))
    begin, end = titles.index("answer"), titles.index("total")
    assert reading[begin:end].strip("━╸─ ") == "25 %" and reading[end:].split()[:2] == ["3.0", "s"]
    drawn, rest = sum(map(reading.count, "━╸")), reading.count("─")
    assert drawn == pytest.approx((drawn + rest) / 4, abs=1) and drawn + rest + len("   25 %") >= end - begin - 3
    assert set(waiting[begin:end]) <= {"-", " "}


def test_what_a_request_does_has_a_color_and_the_rest_of_its_row_is_calm() -> None:
    reading = busy()
    rows = format_table(reading, TableView(), 120, 9, UNICODE, selected_id="nothing")[1:]
    by_state = {row.state: line for row, line in zip((*(reading.requests or ()), *reading.recent), rows, strict=True)}
    roles = {state: line[0].role for state, line in by_state.items()}
    assert roles == {"running": "good", "reading": "accent", "waiting": "warn", "stop": "quiet", "failed": "bad"}
    assert {span.role for span in by_state["failed"][1:-1]} == {"quiet"}
    assert all(cell_width(line) == 120 for line in rows)


def list_titles(width: int, *rows: RequestRow) -> list[str]:
    return [column.title for column in fit_columns(COLUMNS, rows or ROWS, width)]


def test_at_80_columns_the_figures_that_matter_stay() -> None:
    assert {"model", "client", "prompt", "answer", "tok/s", "first token", "total"} < set(list_titles(76))
    assert "id" not in list_titles(76) and list_titles(220) == [column.title for column in COLUMNS]


@given(width=st.integers(14, 240), model=st.text(max_size=60), owner=st.text(max_size=60))
def test_columns_are_as_wide_as_their_texts_and_fit(width: int, model: str, owner: str) -> None:
    rows = (*ROWS, replace(ROWS[0], model=model, owner=owner))
    columns = fit_columns(COLUMNS, rows, width)
    assert sum(column.width + column.gap for column in columns) - columns[-1].gap <= width
    for column in columns:
        texts = [column.format_cell(column.format(row)) for row in rows]
        assert {cell_len(text) for text in texts} == {column.width}
        assert column.title in ("state", "model", "client") or not any("..." in text for text in texts)


def test_a_column_that_is_too_narrow_for_a_text_says_so() -> None:
    rows = [replace(ROWS[0], model="a-model-with-a-long-name-Q4_1.gguf")]
    (column,) = fit_columns([column for column in COLUMNS if column.title == "model"], rows, 14)
    assert column.format_cell(column.format(rows[0])) == "a-mode...-Q4_1"


def test_several_clients_of_one_name_are_told_apart() -> None:
    def owners(*numbers: int) -> list[str]:
        rows = [{"id": str(i), "owner": "local", "client": "curl", "client_number": n} for i, n in enumerate(numbers)]
        other = {"id": "x", "owner": "local", "client": "", "client_number": 1}
        return [row.owner for row in parse_snapshot({"requests": [*rows, other], "recent": []}).requests or ()]

    assert owners(1, 1) == ["curl", "curl", "local"]
    assert owners(1, 2, 1) == ["curl 1", "curl 2", "curl 1", "local"]


@pytest.mark.parametrize("is_text", [True, False])
def test_the_arrow_at_the_sorted_title_hides_none_of_it(is_text: bool) -> None:
    title = next(column.title for column in COLUMNS if column.is_text is is_text)
    for width in (60, 120):
        line = plain_text(format_table(busy(), TableView(title), width, 9, UNICODE)[0])
        assert f"{title}{'▲' if is_text else '▼'}" in line


def test_drafted_means_the_same_everywhere() -> None:
    """Tokens that were proposed: neither a state nor a share of the answer."""
    assert "drafted" not in [column.title for column in COLUMNS]
    assert "360 of 600 accepted" in format_snapshot(scene_of(busy()), 120, UNICODE)


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
    lines = format_table(replace(EMPTY, requests=rows), TableView(), 120, height, UNICODE, selected_id=f"id{at}")
    assert f"owner{at}." in "\n".join(map(plain_text, lines))
    assert len(lines) == height


def test_no_text_of_a_request_can_be_in_the_table() -> None:
    """Only what RequestRow has; it has no text."""
    assert not {"text", "prompt", "messages", "answer"} & set(RequestRow.__dataclass_fields__)


# ---- what changed
def test_what_is_noticed() -> None:
    assert describe_changes(None, EMPTY) == ["connected: eaglelocal is ready"]
    assert describe_changes(EMPTY, EMPTY) == []
    assert describe_changes(EMPTY, RESTARTING) == ["eaglelocal is restarting", "the engine has restarted (1 so far)"]
    assert describe_changes(EMPTY, GONE)[0].startswith("cannot reach")
    lacking = replace(EMPTY, missing=("--metrics",))
    said = ["eaglelocal reports more when started with --metrics"]
    assert describe_changes(EMPTY, lacking) == describe_changes(GONE, lacking)[1:] == said
    assert describe_changes(lacking, lacking) == []
    assert describe_changes(GONE, EMPTY) == ["eaglelocal is ready again"]
    assert describe_changes(busy(), off()) == []
    assert describe_drafting_change(busy(), off()) == "drafting paused: it would be slower (0.94x)"
    assert describe_drafting_change(off(), busy()) == "drafting resumed"
    loaded = replace(EMPTY, drafting=DraftingState(state="off"))
    assert describe_drafting_change(loaded, replace(loaded, drafting=DraftingState(state="on"))) == ""
    assert describe_drafting_change(None, off()) == describe_drafting_change(off(), off()) == ""
    assert describe_drafting_change(GONE, off()) == describe_drafting_change(replace(busy(), model="x"), off()) == ""
    switched = replace(EMPTY, drafting=DraftingState(state="on", setting="4"))
    assert describe_changes(EMPTY, switched) == ["drafting was set to 4"]


def test_drafting_that_pauses_and_resumes_is_one_line_with_a_count() -> None:
    tail = LogTail()
    log = ChangeLog(tail)
    log.add(busy(), 0.0, "10:00:00")
    for second in range(1, 5):
        log.add(off() if second % 2 else busy(), float(second), f"10:00:0{second}")
        tail.add("POST /v1/chat/completions 200")
    log.add(off(), 60.0, "10:01:00")
    drafting = [line for line in tail.newest(20) if "drafting" in line]
    assert drafting == [
        "10:00:01  drafting resumed; 4 changes until 10:00:04",
        "10:01:00  drafting paused: it would be slower (0.94x)",
    ]


def test_a_long_line_of_the_log_goes_on_below() -> None:
    lines = ["10:00:00  first", "10:00:01  POST /v1/chat/completions 400  " + "messages: a list is expected " * 3]
    shown = [plain_text(line).rstrip() for line in format_log(lines, 60, 9)]
    assert len(shown) > 2 and all(len(line) <= 60 for line in shown)
    assert shown[:2] == ["10:00:00  first", "10:00:01  POST /v1/chat/completions 400  messages: a list is"]
    assert all(line.startswith(" " * 10) for line in shown[2:])
    assert [plain_text(line).rstrip() for line in format_log(lines[1:], 60, 2)] == shown[1:3], "its beginning"
    assert format_log(lines, 60, 0) == []


def test_in_a_log_of_two_rows_a_long_line_leaves_one_to_the_other() -> None:
    lines = ["10:00:00  POST /v1/chat/completions 200", "10:00:01  POST /v1/chat/completions 200  " + "word " * 9]
    shown = [plain_text(line) for line in format_log(lines, 60, 2)]
    assert shown == [lines[0], f"{lines[1][:57]}..."]


def test_a_line_that_is_no_longer_kept_is_not_replaced() -> None:
    tail = LogTail()
    number = tail.add("first")
    assert tail.replace(number, "1st") and tail.newest(1) == ["1st"]
    for i in range(KEPT_LINES):
        tail.add(str(i))
    assert not tail.replace(number, "again")


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
    filled, rest = glyphs.draw_bar(share, width)
    assert cell_len(filled + rest) == width
    assert len(filled) <= len(glyphs.draw_bar(min(share + 0.3, 1.0), width)[0])
    assert set(rest) <= {glyphs.empty} and glyphs.empty.strip()  # one sees where the end would be


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=50), st.integers(0, 40), st.floats(0, 1e6))
def test_graphs_have_their_width(values: list[float | None], width: int, top: float) -> None:
    assert {cell_len(row) for row in UNICODE.draw_graph(values, width, 3, top=top)} == {width}


@given(st.text("0123456789.-x ", max_size=8), st.sampled_from([UNICODE, ASCII]))
def test_large_digits_are_three_even_rows(text: str, glyphs: Glyphs) -> None:
    rows = glyphs.draw_large(text)
    assert len({cell_len(row) for row in rows}) == 1
    assert len({glyphs.draw_large(digit) for digit in "0123456789-."}) == 12


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


def test_loading_and_typing_do_not_delay_frames_and_slow_frames_are_forgotten() -> None:
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


@pytest.mark.parametrize("width", [80, 120])
def test_adapters_learning_and_drift_are_shown(width: int) -> None:
    reading = replace(busy(), adapters="0 poems.gguf x 0.1", learning="learning: 12 answers", drift=("less in code",))
    text = format_snapshot(scene_of(reading), width, UNICODE)
    assert "adapters 0 poems.gguf x 0.1" in text and "adapters" not in format_snapshot(scene_of(busy()), width, UNICODE)
    assert "learning: 12 answers" in text and "less in code" in text


# ---- figures of the past
@pytest.mark.parametrize("reading", [GONE, RESTARTING])
def test_figures_of_the_past_have_no_color(reading: ServerReading) -> None:
    frame = frame_of(busy(100), busy(200), reading)
    before = frame_of(busy(100), busy(200))
    (state, *drafting), speed = format_drafting(frame, 60, 14, UNICODE), format_speed(frame, 60, 14, UNICODE)
    roles = {span.role for line in (*drafting, *speed) for span in line if span.text.strip()}
    assert roles <= {"quiet", "track", "text"} and plain_text(state) in ("server gone, retrying", "restarting")
    assert any(span.role == "accent" for line in format_speed(before, 60, 14, UNICODE) for span in line)


def test_a_server_that_is_gone_says_so_in_the_header_and_the_table() -> None:
    text = format_snapshot(MonitorSnapshot(url=URL, frame=frame_of(busy(), GONE)), 120, UNICODE)
    assert text.startswith("server gone, retrying · eaglelocal at http://127.0.0.1:8421 · cannot reach")
    assert text.splitlines()[-1].strip() == "server gone, retrying" and "before: last 560 tokens" in text


def test_no_figure_contradicts_the_state() -> None:
    """Nothing drafted lately: no share of the time for drafts, and the totals are not denied."""
    plain = replace(totals(400), drafts=200.0, draft_tokens=600.0, accepted_tokens=360.0, per_position=None)
    frame = frame_of(busy(200), replace(busy(), totals=replace(plain, generated_tokens=2000.0)))
    text = "\n".join(map(plain_text, format_drafting(frame, 60, 9, UNICODE)))
    assert "nothing drafted lately" in text and "360 of 600 accepted" in text and "drafts" not in text
    assert describe_state(frame_of(EMPTY)) == "drafting on, nothing drafted yet"


def test_every_figure_of_the_monitor_is_explained() -> None:
    shown = format_snapshot(scene_of(busy()), 120, UNICODE)
    for name in FIGURE_PURPOSES:
        words = name.replace("1, 2 ...", "1").replace("... ", "").replace("cached", "").strip().split()
        assert all(word in shown for word in words), name


@pytest.mark.parametrize(
    ("width", "shown"),
    [(16, "demo · a model  "), (13, "demo · a m..."), (14, "demo · a model"), (5, "de..."), (2, ".."), (0, "")],
)
def test_a_line_that_is_cut_says_so(width: int, shown: str) -> None:
    line = cut_line(make_line("demo", (" · ", "quiet"), ("a model", "strong")), width)
    assert "".join(span.text for span in line) == shown

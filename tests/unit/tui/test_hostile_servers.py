"""`top` of a server that answers anything: it reads it, draws it, and writes nothing that a terminal obeys."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.client.http_connection import HttpReply
from eaglelocal.client.http_stream import objects
from eaglelocal.client.server_reading import ServerReading
from eaglelocal.client.servers.eaglelocal_server import ENGINE_TOTALS, parse_snapshot
from eaglelocal.client.servers.llama_server import TokenCount, parse_llama_server
from eaglelocal.client.servers.server_watch import parse_ollama
from eaglelocal.client.servers.vllm_server import Samples, parse_vllm
from eaglelocal.tui.glyphs import UNICODE
from eaglelocal.tui.monitor.log_tail import ChangeLog, LogTail
from eaglelocal.tui.monitor.machine_text import MonitorSnapshot, format_machine_rows
from eaglelocal.tui.monitor.monitor_text import (
    format_drafting_title,
    format_log,
    format_requests_title,
    format_snapshot,
    name_setting,
)
from eaglelocal.tui.monitor.server_rows import format_servers
from eaglelocal.tui.monitor.table_text import COLUMNS, TableView, format_table
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.panel.panel_text import format_drafting, format_speed
from eaglelocal.tui.styled_lines import plain_text

OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
EVIL = "a\x1b[31mb\x9b2J\u202ec\r\x07\td\x1b]52;c;aGk=\x07"
TEXTS = ("", EVIL, "²", "٣", "9" * 4400, "1e999", "-1", "nan", "auto", "on", "running", "waiting", "\ud83e", "鷲" * 90)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([0, 1, -1, 0.1, 1e17, 1e300])
SCALARS = st.none() | st.booleans() | NUMBERS | st.sampled_from(TEXTS) | st.text(max_size=9)
ANYTHING = st.recursive(
    SCALARS, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one), max_leaves=6
)


def some_of(names: str, **known: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Objects with some of these fields, of any type; and anything else."""
    fields = dict.fromkeys(names.split(), ANYTHING) | {name: values | ANYTHING for name, values in known.items()}
    return st.fixed_dictionaries({}, optional=fields) | ANYTHING


STATS = some_of(
    "state reason drafts draft_tokens accepted_tokens acceptance_rate accepted_per_position",
    accepted_per_position=st.lists(NUMBERS, max_size=5),
)
ENGINE = some_of(
    "pid spec store_problem cached_tokens cache_cells peak_rss_bytes swapped_bytes stored_bytes reused_tokens "
    + " ".join(ENGINE_TOTALS),
    speculation=STATS,
)
MODEL = some_of("name target draft n_ctx num_slots adapters", adapters=st.lists(some_of("name path scale")))
ROW = some_of(
    "id client owner model state drafting prompt_tokens cached_tokens completion_tokens accepted_tokens "
    "tok_s ttft_s age_s",
    speculation=STATS,
)
SNAPSHOT = some_of(
    "state detail running waiting answered refused failed restarts uptime_s is_operator",
    model=MODEL,
    engine=ENGINE,
    loaded=st.lists(some_of("name target", engine=ENGINE), max_size=3),
    requests=st.lists(ROW, max_size=4),
    recent=st.lists(ROW, max_size=4),
    learning=some_of("on kept_answers kept_bytes state version note"),
    drift=st.lists(some_of("text"), max_size=3),
)
SLOT = some_of(
    "id id_task n_ctx n_prompt_tokens n_prompt_tokens_cache speculative",
    is_processing=st.just(True),
    next_token=some_of("n_decoded"),
)
PROPS = some_of("total_slots model_alias model_path is_sleeping default_generation_settings")


def answer(value: object) -> HttpReply:
    """What a server sends, as it is read."""
    return HttpReply(200, {}, json.dumps(value).encode())


def draw(*readings: ServerReading) -> str:
    """All that the monitor draws of a server."""
    feed, log = Feed(), LogTail()
    changes = ChangeLog(log)
    for second, reading in enumerate(readings):
        feed.add_reading(reading, float(second))
        changes.add(reading, float(second), "12:00:00")
    frame, last = feed.make_frame(float(len(readings))), readings[-1]
    snapshot = MonitorSnapshot(url="http://127.0.0.1", frame=frame)
    lines = [
        *format_log(log.newest(9), 60, 9),
        *format_drafting(frame, 60, 20, UNICODE),
        *format_speed(frame, 60, 9, UNICODE),
    ]
    lines += format_machine_rows(snapshot, 40, 9, UNICODE)
    for column in COLUMNS:
        lines += format_table(last, TableView(column.title, filter="a"), 120, 9, UNICODE)
    texts = [format_snapshot(snapshot, width, UNICODE) for width in (16, 200)]
    return "\n".join([*texts, format_servers([snapshot], 80), *map(plain_text, lines)])


@given(first=SNAPSHOT, second=SNAPSHOT)
def test_any_snapshot_is_drawn(first: object, second: object) -> None:
    readings = [parse_snapshot(answer(each).mapping()) for each in (first, second)]
    assert not OBEYED.search(draw(*readings))
    format_requests_title(readings[0]), format_drafting_title(Feed().make_frame(0.0))


@given(st.lists(SLOT, max_size=4), PROPS, st.text(max_size=30))
def test_any_llama_server_is_drawn(slots: list[object], props: object, page: str) -> None:
    count, samples = TokenCount(), Samples(page)
    rows, about = objects(answer(slots).json()), answer(props).mapping()
    readings = [parse_llama_server(each, rows, about, count) for each in (None, samples, None)]
    assert not OBEYED.search(draw(*readings))


@given(st.lists(some_of("name size context_length"), max_size=3))
def test_any_ollama_is_drawn(models: list[object]) -> None:
    assert not OBEYED.search(draw(parse_ollama(objects(answer(models).json()))))


LABELS = st.lists(
    st.builds('{}="{}"'.format, st.sampled_from(["position", "model_name", "le"]), st.sampled_from(TEXTS)), max_size=3
)
LINE = st.builds(
    lambda name, labels, value: f"vllm:{name}{{{','.join(labels)}}} {value}",
    st.sampled_from(["num_requests_running", "spec_decode_num_accepted_tokens_per_pos", "generation_tokens_total"]),
    LABELS,
    st.sampled_from(["1", "NaN", "+Inf", "-1", "1e300", "1e999", "²", "", EVIL]),
)


@given(st.lists(LINE | st.text(max_size=20), max_size=5), some_of("id max_model_len"))
def test_any_metrics_are_drawn(lines: list[str], model: object) -> None:
    assert not OBEYED.search(draw(parse_vllm(Samples("\n".join(lines)), answer(model).mapping())))


@pytest.mark.parametrize(
    ("setting", "shown"), [("1", "1 token"), ("4", "4 tokens"), ("²", "²"), ("off", "off"), ("auto", "automatic")]
)
def test_a_setting_that_is_no_number_is_shown_as_it_is(setting: str, shown: str) -> None:
    assert name_setting(setting) == shown

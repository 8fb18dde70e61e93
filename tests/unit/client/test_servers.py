"""Snapshots of other servers are read like our own: every figure in its field, a missing one as None, never zero."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from doubles.pages_server import METRICS, Page, Pages, llama_pages, serving, vllm_pages
from doubles.timeouts import wait_until
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.client.http_connection import KeepAliveConnection
from eaglelocal.client.server_reading import DISCONNECTED, ServerReading, ServerTotals
from eaglelocal.client.servers.eaglelocal_server import parse_snapshot
from eaglelocal.client.servers.llama_server import TokenCount, parse_llama_server
from eaglelocal.client.servers.server_watch import ServerWatch
from eaglelocal.client.servers.vllm_server import Samples, parse_vllm
from eaglelocal.core.request import OFF, fixed_spec
from eaglelocal.errors import RequestError, UsageError


def page(name: str) -> str:
    return (METRICS / name).read_text()


def nobody(reading: ServerReading) -> None:
    """Listens."""


def read_once(pages: Pages) -> ServerReading:
    with serving(pages):
        return ServerWatch(pages.url, nobody).read()


# ---- llama-server
def test_llama_server_is_read_whole() -> None:
    reading = read_once(llama_pages())
    assert (reading.kind, reading.state, reading.model) == ("llama-server", "ready", "Qwen3-8B-Q4_K_M.gguf")
    assert (reading.running, reading.waiting, reading.num_slots, reading.n_ctx) == (1, 2, 3, 4096)
    assert (reading.cached_tokens, reading.cache_cells) == (612 + 388, 3 * 4096)
    assert reading.totals == ServerTotals(
        process="42",
        prompt_tokens=6886,
        cached_prompt_tokens=2114,
        generated_tokens=3469 + 100,  # ended, and running
        drafts=1400,
        draft_tokens=4200,
        accepted_tokens=2100,
        per_position=(1050, 700, 350),
    )
    assert (reading.missing, reading.can_control, reading.restarts) == ((), False, None)


def test_its_slots_are_requests_and_their_texts_are_not_read() -> None:
    reading = read_once(llama_pages())
    (row,) = reading.requests or ()
    assert (row.owner, row.state, row.prompt_tokens, row.generated_tokens) == ("slot 0", "running", 512, 100)
    assert "secret" not in repr(reading)


def test_its_adapters_are_read_with_their_present_scales() -> None:
    pages = llama_pages()
    rows = [{"id": 0, "path": "/models/poems.gguf", "scale": 0.5}, {"id": 1, "path": "code.gguf", "scale": 1.0}]
    pages.by_path["/lora-adapters"] = Page(rows)
    with serving(pages):
        watch = ServerWatch(pages.url, nobody)
        assert watch.read().adapters == "0 poems.gguf x 0.5, 1 code.gguf"
        pages.by_path["/lora-adapters"] = Page([{**rows[0], "scale": 0.0}, rows[1]])
        assert watch.read().adapters == "0 poems.gguf off, 1 code.gguf"
    assert read_once(llama_pages()).adapters == ""


def test_without_metrics_tokens_are_counted_as_they_come() -> None:
    pages = llama_pages()
    pages.by_path["/metrics"] = Page({"error": {"message": "start it with --metrics"}}, 501)
    with serving(pages):
        watch = ServerWatch(pages.url, nobody)
        first = watch.read()
        pages.by_path["/slots"] = Page(page("llama_server_slots.json").replace('"n_decoded": 100', '"n_decoded": 130'))
        second = watch.read()
    assert first.missing == ("--metrics",)
    assert first.totals.generated_tokens is not None and second.totals.generated_tokens is not None
    assert second.totals.generated_tokens - first.totals.generated_tokens == 30
    assert (second.totals.drafts, second.waiting, second.running) == (None, None, 1)


def test_without_slots_there_is_no_table() -> None:
    pages = llama_pages()
    pages.by_path["/slots"] = Page({"error": {}}, 501)
    reading = read_once(pages)
    assert (reading.requests, reading.cache_cells, reading.missing) == (None, None, ("--slots",))
    assert (reading.running, reading.totals.generated_tokens) == (1, 3469)


def test_an_older_one_reports_other_fields() -> None:
    reading = parse_llama_server(Samples(page("llama_server_old.txt")), None, {}, TokenCount())
    assert (reading.cache_share, reading.cached_tokens) == (0.25, 1024)
    assert (reading.totals.drafts, reading.totals.cached_prompt_tokens) == (None, None)


def test_a_model_that_loads_is_a_state() -> None:
    pages = llama_pages()
    pages.by_path["/health"] = Page({"error": {"message": "Loading model"}}, 503)
    assert read_once(pages).state == "loading"


def test_a_count_does_not_fall_when_an_answer_ends_between_two_questions() -> None:
    count = TokenCount()
    assert count.take(1000, [{"id": 0, "id_task": 1, "next_token": [{"n_decoded": 50}]}]) == 1050
    assert count.take(1000, []) == 1050  # ended after /metrics was asked
    assert count.take(1052, []) == 1052
    assert count.take(3, []) == 3  # another process


# ---- vLLM
def test_vllm_is_read_whole_and_its_engines_summed() -> None:
    reading = read_once(vllm_pages())
    assert (reading.kind, reading.model, reading.n_ctx) == ("vLLM", "Qwen/Qwen3-8B", 40960)
    assert (reading.running, reading.waiting, reading.answered) == (3, 4, 42)
    assert reading.cache_share == pytest.approx(0.375)
    assert reading.totals == ServerTotals(
        process="1753795320.0",
        prompt_tokens=1000,
        cached_prompt_tokens=640,
        generated_tokens=10_000,
        drafts=4000,
        draft_tokens=12_000,
        accepted_tokens=6000,
        per_position=(3200, 2000, 800),
    )
    assert (reading.requests, reading.cached_tokens, reading.uptime_s) == (None, None, None)


def test_a_server_that_does_not_draft_says_nothing_of_drafts() -> None:
    plain = "\n".join(line for line in page("vllm.txt").splitlines() if "spec_decode" not in line)
    totals = parse_vllm(Samples(plain), {}).totals
    assert (totals.drafts, totals.draft_tokens, totals.accepted_tokens, totals.per_position) == (None,) * 4


@given(st.text() | st.text('vllm:abc{}="0.1 \n#', max_size=200))
def test_any_page_is_survived(text: str) -> None:
    assert parse_vllm(Samples(text), {}).kind == "vLLM"
    assert parse_llama_server(Samples(text), None, {}, TokenCount()).kind == "llama-server"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = ("model", "engine", "requests", "recent", "running", "speculation", "state", "pid", "accepted_per_position")


@given(st.dictionaries(st.sampled_from(names), json_values))
def test_any_snapshot_is_survived(expected: Mapping[str, object]) -> None:
    assert parse_snapshot(expected).kind == "eaglelocal"
    assert parse_snapshot({"engine": expected, "requests": [expected, expected]}).kind == "eaglelocal"


# ---- which one, and for how long
@pytest.mark.parametrize(("pages", "kind"), [(llama_pages(), "llama-server"), (vllm_pages(), "vLLM")])
def test_a_server_is_known_by_what_it_says_even_without_a_list_of_models(pages: Pages, kind: str) -> None:
    pages.by_path["/v1/models"] = Page({"data": [{"id": "x", "owned_by": "somebody"}]})
    assert read_once(pages).kind == kind


@pytest.mark.parametrize(
    ("drafts", "accepted", "drafting", "acceptance", "share"),
    [(10, 6, "on", 0.6, 0.3), (10, 0, "asleep", 0.0, 0.0), (0, 0, "off", None, None), (0, 0, "on", None, None)],
)
def test_a_request_without_drafts_has_no_acceptance(
    drafts: int, accepted: int, drafting: str, acceptance: float | None, share: float | None
) -> None:
    figures = {"drafts": drafts, "acceptance_rate": accepted / drafts if drafts else 0.0}
    row = {"state": "stop", "completion_tokens": 20, "accepted_tokens": accepted, "drafting": drafting}
    (read,) = parse_snapshot({"recent": [{**row, "speculation": figures}]}).recent
    assert (read.acceptance, read.share) == (acceptance, share)


def test_ollama_reports_models_and_memory_and_nothing_else() -> None:
    models = [
        {"name": "qwen3:8b", "size": 6_000, "context_length": 8192},
        {"name": "gemma3:4b", "size": 3_000, "context_length": 4096},
    ]
    pages = Pages({"/v1/models": Page({"data": [{"id": "x", "owned_by": "library"}]}), "/api/ps": Page({"models": []})})
    with serving(pages):
        watch = ServerWatch(pages.url, nobody)
        idle = watch.read()
        pages.by_path["/api/ps"] = Page({"models": models})
        loaded = watch.read()
        pages.by_path["/api/ps"] = Page("broken", 500)
        broken = watch.read()
    assert (idle.kind, idle.state, idle.model, idle.memory_bytes) == ("Ollama", "idle", "", None)
    assert (loaded.state, loaded.models, loaded.n_ctx) == ("ready", ("qwen3:8b", "gemma3:4b"), 8192)
    assert (loaded.memory_bytes, loaded.running, loaded.waiting, loaded.totals) == (9_000, None, None, ServerTotals())
    assert (broken.state, broken.kind) == (DISCONNECTED, "Ollama")


def test_an_unknown_server_is_not_recognized() -> None:
    reading = read_once(Pages({"/v1/models": Page("<html>hello</html>")}))
    assert reading.state == DISCONNECTED
    assert "neither" in reading.detail


def test_a_key_is_asked_for() -> None:
    reading = read_once(Pages({"/v1/models": Page({"error": {"message": "no"}}, 401)}))
    assert (reading.state, "needs a key" in reading.detail) == (DISCONNECTED, True)


def test_the_key_is_sent() -> None:
    pages = vllm_pages()
    with serving(pages):
        ServerWatch(pages.url, nobody, api_key="a-key").read()
    assert set(pages.keys) == {"Bearer a-key"}


def test_it_survives_restarts_and_another_kind_of_server_in_the_same_place() -> None:
    readings: list[ServerReading] = []
    pages = llama_pages()
    with serving(pages):
        watch = ServerWatch(pages.url, readings.append, gap_s=0.01)
        watch.start()
        wait_until(lambda: any(each.state == "ready" for each in readings), "it is read")
    try:
        wait_until(lambda: readings[-1].state == DISCONNECTED, "its end is noticed")
        assert readings[-1].kind == "llama-server"  # what it was
        other = vllm_pages()
        other.port = pages.port
        with serving(other):
            wait_until(lambda: readings[-1].kind == "vLLM", "the other one is found")
    finally:
        watch.close()


def test_what_can_be_done_is_asked_over_http() -> None:
    pages = llama_pages()
    with serving(pages):
        watch = ServerWatch(pages.url + "/v1", nobody)
        watch.cancel("a/b c")
        watch.switch(OFF)
        watch.switch(fixed_spec(3))
        pages.by_path["/v1/speculation"] = Page({"error": {"message": "nothing to switch", "code": "no_draft"}}, 400)
        with pytest.raises(RequestError, match="nothing to switch"):
            watch.switch(OFF)
    sent = [("/v1/requests/a%2Fb%20c/cancel", {}), ("/v1/speculation", {"spec": "off"})]
    assert pages.posts[:3] == [*sent, ("/v1/speculation", {"spec": 3})]


@pytest.mark.parametrize("url", ["", "ht tp", "http://", "http://x:99999", "ftp://x", "http://a@b"])
def test_an_invalid_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError):
        KeepAliveConnection(url)


def test_replies_that_are_not_json_count_as_empty() -> None:
    pages = Pages({"/a": Page("[1"), "/b": Page("[" * 100_000), "/c": Page(json.dumps([1]))})
    with serving(pages):
        connection = KeepAliveConnection(pages.url)
        assert [connection.get(path).mapping() for path in ("/a", "/b", "/c")] == [{}, {}, {}]
        assert connection.get("/c").json() == [1]


def test_a_position_of_thousands_of_digits_is_passed_over() -> None:
    text = f'accepted{{position="{"9" * 5000}"}} 1\naccepted{{position="1"}} 2\n'
    assert Samples(text).read_positions("accepted") == (0.0, 2.0)

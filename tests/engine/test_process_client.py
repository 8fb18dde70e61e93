"""The client over a real engine process: answers, cancels, failures of one request, snapshots, closing."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from doubles.scripted_engine import BUILDER, ask, plan
from doubles.timeouts import PROMPTLY_S, wait_until

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Failed, Finished, LoadProgress, RequestEvent, Started, Tokens
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.errors import EagleLocalError, EngineError, ModelFileError, RequestError, ResourceError


@pytest.fixture(scope="module")
def client() -> Iterator[EngineClient]:
    """For tests after which the process still runs."""
    with EngineClient(plan(), builder=BUILDER) as shared:
        shared.start()
        pid = shared.pid
        yield shared
        assert (shared.pid, shared.restarts) == (pid, 0)


# ---- answers
def test_an_answer_streams_in_order_and_ends_once(client: EngineClient) -> None:
    events = list(client.stream(ask("count 5")))
    assert isinstance(events[0], Started)
    assert [event.text for event in events if isinstance(event, Tokens)] == ["0 ", "1 ", "2 ", "3 ", "4 "]
    assert [type(event) for event in events].count(Finished) == 1
    assert isinstance(events[-1], Finished)
    assert events[-1].completion_tokens == 5


def test_result_holds_what_was_read_before(client: EngineClient) -> None:
    answer = client.stream(ask("count 3"))
    next(answer)
    next(answer)
    reply = answer.result()
    assert (reply.text, reply.tokens, reply.finished.reason) == ("0 1 2 ", (1, 2, 3), "stop")
    assert reply.started is not None
    assert list(answer) == []


def test_many_answers_at_once_do_not_mix(client: EngineClient) -> None:
    answers = [client.stream(ask(f"count {n}", f"many-{n}")) for n in range(1, 41)]
    for n, answer in enumerate(answers, start=1):
        assert answer.result().tokens == tuple(range(1, n + 1))


def test_threads_share_a_client(client: EngineClient) -> None:
    texts: dict[int, str] = {}

    def work(worker: int) -> None:
        texts[worker] = "".join(client.stream(ask(f"echo {worker}", f"w{worker}-{n}")).result().text for n in range(20))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    assert texts == {n: str(n) * 20 for n in range(8)}


def test_huge_messages_pass_both_ways(client: EngineClient) -> None:
    text = "x" * 8_000_000
    request = ChatRequest(id="huge", text=f"echo {text}", messages=(Message("user", text),))
    assert client.stream(request).result().text == text


def test_a_message_over_the_limit_is_the_callers_error(client: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglelocal.worker.channel.MAX_FRAME_BYTES", 10_000)
    with pytest.raises(EngineError, match="over the engine's limit of 10000"):
        client.stream(ask("echo " + "x" * 10_000, "too large")).result()
    assert client.stream(ask("count 1", "too large")).result().text == "0 "


# ---- cancels
def test_cancel_ends_an_answer(client: EngineClient) -> None:
    answer = client.stream(ask("forever"))
    assert isinstance(next(answer), Started)
    answer.cancel()
    assert answer.result().finished.reason == "cancelled"
    answer.cancel()


def test_cancelling_right_after_asking_is_not_lost(client: EngineClient) -> None:
    for n in range(50):
        answer = client.stream(ask("forever", f"quick-{n}"))
        answer.cancel()
        assert answer.result().finished.reason == "cancelled"


def test_leaving_an_answer_cancels_it(client: EngineClient) -> None:
    with client.stream(ask("forever")) as answer:
        next(answer)
    assert answer.result().finished.reason == "cancelled"


def test_cancel_of_one_leaves_the_others(client: EngineClient) -> None:
    stopped, going = client.stream(ask("forever", "a")), client.stream(ask("count 200", "b"))
    stopped.cancel()
    assert stopped.result().finished.reason == "cancelled"
    assert len(going.result().tokens) == 200


def test_unknown_ids_are_ignored(client: EngineClient) -> None:
    client.cancel("never heard of")
    assert client.stream(ask("count 1")).result().text == "0 "


# ---- failures of one request
def test_a_rejected_request_fails_alone(client: EngineClient) -> None:
    going = client.stream(ask("count 50", "going"))
    (last,) = list(client.stream(ask("reject", "bad")))
    assert isinstance(last, Failed)
    assert isinstance(last.error, RequestError)
    assert len(going.result().tokens) == 50


def test_a_bug_in_taking_a_request_fails_it_alone(client: EngineClient) -> None:
    going = client.stream(ask("count 50", "going"))
    with pytest.raises(EngineError, match="failed on the request: TypeError: the template tripped"):
        client.stream(ask("trip", "bad")).result()
    assert len(going.result().tokens) == 50


def test_a_full_cache_fails_what_runs_and_keeps_the_engine(client: EngineClient) -> None:
    running = client.stream(ask("forever", "running"))
    next(running)
    with pytest.raises(ResourceError, match="no room for 7 rows"):
        client.stream(ask("full", "full")).result()
    with pytest.raises(ResourceError, match="no room for 7 rows"):
        running.result()
    assert client.stream(ask("count 2", "running")).result().text == "0 1 "


def test_an_id_in_use_is_refused(client: EngineClient) -> None:
    answer = client.stream(ask("forever", "same"))
    with pytest.raises(RequestError, match="'same' is still running"):
        client.stream(ask("count 1", "same"))
    answer.cancel()
    assert answer.result().finished.reason == "cancelled"


def test_a_listener_that_raises_is_dropped_and_its_request_cancelled(
    client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(event: RequestEvent) -> None:
        raise OSError("broken listener")

    client.submit(ask("forever", "dropped"), raises)
    wait_until(lambda: client.snapshot().running == 0, "the request is cancelled")
    assert client.stream(ask("count 1")).result().text == "0 "
    assert [record.args for record in caplog.records] == [("dropped",)]


# ---- strays, signals, snapshots
def test_stray_output_and_input_do_not_touch_the_pipe(client: EngineClient) -> None:
    assert client.stream(ask("stray")).result().text == ""
    assert client.stream(ask("count 1")).result().text == "0 "


def test_warnings_of_the_process_reach_the_log_of_its_parent(
    client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.stream(ask("warn a.cells is skipped")).result()
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "steady: a.cells is skipped")
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT])
def test_signals_to_the_process_group_are_left_to_the_parent(client: EngineClient, number: signal.Signals) -> None:
    answer = client.stream(ask("count 300"))
    next(answer)
    assert client.pid is not None
    os.kill(client.pid, number)
    assert len(answer.result().tokens) == 300


def test_a_snapshot_has_the_totals(client: EngineClient) -> None:
    before = client.snapshot().generated_tokens
    client.stream(ask("count 7")).result()
    assert client.snapshot().generated_tokens == before + 7


def test_thousand_requests_leave_nothing_after(client: EngineClient) -> None:
    def open_things() -> tuple[int, int, int, int]:
        gc.collect()  # pipes of earlier tests' clients
        ours, theirs = psutil.Process(), psutil.Process(client.pid)
        return ours.num_fds(), ours.num_threads(), theirs.num_fds(), theirs.num_threads()

    client.stream(ask("count 1")).result()
    before = open_things()
    for n in range(1000):
        assert client.stream(ask("count 3", f"thousand-{n}")).result().text == "0 1 2 "
    assert open_things() == before


# ---- the load
def test_info_and_progress_come_from_the_load() -> None:
    seen: list[LoadProgress] = []
    with EngineClient(plan(), builder=BUILDER, on_progress=seen.append) as client:
        before = client.state
        assert client.start().target == "steady"
        assert (before, client.state) == ("loading", "ready")
        assert client.start().target == "steady"
    assert seen == [LoadProgress(0.0, "script"), LoadProgress(1.0, "script")]


def test_a_listener_of_progress_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    def raises(progress: LoadProgress) -> None:
        raise ValueError("broken listener")

    with EngineClient(plan(), builder=BUILDER, on_progress=raises) as client:
        assert client.start().target == "steady"
    assert len(caplog.records) == 2


def test_load_errors_arrive_as_they_were_raised() -> None:
    with EngineClient(plan("refuse"), builder=BUILDER) as client:
        with pytest.raises(ModelFileError, match=r"^no-such.gguf is not a GGUF file$") as caught:
            client.start()
        assert caught.value.hint == "eaglelocal pull demo"
        assert (client.state, client.restarts, client.pid) == ("failed", 0, None)
        with pytest.raises(ModelFileError):
            client.stream(ask("count 1")).result()


@pytest.mark.parametrize(
    ("label", "builder", "message"),
    [
        ("die", BUILDER, r"aborted while it loaded the model \(signal 6\): ggml_backend_alloc failed: out of memory$"),
        ("bug", BUILDER, r"failed to load: KeyError: 'token_embd.weight'"),
        ("steady", "no_such_module:build", r"failed to load: ModuleNotFoundError: No module named 'no_such_module'"),
        ("steady", "doubles.scripted_engine:nothing", r"failed to load: AttributeError: .*nothing"),
    ],
)
def test_load_that_breaks_is_an_error_with_a_hint(label: str, builder: str, message: str) -> None:
    with EngineClient(plan(label), builder=builder) as client:
        with pytest.raises(EngineError, match=message) as caught:
            client.start()
        assert "EAGLELOCAL_ENGINE_LOG=1" in caught.value.hint


def test_requests_wait_for_the_load() -> None:
    with EngineClient(plan(), builder=BUILDER) as client:
        starting = threading.Thread(target=client.start)
        starting.start()
        wait_until(lambda: client.pid is not None, "the process runs")
        early, given_up = client.stream(ask("count 3", "early")), client.stream(ask("count 3", "given up"))
        given_up.cancel()
        assert early.result().text == "0 1 2 "
        assert given_up.result().finished.reason == "cancelled"
        starting.join()


def test_nothing_is_asked_before_the_start() -> None:
    with EngineClient(plan(), builder=BUILDER) as client, pytest.raises(EngineError, match="has not been started"):
        client.stream(ask("count 1")).result()


# ---- the end
def test_close_lets_the_engine_end_in_order(tmp_path: Path) -> None:
    note = tmp_path / "note"
    client = EngineClient(plan("leave a note", note), builder=BUILDER)
    client.start()
    pid, began_s = client.pid, time.monotonic()
    client.close()
    assert time.monotonic() - began_s < PROMPTLY_S
    assert note.read_text() == "closed in order"
    assert pid is not None
    assert not psutil.pid_exists(pid)  # ended, and reaped


def test_close_fails_what_runs_and_leaves_no_threads() -> None:
    before = threading.active_count()
    client = EngineClient(plan(), builder=BUILDER)
    client.start()
    answers = [client.stream(ask("forever", str(n))) for n in range(5)]
    next(answers[0])
    client.close()
    client.close()
    for answer in answers:
        with pytest.raises(EngineError, match="closed"):
            answer.result()
    assert threading.active_count() == before
    assert client.state == "closed"
    assert client.snapshot().running == 0
    with pytest.raises(EngineError, match="the engine is closed"):
        client.stream(ask("count 1")).result()
    with pytest.raises(EngineError, match="the engine is closed"):
        client.start()


def test_close_ends_an_engine_that_hangs() -> None:
    with EngineClient(plan(), builder=BUILDER) as client:
        client.start()
        answer = client.stream(ask("hang"))
        next(answer)
        time.sleep(0.1)
        pid, began_s = client.pid, time.monotonic()
    assert 1.5 < time.monotonic() - began_s < 2.0 + PROMPTLY_S
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with pytest.raises(EngineError):
        answer.result()


def test_close_interrupts_a_load() -> None:
    client = EngineClient(plan("hang"), builder=BUILDER)
    outcome: list[EagleLocalError] = []

    def start() -> None:
        try:
            client.start()
        except EagleLocalError as error:
            outcome.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    wait_until(lambda: client.pid is not None, "the process runs")
    began_s = time.monotonic()
    client.close()
    starting.join()
    assert time.monotonic() - began_s < PROMPTLY_S
    assert "closed" in outcome[0].message


def test_close_from_a_listener_does_not_lock_up() -> None:
    client = EngineClient(plan(), builder=BUILDER)
    client.start()
    seen: list[RequestEvent] = []

    def close(event: RequestEvent) -> None:
        seen.append(event)
        if isinstance(event, Tokens):
            client.close()

    client.submit(ask("forever"), close)
    wait_until(lambda: client.pid is None, "the process is gone")
    client.close()
    assert isinstance(seen[-1], Failed)


def test_close_before_start_is_fine() -> None:
    client = EngineClient(plan(), builder=BUILDER)
    client.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        client.start()

"""Unit tests of the parts between client and engine process: channel, ending, `InFlightRequests`, snapshots."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest

import eaglelocal
from eaglelocal.client.engine_client import Snapshots
from eaglelocal.client.in_flight_requests import InFlightRequests
from eaglelocal.core.events import (
    Begun,
    Cancel,
    Command,
    EngineSnapshot,
    Failed,
    Finished,
    LoadProgress,
    RequestEvent,
    Started,
    Submit,
    TakeSnapshot,
    TextPiece,
    Tokens,
)
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import Sampled, SamplingParams, TokenLogprob
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.core.tools import CallPart
from eaglelocal.errors import EngineError, ModelFileError, RequestError
from eaglelocal.probe.subprocess_calls import run
from eaglelocal.processes.limited_process import LimitedProcess, ProcessLimits
from eaglelocal.worker.channel import Channel
from eaglelocal.worker.child import SpareProcess, make_engine_environment
from eaglelocal.worker.exit_reason import ExitReason
from eaglelocal.worker.process import Reporter

SAMPLED = Sampled(5, -0.5, top=(TokenLogprob(5, -0.5), TokenLogprob(6, -1.5)))
FINISHED = Finished("r", "stop", "", 1, 2, Timings(ttft_s=0.5), SpeculationStats(accepted_per_position=(3, 1)))


# ---- channel
def through_a_pipe(message: object) -> object:
    reading, writing = os.pipe()
    channel = Channel(os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0))
    sender = threading.Thread(target=channel.send, args=(message,))
    sender.start()
    received = channel.receive()
    sender.join()
    channel.close()
    return received


@pytest.mark.parametrize(
    "message",
    [
        [Tokens("r", (TextPiece(1, "ä", drafted=True, sampled=SAMPLED), TextPiece(2, "", drafted=False))), FINISHED],
        Submit(ChatRequest(id="r", text="t", params=SamplingParams(seed=3, stop=("a",), logit_bias=((1, 2.0),)))),
        [Tokens("r", tuple(TextPiece(n, "x" * 100, drafted=False) for n in range(3000)))],
    ],
)
def test_messages_pass_unchanged(message: object) -> None:
    assert through_a_pipe(message) == message


def test_no_field_of_a_piece_is_lost() -> None:
    """The channel packs fields by hand."""
    piece = TextPiece(1, "ä", True, SAMPLED, "hm", (CallPart(0, '{"a"', "id", "f"), CallPart(0, ": 1}")))
    assert all(value != default for value, default in zip(piece, TextPiece(0, "", False), strict=True))
    result, finished = through_a_pipe([Tokens("r", (piece,)), FINISHED])  # type: ignore[misc]
    assert (result, finished) == (Tokens("r", (piece,)), FINISHED)
    assert (type(result), type(result.pieces), type(result.pieces[0])) == (Tokens, tuple, TextPiece)


def test_errors_pass_with_kind_and_hint() -> None:
    failed = through_a_pipe(Failed("r", ModelFileError("no model", hint="eaglelocal pull demo")))
    assert isinstance(failed, Failed)
    assert type(failed.error) is ModelFileError
    assert (failed.error.message, failed.error.hint) == ("no model", "eaglelocal pull demo")


def receive_from(data: bytes) -> object:
    return Channel(BytesIO(data), BytesIO()).receive()


@pytest.mark.parametrize("data", [b"", b"\x01\x00", b"\x09\x00\x00\x00short"])
def test_a_cut_message_is_the_end(data: bytes) -> None:
    with pytest.raises(EOFError):
        receive_from(data)


@pytest.mark.parametrize(
    "data", [b"a line of text\n", b"    \n\n", struct.pack("<I", 5) + b"abcde", struct.pack("<I", 1) + pickle.STOP]
)
def test_garbage_is_an_error(data: bytes) -> None:
    with pytest.raises(EngineError, match="the engine's pipe carries"):
        receive_from(data)


def test_sending_to_a_closed_channel_is_a_broken_pipe() -> None:
    channel = Channel(BytesIO(), BytesIO())
    channel.close()
    with pytest.raises(BrokenPipeError):
        channel.send("late")


# ---- ending
@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (ExitReason(-9), "the engine process was killed (signal 9)"),
        (ExitReason(-11), "the engine process crashed (signal 11, SIGSEGV)"),
        (ExitReason(0), "the engine process ended (exit status 0)"),
        (ExitReason(-9, ("a word from the load",)), "the engine process was killed (signal 9)"),
        (ExitReason(1, ("hello", "bye", "")), "the engine process ended (exit status 1): hello; bye"),
        (
            ExitReason(-6, ("load: error: bad magic", "chatter", "/lib/libggml.so(+0x1)", "  more")),
            "the engine process aborted (signal 6): load: error: bad magic",
        ),
        (  # faulthandler itself crashed over the frames of a running thread
            ExitReason(-11, ("Fatal Python error: Aborted", "", "  File Fatal Python error: Segmentation fault")),
            "the engine process aborted (signal 6)",
        ),
        (ExitReason(-9, ("Fatal Python error: none of these",)), "the engine process was killed (signal 9)"),
        (
            ExitReason(1, ("Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: broken")),
            "the engine process ended (exit status 1): ValueError: broken",
        ),
    ],
)
def test_an_ending_is_reported_with_the_lines_that_matter(ending: ExitReason, message: str) -> None:
    assert ending.error().message == message
    assert ending.error().hint


# ---- in_flight
class Box:
    """A recipient that keeps what it gets, until it is gone."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.gone = False

    def send(self, command: Command) -> bool:
        if not self.gone:
            self.commands.append(command)
        return not self.gone


def open_connection(box: Box | None = None) -> InFlightRequests:
    in_flight = InFlightRequests(EngineError("not started"))
    in_flight.accept()
    if box is not None:
        in_flight.connect(box)
    return in_flight


def ask(request_id: str = "r") -> ChatRequest:
    return ChatRequest(id=request_id, text="t")


def test_waiting_requests_are_sent_in_order_once() -> None:
    in_flight, box, events = open_connection(), Box(), list[RequestEvent]()
    for request_id in "abc":
        in_flight.submit(ask(request_id), events.append)
    in_flight.cancel("b")
    in_flight.connect(box)
    assert box.commands == [Submit(ask("a")), Submit(ask("c"))]
    assert [(type(event), event.request_id) for event in events] == [(Finished, "b")]
    assert in_flight.num_waiting == 0


def test_what_a_dead_process_never_saw_waits_for_the_next() -> None:
    dead, fresh, events = Box(), Box(), list[RequestEvent]()
    in_flight = open_connection(dead)
    in_flight.submit(ask("begun"), events.append)
    in_flight.submit(ask("unread"), events.append)
    in_flight.note_work(Begun("begun"))
    dead.gone = True
    in_flight.submit(ask("unsent"), events.append)
    in_flight.submit(ask("unsent too"), events.append)
    in_flight.disconnect(EngineError("gone"), is_crash=True)
    assert [(type(event), event.request_id) for event in events] == [(Failed, "begun")]
    in_flight.connect(fresh)
    assert fresh.commands == [Submit(ask(name)) for name in ("unread", "unsent", "unsent too")]


def test_a_request_leaves_with_one_last_event() -> None:
    box, events = Box(), list[RequestEvent]()
    in_flight = open_connection(box)
    in_flight.submit(ask(), events.append)
    in_flight.deliver([Started("r", 1, 0), FINISHED, FINISHED, Started("r", 1, 0)])
    in_flight.disconnect(EngineError("gone"))
    in_flight.cancel("r")
    assert events == [Started("r", 1, 0), FINISHED]
    assert box.commands == [Submit(ask())]


def test_refused_requests_fail_and_a_ready_process_ends_the_refusal() -> None:
    in_flight, events = open_connection(), list[RequestEvent]()
    in_flight.submit(ask("early"), events.append)
    in_flight.refuse(EngineError("down"))
    in_flight.submit(ask("late"), events.append)
    assert [(event.request_id, str(event.error)) for event in events if isinstance(event, Failed)] == [
        ("early", "down"),
        ("late", "down"),
    ]
    box = Box()
    in_flight.connect(box)
    in_flight.refuse(EngineError("a limit that fires too late"))
    in_flight.submit(ask("now"), events.append)
    assert box.commands == [Submit(ask("now"))]


def test_a_request_that_cannot_be_sent_is_forgotten() -> None:
    class Narrow(Box):
        def send(self, command: Command) -> bool:
            raise RequestError("too large")

    in_flight, events = open_connection(Narrow()), list[RequestEvent]()
    for _ in range(2):  # the second try is not "still running"
        in_flight.submit(ask(), events.append)
    assert [str(event.error) for event in events if isinstance(event, Failed)] == ["too large"] * 2


def test_a_cancel_follows_its_submit() -> None:
    box = Box()
    in_flight = open_connection(box)
    in_flight.submit(ask(), lambda event: None)
    in_flight.cancel("r")
    assert box.commands == [Submit(ask()), Cancel("r")]


# ---- snapshots
def snapshot(steps: int, running: int = 0) -> EngineSnapshot:
    return EngineSnapshot(running, 0, steps, 0, 0, SpeculationStats(), 0.0, 0.0, 0)


def test_one_question_at_a_time_is_on_its_way() -> None:
    snapshots, box = Snapshots(), Box()
    assert [snapshots.take(box, timeout_s=0.0).steps for _ in range(3)] == [0, 0, 0]
    assert box.commands == [TakeSnapshot()]
    snapshots.receive(snapshot(5))
    assert snapshots.take(box, timeout_s=0.0).steps == 5
    assert len(box.commands) == 2


def test_a_question_to_a_dead_process_does_not_block_the_next() -> None:
    snapshots, dead, fresh = Snapshots(), Box(), Box()
    snapshots.receive(snapshot(5, running=2))
    snapshots.take(dead, timeout_s=0.0)
    snapshots.clear_gauges()
    assert snapshots.last == snapshot(5, running=0)
    snapshots.take(dead, timeout_s=0.0)
    snapshots.take(fresh, timeout_s=0.0)
    assert fresh.commands == [TakeSnapshot()]


# ---- the import path of the child
def test_the_child_runs_this_copy_of_ours_even_from_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(eaglelocal.__file__).parents[1])
    monkeypatch.setattr("sys.path", ["/stray", root, "/other copy"])
    for folder in (root, "/"):
        monkeypatch.chdir(folder)
        assert make_engine_environment()["PYTHONPATH"].split(os.pathsep) == ["/stray", root, "/other copy"]


def test_the_child_asks_for_huge_pages_next_to_what_people_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert make_engine_environment()["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert make_engine_environment()["GOMP_SPINCOUNT"] == "7"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    assert make_engine_environment()["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"


def read_variables(pid: int) -> set[str]:
    return {entry.partition("=")[0] for entry in Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows the variables of a process")
def test_no_process_of_ours_can_be_asked_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines, those that wait for a plan, and what probes, renders and checks for them."""
    for name in ("EAGLELOCAL_API_KEY", "HF_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with SpareProcess("doubles.scripted_engine:build") as spare:
        assert spare.pid is not None
        seen = read_variables(spare.pid)
    child = LimitedProcess(
        "doubles.limited_functions:open_echo", "> ", limits=ProcessLimits(cpu_s=30.0, memory_bytes=2**28)
    )
    child.open()
    assert child.pid is not None
    limited = read_variables(child.pid)
    child.close()
    probed = run(("env",), timeout_s=30.0)
    assert probed is not None
    assert "CUDA_VISIBLE_DEVICES" in seen and b"CUDA_VISIBLE_DEVICES=1" in probed.stdout
    assert not {"EAGLELOCAL_API_KEY", "HF_TOKEN", "OPENAI_API_KEY"} & (seen | limited)
    assert b"secret" not in probed.stdout


def sent_progress(steps: Sequence[tuple[float, str, str]], *, interval_s: float) -> list[tuple[float, str, str]]:
    """Return what is sent of progress that is reported at this interval."""
    now_s, written = 0.0, BytesIO()
    progress = Reporter(Channel(BytesIO(), written), clock=lambda: now_s)
    for step in steps:
        progress.report(LoadProgress(*step))
        now_s += interval_s
    channel, found = Channel(BytesIO(written.getvalue()), BytesIO()), []
    with contextlib.suppress(EOFError):
        while True:
            found.append(channel.receive())
    return [(one.fraction, one.what, one.detail) for one in found]


def test_progress_is_reported_where_it_moves_or_something_else_goes_on() -> None:
    steps = [(0.0, "f", ""), (0.001, "f", ""), (0.5, "f", ""), (1.0, "f", ""), (1.0, "f", ""), (1.0, "f", "the GPU")]
    assert sent_progress(steps, interval_s=0.06) == [steps[n] for n in (0, 2, 3, 5)]


def test_fast_progress_is_reported_at_intervals_with_its_first_and_last_message() -> None:
    steps = [(n / 100, what, "") for what in ("f", "g") for n in range(101)]
    sent = sent_progress(steps, interval_s=1 / 64)
    assert {(0.0, "f", ""), (1.0, "f", ""), (0.0, "g", ""), (1.0, "g", "")} <= set(sent)
    assert len(sent) == 2 * (100 // 4 + 1)

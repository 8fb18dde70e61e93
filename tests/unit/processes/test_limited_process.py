"""A function in a process with limits: its result, what is killed, and that the next call is served."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.timeouts import wait_until

from eaglelocal.errors import EagleLocalError, ModelFileError, RequestError
from eaglelocal.processes import limited_process
from eaglelocal.processes.child_process import Usage, read_usage
from eaglelocal.processes.limited_process import (
    CallRaised,
    CannotStart,
    LimitedProcess,
    LimitedProcessError,
    ProcessDied,
    ProcessLimits,
    TookTooLong,
    TookTooMuchMemory,
    TooLargeReply,
)

MIB = 2**20
LIMITS = ProcessLimits(cpu_s=0.3, memory_bytes=64 * MIB, max_deaths=100, max_reply_bytes=MIB)
HANG_S = 60.0  # far beyond what any of this takes
TESTS = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def doubles_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS))


def table(limits: ProcessLimits = LIMITS) -> LimitedProcess:
    return LimitedProcess("doubles.limited_functions:open_table", limits=limits)


@pytest.fixture
def process() -> Iterator[LimitedProcess]:
    made = table()
    yield made
    made.close()


def is_alive(pid: int) -> bool:
    """And no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def assert_ends(pid: int) -> None:
    ends_at = time.monotonic() + HANG_S
    while is_alive(pid):
        assert time.monotonic() < ends_at
        time.sleep(0.01)


# ---- what comes back
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "> a"),
        ("\ud800\ue000é" * 10, "> " + "\ud800\ue000é" * 10),
        (b"\x00\xff", b"\x00\xff"),
        (None, None),
        ([1, 2.5, True, None, {"a": ["b"]}], [1, 2.5, True, None, {"a": ["b"]}]),
        ("x" * 300_000, "> " + "x" * 300_000),
    ],
    ids=["text", "any text", "bytes", "none", "structure", "longer than a pipe holds"],
)
def test_plain_values_go_there_and_back(value: object, expected: object) -> None:
    echo = LimitedProcess("doubles.limited_functions:open_echo", "> ", limits=LIMITS)
    assert echo.call(value) == expected
    echo.close()


def test_one_process_serves_all_calls() -> None:
    counter = LimitedProcess("doubles.limited_functions:open_counter", limits=LIMITS)
    assert [counter.call() for _ in range(3)] == [1, 2, 3]
    counter.close()


def test_our_errors_come_back_whole(process: LimitedProcess) -> None:
    with pytest.raises(RequestError) as caught:
        process.call("refuse")
    error = caught.value
    assert (error.message, error.hint, error.parameter, error.code) == ("no", "yes", "messages", "word")


@pytest.mark.parametrize(("name", "kind"), [("fail", "KeyError"), ("nest", "RecursionError"), ("object", "TypeError")])
def test_other_errors_come_back_by_name_and_the_process_lives_on(process: LimitedProcess, name: str, kind: str) -> None:
    before = process.call("pid")
    with pytest.raises(CallRaised) as caught:
        process.call(name)
    assert caught.value.kind == kind
    assert process.call("pid") == before


def test_what_cannot_be_sent_touches_no_process(process: LimitedProcess) -> None:
    before = process.call("pid")
    with pytest.raises((pickle.PicklingError, AttributeError)):
        process.call(lambda: None)
    assert process.call("pid") == before


# ---- limits
@pytest.mark.parametrize("name", ["spin", "multiply"])
def test_a_call_that_does_not_end_is_ended(process: LimitedProcess, name: str) -> None:
    with pytest.raises(TookTooLong, match=r"it ran for 0\.3 s"):
        process.call(name)
    assert process.call("text", 2) == "xx"


@pytest.mark.parametrize("call", [("take", 10**9), ("grow",), ("take", 65 * MIB)])
def test_a_call_that_takes_too_much_memory_is_ended(call: tuple[object, ...]) -> None:
    process = table(ProcessLimits(cpu_s=30, memory_bytes=64 * MIB, max_deaths=100))
    with pytest.raises(TookTooMuchMemory, match="it takes more than 64 MiB"):
        process.call(*call)
    assert process.call("take", 32 * MIB) == 32 * MIB
    process.close()


def test_what_a_failed_call_had_built_is_given_back() -> None:
    """Its error refers to itself by the frames it went through, so only a collection frees it."""
    process = table(ProcessLimits(cpu_s=30, memory_bytes=64 * MIB))
    for _ in range(5):
        with pytest.raises(CallRaised):
            process.call("hold", 40 * MIB)
    process.close()


def test_memory_that_the_system_does_not_see_is_seen_by_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    process = table()
    assert process.call("text", 1) == "x"
    monkeypatch.setattr(limited_process, "read_usage", lambda pid: Usage(0.0, 10**9))
    with pytest.raises(TookTooMuchMemory, match="more than 64 MiB"):
        process.call("sleep", HANG_S)
    process.close()


def test_a_call_that_only_waits_is_ended_by_the_clock() -> None:
    process = table(ProcessLimits(cpu_s=1, memory_bytes=64 * MIB, wall_s=0.3))
    with pytest.raises(TookTooLong, match=r"no answer in 0\.3 s"):
        process.call("sleep", HANG_S)
    process.close()


def test_a_stopped_process_is_not_at_work(process: LimitedProcess) -> None:
    """What a busy machine does to it, to the utmost: it is waited for, for its own time is not over."""
    pid = process.call("pid")
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()  # thrice its processor time
    assert process.call("text", 1) == "x"
    assert process.call("pid") == pid


def test_a_large_result_is_refused_and_the_process_lives_on(process: LimitedProcess) -> None:
    with pytest.raises(TooLargeReply, match="1048576 bytes"):
        process.call("text", MIB + 1)
    assert process.call("text", MIB) == "x" * MIB


@pytest.mark.parametrize(("name", "words"), [("crash", "SIGSEGV"), ("leave", "status 3")])
def test_a_process_that_ends_says_how(process: LimitedProcess, name: str, words: str) -> None:
    with pytest.raises(ProcessDied, match=words):
        process.call(name)
    assert process.call("text", 1) == "x"


def test_a_process_that_ended_between_calls_is_replaced(process: LimitedProcess) -> None:
    pid = process.call("pid")
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    assert_ends(pid)
    assert process.call("text", 1) == "x"


def test_after_some_deaths_in_a_row_calls_fail_at_once_for_a_while() -> None:
    process = table(ProcessLimits(cpu_s=5, memory_bytes=64 * MIB, max_deaths=2, rest_s=HANG_S))
    for _ in range(2):
        with pytest.raises(ProcessDied):
            process.call("crash")
    with pytest.raises(ProcessDied, match="SIGSEGV"):
        process.call("text", 1)  # which would succeed
    assert process.pid is None
    process.close()


def test_one_more_process_is_tried_after_the_rest() -> None:
    process = table(ProcessLimits(cpu_s=5, memory_bytes=64 * MIB, max_deaths=1, rest_s=0.0))
    with pytest.raises(ProcessDied):
        process.call("crash")
    assert process.call("text", 1) == "x"
    process.close()


def test_a_success_forgets_the_deaths_before_it() -> None:
    process = table(ProcessLimits(cpu_s=5, memory_bytes=64 * MIB, max_deaths=2, rest_s=HANG_S))
    for _ in range(4):
        with pytest.raises(ProcessDied):
            process.call("crash")
        assert process.call("text", 1) == "x"
    process.close()


# ---- start and end
def test_what_cannot_be_opened_is_never_tried_again() -> None:
    process = LimitedProcess("doubles.limited_functions:open_never", limits=LIMITS)
    for _ in range(2):
        with pytest.raises(ModelFileError, match="line 3 is wrong") as caught:
            process.call()
        assert caught.value.hint == "another file"
        assert process.pid is None


def test_an_opener_that_ends_its_process_is_reported() -> None:
    process = LimitedProcess("doubles.limited_functions:open_dead", limits=LIMITS)
    with pytest.raises(ProcessDied, match="status 7"):
        process.open()
    process.close()


def test_a_process_that_cannot_begin_says_why() -> None:
    process = LimitedProcess("doubles.no_such_module:open", limits=LIMITS)
    with pytest.raises(ProcessDied, match=r"status 1: ModuleNotFoundError: .*no_such_module"):
        process.call()


def test_no_process_at_all_is_an_error_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(CannotStart, match="no process can be started for it: No such file"):
        table().call("text", 1)


def test_start_opens_it_next_to_other_work(process: LimitedProcess) -> None:
    process.start()
    assert process.call("text", 1) == "x"


def test_a_start_can_wait_but_no_call_waits_for_it(process: LimitedProcess) -> None:
    process.start(after_s=HANG_S)
    assert process.pid is None
    assert process.call("text", 1) == "x"
    other = table()
    other.start(after_s=0.1)
    wait_until(lambda: other.pid is not None, "the start")
    other.close()


def test_close_ends_a_call_in_the_making_and_starts_no_other(process: LimitedProcess) -> None:
    pid = process.call("pid")
    threading.Timer(0.2, process.close).start()
    with pytest.raises(LimitedProcessError):
        process.call("sleep", HANG_S)
    assert isinstance(pid, int)
    assert_ends(pid)
    with pytest.raises(CannotStart, match="closed"):
        process.call("text", 1)


def test_a_process_without_references_ends() -> None:
    process = table()
    pid = process.call("pid")
    del process
    gc.collect()
    assert isinstance(pid, int)
    assert not is_alive(pid)


def test_calls_of_many_threads_wait_for_each_other() -> None:
    counter = LimitedProcess("doubles.limited_functions:open_counter", limits=LIMITS)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.extend(counter.call() for _ in range(20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(map(str, found), key=int) == [str(n) for n in range(1, 161)]
    counter.close()


@pytest.mark.parametrize("name", ["spin", "multiply", "sleep"])
def test_it_ends_with_its_parent_whatever_it_is_doing(name: str) -> None:
    code = (
        "import sys, threading\n"
        "from eaglelocal.processes.limited_process import LimitedProcess\n"
        "from eaglelocal.processes.limited_process import ProcessLimits\n"
        "process = LimitedProcess('doubles.limited_functions:open_table', limits=ProcessLimits(600, 2**28))\n"
        "print(process.call('pid'), flush=True)\n"
        f"process.call({name!r}, *([600] if {name!r} == 'sleep' else []))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert_ends(pid)


def test_it_holds_none_of_the_parents_descriptors_and_says_nothing(
    process: LimitedProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as held:
        held.set_inheritable(True)
        assert process.call("say") == 200_000
        looked = process.call("look")
    assert isinstance(looked, dict)
    assert not [name for name in looked["fds"] if "socket" in name]
    assert len([name for name in looked["fds"] if "pipe" in name]) == 2
    assert capfd.readouterr() == ("", "")


def test_it_sees_no_tokens_and_starts_next_to_a_huge_environment(
    process: LimitedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("LONG", "x" * 300_000)  # longer than the system lets a program be started with
    looked = process.call("look")
    assert isinstance(looked, dict)
    assert "PATH" in looked["variables"]
    assert not {"HF_TOKEN", "LONG"} & set(looked["variables"])


def test_it_imports_little(process: LimitedProcess) -> None:
    looked = process.call("look")
    assert isinstance(looked, dict)
    assert not {"numpy", "llama_cpp", "subprocess", "asyncio"} & set(looked["modules"])


def test_a_closed_one_starts_no_process(process: LimitedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(limited_process, "start_module", started.append)
    process.close()
    for _ in range(2):
        with pytest.raises(CannotStart, match="closed"):
            process.call("text", 1)
    assert started == []


def test_start_is_quiet_where_the_system_gives_no_thread(
    process: LimitedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as poor:
        poor.setattr(threading.Thread, "start", refuse)
        process.start()
    assert process.call("text", 1) == "x"


def test_a_short_call_is_not_measured(process: LimitedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    process.open()
    looks: list[int] = []
    monkeypatch.setattr(limited_process, "CHECK_S", HANG_S)
    monkeypatch.setattr(limited_process, "read_usage", looks.append)
    assert process.call("text", 1) == "x"
    assert looks == []


# ---- what a process takes
def test_usage_of_this_process_is_reported() -> None:
    before = read_usage(os.getpid())
    assert before is not None
    ends_at = time.process_time() + 0.1
    while time.process_time() < ends_at:
        pass
    after = read_usage(os.getpid())
    assert after is not None and after.cpu_s - before.cpu_s > 0.05
    assert before.resident_bytes > MIB
    assert read_usage(2**22 + 1) is None


def test_where_the_system_reports_no_usage_calls_are_served(
    process: LimitedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_process, "read_usage", lambda pid: None)
    monkeypatch.setattr(limited_process, "CHECK_S", 0.01)
    assert process.call("sleep", 0.1) is None


def test_an_error_is_one_of_two_kinds() -> None:
    assert not issubclass(LimitedProcessError, EagleLocalError)  # each caller says what its own failed call means

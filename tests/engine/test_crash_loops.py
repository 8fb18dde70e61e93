"""Requests that crash the engine, and engines that do not come back: reported, limited, and recovered from."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from doubles.scripted_engine import BUILDER, ask, plan
from doubles.timeouts import wait_until

from eaglelocal import locations
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Tokens
from eaglelocal.errors import EngineAwayError, EngineError, RequestError
from eaglelocal.processes.child_process import start_module
from eaglelocal.worker import child as child_module
from eaglelocal.worker.supervisor import RestartPolicy
from eaglelocal.worker.watchdog import SilenceLimits

pytestmark = pytest.mark.full

HASTY = RestartPolicy(first_delay_s=0.01)


def fails_with(client: EngineClient, script: str, name: str) -> EngineError:
    with pytest.raises(EngineError) as caught:
        client.stream(ask(script, name)).result()
    return caught.value


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill", "killed (signal 9)"),
        ("abort", "aborted (signal 6): src/ggml.c:123: GGML_ASSERT(a == b) failed"),
        ("segfault", "crashed (signal 11, SIGSEGV)"),
        ("exit 7", "ended (exit status 7)"),
        ("bug", "the engine failed: ZeroDivisionError after"),
        ("garbage", "carries something else than messages"),
    ],
)
def test_every_crash_has_one_line_in_the_log_and_a_report(
    caplog: pytest.LogCaptureFixture, script: str, words: str
) -> None:
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
        client.start()
        error = fails_with(client, script, "culprit")
        assert client.stream(ask("count 1", "next")).result().text == "0 "
        num_crashes = client.restarts
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(lines) == num_crashes == (2 if script == "kill" else 1)  # it is sent again after a kill
    assert all(words in line and "(culprit)" in line for line in lines) and "started again at once" in lines[0]
    assert lines[-1].endswith(f"report: {error.report}")
    report = Path(error.report)
    assert report.parent == locations.crash_reports_dir()
    assert "culprit  chat" in report.read_text()
    back = [one.getMessage() for one in caplog.records if "is back after" in one.getMessage()]
    assert len(back) <= num_crashes  # reported when caplog listens to it


def test_a_segfault_leaves_python_frames_in_its_report() -> None:
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
        client.start()
        crash_report = Path(fails_with(client, "segfault", "culprit").report).read_text()
    assert "Fatal Python error: Segmentation fault" in crash_report and "in _segfault" in crash_report


def test_without_a_log_a_crash_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A chat shows the error itself: Python's handler of last resort must not write beside its screen."""
    for name in ("eaglelocal.worker.supervisor", "eaglelocal.client.in_flight_requests.suspects"):
        assert logging.getLogger(name).handlers
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
            client.start()
            for n in range(2):
                fails_with(client, "segfault", f"culprit {n}")
    finally:
        root.handlers = kept
    assert capsys.readouterr().err == ""


def test_each_process_that_is_killed_is_reported_once_also_one_that_was_just_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    killed: list[int] = []
    with EngineClient(plan(), builder=BUILDER, restart=RestartPolicy(first_delay_s=0.01, max_crashes=100)) as client:
        client.start()
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT) * 2:
            wait_until(lambda: client.pid not in (None, *killed), "the next process")
            pid = client.pid
            assert pid is not None
            os.kill(pid, number)
            killed.append(pid)
        wait_until(lambda: client.pid not in (None, *killed), "the next process")
        assert client.stream(ask("count 1", "next")).result().text == "0 "
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert [int(Path(line.rpartition("report: ")[2]).stem.rpartition("-")[2]) for line in lines] == killed


def test_closing_an_engine_is_not_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    with EngineClient(plan(), builder=BUILDER) as client:
        client.start()
        client.stream(ask("forever"))
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_request_that_crashed_the_engine_twice_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
        client.start()
        for n in range(2):
            bystander = client.stream(ask(f"echo {n}\nforever", f"bystander {n}"))
            bystander.result()
            fails_with(client, "exit 3", f"crash {n}")
        for n in range(3):
            with pytest.raises(RequestError, match="refused: the engine crashed 2 times") as caught:
                client.stream(ask("exit 3", f"again {n}")).result()
        assert caught.value.code == "request_crashes_engine"
        assert client.stream(ask("count 2", "other")).result().text == "0 1 "
        assert client.restarts == 2
    assert any("request crash 1 was in flight at several crashes" in one.getMessage() for one in caplog.records)


@pytest.mark.parametrize(("number", "is_refused"), [(signal.SIGKILL, False), (signal.SIGSEGV, True)])
def test_a_request_that_runs_is_suspected_of_a_fault_and_not_of_a_kill(
    number: signal.Signals, is_refused: bool
) -> None:
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
        client.start()
        for n in range(3):
            running = client.stream(ask("forever", f"running {n}"))
            if n == 2 and is_refused:
                with pytest.raises(RequestError, match="refused"):
                    running.result()
                return
            assert next(event for event in running if isinstance(event, Tokens))
            pid = client.pid
            assert pid is not None
            os.kill(pid, number)
            with pytest.raises(EngineError, match=number.name if is_refused else "killed"):
                running.result()


def test_a_hang_of_which_we_make_an_end_counts() -> None:
    policy = RestartPolicy(first_delay_s=0.01, silence_limits=SilenceLimits(still_s=0.3))
    with EngineClient(plan(), builder=BUILDER, restart=policy) as client:
        client.start()
        for n in range(2):
            assert "it hangs" in fails_with(client, "hang", f"hangs {n}").message
        with pytest.raises(RequestError, match="refused"):
            client.stream(ask("hang", "again")).result()


def test_a_request_that_kills_its_engine_runs_twice_and_costs_no_other_answer() -> None:
    """As one that takes so much memory that the system kills the engine."""
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
        client.start()
        for n in range(2):
            greedy = client.stream(ask("kill", f"greedy {n}"))
            queued = client.stream(ask("queue count 3", f"queued {n}"))
            with pytest.raises(EngineError, match="killed"):
                greedy.result()
            assert queued.result().text == "0 1 2 "
            assert client.restarts == 2 * (n + 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_what_waits_for_a_slot_when_the_engine_dies_is_answered_by_the_next(number: signal.Signals) -> None:
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
        client.start()
        for n in range(2):
            running = client.stream(ask("forever", f"running {n}"))
            assert next(event for event in running if isinstance(event, Tokens))
            waiting = [client.stream(ask("queue count 3", f"waiting {n} {m}")) for m in range(2)]
            left = client.stream(ask("queue count 3", f"left {n}"))
            client.snapshot()  # by now they have arrived
            pid = client.pid
            assert pid is not None
            os.kill(pid, number)
            left.cancel()
            with pytest.raises(EngineError):
                running.result()
            assert [each.result().text for each in waiting] == ["0 1 2 "] * 2
            assert left.result().finished.reason == "cancelled"


def test_what_a_stopped_engine_never_read_is_answered_by_the_next() -> None:
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
        client.start()
        for n in range(3):
            pid = client.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            unread = client.stream(ask("count 2", f"unread {n}"))
            os.kill(pid, signal.SIGKILL)
            assert unread.result().text == "0 1 "


def test_among_many_that_are_sent_again_the_culprit_is_found() -> None:
    """Every client repeats what failed: the innocent are answered, the culprit is refused, after few crashes."""
    scripts = ["count 50", "count 60", "count 70", "exit 3"]
    refused: list[str] = []
    answered: set[str] = set()
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as client:
        client.start()
        for turn in range(12):
            asked = {script: client.stream(ask(script, f"{script} {turn}")) for script in scripts}
            for script, answer in asked.items():
                try:
                    answer.result()
                    answered.add(script)
                except RequestError:
                    refused.append(script)
                except EngineError:
                    pass
            if refused:
                break
        assert refused == ["exit 3"]
        assert client.restarts <= 8
        for script in scripts[:3]:
            client.stream(ask(script, f"{script} at the end")).result()


def test_what_waits_for_a_restart_is_refused_too_once_it_is_found_guilty() -> None:
    with EngineClient(plan(), builder=BUILDER, restart=RestartPolicy(first_delay_s=0.5)) as client:
        client.start()
        fails_with(client, "exit 3", "crash 0")
        first, second = client.stream(ask("exit 3", "crash 1")), client.stream(ask("exit 3", "crash 2"))
        for answer in (first, second):
            with pytest.raises((EngineError, RequestError)):
                answer.result()
        with pytest.raises(RequestError):
            client.stream(ask("exit 3", "crash 3")).result()


# ---- an engine that does not come back
def test_an_engine_that_keeps_failing_is_tried_again_and_comes_back(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    policy = RestartPolicy(first_delay_s=0.01, max_crashes=2, num_retries=1000, retry_s=0.05, max_retry_s=0.05)
    with EngineClient(plan("refuse by file", broken), builder=BUILDER, restart=policy) as client:
        client.start()
        assert client.trouble == ""
        broken.touch()
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: client.restarts >= 4, "it is tried again")
        with pytest.raises(EngineAwayError, match=r"failed \d+ times in a row and is started again in 0.05 s"):
            client.stream(ask("count 1")).result()
        assert client.state == "restarting"
        assert "not a GGUF file" in client.trouble
        broken.unlink()
        wait_until(lambda: client.state == "ready", "it is back")
        assert client.trouble == ""
        assert client.stream(ask("count 1")).result().text == "0 "


def test_the_waits_grow_and_end() -> None:
    policy = RestartPolicy(num_retries=4)
    assert [policy.delay_s(n) for n in range(1, 10)] == [0.0, 1.0, 2.0, 4.0, 15.0, 30.0, 60.0, 60.0, None]


def test_a_process_that_the_system_does_not_start_is_no_crash(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of descriptors: it waits and tries again, however often, and says so once."""
    refusals = iter(range(8))

    def reluctant(*args: str, **options: Any) -> subprocess.Popen[bytes]:
        if next(refusals, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return start_module(*args, **options)

    monkeypatch.setattr("eaglelocal.worker.supervisor.TEMPORARY_DELAY_S", 0.01)
    with EngineClient(plan(), builder=BUILDER, restart=RestartPolicy(max_crashes=2)) as client:
        client.start()
        monkeypatch.setattr(child_module, "start_module", reluctant)
        fails_with(client, "segfault", "culprit")
        assert client.stream(ask("count 1", "next")).result().text == "0 "
        assert client.restarts == 1
    assert sum("cannot be started" in one.getMessage() for one in caplog.records) == 1


def test_a_first_process_that_the_system_never_starts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*args: str, **options: Any) -> subprocess.Popen[bytes]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("eaglelocal.worker.supervisor.TEMPORARY_DELAY_S", 0.01)
    monkeypatch.setattr(child_module, "start_module", refusing)
    with (
        EngineClient(plan(), builder=BUILDER) as client,
        pytest.raises(EngineError, match=r"cannot be started: .*Too many open files"),
    ):
        client.start()

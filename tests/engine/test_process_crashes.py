"""The client when its engine process dies, hangs, sends garbage, or loses its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from doubles.programs import ending
from doubles.scripted_engine import BUILDER, ask, plan
from doubles.timeouts import PATIENCE_S, wait_until

from eaglelocal import locations
from eaglelocal.client.client import RequestStream
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Submit, Tokens
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, Message, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError, ModelFileError
from eaglelocal.worker.child import EngineChild
from eaglelocal.worker.supervisor import RestartPolicy
from eaglelocal.worker.watchdog import Beat, SilenceLimits

TESTS = Path(__file__).resolve().parents[1]
HASTY = RestartPolicy(first_delay_s=0.01)
DEMO = locations.profiles_dir() / "demo"
EMBEDDED = Plan(
    target=DEMO / "guide-target.gguf",
    target_label="demo",
    draft_kind="eagle3",
    draft=DEMO / "guide-head.gguf",
    draft_label="its own head",
    spec=fixed_spec(4),
    threads=1,
)


@pytest.fixture
def client() -> Iterator[EngineClient]:
    with EngineClient(plan(), builder=BUILDER, restart=HASTY) as running:
        running.start()
        yield running


def has_ended(pid: int) -> bool:
    """A zombie has ended too: its parent may reap it late."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def pid_of(client: EngineClient) -> int:
    pid = client.pid
    assert pid is not None
    return pid


# ---- one crash
def test_sigkill_mid_answer_fails_at_once_and_the_next_answer_comes(client: EngineClient) -> None:
    answers = [client.stream(ask("forever", str(n))) for n in range(3)]
    for answer in answers:
        assert next(event for event in answer if isinstance(event, Tokens))
    client.snapshot()
    first_pid, began_s = pid_of(client), time.monotonic()
    os.kill(first_pid, signal.SIGKILL)
    for answer in answers:
        with pytest.raises(EngineError, match=r"^the engine process was killed \(signal 9\)$") as caught:
            answer.result()
        assert "smaller model" in caught.value.hint
    assert client.snapshot().steps > 0  # what is known survives the process
    assert client.stream(ask("count 3", "next")).result().text == "0 1 2 "
    assert time.monotonic() - began_s < PATIENCE_S  # a time-out; requests wait for longer than that, see RestartPolicy
    assert (client.restarts, client.state) == (1, "ready")
    assert pid_of(client) != first_pid
    assert not psutil.pid_exists(first_pid)


def test_sigkill_mid_answer_of_the_real_model() -> None:
    """The embedded model with its head, over llama.cpp: running requests get the reason, the next answer is whole."""
    question = (Message("user", "What is acceptance length?"),)
    endless = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=2000)
    with EngineClient(EMBEDDED) as client:
        client.start()
        running = client.stream(ChatRequest(id="running", messages=question, params=endless))
        assert next(event for event in running if isinstance(event, Tokens))
        first_pid = pid_of(client)
        os.kill(first_pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"^the engine process was killed \(signal 9\)$") as caught:
            running.result()
        assert "try again" in caught.value.hint
        reply = client.stream(
            ChatRequest(id="next", messages=question, params=SamplingParams(temperature=0.0))
        ).result()
        assert "bonus token" in reply.text
        assert (reply.finished.reason, client.restarts, client.state) == ("stop", 1, "ready")
        assert pid_of(client) != first_pid and has_ended(first_pid)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("abort", r"^the engine process aborted \(signal 6\): src/ggml.c:123: GGML_ASSERT\(a == b\) failed$"),
        ("exit 7", r"^the engine process ended \(exit status 7\)"),
        ("fatal", r"^the script says that the engine is broken$"),
        ("bug", r"^the engine failed: ZeroDivisionError: "),
        (
            "garbage",
            r"^the engine process was killed: the engine's pipe carries something else than messages: b'llam'$",
        ),
    ],
)
def test_every_way_to_die_is_reported_and_survived(client: EngineClient, script: str, message: str) -> None:
    bystander = client.stream(ask("forever", "bystander"))
    next(bystander)
    with pytest.raises(EngineError, match=message):
        client.stream(ask(script, "culprit")).result()
    with pytest.raises(EngineError):
        bystander.result()
    assert client.stream(ask("count 2", "next")).result().text == "0 1 "
    assert client.restarts == 1


def test_asking_a_dead_process_never_raises(client: EngineClient) -> None:
    """Requests race with the death: each is failed with the old process or answered by the new one."""
    answers: list[RequestStream] = []
    for n in range(300):
        if n == 100:
            assert answers[99].result().text == "0 "
            os.kill(pid_of(client), signal.SIGKILL)
        answers.append(client.stream(ask("count 1", str(n))))
        client.cancel("unknown")
    outcomes = []
    for answer in answers[100:]:
        try:
            outcomes.append(answer.result().text)
        except EngineError as error:
            outcomes.append(error.message)
    assert set(outcomes) <= {"0 ", "the engine process was killed (signal 9)"}
    assert client.stream(ask("count 1", "after")).result().text == "0 "
    assert client.restarts == 1


def test_a_frozen_process_does_not_hold_up_close(client: EngineClient) -> None:
    pid = pid_of(client)
    os.kill(pid, signal.SIGSTOP)
    blocked = threading.Thread(target=client.stream, args=(ask("echo " + "x" * 1_000_000),), daemon=True)
    blocked.start()  # the pipe is full now
    began_s = time.monotonic()
    client.close()
    blocked.join()
    assert time.monotonic() - began_s < PATIENCE_S  # a time-out; the process itself would never end
    assert not psutil.pid_exists(pid)


# ---- hanging
@pytest.mark.parametrize(
    ("script", "patience", "why"),
    [
        ("hang", SilenceLimits(still_s=0.5), "does not compute"),
        ("spin", SilenceLimits(still_s=0.5, computing_s=2.0), "though it computes"),
    ],
)
def test_a_process_that_hangs_in_a_step_is_replaced(script: str, patience: SilenceLimits, why: str) -> None:
    policy = RestartPolicy(first_delay_s=0.01, silence_limits=patience)
    with EngineClient(plan(), builder=BUILDER, restart=policy) as client:
        client.start()
        first_pid = pid_of(client)
        answers = [client.stream(ask("count 1000000", "bystander")), client.stream(ask(script, "culprit"))]
        for answer in answers:
            with pytest.raises(EngineError, match=f"it hangs: no sign of life for .*{why}"):
                answer.result()
        assert client.stream(ask("count 2", "next")).result().text == "0 1 "
        assert client.restarts == 1
        assert not psutil.pid_exists(first_pid)


def test_a_stopped_process_is_replaced_when_it_has_work() -> None:
    policy = RestartPolicy(first_delay_s=0.01, silence_limits=SilenceLimits(still_s=0.5))
    with EngineClient(plan(), builder=BUILDER, restart=policy) as client:
        client.start()
        first_pid = pid_of(client)
        os.kill(first_pid, signal.SIGSTOP)
        assert client.stream(ask("count 2")).result().text == "0 1 "  # the stopped one had not begun it
        assert client.restarts == 1
        assert pid_of(client) != first_pid


def test_a_load_that_hangs_is_given_up() -> None:
    policy = RestartPolicy(silence_limits=SilenceLimits(loading_still_s=1.0))
    with EngineClient(plan("hang"), builder=BUILDER, restart=policy) as client:
        with pytest.raises(EngineError, match="killed while it loaded the model: it hangs"):
            client.start()
        assert client.state == "failed"


def test_steps_that_say_nothing_are_reported_by_beats() -> None:
    child = EngineChild(BUILDER)
    child.load(plan())
    try:
        child.send(Submit(ask("quiet")))
        assert any(isinstance(message, Beat) for message in child.messages())
    finally:
        child.stop(is_graceful=False)
        child.reap()


# ---- crash after crash
def test_a_crash_loop_ends_in_failed() -> None:
    policy = RestartPolicy(first_delay_s=0.01, max_crashes=3)
    with EngineClient(plan("die when ready"), builder=BUILDER, restart=policy) as client:
        client.start()
        wait_until(lambda: client.state == "failed", "the supervisor gives up")
        with pytest.raises(EngineError, match=r"failed 3 times in a row and is not started again: .*exit status 3"):
            client.stream(ask("count 1")).result()
        assert client.restarts == 2
        with pytest.raises(EngineError, match="failed 3 times"):
            client.start()


def test_a_restart_that_cannot_load_is_tried_again(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    policy = RestartPolicy(first_delay_s=0.01, max_crashes=100)
    with EngineClient(plan("refuse by file", broken), builder=BUILDER, restart=policy) as client:
        client.start()
        broken.touch()
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: client.restarts >= 2, "a restart has failed")
        waiting = client.stream(ask("count 2"))
        broken.unlink()
        assert waiting.result().text == "0 1 "


def test_giving_up_fails_what_waits(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    policy = RestartPolicy(first_delay_s=0.01, max_crashes=3)
    with EngineClient(plan("refuse by file", broken), builder=BUILDER, restart=policy) as client:
        client.start()
        broken.touch()
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: client.state != "ready", "the loss is noticed")
        with pytest.raises(EngineError, match=r"not started again: no-such\.gguf is not a GGUF file"):
            client.stream(ask("count 2")).result()


def test_waiting_for_a_restart_has_a_limit(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    policy = RestartPolicy(wait_limit_s=0.3, first_delay_s=0.01)
    with EngineClient(plan("hang by file", slow), builder=BUILDER, restart=policy) as client:
        client.start()
        slow.touch()
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: client.state == "restarting", "the loss is noticed")
        waiting = client.stream(ask("count 2", "waiting"))
        assert client.snapshot().waiting == 1
        for answer in (waiting, client.stream(ask("count 2", "late"))):
            with pytest.raises(EngineError, match=r"not restarted within 0.3 s: .*killed \(signal 9\)"):
                answer.result()
        slow.unlink()
        os.kill(pid_of(client), signal.SIGKILL)  # the one that hangs while it loads
        wait_until(lambda: client.state == "ready", "the engine is back")
        assert client.stream(ask("count 1")).result().text == "0 "


def test_the_policy_backs_off_and_gives_up() -> None:
    policy = RestartPolicy(max_crashes=8, max_delay_s=8.0)
    assert [policy.delay_s(n) for n in range(1, 9)] == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, None]


def test_crashes_of_engines_that_answered_do_not_add_up() -> None:
    policy = RestartPolicy(first_delay_s=0.01, max_crashes=2)
    with EngineClient(plan(), builder=BUILDER, restart=policy) as client:
        client.start()
        for n in range(4):
            assert client.stream(ask("count 1", f"answer {n}")).result().text == "0 "
            with pytest.raises(EngineError, match=f"exit status {n + 3}"):
                client.stream(ask(f"exit {n + 3}", f"crash {n}")).result()
        assert client.restarts == 4


def test_crashes_of_engines_that_said_nothing_add_up() -> None:
    policy = RestartPolicy(first_delay_s=0.01, max_crashes=2)
    with EngineClient(plan(), builder=BUILDER, restart=policy) as client:
        client.start()
        for n in range(2):
            with pytest.raises(EngineError, match="exit status 3"):
                client.stream(ask("exit 3", f"crash {n}")).result()
        wait_until(lambda: client.state == "failed", "the supervisor gives up")


def test_an_engine_that_was_stable_starts_a_new_count() -> None:
    policy = RestartPolicy(stable_s=0.0, max_crashes=2)
    with EngineClient(plan(), builder=BUILDER, restart=policy) as client:
        client.start()
        for n in range(4):
            with pytest.raises(EngineError, match=f"exit status {n + 3}"):
                client.stream(ask(f"exit {n + 3}", f"crash {n}")).result()
        assert client.stream(ask("count 1")).result().text == "0 "
        assert client.restarts == 4


# ---- the log, and the parent
def test_the_log_is_echoed_when_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EAGLELOCAL_ENGINE_LOG", "1")
    with EngineClient(plan("die"), builder=BUILDER) as client, pytest.raises(EngineError):
        client.start()
    assert "some chatter\n" in capsys.readouterr().err


PARENT = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from eaglelocal.client.engine_client import EngineClient
    from eaglelocal.core.plan import Plan
    from eaglelocal.core.request import ChatRequest

    client = EngineClient(Plan(target=Path("none"), target_label="steady"), builder="doubles.scripted_engine:build")
    client.start()
    answer = client.stream(ChatRequest(id="r", text=sys.argv[1]))
    next(answer)
    print(client.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("script", ["count 1", "forever", "hang", "busy"])
def test_the_process_ends_with_its_killed_parent(script: str) -> None:
    """Idle, generating, and in the middle of a call that does not return, with the interpreter's lock or without.

    It must end within a second. Here only a time-out stands, for a starved machine is no defect of ours; the
    seconds are measured by tests/measures/engine_exit.py.
    """
    command = [sys.executable, "-c", textwrap.dedent(PARENT), script, str(TESTS)]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as parent:
        assert parent.stdout is not None
        engine_pid = int(parent.stdout.readline())
        time.sleep(0.05)
        parent.kill()
    wait_until(lambda: has_ended(engine_pid), "the engine ends")


def test_a_parent_that_just_exits_leaves_nothing_after() -> None:
    source = textwrap.dedent(PARENT).replace("time.sleep(600)", "sys.exit(0)")
    command = [sys.executable, "-c", source, "forever", str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stderr == ""
    wait_until(lambda: has_ended(int(done.stdout)), "the engine ends")


def test_load_error_kinds_survive_the_pipe() -> None:
    with EngineClient(plan("refuse"), builder=BUILDER) as client, pytest.raises(ModelFileError):
        client.start()

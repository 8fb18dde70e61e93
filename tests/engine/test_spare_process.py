"""An engine process that was started before its plan: taken by an engine, or ended, so that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
from doubles.scripted_engine import BUILDER, ask, plan
from doubles.timeouts import PATIENCE_S, wait_until

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.worker.child import SpareProcess


def has_ended(pid: int) -> bool:
    """Whoever inherits it may be slow to reap it."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def test_the_engine_loads_in_it() -> None:
    with SpareProcess(BUILDER) as spare:
        pid = spare.pid
        with EngineClient(plan(), builder=BUILDER, spare=spare) as client:
            client.start()
            assert pid is not None and client.pid == pid and spare.pid is None
            spare.close()  # it is no longer its own
            assert client.stream(ask("count 2")).result().text == "0 1 "
    assert is_gone(pid)


def test_a_restart_gets_a_new_process() -> None:
    with SpareProcess(BUILDER) as spare, EngineClient(plan(), builder=BUILDER, spare=spare) as client:
        client.start()
        first = client.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: client.restarts == 1, "a restart")
        assert client.stream(ask("count 1")).result().text == "0 "
        assert client.pid != first


def test_a_spare_process_that_is_not_taken_is_ended() -> None:
    with SpareProcess(BUILDER) as spare:
        pid = spare.pid
        assert pid is not None and psutil.pid_exists(pid)
    assert is_gone(pid) and spare.take(BUILDER) is None


def test_an_engine_of_another_kind_gets_a_process_of_its_own() -> None:
    with SpareProcess("doubles.scripted_engine:ScriptedEngine") as spare:
        pid = spare.pid
        assert pid is not None
        with EngineClient(plan(), builder=BUILDER, spare=spare) as client:
            client.start()
            assert is_gone(pid)
            assert client.pid != pid


def test_one_that_has_ended_is_replaced() -> None:
    with SpareProcess(BUILDER) as spare:
        pid = spare.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        psutil.Process(pid).wait(PATIENCE_S)
        with EngineClient(plan(), builder=BUILDER, spare=spare) as client:
            client.start()
            assert client.stream(ask("count 1")).result().text == "0 "
            assert client.restarts == 0


def test_it_ends_with_its_parent() -> None:
    code = (
        "import os, sys\n"
        "from eaglelocal.worker.child import SpareProcess\n"
        f"spare = SpareProcess({BUILDER!r})\n"
        "sys.stdout.write(str(spare.pid))\n"
        "sys.stdout.flush()\n"
        "os._exit(0)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    wait_until(lambda: has_ended(pid), "the end of the spare process")

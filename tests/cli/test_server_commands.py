"""`ps` and `stop` with processes that announce themselves as servers do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.pages_server import Page, Pages, serving
from doubles.timeouts import wait_until

from eaglelocal.cli import main
from eaglelocal.cli.ps import server_lines
from eaglelocal.cli.stop import choose_servers, describe_work, wait_for_end
from eaglelocal.client.running_servers import RunningServer, describe_this_server, find_running_servers, keep_announced
from eaglelocal.core.amounts import format_uptime
from eaglelocal.errors import EngineError, UsageError

ROOT = Path(__file__).parents[2]
SERVER = """
import signal, sys, time
from eaglelocal.client.running_servers import describe_this_server, keep_announced
if sys.argv[2:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
with keep_announced(describe_this_server("127.0.0.1", int(sys.argv[1]), target="demo", api_key="secret")):
    time.sleep(600)
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started: list[subprocess.Popen[bytes]] = []

    def run(port: int, *how: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(port), *how])
        started.append(process)
        wait_until(lambda: port in [server.port for server in find_running_servers()], "the server announces itself")
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_ps_lists_what_runs_without_its_key(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    process = start(1)
    assert main.run(["ps"]) == 0
    shown = capsys.readouterr()
    assert "http://127.0.0.1:1 " in shown.out and f"pid {process.pid}" in shown.out
    assert main.run(["ps", "--json"]) == 0
    listed = capsys.readouterr()
    (server,) = json.loads(listed.out)["servers"]
    assert (server["port"], server["pid"], server["target"], server["state"]) == (1, process.pid, "demo", "no answer")
    assert "secret" not in shown.out + shown.err + listed.out + listed.err


def test_ps_of_nothing(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["ps", "--json"])
    main.run(["ps"])
    shown = capsys.readouterr()
    assert shown.out == '{"servers": []}\n'
    assert "no server is running" in shown.err


@pytest.mark.parametrize("which", [[], ["1"], ["http://localhost:1"], ["127.0.0.1:1"], ["all"]])
def test_stop_ends_it_and_says_so(start: Start, which: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    process = start(1)
    assert main.run(["stop", *which]) == 0
    assert process.wait(0) == 0  # it has ended by now
    assert find_running_servers() == []
    assert f"stopped http://127.0.0.1:1 (demo, pid {process.pid})" in capsys.readouterr().err


def test_stop_all_ends_all_and_is_content_with_none(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    processes = [start(1), start(2)]
    assert main.run(["stop", "all"]) == 0
    assert [process.wait(0) for process in processes] == [0, 0]
    assert main.run(["stop", "all"]) == 0
    assert "no server is running" in capsys.readouterr().err


def test_a_stubborn_server_is_named_with_a_way_out(start: Start) -> None:
    process = start(1, "stubborn")
    os.kill(process.pid, signal.SIGTERM)
    (server,) = find_running_servers()
    with pytest.raises(EngineError, match=r"still runs 0\.1 s after SIGTERM") as caught:
        wait_for_end(server, 0.1)
    assert str(process.pid) in caught.value.hint


def test_another_process_with_its_pid_is_left_alone(start: Start) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with keep_announced(replace(describe_this_server("127.0.0.1", 1, target="demo"), pid=bystander.pid)):
            with pytest.raises(EngineError, match="no eaglelocal server is running at 1"):
                main.run(["stop", "1"])
            assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def server(port: int) -> RunningServer:
    return describe_this_server("127.0.0.1", port, target="demo")


def test_which_one_is_meant() -> None:
    both = [server(1), server(2)]
    assert [found.port for found in choose_servers(both, "2")] == [2]
    assert len(choose_servers(both, "all")) == 2
    with pytest.raises(UsageError, match="2 servers are running"):
        choose_servers(both, None)
    for nothing in ("3", "9" * 5000, "²", "example.org:1", "http://127.0.0.1:x", "nonsense"):
        with pytest.raises(EngineError, match="no eaglelocal server is running at"):
            choose_servers(both, nothing)


def test_lines_of_servers_fit_the_terminal() -> None:
    label = "embedded guide at the cost of a 300 M model (bf16)"
    found = [(replace(describe_this_server("127.0.0.1", port, target=label), pid=7), "ready") for port in (8421, 1)]
    at = found[0][0].started_at
    whole = server_lines(found, now=at + 60, width=None)
    assert whole[0] == f"http://127.0.0.1:8421  ready  pid 7  up 1 min  {label}"
    assert whole[1].index("ready") == whole[0].index("ready")
    cut = server_lines(found, now=at + 60, width=80)
    assert [len(line) for line in cut] == [79, 79] and cut[0][:-1] == whole[0][:78]
    assert server_lines([], now=at, width=80) == []


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (3 * 3600 + 120, "3 h 2 min"), (90_000, "1 d 1 h")],
)
def test_spans(seconds: float, said: str) -> None:
    assert format_uptime(seconds) == said


@pytest.mark.parametrize(
    ("running", "waiting", "said"),
    [
        (0, 0, ""),
        (1, 0, "finishes 1 running answer first"),
        (2, 0, "finishes 2 running answers first"),
        (2, 3, "finishes 2 running and 3 waiting answers first"),
    ],
)
def test_stop_says_what_a_server_finishes(running: int, waiting: int, said: str) -> None:
    pages = Pages({"/v1/snapshot": Page(json.dumps({"running": running, "waiting": waiting}))})
    with serving(pages):
        assert describe_work(server(pages.port)) == said
    assert describe_work(server(pages.port)) == ""  # it does not answer


def test_stop_says_it_before_it_waits(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    pages = Pages({"/v1/snapshot": Page(json.dumps({"running": 1}))})
    with serving(pages):
        process = start(pages.port)
        assert main.run(["stop"]) == 0
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"http://127.0.0.1:{pages.port} finishes 1 running answer first")
    assert f"`eaglelocal stop {pages.port}` again ends it at once" in first
    assert last == f"stopped http://127.0.0.1:{pages.port} (demo, pid {process.pid})"

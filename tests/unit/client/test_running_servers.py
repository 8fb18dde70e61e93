"""Servers announce themselves in files: found while they run, never confused, and no file causes an error."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from doubles.loopback_server import Script, serving
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal import locations
from eaglelocal.client.running_servers import (
    NO_ANSWER,
    RunningServer,
    announce,
    describe_this_server,
    find_running_servers,
    keep_announced,
    request_state,
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def server(port: int = 8421) -> RunningServer:
    return describe_this_server("127.0.0.1", port, target="demo", api_key="secret")


def write(text: str | bytes, name: str = "here-1-8421.json") -> Path:
    path = locations.servers_dir() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_server_is_found_while_it_runs_and_only_by_its_owner() -> None:
    with keep_announced(server()) as path:
        (found,) = find_running_servers()
        assert (found.url, found.pid, found.target, found.api_key) == (
            "http://127.0.0.1:8421",
            os.getpid(),
            "demo",
            "secret",
        )
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(path.parent.iterdir()) == [path]
    assert find_running_servers() == []
    assert not path.exists()


def test_the_file_of_an_older_version_is_read() -> None:
    with keep_announced(server()) as path:
        older = json.loads(path.read_text())
        del older["reference"]
        path.write_text(json.dumps(older))
        (found,) = find_running_servers()
        assert (found.reference, found.runs("demo")) == ("", True)


def test_the_embedded_model_has_two_names() -> None:
    at_1b = describe_this_server("127.0.0.1", 80, target="demo@1b:bf16")
    assert server().runs("embedded") and at_1b.runs("embedded@1b") and not at_1b.runs("embedded")


def test_the_key_is_not_in_what_a_log_would_show() -> None:
    assert "secret" not in repr(server())


def test_the_newest_comes_first() -> None:
    old = dataclasses.replace(server(1000), started_at=1.0)
    with keep_announced(old), keep_announced(server(2000)):
        assert [each.port for each in find_running_servers()] == [2000, 1000]


def test_what_is_said_anew_goes_with_the_server() -> None:
    own = server()
    with keep_announced(own) as path:
        announce(dataclasses.replace(own, target="loaded by now"))
        assert [each.target for each in find_running_servers()] == ["loaded by now"]
    assert not path.exists()


def test_what_took_over_the_file_keeps_it() -> None:
    with keep_announced(server()) as path:
        successor = dataclasses.replace(server(), started_at=1.0)
        write(json.dumps(dataclasses.asdict(successor)), path.name)
    assert path.exists()
    assert find_running_servers() == [successor]


def test_a_process_that_has_ended_and_its_pids_next_owner_are_stale() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    ended = dataclasses.replace(server(1000), pid=process.pid)
    reborn = dataclasses.replace(server(2000), birth="1")
    with keep_announced(ended) as first, keep_announced(reborn) as second:
        assert find_running_servers() == []
        assert not first.exists() and not second.exists()


def test_another_machines_server_is_neither_joined_nor_removed() -> None:
    with keep_announced(dataclasses.replace(server(), machine="elsewhere", birth="1")) as path:
        assert find_running_servers() == []
        assert path.exists()


GARBAGE = [
    "",
    "{",
    "[]",
    "1",
    "[" * 100_000,
    b"\xff\xfe",
    "{}",
    json.dumps(dataclasses.asdict(server()) | {"pid": "1"}),
    json.dumps(dataclasses.asdict(server()) | {"pid": -1}),
    json.dumps(dataclasses.asdict(server()) | {"url": "http://127.0.0.1:nothing"}),
    json.dumps(dataclasses.asdict(server()) | {"started_at": float("nan")}),
    json.dumps(dataclasses.asdict(server()) | {"target": "x" * 100_000}),
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_passed_over(text: str | bytes) -> None:
    path = write(text)
    assert find_running_servers() == []
    assert path.exists()  # it may be another version's


def test_a_folder_in_place_of_a_file_is_passed_over() -> None:
    (locations.servers_dir() / "here-1-1.json").mkdir(parents=True)
    assert find_running_servers() == []


@given(
    st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(RunningServer)]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    )
)
def test_no_value_raises(values: dict[str, object]) -> None:
    write(json.dumps(dataclasses.asdict(server()) | values))
    for found in find_running_servers():
        assert found.pid == os.getpid()


def test_a_folder_that_cannot_be_written_is_a_warning(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    (state / "eaglelocal").write_text("a file where the folder should be")
    with keep_announced(server()):
        assert find_running_servers() == []
    assert "do not find this server" in caplog.text and "cannot be written: Not a directory" in caplog.text


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("192.168.1.2", "http://192.168.1.2:80"),
    ],
)
def test_every_address_is_reached_over_the_loopback(host: str, url: str) -> None:
    assert describe_this_server(host, 80, target="demo").url == url


def test_the_state_is_asked_for() -> None:
    def asked(script: Script) -> str:
        with serving(script) as url:
            return request_state(dataclasses.replace(server(), url=url))

    assert asked(Script()) == "ready"
    assert asked(Script(health=(503, {"state": "loading"}))) == "loading"
    assert asked(Script(health=(503, "<html>"))) == "answers 503"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert request_state(dataclasses.replace(server(), url=url), timeout_s=0.1) == NO_ANSWER

"""`eaglelocal serve` as people run it: what it says, how it ends, and what it refuses before it loads anything."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import psutil
import pytest
from doubles.commands import run_command
from doubles.timeouts import PATIENCE_S, wait_until

from eaglelocal.cli import serve_log
from eaglelocal.cli.output import Output
from eaglelocal.cli.serve import bind_server_socket
from eaglelocal.client.running_servers import describe_this_server, keep_announced
from eaglelocal.errors import ResourceError
from eaglelocal.server.listening_socket import find_lan_address
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.server_state import ServerState
from eaglelocal.settings import Settings

ROOT = Path(__file__).parents[2]
DEMO_S = 60.0  # the model is measured when it is loaded
QUICK = ("--draft", "none", "--parallel", "2", "--ctx", "512")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A person without files or variables of ours."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("EAGLELOCAL_", "XDG_CONFIG"))}
    homes = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CONFIG", "STATE")}
    (tmp_path / "state").mkdir()
    return {**plain, **homes, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}


@dataclass(slots=True)
class Serve:
    """The running command; its stderr, line by line."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def said(self, pattern: str, timeout_s: float = PATIENCE_S) -> str:
        """The first group of the line that matches."""
        found: list[str] = []

        def is_said() -> bool:
            found.extend(match[1] for line in self.lines if (match := re.search(pattern, line)))
            return bool(found) or self.process.poll() is not None

        for _ in range(int(timeout_s // PATIENCE_S) + 1):
            with contextlib.suppress(AssertionError):
                wait_until(is_said, pattern)
                break
        assert found, self.lines
        return found[0]

    @property
    def url(self) -> str:
        """The address, as soon as it is announced."""
        return self.said(r"starting \S+ on (http://[^\s,\"]+)")

    @property
    def records(self) -> list[dict[str, object]]:
        """All lines, each of which must be JSON."""
        return [json.loads(line) for line in self.lines]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def serving(environ: dict[str, str], *arguments: str) -> Iterator[Serve]:
    command = [sys.executable, "-m", "eaglelocal", "serve", "--port", str(free_port()), *arguments]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=environ["XDG_STATE_HOME"]
    )
    serve = Serve(process)
    reader = threading.Thread(target=lambda: serve.lines.extend(iter(process.stderr.readline, "")))  # type: ignore[union-attr]
    reader.start()
    try:
        yield serve
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(PATIENCE_S)
        assert process.stdout is not None
        assert process.stdout.read() == ""  # nothing is data here
        process.stdout.close()
        process.stderr.close()  # type: ignore[union-attr]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def refused(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("serve", *arguments, environ=environ, cwd=Path(environ["XDG_STATE_HOME"]))


def chat(**more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "What is the capital of France?"}], **more}


# ---- refused before anything is loaded
@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("--host", "0.0.0.0"), 2, "there is no key", "--api-key-file"),
        (("--host", "no.such.host.invalid", "--api-key-file", "KEYS"), 2, "cannot be listened on", ""),
        (("--port", "70000"), 2, "port", ""),
        (("--port", "x"), 2, "port", ""),
        (("--parallel", "0"), 2, "parallel", ""),
        (("--target", "./nowhere.gguf"), 1, "nowhere.gguf", ""),
        (("--models", "demo,./nowhere.gguf"), 1, "nowhere.gguf", ""),
        (("--models", "demo@1b:bf16", "--alias", "x,demo@1b:bf16"), 2, "that is another model of this server", ""),
        (("--prot", "1"), 2, "no such option: --prot", "serve --help"),
        (("--log", "xml"), 2, "log", ""),
        (("--max-waiting", "-1"), 2, "max", ""),
        (("--drain", "nan"), 2, "drain", ""),
        (("--request-timeout", "0"), 2, "request", ""),
        (("--shared-prefix", "nowhere.txt"), 2, "--shared-prefix nowhere.txt cannot be read: No such file", ""),
        (("--shared-prefix", os.devnull), 2, f"--shared-prefix {os.devnull} is empty", "how the system prompt begins"),
        (("--cors-origins", "http://localhost:3000/,*"), 2, "'*' is not the origin", "one by one"),
    ],
)
def test_what_cannot_work_is_one_line_and_a_hint(
    environ: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    done = refused(environ, *(str(tmp_path / "keys") if word == "KEYS" else word for word in arguments))
    error = done.stderr[done.stderr.index("error: ") :]
    assert (done.returncode, done.stdout) == (code, "")
    assert message in error.splitlines()[0]
    assert hint in error
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_reported_with_another(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = refused(environ, "--port", str(port))
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, f"error: port {port} of 127.0.0.1 is taken")
    assert f"--port {port + 1}" in done.stderr


def test_a_doubtful_key_file_is_reported_without_its_keys(environ: dict[str, str], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna: secret-secret\n")
    keys.chmod(0o644)
    done = refused(environ, "--api-key-file", str(keys), "--target", "./nowhere.gguf")
    assert done.returncode == 1  # for want of the model, not for the keys
    assert f"warning: the key file {keys} can be read by others: chmod 600 {keys}" in done.stderr
    assert "warning: the key 'anna' has fewer than 16 characters" in done.stderr
    assert "secret-secret" not in done.stderr
    done = refused(environ, "--api-key-file", str(keys), "--host", "0.0.0.0")
    assert (done.returncode, "'anna' is too short" in done.stderr) == (2, True)


# ---- a life
def test_it_listens_loads_answers_logs_and_drains(environ: dict[str, str], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    with serving(environ, *QUICK, "--api-key-file", str(keys), "--no-tui") as serve:
        url = serve.url
        assert "keys: default" in "".join(serve.lines)
        assert httpx.get(f"{url}/health").status_code in (200, 503)  # while it loads
        assert "listening" not in "".join(serve.lines)  # there is nothing to ask yet
        assert serve.said(r"ready: (\S+?),", DEMO_S) == f"{url}/v1"
        assert serve.said(r"listening on (\S+)$") == url
        assert serve.said(r"chat in a browser: (\S+)$") == url
        assert "<title>eaglelocal</title>" in httpx.get(url, headers={"Accept": "text/html"}).text
        assert httpx.get(f"{url}/v1/models").status_code == 401
        key = keys.read_text().split(": ")[1].strip()
        client = httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=PATIENCE_S)
        answer = client.post("/v1/chat/completions", json=chat(max_tokens=6, temperature=0))
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"]
        long = chat(stream=True, max_tokens=400, ignore_eos=True)
        with client.stream("POST", "/v1/chat/completions", json=long) as stream:
            lines = stream.iter_lines()
            next(lines)
            serve.process.send_signal(signal.SIGTERM)
            wait_until(lambda: client.get("/health").json()["status"] == "draining", "the server is being stopped")
            rest = list(lines)  # what runs may end
        assert "data: [DONE]" in rest
        assert serve.process.wait(PATIENCE_S) == 0
    said = "".join(serve.lines)
    assert "GET /v1/models 401" in said
    assert "POST /v1/chat/completions 200  default" in said
    assert "/health" not in said  # monitors ask all the time
    assert "capital of France" not in said
    assert key not in said
    assert "Traceback" not in said


def test_json_lines_and_a_second_signal(environ: dict[str, str]) -> None:
    with serving(environ, *QUICK, "--log", "json", "--drain", "60") as serve:
        url = serve.url
        serve.said(r"(ready): ", DEMO_S)
        engine = psutil.Process(serve.process.pid).children()[0]
        body = chat(stream=True, max_tokens=1500, ignore_eos=True, spec="off")
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as stream:
            lines = stream.iter_lines()  # which would end the request if it were dropped
            for _ in range(9):  # the first comes before the answer runs
                next(lines)
            serve.process.send_signal(signal.SIGINT)
            serve.said(r"(1 answer) has up to 60 s to finish", PATIENCE_S)  # two signals at once may count as one
            serve.process.send_signal(signal.SIGINT)
            assert serve.process.wait(PATIENCE_S) == 0
    wait_until(lambda: not engine.is_running(), "the engine is gone too")
    records = serve.records
    answers = [record for record in records if "path" in record]
    assert [record["path"] for record in answers] == ["/v1/chat/completions"]
    assert {"time", "level", "message", "status", "owner", "seconds", "model", "completion_tokens"} <= set(answers[0])
    assert all({"time", "level", "message"} <= set(record) for record in records)
    assert any("1 answer has up to 60 s to finish" in str(record["message"]) for record in records)
    assert "Traceback" not in "".join(serve.lines)


def test_an_error_is_a_record_too(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = refused(environ, "--port", str(port), "--log", "json", "--target", "demo")
    assert (done.returncode, done.stdout) == (1, "")
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["level"], last["message"]) == ("error", f"port {port} of 127.0.0.1 is taken")
    assert all(json.loads(line) for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "config", "message"),
    [
        (("--log", "json", "--prot", "1"), "", "no such option: --prot"),
        (("--log=json", "--port", "x"), "", "--port must be a whole number from 0 to 65535, not 'x'"),
        (("--log", "json"), "paralel = 2\n", "unknown setting paralel"),
        ((), 'log = "json"\nport = "many"\n', "port must be a whole number from 0 to 65535"),
        (("--log", "json", "--host", "0.0.0.0"), "", "there is no key"),
    ],
)
def test_what_is_wrong_before_the_log_begins_is_a_record(
    environ: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], config: str, message: str
) -> None:
    file = tmp_path / "configured" / "eaglelocal" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(config)
    done = refused({**environ, "XDG_CONFIG_HOME": str(tmp_path / "configured")}, *arguments)
    records = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, done.stdout) == (2, "")
    assert [record["level"] for record in records] == ["error"]
    assert message in records[0]["message"] and records[0]["hint"]


def test_the_last_of_several_formats_counts(environ: dict[str, str]) -> None:
    done = refused({**environ, "EAGLELOCAL_LOG": "json"}, "--prot", "1")
    assert json.loads(done.stderr)["message"].startswith("no such option")
    done = refused({**environ, "EAGLELOCAL_LOG": "json"}, "--log", "text", "--prot", "1")
    assert done.stderr.startswith("error: no such option")


def test_a_hint_that_is_a_flag_is_the_whole_command(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = refused(environ, "--target", "demo", "--port", str(port), "--no-tui")
    assert done.stderr.endswith(f"hint: eaglelocal serve --target demo --no-tui --port {port + 1}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_loads_ends_it(environ: dict[str, str], number: signal.Signals) -> None:
    with serving(environ, *QUICK) as serve:
        assert httpx.get(f"{serve.url}/health").json()["status"] == "loading"
        assert serve.end(number) == 0
    assert "Traceback" not in "".join(serve.lines)
    assert "error" not in "".join(serve.lines)


@pytest.mark.slow
def test_an_engine_that_is_killed_comes_back(environ: dict[str, str]) -> None:
    with serving(environ, *QUICK) as serve:
        url = serve.url
        serve.said(r"(ready): ", DEMO_S)
        (engine,) = psutil.Process(serve.process.pid).children()
        engine.kill()
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 503, "it is told")
        answer = httpx.post(f"{url}/v1/chat/completions", json=chat(max_tokens=5), timeout=DEMO_S)
        assert answer.status_code in (200, 500)
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200, "it is well")
        assert httpx.get(f"{url}/v1/snapshot").json()["restarts"] == 1
        assert serve.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("host", "lan", "shown"),
    [
        ("0.0.0.0", "192.168.1.5", "listening on http://127.0.0.1:8421, in your network on http://192.168.1.5:8421"),
        ("::", "192.168.1.5", "listening on http://[::1]:8421, in your network on http://192.168.1.5:8421"),
        ("0.0.0.0", "", "listening on http://127.0.0.1:8421"),
        ("127.0.0.1", "192.168.1.5", "listening on http://127.0.0.1:8421"),
    ],
)
def test_the_network_address_is_shown(monkeypatch: pytest.MonkeyPatch, host: str, lan: str, shown: str) -> None:
    monkeypatch.setattr(serve_log, "find_lan_address", lambda: lan)
    stderr = io.StringIO()
    output = Output(stdout=io.StringIO(), stderr=stderr, environ={})
    log = serve_log.ServerLog(output, cast(ServerState, None), None, address=(host, 8421))
    log.show_ready(cast(LoadedModel, SimpleNamespace(name="demo", info=SimpleNamespace(num_slots=1))))
    assert stderr.getvalue().splitlines()[0] == shown


def test_the_address_in_the_network_is_an_address() -> None:
    found = find_lan_address()
    assert found == "" or not ipaddress.ip_address(found).is_loopback


def test_a_port_that_another_server_of_ours_has_names_that_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings.load({"port": str(port)}, {}, tmp_path / "none")
        with pytest.raises(ResourceError, match="is taken") as caught:
            bind_server_socket(settings)
        assert caught.value.hint == f"--port {port + 1}"
        ours = keep_announced(describe_this_server("127.0.0.1", port, target="qwen3-8b"))
        with ours, pytest.raises(ResourceError, match=f"server of qwen3-8b .pid {os.getpid()}") as caught:
            bind_server_socket(settings)
        assert caught.value.hint == f"eaglelocal stop {port}"

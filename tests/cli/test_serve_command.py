"""`eaglelocal serve` as people run it: what it says, how it ends, and what it refuses before it loads anything."""

from __future__ import annotations

import contextlib
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

import httpx
import psutil
import pytest
from doubles.timeouts import PATIENCE_S, wait_until

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
        return self.said(r"listening on (http://\S+?)(,|$)")

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
    command = [sys.executable, "-m", "eaglelocal", "serve", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environ, timeout=PATIENCE_S, cwd=environ["XDG_STATE_HOME"]
    )


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
        assert serve.said(r"ready: (\S+?),", DEMO_S) == f"{url}/v1"
        assert httpx.get(f"{url}/v1/models").status_code == 401
        key = keys.read_text().split(": ")[1].strip()
        client = httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=PATIENCE_S)
        answer = client.post("/v1/chat/completions", json=chat(max_tokens=6, temperature=0))
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"]
        with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=12)) as stream:
            lines = stream.iter_lines()
            next(lines)
            serve.process.send_signal(signal.SIGTERM)
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
        body = chat(stream=True, max_tokens=450, ignore_eos=True, spec="off")
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as stream:
            next(stream.iter_lines())
            serve.process.send_signal(signal.SIGINT)
            serve.process.send_signal(signal.SIGINT)
            assert serve.process.wait(PATIENCE_S) == 0
    wait_until(lambda: not engine.is_running(), "the engine is gone too")
    records = [json.loads(line) for line in serve.lines if line.startswith("{")]
    assert [record["path"] for record in records if "path" in record] == ["/v1/chat/completions"]
    assert {"time", "level", "message", "status", "owner", "seconds"} <= set(records[-1]), records
    assert "Traceback" not in "".join(serve.lines)


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

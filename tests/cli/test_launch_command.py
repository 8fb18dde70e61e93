"""`launch`: an agent gets the server by variables and arguments, and a server that was started for it ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from doubles.commands import run_command
from doubles.empty_home import home_variables
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.cli.launch import AGENTS, Endpoint, find_server, format_command
from eaglelocal.cli.output import standard_output
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings

ROOT = Path(__file__).parents[2]
SERVER = Endpoint("http://127.0.0.1:8421", "qwen", 65_536, "key")
RECORDER = f"""#!{sys.executable}
import json, os, sys, urllib.request
url = os.environ["OPENAI_API_BASE"] + "/models"
models = json.load(urllib.request.urlopen(url))["data"]
json.dump({{"arguments": sys.argv[1:], "model": models[0]["id"]}}, open(os.environ["RECORD"], "w"))
sys.exit(7)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An empty home, and a program on the path that asks for the models and writes down what it was given."""
    program = tmp_path / "bin" / "aider"
    program.parent.mkdir()
    program.write_text(RECORDER)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EAGLELOCAL_")}
    homes = home_variables(tmp_path)
    path = f"{program.parent}{os.pathsep}{plain['PATH']}"
    return {**plain, **homes, "PATH": path, "PYTHONPATH": str(ROOT), "RECORD": str(tmp_path / "record")}


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environ=environ)


@contextlib.contextmanager
def serving_model(name: str, n_ctx: int) -> Iterator[str]:
    """A server that lists one model."""
    body = json.dumps({"data": [{"id": name, "max_model_len": n_ctx}]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_gets_address_model_and_key(name: str) -> None:
    setup = AGENTS[name].set_up(SERVER)
    given = json.dumps([*setup.arguments, *setup.environment.values()])
    assert SERVER.url in given and "qwen" in given and "key" in setup.environment.values()


def test_what_is_printed_can_be_pasted() -> None:
    setup = AGENTS["claude"].set_up(SERVER)
    shown = format_command(setup, ["sh", "-c", 'echo "$ANTHROPIC_BASE_URL $ANTHROPIC_MODEL [$ANTHROPIC_API_KEY]"'])
    environ = {**os.environ, "ANTHROPIC_API_KEY": "k"}
    done = subprocess.run(shown, shell=True, capture_output=True, text=True, env=environ)
    assert done.stdout == "http://127.0.0.1:8421 qwen []\n"


def test_codex_reads_settings_as_toml() -> None:
    settings = tomllib.loads("\n".join(AGENTS["codex"].set_up(SERVER).arguments[1::2]))
    assert settings["model_providers"]["eaglelocal"]["base_url"] == "http://127.0.0.1:8421/v1"
    assert settings["model_context_window"] == 65_536


def test_opencode_reads_a_config() -> None:
    config = json.loads(AGENTS["opencode"].set_up(SERVER).environment["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == "eaglelocal/qwen"
    assert config["provider"]["eaglelocal"]["models"]["qwen"]["limit"]["context"] == 65_536


HOSTILE = ("{file:~/.ssh/id_rsa}", "{env:HOME}", "a}", "a\nb", "a\x1bb", "a\x85b", "a\0b", "\ud800")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_which_a_program_would_substitute_is_refused(name: str) -> None:
    for url, model in ((SERVER.url, name), (f"http://127.0.0.1/{name}", "qwen")):
        with pytest.raises(UsageError, match="braces or control characters") as raised:
            Endpoint(url, model, 65_536)
        assert raised.value.message.isprintable()


@pytest.mark.parametrize("key", ["{file:~/.ssh/id_rsa}", 'a"b', "a\\b"])
def test_opencode_gets_no_key_that_changes_its_config(key: str) -> None:
    with pytest.raises(UsageError, match="no key with braces"):
        AGENTS["opencode"].set_up(Endpoint(SERVER.url, "qwen", 65_536, key))


@given(st.text(min_size=1).filter(lambda name: name.isprintable() and not set(name) & set("{}")))
def test_any_other_name_of_a_model_arrives_unchanged(name: str) -> None:
    server = Endpoint(SERVER.url, name, 65_536, "key")
    config = json.loads(AGENTS["opencode"].set_up(server).environment["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == f"eaglelocal/{name}" and list(config["provider"]["eaglelocal"]["models"]) == [name]
    assert tomllib.loads("\n".join(AGENTS["codex"].set_up(server).arguments[1::2]))["model"] == name
    assert AGENTS["aider"].set_up(server).arguments == ("--model", f"openai/{name}")  # never a flag
    assert AGENTS["claude"].set_up(server).environment["ANTHROPIC_MODEL"] == name


def test_a_remote_model_cannot_name_a_file_to_send(environ: dict[str, str]) -> None:
    with serving_model("{file:~/.ssh/id_rsa}", 65_536) as url:
        done = run(environ, "launch", "opencode", "--print", "--url", url)
    assert done.returncode == 2 and done.stdout == ""
    assert "error: no program gets the model '{file:~/.ssh/id_rsa}'" in done.stderr


def test_a_joined_server_answers_the_agent(environ: dict[str, str]) -> None:
    with serving_model("qwen", 65_536) as url:
        done = run(environ, "launch", "aider", "--url", url, "--", "--yes")
    assert done.returncode == 7, done.stderr
    record = json.loads(Path(environ["RECORD"]).read_text())
    assert record == {"arguments": ["--model", "openai/qwen", "--yes"], "model": "qwen"}


def test_too_small_a_context_is_refused(environ: dict[str, str]) -> None:
    with serving_model("qwen", 4096) as url:
        done = run(environ, "launch", "aider", "--url", url)
    assert done.returncode == 2 and "aider needs a context of 16384 tokens" in done.stderr
    assert not Path(environ["RECORD"]).exists()


@pytest.mark.parametrize(
    ("flags", "environ", "n_ctx"), [({}, "4096", 16384), ({}, "32768", 32768), ({"ctx": 4096}, "", 4096)]
)
def test_a_context_for_every_model_is_raised_to_what_the_agent_needs(
    flags: dict[str, object], environ: str, n_ctx: int, tmp_path: Path
) -> None:
    given = {"url": "none", **flags}
    settings = Settings.load(given, {"EAGLELOCAL_CTX": environ}, tmp_path / "config.toml")
    with find_server(AGENTS["aider"], settings, standard_output(), starts=False) as server:
        assert server.n_ctx == n_ctx


def test_a_server_that_was_started_ends_also_where_it_does_not_suffice(environ: dict[str, str]) -> None:
    done = run(environ, "launch", "aider", "--target", "demo", "--ctx", "2048")
    assert done.returncode == 2 and "needs a context of 16384 tokens" in done.stderr
    assert "starting a server" in done.stderr
    assert "no eaglelocal server" in run(environ, "stop").stderr


def test_a_server_that_fails_says_why(environ: dict[str, str]) -> None:
    done = run(environ, "launch", "aider", "--target", "/nowhere.gguf")
    assert done.returncode == 1 and "/nowhere.gguf" in done.stderr, done.stderr


def test_an_unknown_or_missing_program_is_reported_before_a_server_starts(environ: dict[str, str]) -> None:
    assert "one of claude, codex" in run(environ, "launch", "emacs").stderr
    environ["PATH"] = "/nowhere"
    missing = run(environ, "launch", "aider")
    assert missing.returncode == 2 and "pip install aider-chat" in missing.stderr
    assert "starting" not in missing.stderr

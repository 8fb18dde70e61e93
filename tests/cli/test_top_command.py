"""`eaglelocal top` as it is typed: one frame as text or JSON, of every kind of server, and what goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from doubles.commands import run_command
from doubles.pages_server import Page, Pages, llama_pages, serving, vllm_pages

from eaglelocal.cli.top import read_scenes
from eaglelocal.client.running_servers import describe_this_server, keep_announced
from eaglelocal.probe import load_gauges

pytestmark = pytest.mark.full

TIMEOUT_S = 60


def top(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_command("top", *arguments, environ={**os.environ, **environ})


@pytest.mark.parametrize(("pages", "kind"), [(llama_pages(), "llama-server"), (vllm_pages(), "vLLM")])
def test_one_frame_as_text(pages: Pages, kind: str) -> None:
    with serving(pages):
        report = top(pages.url, "--once")
    assert report.returncode == 0, report.stderr
    assert report.stdout.startswith(f"{kind} at {pages.url} · ready")
    assert "position 1" in report.stdout
    assert max(map(len, report.stdout.splitlines())) <= 80
    assert "\x1b" not in report.stdout


def test_the_last_line_of_json_is_one_object_and_absent_is_null() -> None:
    pages = vllm_pages()
    with serving(pages):
        report = top(pages.url, "--json")
    found = json.loads(report.stdout.splitlines()[-1])
    assert (found["kind"], found["state"], found["server"]["running"]) == ("vLLM", "ready", 3)
    assert "beside" in found["server"]
    assert found["speculation"]["acceptance"] == pytest.approx(0.5)
    assert (found["speculation"]["gain"], found["server"]["restarts"], found["server"]["requests"]) == (None,) * 3


def test_width_glyphs_and_address_are_as_wished() -> None:
    pages = llama_pages()
    with serving(pages):
        report = top(f"127.0.0.1:{pages.port}/v1", "--once", COLUMNS="120", EAGLELOCAL_GLYPHS="ascii")
    assert report.stdout.isascii()
    assert 80 < max(map(len, report.stdout.splitlines())) <= 120


def test_a_key_reaches_the_server() -> None:
    pages = vllm_pages()
    with serving(pages):
        top(pages.url, "--once", EAGLELOCAL_API_KEY="a-key-of-mine")
    assert set(pages.keys) == {"Bearer a-key-of-mine"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("http://127.0.0.1:1", "--once"), 1, "cannot reach http://127.0.0.1:1"),
        (("ht tp", "--once"), 2, "is not the address of a server"),
        (("--once",), 1, "no eaglelocal server is running here"),
        (("http://127.0.0.1:1",), 2, "stdout is not a terminal"),
    ],
)
def test_what_goes_wrong_is_said_with_a_hint(arguments: tuple[str, ...], code: int, said: str) -> None:
    report = top(*arguments)
    assert (report.returncode, report.stdout) == (code, "")
    assert said in report.stderr and "\nhint: " in report.stderr


def test_a_web_page_is_no_server_that_we_know() -> None:
    with serving(Pages({"/v1/models": Page("<html>")})) as pages:
        report = top(pages.url, "--once")
    assert (report.returncode, "neither eaglelocal nor llama-server, vLLM or Ollama" in report.stderr) == (1, True)


def test_several_servers_are_rows_and_an_unreachable_one_is_marked() -> None:
    with serving(llama_pages()) as ours, serving(vllm_pages()) as other:
        report = top(ours.url, other.url, "http://127.0.0.1:1", ours.url, "--once")
        as_json = top(ours.url, other.url, "http://127.0.0.1:1", "--json")
    assert report.returncode == 0, report.stderr
    lines = report.stdout.splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["ready", "ready", "unreachable"]
    assert len(lines) == 5 and lines[4].startswith("http://127.0.0.1:1: cannot reach")
    assert max(map(len, lines[:4])) <= 80
    found = json.loads(as_json.stdout.splitlines()[-1])["servers"]
    assert [each["kind"] for each in found] == ["llama-server", "vLLM", ""]
    assert [each["state"] for each in found] == ["ready", "ready", "disconnected"]


def test_without_a_url_all_servers_of_this_machine_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with serving(llama_pages()) as ours, serving(vllm_pages()) as other, ExitStack() as announced:
        for pages in (ours, other):
            announced.enter_context(keep_announced(describe_this_server("127.0.0.1", pages.port, target="demo")))
        found = json.loads(top("--json").stdout.splitlines()[-1])["servers"]
    assert {each["url"] for each in found} == {ours.url, other.url}


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--json",), 1, "none of the servers answers"),
        ((), 2, "stdout is not a terminal"),
    ],
)
def test_errors_of_several_servers_are_shown(flags: tuple[str, ...], code: int, said: str) -> None:
    report = top("http://127.0.0.1:1", "http://127.0.0.1:2", *flags)
    assert (report.returncode, said in report.stderr, "\nhint: " in report.stderr) == (code, True, True)


def test_the_screen_s_toolkit_is_not_loaded_for_text() -> None:
    pages = vllm_pages()
    code = (
        "import sys\n"
        "from eaglelocal.cli.main import run\n"
        "run(['top', sys.argv[1], '--once'])\n"
        "print([m for m in ('textual', 'torch', 'starlette', 'llama_cpp') if m in sys.modules])\n"
    )
    with serving(pages):
        done = subprocess.run(
            [sys.executable, "-c", code, pages.url], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    assert done.stdout.splitlines()[-1] == "[]"


def test_ctrl_c_between_the_two_readings_closes_the_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Gauges:
        def close(self) -> None:
            closed.append(self)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(load_gauges, "GaugeWatch", Gauges)
    pages = vllm_pages()
    with serving(pages), pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(time, "sleep", interrupt)
        read_scenes([pages.url])
    assert len(closed) == 1

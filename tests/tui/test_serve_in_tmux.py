"""The real server in a real terminal: `serve` shows the monitor, `top` watches it, and each way to leave works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from doubles.serve_process import free_port

pytestmark = [pytest.mark.full, pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]
LOAD_S, ANSWER_S = 240.0, 60.0


class Terminal:
    """One tmux server with one window of 80 columns and 24 lines."""

    def __init__(self, folder: Path) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", os.devnull]
        state = os.environ["XDG_STATE_HOME"]  # the session's, not the person's
        path = os.environ.get("PYTHONPATH", "")
        self._run(
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
            "env",
            "-u",
            "NO_COLOR",
            f"XDG_STATE_HOME={state}",
            f"PYTHONPATH={path}",
            "sh",
        )

    def type(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def run(self, command: str) -> None:
        self.type(command, "Enter")

    @property
    def text(self) -> str:
        return self._run("capture-pane", "-p")

    def wait_for(self, holds: Callable[[str], bool], what: str, seconds: float) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if holds(text := self.text):
                return text
            time.sleep(0.2)
        raise AssertionError(f"not in time: {what}\n{self.text}")

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)

    def _run(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.close()


def test_a_server_in_the_foreground_is_watched_and_left(terminal: Terminal) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    program = f"{sys.executable} -m eaglelocal"
    terminal.run(f"{program} serve --port {port} --parallel 1; echo ended with $?")
    terminal.wait_for(
        lambda text: "· ready" in text and "q Quit" in text, "the monitor of a server that is ready", LOAD_S
    )
    body = {"messages": [{"role": "user", "content": "Count from 1 to 30."}], "max_tokens": 80, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=LOAD_S)
    assert answer.status_code == 200
    text = terminal.wait_for(lambda text: "1 answered" in text, "the answer is counted", ANSWER_S)
    assert "drafting: automatic" in text
    assert float(re.search(r"acceptance +\d+ %, (\d+\.\d\d?) tokens a pass", text).group(1)) > 1.0  # type: ignore[union-attr]
    assert "POST /v1/chat/completions 200" in text  # the log goes to its tail

    seen = subprocess.run([*program.split(), "top", "--once"], capture_output=True, text=True, timeout=60, check=True)
    assert seen.stdout.startswith(f"eaglelocal at {url} · ready")
    assert "1 answered" in seen.stdout and "Count from" not in seen.stdout

    terminal.type("q")
    terminal.wait_for(lambda text: "Stop the server?" in text, "the question", ANSWER_S)
    terminal.type("Down")
    terminal.type("Enter")
    terminal.wait_for(lambda text: "1 answered" in text and "q Quit" not in text, "the status line instead", ANSWER_S)
    assert httpx.get(f"{url}/health", timeout=10).status_code == 200
    terminal.type("C-c")
    terminal.wait_for(lambda text: "ended with 0" in text, "it ends as ever", ANSWER_S)


def test_stopping_from_the_screen_ends_the_server_and_mends_the_terminal(terminal: Terminal) -> None:
    port = free_port()
    program = f"{sys.executable} -m eaglelocal"
    terminal.run(f"{program} serve --port {port}; echo ended with $?")
    terminal.wait_for(lambda text: "q Quit" in text, "the monitor, before the model is loaded", LOAD_S)
    terminal.type("q")
    terminal.wait_for(lambda text: "Stop the server?" in text, "the question", ANSWER_S)
    terminal.type("Enter")
    text = terminal.wait_for(lambda text: "ended with 0" in text, "it ends", LOAD_S)
    assert "q Quit" not in text
    terminal.run("echo the terminal still $((1+1))echoes")
    terminal.wait_for(lambda text: "still 2echoes" in text, "the shell is usable", ANSWER_S)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health", timeout=2)


def test_ctrl_c_asks_then_drains_then_ends_at_once(terminal: Terminal) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    terminal.run(f"{sys.executable} -m eaglelocal serve --target demo --port {port} --drain 600; echo ended with $?")
    terminal.wait_for(lambda text: "· ready" in text and "q Quit" in text, "the monitor of a ready server", LOAD_S)
    body = {
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": 100_000,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=LOAD_S) as stream:
        lines = stream.iter_lines()  # which would end the request if it were dropped
        next(lines)
        terminal.wait_for(lambda text: "1 of 4 running" in text, "the answer on the screen", ANSWER_S)
        terminal.type("C-c")
        terminal.wait_for(lambda text: "Stop the server? 1 running" in text, "the question", ANSWER_S)
        terminal.type("C-c")
        terminal.wait_for(lambda text: "stopping: 1 answer has up to 600 s" in text, "it drains", ANSWER_S)
        assert "ended with 0" not in terminal.text
        terminal.type("C-c")
        terminal.wait_for(lambda text: "ended with 0" in text, "its end at once", ANSWER_S)


def test_top_watches_through_a_restart(terminal: Terminal) -> None:
    from doubles.pages_server import llama_pages, serving, vllm_pages

    pages = llama_pages()
    with serving(pages):
        terminal.run(f"{sys.executable} -m eaglelocal top {pages.url}")
        terminal.wait_for(lambda text: "llama-server at" in text and "running" in text, "it is read", ANSWER_S)
    terminal.wait_for(lambda text: "server gone, retrying" in text, "its end is seen", ANSWER_S)
    other = vllm_pages()
    other.port = pages.port
    with serving(other):
        terminal.wait_for(
            lambda text: "vLLM at" in text and "of 12.0 k accepted" in text, "another one is found", ANSWER_S
        )
    terminal.wait_for(lambda text: "vLLM at" in text and "server gone, retrying" in text, "its end is seen", ANSWER_S)
    counted = other.by_path["/metrics"]
    counted.body = str(counted.body).replace("000.0", ".0").replace("1.75379532e+09", "1.75379999e+09")  # begun anew
    with serving(other):
        terminal.wait_for(lambda text: "of 12 accepted" in text, "it is back and counts from zero", ANSWER_S)
    terminal.type("q")
    terminal.wait_for(lambda text: "q Quit" not in text, "the screen is left", ANSWER_S)

"""LiteLLM in front of two servers, as docs/serving.md configures it: both answer, one alone goes on, no answer moves.

LITELLM names its program, in an environment of its own.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from doubles.other_server import running_program
from doubles.serve_process import ServeProcess, free_port, serve

PROGRAM = os.environ.get("LITELLM", "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PROGRAM, reason="LITELLM names no program of litellm[proxy]")]
PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
START_S = 120
KEY = f"sk-{secrets.token_hex(32)}"  # it starts with no weaker one
FLAGS = ("--target", "demo@native", "--alias", "local", "--ctx", "512", "--threads", "1")
NO_END = {"2": -100}  # the embedded model's end of text


def write_configuration(path: Path, servers: tuple[ServeProcess, ...]) -> Path:
    """Write the page's configuration with these addresses."""
    (text,) = re.findall(r"```yaml\n(model_list:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for number, server in enumerate(servers, 1):
        text = text.replace(f"http://box{number}:8421", server.url)
    assert "box" not in text
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def running_router(configuration: Path, log: Path) -> Iterator[str]:
    port = free_port()
    environ = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # the latter asks no host for prices
    command = [PROGRAM, "--config", str(configuration), "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with running_program(command, environ, log, health=f"{url}/health/liveliness", start_s=START_S):
        yield url


def stream(url: str) -> str:
    """Return the text of a streamed answer, whose end must have been reached."""
    with asking(url, max_tokens=24) as events:
        *pieces, last = events
    assert last == "[DONE]"
    return "".join(map(read_text, pieces))


@contextmanager
def asking(url: str, **fields: object) -> Iterator[Iterator[str]]:
    """Yield the data of a streamed answer's events."""
    messages = [{"role": "user", "content": "What does a draft head do?"}]
    body = {"model": "home", "messages": messages, "temperature": 0, "stream": True, **fields}
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120) as reply:
        assert reply.status_code == 200, reply.read()
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        yield (line.removeprefix("data: ") for line in lines)


def read_text(data: str) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in json.loads(data).get("choices", ()))


def is_answering(server: ServeProcess) -> bool:
    return httpx.get(f"{server.url}/v1/snapshot", timeout=30).json()["running"] > 0


def count_answers(log: Path) -> int:
    return log.read_text().count("POST /v1/chat/completions 200")


def test_both_answer_and_one_alone_goes_on(tmp_path: Path) -> None:
    logs = (tmp_path / "first", tmp_path / "second")
    with serve(*FLAGS, log=logs[0]) as first, serve(*FLAGS, log=logs[1]) as second:
        configuration = write_configuration(tmp_path / "router.yaml", (first, second))
        with running_router(configuration, tmp_path / "router") as url:
            with ThreadPoolExecutor(4) as pool:  # the least busy one is the first, where only one asks
                texts = set(pool.map(stream, [url] * 12))
            assert len(texts) == 1 and texts.pop().strip()
            before = tuple(map(count_answers, logs))
            assert all(before), before
            first.process.kill()
            first.process.wait()
            assert all(stream(url).strip() for _ in range(6))
            assert (count_answers(logs[0]), count_answers(logs[1])) == (before[0], before[1] + 6)


def test_an_answer_that_has_begun_is_not_moved(tmp_path: Path) -> None:
    logs = (tmp_path / "first", tmp_path / "second")
    flags = (*FLAGS, "--draft", "none")  # slowly
    with serve(*flags, log=logs[0]) as first, serve(*flags, log=logs[1]) as second:
        configuration = write_configuration(tmp_path / "router.yaml", (first, second))
        with running_router(configuration, tmp_path / "router") as url:
            assert stream(url).strip()
            before = tuple(map(count_answers, logs))
            with asking(url, max_tokens=400, logit_bias=NO_END) as events:
                beginning = [next(events), next(events)]
                (busy,) = [server for server in (first, second) if is_answering(server)]
                busy.process.kill()
                busy.process.wait()
                rest = list(events)
            assert "[DONE]" not in rest
            assert "error" in json.loads(rest[-1])
            assert "".join(map(read_text, beginning)).strip()
            assert tuple(map(count_answers, logs)) == before
            assert stream(url).strip()

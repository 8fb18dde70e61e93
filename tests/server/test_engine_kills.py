"""The engine of a real server is killed from outside again and again: who pays for it.

Beside others who load the server, a bystander with a key of his own asks whole answers. What had not begun is answered
by the next engine, no request is refused, and all memory and descriptors come back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
from doubles.serve_process import ServeProcess, num_files, serve, wait_until_ready
from doubles.streaming import Json, Streamed, ask, connections
from doubles.timeouts import PROMPTLY_S

KEYS = {"others": "others-key-0123456789", "bystander": "bystander-key-0123456789"}
QUESTIONS = ("What is acceptance length?", "What is a KV cache?", "What is the bonus token?", "How do I start a chat?")
NUM_KILLS, NUM_OTHERS = 5, 6
MINUTE_S = 60.0
PATIENCE_S = 300.0
MAX_MORE_BYTES = 64 << 20


def body_of(question: str, max_tokens: int) -> Json:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0}


@dataclass
class Load:
    """What came of all requests."""

    waits_s: list[float] = field(default_factory=list)  # of the bystander
    errors: list[tuple[int, str]] = field(default_factory=list)  # of the bystander: status and body
    wrong: list[str] = field(default_factory=list)
    streamed: list[Streamed] = field(default_factory=list)  # of the others
    back_s: list[float] = field(default_factory=list)  # seconds from each kill until the server is well again
    is_over: bool = False


async def ask_whole(client: httpx.AsyncClient, question: str) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body_of(question, 32))


def text_of(reply: httpx.Response) -> str:
    return str(reply.json()["choices"][0]["message"]["content"])


async def stand_by(client: httpx.AsyncClient, load: Load, expected: dict[str, str]) -> None:
    while not load.is_over:
        for question in QUESTIONS:
            asked_at = time.monotonic()
            reply = await ask_whole(client, question)
            load.waits_s.append(time.monotonic() - asked_at)
            if reply.status_code != 200:
                load.errors.append((reply.status_code, reply.text))
            elif text_of(reply) != expected[question]:
                load.wrong.append(text_of(reply))


async def stream_on(client: httpx.AsyncClient, load: Load, first: int) -> None:
    """Ask the same few questions again and again, as clients do that try again after an error."""
    while not load.is_over:
        load.streamed.append(await ask(client, body_of(QUESTIONS[first % len(QUESTIONS)], 64)))


async def until(condition: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_at, what
        await asyncio.sleep(0.02)


def find_engine(server: ServeProcess) -> psutil.Process | None:
    for child in psutil.Process(server.pid).children():
        if "eaglelocal.worker.process" in child.cmdline():
            return child
    return None


async def kill_again_and_again(server: ServeProcess, load: Load, num_kills: int) -> None:
    for _ in range(num_kills):
        num_waits, num_streamed = len(load.waits_s), len(load.streamed)
        await until(lambda n=num_waits: len(load.waits_s) >= n + 2, "the bystander is answered")  # type: ignore[misc]
        await until(lambda n=num_streamed: len(load.streamed) >= n + 2, "the others are answered")  # type: ignore[misc]
        engine = find_engine(server)
        assert engine is not None
        os.kill(engine.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        await until(lambda pid=engine.pid: not psutil.pid_exists(pid), "the engine is reaped")  # type: ignore[misc]
        await asyncio.to_thread(wait_until_ready, server)
        load.back_s.append(time.monotonic() - killed_at)


async def run_load(server: ServeProcess, num_kills: int, expected: dict[str, str]) -> Load:
    """Load the server until the bystander has had every answer twice, and again after the kills."""
    load = Load()
    async with (
        connections(server.url, NUM_OTHERS, key=KEYS["others"]) as others,
        connections(server.url, 1, key=KEYS["bystander"]) as bystander,
    ):
        for question in QUESTIONS:
            expected[question] = expected.get(question) or text_of(await ask_whole(bystander, question))
        tasks = [asyncio.create_task(stream_on(others, load, n)) for n in range(NUM_OTHERS)]
        tasks.append(asyncio.create_task(stand_by(bystander, load, expected)))
        await kill_again_and_again(server, load, num_kills)
        num_waits = len(load.waits_s)
        await until(lambda: len(load.waits_s) >= num_waits + 2 * len(QUESTIONS), "the bystander is answered")
        load.is_over = True
        await asyncio.gather(*tasks)
    return load


def count_memory(server: ServeProcess) -> tuple[int, int, int]:
    """Return the resident bytes and the number of all its processes, and its open files."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    assert psutil.STATUS_ZOMBIE not in [process.status() for process in processes]
    return sum(process.memory_info().rss for process in processes), len(processes), num_files(server.pid)


@pytest.mark.slow
def test_five_kills_under_load_cost_a_bystander_nothing_but_the_restarts(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name}: {key}\n" for name, key in KEYS.items()))
    keys.chmod(0o600)
    with serve("--target", "demo", "--parallel", "2", "--api-key-file", str(keys)) as server:
        expected: dict[str, str] = {}
        honest = asyncio.run(run_load(server, 0, expected))
        memory_bytes, num_processes, files = count_memory(server)
        load = asyncio.run(run_load(server, NUM_KILLS, expected))
        ended_at = time.monotonic()

        def is_back() -> bool:
            now_bytes, now_processes, now_files = count_memory(server)
            return now_bytes <= memory_bytes + MAX_MORE_BYTES and now_processes <= num_processes and now_files <= files

        while not is_back():
            assert time.monotonic() < ended_at + MINUTE_S, (count_memory(server), memory_bytes, num_processes, files)
            time.sleep(0.5)
        after = count_memory(server)
    errors_of_others = [one for one in load.streamed if not one.is_complete]
    print(
        f"back after {[round(each, 1) for each in load.back_s]} s; the bystander waited {max(load.waits_s):.1f} s at"
        f" most, {max(honest.waits_s):.1f} s in honest company; he had {len(load.waits_s)} answers and the errors"
        f" {load.errors}; the others {len(load.streamed)} and {len(errors_of_others)} errors; bytes, processes and"
        f" files {(memory_bytes, num_processes, files)} before and {after} after"
    )
    assert (honest.errors, honest.wrong, load.wrong) == ([], [], [])
    assert len(load.errors) <= NUM_KILLS  # of an answer that had begun; of no other
    assert {status for status, _ in load.errors} <= {500}
    assert all("was killed (signal 9)" in body for _, body in load.errors)
    assert all(one.arrivals or one.is_complete for one in load.streamed), "one that had no token yet is answered"
    assert len(errors_of_others) <= 2 * NUM_KILLS  # of those with a slot
    assert max(load.waits_s) <= 2 * max(honest.waits_s) + max(load.back_s) + PROMPTLY_S

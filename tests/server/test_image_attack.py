"""Sixteen requests full of large pictures, beside a bystander with a key of his own."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from doubles.image_files import deep_image
from doubles.running_server import Server, Setup, served
from doubles.timeouts import PATIENCE_S, wait_until
from doubles.vision_models import write_vision_pair
from PIL import Image

from eaglelocal.core.plan import Plan
from eaglelocal.processes.child_process import read_usage
from eaglelocal.server.access import Access, ApiKeys

KEYS = {"eve": "key-of-eve-0000000", "bob": "key-of-bob-0000000"}
BUILDER = "eaglelocal.loading.engine_builder:build"
NUM_ATTACKERS = 16
MAX_MORE_BYTES = 128 * 2**20  # kept when all is over: by allocators, and the second process that decodes
MEMORY_BACK_S = 60.0


def photo(seed: int) -> bytes:
    """A photograph of 12 million pixels."""
    rough = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(rough).resize((4000, 3000)).save(file, "JPEG")
    return file.getvalue()


def body(words: str, *files: bytes) -> dict[str, Any]:
    urls = [f"data:image/png;base64,{base64.b64encode(file).decode()}" for file in files]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*parts, {"type": "text", "text": words}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}


def ask(server: Server, who: str, given: dict[str, Any]) -> httpx.Response:
    head = {"Authorization": f"Bearer {KEYS[who]}"}
    return httpx.post(f"{server.url}/v1/chat/completions", json=given, headers=head, timeout=20 * PATIENCE_S)


@contextmanager
def crowd(server: Server, bodies: Sequence[dict[str, Any]]) -> Iterator[None]:
    """A request of eve's for each body, again and again; at the end all of them hang up."""
    is_over = threading.Event()
    connections = [HTTPConnection("127.0.0.1", server.port) for _ in bodies]

    def attack(connection: HTTPConnection, given: bytes) -> None:
        head = {"Authorization": f"Bearer {KEYS['eve']}", "Content-Type": "application/json"}
        with contextlib.suppress(OSError, HTTPException):  # it hung up
            while not is_over.is_set():
                connection.request("POST", "/v1/chat/completions", given, head)
                connection.getresponse().read()

    encoded = [json.dumps(given).encode() for given in bodies]
    threads = [threading.Thread(target=attack, args=pair) for pair in zip(connections, encoded, strict=True)]
    for thread in threads:
        thread.start()
    time.sleep(2.0)  # all of them are there
    yield
    is_over.set()
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


def processes_of(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(each for child in children for each in processes_of(child))]


def resident_bytes(server: Server) -> int:
    pid = server.clients[-1].snapshot().engine_pid
    return sum(usage.resident_bytes for each in processes_of(pid) if (usage := read_usage(each)))


def is_idle(server: Server) -> bool:
    engine = server.clients[-1].snapshot()
    return (engine.running, engine.waiting, server.serving.admission.num_held) == (0, 0, 0)


def put_questions(server: Server, questions: Sequence[dict[str, Any]]) -> tuple[list[str], list[float]]:
    """Return what bob is answered, and how long each answer took."""
    answers, waits = list[str](), list[float]()
    for given in questions:
        began = time.monotonic()
        reply = ask(server, "bob", given)
        waits.append(time.monotonic() - began)
        assert reply.status_code == 200, reply.text
        answers.append(reply.json()["choices"][0]["message"]["content"])
    return answers, waits


@pytest.mark.slow
def test_sixteen_requests_of_large_pictures_beside_a_bystander(tmp_path: Path) -> None:
    target, projector = write_vision_pair(tmp_path, "phi4")
    plan = Plan(target=target, target_label="seer", projector=projector, n_ctx=1024, num_slots=4, threads=1)
    keys = ApiKeys(tuple(KEYS.items()))
    setup = Setup(plans={"seer": plan}, builder=BUILDER, access=Access(keys=keys), is_shared=True)
    large = [deep_image(8000, 5000 - number) for number in range(5)]  # the most that is allowed, in 1.5 MB
    questions = [body(f"What is number {number}?", *[photo(number)] * (number % 2)) for number in range(6)]
    with served(setup) as server:
        expected, alone_s = put_questions(server, questions)
        before = resident_bytes(server)
        with crowd(server, [body("Hello", photo(100 + number)) for number in range(NUM_ATTACKERS)]):
            _, honest_s = put_questions(server, questions)
        with crowd(server, [body(f"Look {number}", *large) for number in range(NUM_ATTACKERS)]):
            answers, attacked_s = put_questions(server, questions)
            peak = resident_bytes(server)
        assert answers == expected
        print(f"alone {alone_s}\nhonest {honest_s}\nattacked {attacked_s}")
        assert max(attacked_s) < 2 * max(honest_s) + 2.0
        began = time.monotonic()
        wait_until(lambda: is_idle(server), "no cancelled request waits")
        while (left := resident_bytes(server)) > before + MAX_MORE_BYTES:
            assert time.monotonic() < began + MEMORY_BACK_S, f"{left - before} bytes more than before"
            time.sleep(0.5)
        print(f"before {before / 2**20:.0f} MiB, under attack {peak / 2**20:.0f}, after {left / 2**20:.0f}")
        assert put_questions(server, questions)[0] == expected

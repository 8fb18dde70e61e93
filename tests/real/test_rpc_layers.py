"""Layers on llama.cpp's own rpc-servers: texts are those of one machine, and a lost server is named and awaited.

RPC_SERVER names the program, and LLAMA_CPP_LIB_PATH a build of llama.cpp with RPC. Both sides use one thread and
llama.cpp's own flash attention, as a server has no other: with ours, or without one here, sums round otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from doubles.random_models import write_agreeing_pairs
from doubles.real_engine import TINY
from doubles.rpc_server import rpc_server, why_not
from doubles.serve_process import ServeProcess, serve, wait_until_ready

from eaglelocal.backend.cpu_attention import SWITCH
from eaglelocal.core.run_options import WARNING

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

TYPES = ("F32", "BF16")
PROMPTS = ("w3 w9 w27 w14", "The ferry leaves at eight.", "w200 w100")
NUM_TOKENS = 48
SHAPE = replace(TINY, n_ctx=512)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("rpc")
    write_agreeing_pairs(folder, TYPES, SHAPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv(SWITCH, "llama.cpp")
        yield folder


def complete(server: ServeProcess, prompt: str) -> httpx.Response:
    fields = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    return httpx.post(f"{server.url}/v1/completions", json=fields, timeout=120)


def answer_all(server: ServeProcess) -> list[str]:
    replies = [complete(server, prompt) for prompt in PROMPTS]
    assert {reply.status_code for reply in replies} == {200}, replies[0].text
    return [reply.json()["choices"][0]["text"] for reply in replies]


def run_flags(target: Path, *, draft: str = "none") -> list[str]:
    exact = ["--parallel", "1", "--threads", "1", "--flash-attn", "on"]
    return ["--target", str(target), "--draft", draft, "--ctx", "256", *exact]


def answers_of(target: Path, *, draft: str = "none", num_servers: int = 0) -> tuple[list[str], float]:
    """Return the answers, and how many drafted tokens were accepted."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(rpc_server()).address for _ in range(num_servers)]
        rpc = ["--rpc", ",".join(addresses)] if addresses else []
        server = stack.enter_context(serve(*run_flags(target, draft=draft), *rpc))
        texts = answer_all(server)
        speculation = server.engine()["speculation"]
        assert isinstance(speculation, dict)
        return texts, speculation["accepted_tokens"]


@pytest.mark.parametrize("name", TYPES)
def test_texts_through_servers_are_those_of_one_machine(files: Path, name: str) -> None:
    target, head = files / f"{name}.gguf", files / f"{name}-head.gguf"
    here, _ = answers_of(target)
    assert len(set(here)) == len(PROMPTS)
    assert answers_of(target, num_servers=1) == (here, 0)
    assert answers_of(target, num_servers=2) == (here, 0)
    drafted, num_accepted = answers_of(target, draft=str(head), num_servers=1)
    assert drafted == here and num_accepted > 0


def test_a_lost_server_is_named_and_the_engine_comes_back_with_it(files: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with rpc_server() as first:
        port = int(first.address.rpartition(":")[2])
        with serve(*run_flags(files / "F32.gguf"), "--rpc", first.address, log=log) as server:
            before = answer_all(server)
            first.kill()
            lost = complete(server, PROMPTS[0])
            assert lost.status_code >= 500
            assert f"the connection to an rpc-server was lost: {first.address}" in lost.json()["error"]["message"]
            wait_for(log, f"cannot reach the rpc-server {first.address}")
            with rpc_server(port=port):
                wait_until_ready(server)
                assert answer_all(server) == before
    reports = list((files / "state").rglob("crashes/*.txt"))
    assert len(reports) == 1  # of the loss, not of each start in vain
    assert WARNING in log.read_text()


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.1)

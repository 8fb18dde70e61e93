"""A client exchanges the head of its engine's process: while answers run, when it fails, and when the process dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.scripted_engine import BUILDER, ask, plan
from doubles.timeouts import PROMPTLY_S, wait_until

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Started
from eaglelocal.errors import EagleLocalError, EngineError, ModelFileError


@pytest.fixture
def client() -> Iterator[EngineClient]:
    with EngineClient(plan(), builder=BUILDER) as started:
        started.start()
        yield started


def test_an_idle_engine_drafts_with_the_new_head_when_the_call_returns(client: EngineClient, tmp_path: Path) -> None:
    successor = tmp_path / "head.gguf"
    successor.touch()
    for version in (3, 4):
        client.swap_head(successor, version)
        assert client.snapshot().draft_version == version
    wait_until(lambda: successor.read_text() == "0\n3\n", "both old heads were closed")


def test_answers_go_on_while_a_head_is_opened(client: EngineClient) -> None:
    answer = client.stream(ask("forever"))
    assert isinstance(next(answer), Started)
    swap = threading.Thread(target=client.swap_head, args=(Path("slow"), 2))
    steps = client.snapshot().steps
    swap.start()
    wait_until(lambda: client.snapshot().steps > steps + 20, "the answer goes on")
    assert swap.is_alive() and client.snapshot().draft_version == 0
    assert client.stream(ask("count 3", "other")).result().tokens == (1, 2, 3)
    swap.join(PROMPTLY_S)
    assert client.snapshot().draft_version == 2
    client.cancel("r")
    assert answer.result().finished.reason == "cancelled"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [("damaged", ModelFileError, "damaged is no head"), ("bug", EngineError, "bug cannot be opened: TypeError")],
)
def test_a_head_that_cannot_be_opened_is_one_error(
    client: EngineClient, name: str, kind: type[EagleLocalError], message: str
) -> None:
    client.swap_head(Path("good"), 1)
    with pytest.raises(kind, match=message):
        client.swap_head(Path(name), 2)
    assert client.snapshot().draft_version == 1
    client.swap_head(Path("good"), 3)
    assert client.snapshot().draft_version == 3
    assert client.restarts == 0


def test_swaps_of_several_threads_happen_one_after_the_other(client: EngineClient) -> None:
    failed: list[EagleLocalError] = []

    def swap(version: int) -> None:
        try:
            client.swap_head(Path("damaged" if version % 2 else "slow"), version)
        except EagleLocalError as error:
            failed.append(error)

    threads = [threading.Thread(target=swap, args=(version,)) for version in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROMPTLY_S)
    assert [error.message for error in failed] == ["damaged is no head"] * 2
    assert client.snapshot().draft_version in (2, 4)


def test_a_process_that_dies_meanwhile_fails_the_swap_and_drafts_with_the_old_head_again(client: EngineClient) -> None:
    client.swap_head(Path("good"), 5)
    with pytest.raises(EngineError):
        client.swap_head(Path("fatal"), 6)
    wait_until(lambda: client.snapshot().draft_version == 5, "the engine is back, with the head before")
    assert client.stream(ask("count 2")).result().tokens == (1, 2)


def test_a_restarted_process_loads_the_head_that_drafted_last(client: EngineClient) -> None:
    client.swap_head(Path("good"), 5)
    pid = client.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: client.pid not in (None, pid), "the engine is started again")
    wait_until(lambda: client.snapshot().engine_pid == client.pid, "the engine is back")
    assert client.snapshot().draft_version == 5


def test_a_client_without_a_process_fails_the_swap_at_once() -> None:
    with EngineClient(plan(), builder=BUILDER) as idle, pytest.raises(EngineError, match="not running"):
        idle.swap_head(Path("good"), 1)


def test_a_swap_that_takes_too_long_is_an_error(client: EngineClient) -> None:
    with pytest.raises(EngineError, match=r"not exchanged within 0\.05 s"):
        client.swap_head(Path("slow"), 2, timeout_s=0.05)
    client.swap_head(Path("good"), 3)  # the outcome of the late one is not taken for this one's
    assert client.snapshot().draft_version == 3


def test_closing_while_a_head_is_opened_ends_the_process() -> None:
    with EngineClient(plan(), builder=BUILDER) as closing:
        closing.start()
        pid = closing.pid
        with pytest.raises(EngineError):
            closing.swap_head(Path("slow"), 2, timeout_s=0.01)
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

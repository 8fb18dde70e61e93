"""Events on their way from a client's thread to asyncio: none is lost, and whoever waits for the end wakes once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.events import Finished, RequestEvent, Started
from eaglelocal.core.request import AnyRequest, ChatRequest, Spec
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.server.active_call import ActiveCall
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.loaded_models import ClientThread

LONG_WAIT_S = 60.0


class SilentClient:
    """A client whose events the test sends."""

    restarts, trouble = 0, ""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def submit(self, request: AnyRequest, on_event: Callable[[RequestEvent], None]) -> None: ...

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def set_spec(self, spec: Spec) -> None: ...

    def set_adapters(self, mix: AdapterMix) -> None: ...

    def snapshot(self) -> object: ...

    def close(self) -> None: ...


def send(call: ActiveCall, events: Sequence[RequestEvent]) -> None:
    """Send events on another thread, as a client does."""

    def send_all() -> None:
        for event in events:
            call.on_event(event)

    thread = threading.Thread(target=send_all)
    thread.start()
    thread.join()


def started(name: str) -> Started:
    return Started(name, 1, 0)


def finished(name: str) -> Finished:
    return Finished(name, "stop", "", 1, 1, Timings(), SpeculationStats())


async def open_call(*names: str) -> ActiveCall:
    requests: list[AnyRequest] = [ChatRequest(id=name, text="") for name in names]
    call = ActiveCall("model", requests, limit_s=LONG_WAIT_S)
    call.submit(ClientThread(SilentClient()), requests)  # type: ignore[arg-type]  # only what a call needs of it
    return call


def test_each_event_is_applied_once_with_its_time() -> None:
    async def check() -> None:
        call = await open_call("a")
        send(call, [started("a"), finished("a")])
        (choice,) = await call.next(LONG_WAIT_S)
        assert choice.started and choice.finished and call.is_over
        assert choice.requested_at <= choice.ended_at <= time.perf_counter()
        assert await call.next(LONG_WAIT_S) == []  # at once

    asyncio.run(check())


def test_a_wait_for_the_end_is_not_woken_by_other_events() -> None:
    async def check() -> None:
        call = await open_call("a", "b")
        ends = asyncio.create_task(call.next(LONG_WAIT_S, until_end=True))
        await asyncio.sleep(0)
        send(call, [started("a"), started("b")])
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ends.done()
        send(call, [finished("b")])
        assert [choice.index for choice in await ends] == [0, 1] and not call.is_over
        send(call, [finished("a")])  # no reader waits just now
        assert len(await call.complete()) == 2

    asyncio.run(check())


def test_a_wait_for_the_end_returns_what_came_when_its_time_is_over() -> None:
    async def check() -> None:
        call = await open_call("a")
        assert await call.next(0.0, until_end=True) == []
        send(call, [started("a")])
        (choice,) = await call.next(0.0, until_end=True)
        assert choice.started

    asyncio.run(check())


def test_requests_to_a_closed_client_fail() -> None:
    """A model may be unloaded between its requests: they fail, and none is left running."""

    async def check() -> None:
        client = ClientThread(SilentClient())  # type: ignore[arg-type]  # only what a call needs of it
        requests: list[AnyRequest] = [ChatRequest(id=name, text="") for name in "ab"]
        call = ActiveCall("model", requests, limit_s=LONG_WAIT_S)
        client.close()
        call.submit(client, requests)
        with pytest.raises(Problem, match="the model is unloaded"):
            await call.complete()
        assert call.is_over and requests == []

    asyncio.run(check())

"""Events on their way from a client's thread to asyncio: none is lost, and whoever waits for the end wakes once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.events import Failed, RequestEvent, Started
from eaglelocal.core.request import AnyRequest, ChatRequest, Spec
from eaglelocal.errors import EngineError
from eaglelocal.server.active_call import EventStream
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


def send(stream: EventStream, events: Sequence[RequestEvent]) -> None:
    """Send events on another thread, as a client does."""

    def send_all() -> None:
        for event in events:
            stream.on_event(event)

    thread = threading.Thread(target=send_all)
    thread.start()
    thread.join()


def started(name: str) -> Started:
    return Started(name, 1, 0)


def failed(name: str) -> Failed:
    return Failed(name, EngineError("ended"))


async def open_stream(*names: str) -> EventStream:
    client = ClientThread(SilentClient())  # type: ignore[arg-type]  # only what a stream needs of it
    return EventStream(client, [ChatRequest(id=name, text="") for name in names])


def test_each_event_is_returned_once_in_order_with_its_time() -> None:
    async def check() -> None:
        stream = await open_stream("a")
        send(stream, [started("a"), failed("a")])
        events = await stream.next(LONG_WAIT_S)
        assert [type(event) for event, _ in events] == [Started, Failed]
        assert events[0][1] <= events[1][1] and stream.is_over
        assert await stream.next(LONG_WAIT_S) == []  # at once

    asyncio.run(check())


def test_a_wait_for_the_end_is_not_woken_by_other_events() -> None:
    async def check() -> None:
        stream = await open_stream("a", "b")
        ends = asyncio.create_task(stream.next(LONG_WAIT_S, until_end=True))
        await asyncio.sleep(0)
        send(stream, [started("a"), started("b"), started("a")])
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ends.done()
        send(stream, [failed("b")])
        assert len(await ends) == 4 and not stream.is_over
        send(stream, [failed("a")])  # no reader waits just now
        while not stream.is_over:
            await stream.next(LONG_WAIT_S, until_end=True)

    asyncio.run(check())


def test_a_wait_for_the_end_returns_what_came_when_its_time_is_over() -> None:
    async def check() -> None:
        stream = await open_stream("a")
        assert await stream.next(0.0, until_end=True) == []
        send(stream, [started("a")])
        assert [type(event) for event, _ in await stream.next(0.0, until_end=True)] == [Started]

    asyncio.run(check())

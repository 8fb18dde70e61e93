"""The executor of requests with images: owners in turn, one image each, nothing for those who left, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import ChatRequest
from eaglelocal.engine.image_executor import ImageExecutor


class HandThread(Executor):
    """A thread whose next call the test makes."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def submit(self, fn: object, /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
        assert not self.calls, "one at a time"
        self.calls.append((fn, *args))
        return Future()

    def work(self) -> None:
        fn, *args = self.calls.pop()
        fn(*args)  # type: ignore[operator]


class ExecutorHarness:
    """An executor over threads that work by hand. An id such as `ann 3x20` is of a request of ann's with
    3 images of 20.
    """

    def __init__(self, num_threads: int = 1, max_pixels: int = 10**9) -> None:
        self.threads = [HandThread() for _ in range(num_threads)]
        self.executor = ImageExecutor(self.decode, self.threads, max_pixels=max_pixels)
        self.steps: list[str] = []  # owners, image by image; a request that was read is in capitals
        self.futures: dict[str, Future[object]] = {}

    def decode(self, request: ChatRequest) -> Iterator[int]:
        count, _, size = request.id.split()[1].partition("x")
        yield int(count) * int(size or 1)
        for _ in range(int(count)):
            self.steps.append(request.owner)
            yield 0

    def submit(self, name: str) -> None:
        request = ChatRequest(id=name, owner=name.split()[0])

        def read(request: ChatRequest) -> str:
            self.steps.append(request.owner.upper())
            return request.id

        self.futures[name] = self.executor.submit(read, request)

    def work(self, num_steps: int = 1000) -> list[str]:
        """Let the threads work in turn, and return what was done."""
        before = len(self.steps)
        for _ in range(num_steps):
            busy = [thread for thread in self.threads if thread.calls]
            if not busy:
                break
            busy[0].work()
        return self.steps[before:]

    @property
    def in_work(self) -> list[str]:
        return [call[2].request.owner for thread in self.threads for call in thread.calls]  # type: ignore[attr-defined]


def test_owners_take_turns_after_each_image() -> None:
    harness = ExecutorHarness()
    for name in ("ann 3", "ann 2 again", "bob 1", "eve 2"):
        harness.submit(name)
    assert harness.work() == ["ann", "bob", "eve", "ann", "BOB", "eve", "ann", "EVE", "ANN", "ann", "ann", "ANN"]
    assert all(future.result() == name for name, future in harness.futures.items())


def test_an_owner_has_one_image_in_work_and_others_find_a_free_thread() -> None:
    harness = ExecutorHarness(num_threads=2)
    for number in range(16):
        harness.submit(f"eve 16 {number}")
    assert harness.in_work == ["eve"]
    harness.submit("bob 1")
    assert harness.in_work == ["eve", "bob"]
    for _ in range(3):  # the size, the image, the rest of the request
        harness.threads[1].work()
    assert harness.futures["bob 1"].result() == "bob 1" and "eve" not in harness.steps


@pytest.mark.parametrize("is_begun", [False, True])
def test_what_was_cancelled_is_not_gone_on_with(is_begun: bool) -> None:
    harness = ExecutorHarness()
    harness.submit("ann 5")
    harness.submit("ann 1 later")
    harness.work(2 if is_begun else 0)
    assert harness.futures["ann 5"].cancel()
    harness.executor.release("ann 5")
    assert harness.work() == ["ann", "ANN"]
    assert harness.futures["ann 1 later"].result() == "ann 1 later"


def test_what_leaves_while_it_waits_is_not_held_by_the_executor() -> None:
    harness = ExecutorHarness()
    for name in ("ann 1", "ann 2", "bob 1"):
        harness.submit(name)
    for name in ("ann 2", "bob 1"):
        harness.futures[name].cancel()
        harness.executor.release(name)
    assert [one.request.id for line in harness.executor._lines.values() for one in line] == ["ann 1"]


def test_an_owner_s_next_images_wait_until_the_ones_before_them_have_a_slot() -> None:
    harness = ExecutorHarness(max_pixels=100)
    for name in ("ann 3x20", "ann 1x40", "ann 1x60", "bob 1x90"):
        harness.submit(name)
    assert harness.work() == ["ann", "bob", "ann", "BOB", "ann", "ANN", "ann", "ANN"]  # 60 and 40 fit, 60 more do not
    harness.submit("bob 1x20")
    assert harness.work() == []
    harness.executor.release("bob 1x90")
    assert harness.work() == ["bob", "BOB"]
    harness.executor.release("ann 1x40")
    assert harness.work() == []
    harness.executor.release("ann 3x20")
    assert harness.work() == ["ann", "ANN"]
    harness.submit("eve 1x500")  # more than may be held, but alone
    assert harness.work() == ["eve", "EVE"]


def test_a_request_that_fails_fails_alone() -> None:
    harness = ExecutorHarness()

    def fail(request: ChatRequest) -> None:
        raise ValueError("no")

    failed = harness.executor.submit(fail, ChatRequest(id="ann 1", owner="ann"))
    harness.submit("ann 1 more")
    assert harness.work() == ["ann", "ann", "ANN"]
    with pytest.raises(ValueError, match="no"):
        failed.result()


def test_the_end_cancels_what_waits() -> None:
    harness = ExecutorHarness()
    for name in ("ann 2", "bob 2"):
        harness.submit(name)
    harness.executor.shutdown(cancel_futures=True)
    assert harness.work() == [] and all(future.cancelled() for future in harness.futures.values())


@given(st.data())
def test_whatever_comes_and_goes_no_request_waits_forever(data: st.DataObject) -> None:
    """All that stay are read, in each owner's order; in between no owner has two images in work."""
    harness = ExecutorHarness(data.draw(st.integers(1, 3)), max_pixels=data.draw(st.integers(1, 60)))
    left: set[str] = set()
    for number in range(data.draw(st.integers(1, 12))):
        owner = data.draw(st.sampled_from("abc"))
        name = f"{owner} {data.draw(st.integers(0, 3))}x{data.draw(st.integers(1, 40))} {number}"
        harness.submit(name)
        for _ in range(data.draw(st.integers(0, 3))):
            busy = [thread for thread in harness.threads if thread.calls]
            if busy:
                data.draw(st.sampled_from(busy)).work()
            assert len(set(harness.in_work)) == len(harness.in_work)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(harness.futures)))
            harness.futures[gone].cancel()
            harness.executor.release(gone)
            left.add(gone)
    for _ in range(100):  # each that was read gets a slot
        harness.work()
        for name, future in harness.futures.items():
            if future.done():
                harness.executor.release(name)
    assert all(future.done() for future in harness.futures.values())
    assert all(future.cancelled() or future.result() == name for name, future in harness.futures.items())
    assert all(name in left for name, future in harness.futures.items() if future.cancelled())
    assert not harness.executor._lines and not harness.executor._held and not harness.executor._in_work

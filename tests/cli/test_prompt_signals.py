"""A signal that arrives while the line editor starts to wait is handled at once, not at the next key."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from eaglelocal.cli.chat_line import ENDING, deliver_signals


class Ended(Exception):
    pass


def end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


@pytest.fixture(autouse=True)
def ending() -> Iterator[None]:
    before = {number: signal.signal(number, end) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_interrupts_no_wait_is_sent_again(number: signal.Signals) -> None:
    """A signal that another thread receives does not interrupt the main one: its handler would run after the wait."""
    seen: list[int] = []

    def receive() -> None:
        time.sleep(0.05)
        signal.pthread_kill(threading.get_ident(), number)

    receiver = threading.Thread(target=receive)
    with pytest.raises(Ended) as ended, deliver_signals():
        receiver.start()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire(timeout=60)
        seen.append(1)
    receiver.join()
    assert ended.value.args == (number,) and not seen


def test_handlers_and_the_wakeup_pipe_are_as_before() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with deliver_signals():
        assert [signal.getsignal(number) for number in ENDING] != before
    assert [signal.getsignal(number) for number in ENDING] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with deliver_signals():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

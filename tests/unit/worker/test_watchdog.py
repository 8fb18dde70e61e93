"""When silence means that a process hangs: the rule without a clock, and the thread that applies it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest
from doubles.timeouts import wait_until

from eaglelocal.worker.watchdog import Beat, Silence, SilenceLimits, Watchdog, limit_tick

PATIENCE = SilenceLimits(still_s=10.0, computing_s=100.0, factor=20.0, loading_still_s=30.0, loading_s=300.0)


def silence(*seconds: float, is_computing: bool = False) -> Silence:
    found = Silence(PATIENCE)
    for each in seconds:
        found.add(each, is_computing=is_computing)
    return found


@pytest.mark.parametrize(("is_loading", "still_s", "computing_s"), [(False, 10, 100), (True, 30, 300)])
def test_a_still_process_gets_less_time_than_one_that_computes(
    is_loading: bool, still_s: int, computing_s: int
) -> None:
    for limit_s, is_computing, said in ((still_s, False, ", and it does not"), (computing_s, True, ", though it")):
        assert silence(limit_s - 0.1, is_computing=is_computing).verdict(is_loading=is_loading) == ""
        found = silence(limit_s - 1, 1.0, is_computing=is_computing).verdict(is_loading=is_loading)
        assert f"{limit_s} s{said} compute" in found


def test_computing_once_starts_the_shorter_count_anew_and_not_the_longer() -> None:
    found = silence(9.0)
    found.add(1.0, is_computing=True)
    found.add(9.0, is_computing=False)
    assert found.verdict(is_loading=False) == ""
    assert found.total_s == 19.0


@pytest.mark.parametrize("end", ["broken", "pardoned"])
def test_a_word_and_idleness_end_it(end: str) -> None:
    found = silence(9.0)
    found.end(is_loading=False) if end == "broken" else found.reset()
    found.add(9.0, is_computing=False)
    assert found.verdict(is_loading=False) == ""


def test_long_steps_that_ended_well_lengthen_both_limits() -> None:
    found = silence(2.0, 6.0, is_computing=True)
    found.end(is_loading=False)
    found.add(99.9, is_computing=False)  # 20 x 8 s, but never beyond the limit of a process that computes
    assert found.verdict(is_loading=False) == ""
    found.end(is_loading=False)
    found.add(1000.0, is_computing=True)
    assert found.verdict(is_loading=False) == ""


def test_a_quiet_load_says_nothing_about_the_steps() -> None:
    found = silence(29.0)
    found.end(is_loading=True)
    found.add(10.0, is_computing=False)
    assert found.verdict(is_loading=False) != ""


def test_an_hour_in_which_the_parent_stood_still_is_no_silence() -> None:
    assert limit_tick(1.1, 1.0) == 1.1
    assert silence(limit_tick(3600.0, 1.0), 1.0).verdict(is_loading=False) == ""


# ---- the thread
class Sleeper:
    """A process that does nothing, and the pipe of its words; ended when the watchdog says so."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.words: SimpleQueue[object] = SimpleQueue()
        self.reasons: list[str] = []
        self.has_work = True

    def end(self, reason: str) -> None:
        self.reasons.append(reason)
        self.process.kill()
        self.words.put(None)

    def messages(self) -> Iterator[object]:
        yield from iter(self.words.get, None)

    def watchdog(self, limits: SilenceLimits) -> Watchdog:
        return Watchdog(
            pid=self.process.pid,
            limits=limits,
            has_work=lambda: self.has_work,
            is_loading=lambda: False,
            kill=self.end,
        )


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    made = Sleeper()
    yield made
    made.process.kill()
    made.process.wait()


HASTY = SilenceLimits(still_s=0.2)


def test_a_still_process_with_work_is_ended(sleeper: Sleeper) -> None:
    assert list(sleeper.watchdog(HASTY).watch(sleeper.messages())) == []
    assert len(sleeper.reasons) == 1


def test_beats_are_kept_back(sleeper: Sleeper) -> None:
    for word in ("a", Beat(), "b", None):
        sleeper.words.put(word)
    assert list(sleeper.watchdog(SilenceLimits()).watch(sleeper.messages())) == ["a", "b"]


def test_a_listener_of_ours_that_dawdles_is_not_its_fault(sleeper: Sleeper) -> None:
    sleeper.words.put("a")
    watched_messages = sleeper.watchdog(HASTY).watch(sleeper.messages())
    assert next(watched_messages) == "a"
    wait = threading.Event()
    assert not wait.wait(1.0)  # several times the limit
    assert sleeper.reasons == []
    assert list(watched_messages) == []  # now it is listened to again
    assert len(sleeper.reasons) == 1


def test_an_idle_process_may_be_silent(sleeper: Sleeper) -> None:
    sleeper.has_work = False
    ended = threading.Event()

    def listen() -> None:
        list(sleeper.watchdog(HASTY).watch(sleeper.messages()))
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    assert not ended.wait(1.0)
    sleeper.has_work = True
    wait_until(ended.is_set, "the hung process is ended")
    assert len(sleeper.reasons) == 1

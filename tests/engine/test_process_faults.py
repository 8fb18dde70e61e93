"""The embedded model under load while its process is killed repeatedly: no answer is lost or wrong."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from doubles.timeouts import wait_until

from eaglelocal import locations
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Failed, Finished, RequestEvent, Tokens
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, Message, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.worker.supervisor import RestartPolicy
from eaglelocal.worker.watchdog import SilenceLimits

pytestmark = pytest.mark.full

DEMO = locations.profiles_dir() / "demo"
PLAN = Plan(
    target=DEMO / "guide-target.gguf",
    target_label="demo",
    draft_kind="eagle3",
    draft=DEMO / "guide-head.gguf",
    draft_label="its own head",
    spec=fixed_spec(4),
    num_slots=2,
    threads=1,
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=96)
QUESTIONS = (
    "What is acceptance length?",
    "What is a KV cache?",
    "What is the bonus token?",
    "How do I start a chat?",
    "What does the draft do?",
)
NUM_ASKERS = 4


@dataclass(slots=True)
class Tally:
    """What became of the requests, kept by many threads."""

    num_asked: int = 0
    right: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    torn: list[list[RequestEvent]] = field(default_factory=list)  # not ended by exactly one last event
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, question: str, events: list[RequestEvent], expected: str) -> None:
        last = events[-1]
        with self.lock:
            self.num_asked += 1
            if [isinstance(event, (Finished, Failed)) for event in events].index(True) != len(events) - 1:
                self.torn.append(events)
            elif isinstance(last, Failed):
                self.failed.append(last.error.message)
            elif (text := text_of(events)) == expected:
                self.right += 1
            else:
                self.wrong.append((question, text))


def text_of(events: list[RequestEvent]) -> str:
    said = "".join(event.text for event in events if isinstance(event, Tokens))
    return said + "".join(event.text for event in events if isinstance(event, Finished))


def asked(client: EngineClient, question: str, name: str) -> list[RequestEvent]:
    """Ask with a stop string that never comes but is each request's own: equal requests that are in flight at two
    faults would be taken for their cause and refused, as they should be."""
    params = replace(GREEDY, stop=(f"<{name}>",))
    return list(client.stream(ChatRequest(id=name, messages=(Message("user", question),), params=params)))


@contextmanager
def load_on(client: EngineClient, expected: dict[str, str]) -> Iterator[Tally]:
    """Askers that go on until the block ends; whatever they asked has then ended."""
    tally, over, numbers = Tally(), threading.Event(), itertools.count()

    def ask_on(first: int) -> None:
        for question in itertools.islice(itertools.cycle(QUESTIONS), first, None):
            if over.is_set():
                return
            tally.note(question, asked(client, question, f"load-{next(numbers)}"), expected[question])

    askers = [threading.Thread(target=ask_on, args=(n,), daemon=True) for n in range(NUM_ASKERS)]
    for asker in askers:
        asker.start()
    try:
        yield tally
    finally:
        over.set()
        wait_until(lambda: not any(asker.is_alive() for asker in askers), "every request has ended")


def under_faults(signals: tuple[signal.Signals, ...], policy: RestartPolicy) -> Tally:
    """One fault after the other while answers run; the engine must be back before the next one."""
    with EngineClient(PLAN, restart=policy) as client:
        client.start()
        expected = {question: text_of(asked(client, question, question)) for question in QUESTIONS}
        with load_on(client, expected) as tally:
            for n, number in enumerate(signals, start=1):
                right_before = tally.right
                wait_until(lambda before=right_before: tally.right >= before + 2, "answers come")  # type: ignore[misc]
                pid = client.pid
                assert pid is not None
                os.kill(pid, number)
                wait_until(lambda n=n: client.restarts == n and client.state == "ready", "the engine is back")  # type: ignore[misc]
        assert client.state == "ready"
        assert client.restarts == len(signals)
    return tally


def check(tally: Tally, *reasons: str) -> None:
    assert tally.wrong == []
    assert tally.torn == []
    assert tally.right + len(tally.failed) == tally.num_asked
    assert tally.failed, "the faults struck no answer: they proved nothing"
    assert set(tally.failed) <= set(reasons)


KILLED, ABORTED = "the engine process was killed (signal 9)", "the engine process aborted (signal 6)"


def test_two_faults_under_load_lose_nothing() -> None:
    check(under_faults((signal.SIGKILL, signal.SIGABRT), RestartPolicy()), KILLED, ABORTED)


def test_a_stopped_process_under_load_is_replaced() -> None:
    tally = under_faults((signal.SIGSTOP,), RestartPolicy(silence_limits=SilenceLimits(still_s=2.0)))
    assert all("it hangs" in message for message in tally.failed)
    check(replace(tally, failed=["it hangs" for _ in tally.failed]), "it hangs")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, KILLED), (signal.SIGABRT, ABORTED)])
def test_twenty_faults_under_load_lose_nothing(number: signal.Signals, reason: str) -> None:
    """With the policy that users have: it must not give up on an engine that answers between the faults."""
    check(under_faults((number,) * 20, RestartPolicy()), reason)

"""Ten thousand hostile constraints: no engine is lost, each is answered or refused, other requests go on."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from random import Random

import pytest
from doubles.hostile_grammars import hostile

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError, RequestError
from eaglelocal.preparation.decision import resolve

NUM_CONSTRAINTS, NUM_ATTACKERS = 10_000, 3
QUESTION = (Message("user", "What is acceptance length?"),)
SEEDED = SamplingParams(temperature=0.8, seed=7, max_tokens=300, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=8)


class Bystander:
    """Asks the same again and again, and keeps the replies."""

    def __init__(self, client: EngineClient) -> None:
        self._client, self._is_over = client, threading.Event()
        self.texts: list[str] = []
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                return
            asked = ChatRequest(id=f"bystander {number}", messages=QUESTION, params=SEEDED, spec=None)
            self.texts.append(self._client.stream(asked).result().text)


def attack(client: EngineClient, numbers: range, seed: int, outcomes: Counter[str]) -> None:
    random = Random(seed)
    for number in numbers:
        asked = ChatRequest(id=f"{seed} {number}", messages=QUESTION, params=SHORT, constraint=hostile(random))
        try:
            client.stream(asked).result()
            outcomes["answered"] += 1
        except RequestError:
            outcomes["refused"] += 1
        except EngineError as error:
            outcomes[f"{asked.constraint}: {error}"[:2000]] += 1


@pytest.mark.slow
def test_ten_thousand_hostile_constraints_lose_no_engine() -> None:
    plan = resolve(
        RunOptions(target="demo@native", parallel=NUM_ATTACKERS + 1), on_progress=lambda fraction, what: None
    )
    outcomes: Counter[str] = Counter()
    with EngineClient(plan) as client:
        client.start()
        pid = client.pid
        with Bystander(client) as bystander:
            attackers = [
                threading.Thread(
                    target=attack, args=(client, range(seed, NUM_CONSTRAINTS, NUM_ATTACKERS), seed, outcomes)
                )
                for seed in range(NUM_ATTACKERS)
            ]
            for attacker in attackers:
                attacker.start()
            for attacker in attackers:
                attacker.join()
        assert (client.pid, client.restarts) == (pid, 0)
    assert outcomes.keys() == {"answered", "refused"}, outcomes
    assert sum(outcomes.values()) == NUM_CONSTRAINTS and min(outcomes.values()) > NUM_CONSTRAINTS / 20
    assert len(bystander.texts) > 1

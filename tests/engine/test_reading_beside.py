"""Running answers do not wait while the prompt of another request is being read, however long that takes."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from doubles.drafters import NoDrafter
from doubles.rig import Rig, Told
from doubles.scripted_context import LetterVocabulary, Table

from eaglelocal.core.events import Failed, RequestEvent
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import GREEDY
from eaglelocal.engine.input_queue import start_lanes
from eaglelocal.engine.input_size import SHORT_CHARS

TABLE = Table(seed=5)
LONG = "ab" * SHORT_CHARS
ENDLESS = replace(GREEDY, max_tokens=40, ignore_eos=True)
LONG_WAIT_S = 60.0


class HeldVocabulary(LetterVocabulary):
    """Tokenizes long texts when it is let go on, and counts that. A token stands for one letter at most."""

    max_token_bytes = 1

    def __init__(self, n_vocab: int) -> None:
        super().__init__(n_vocab)
        self.may_go_on, self.is_asked = threading.Event(), threading.Event()
        self.num_tokenized = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if len(text) > 100:
            self.num_tokenized += 1
            self.is_asked.set()
            assert self.may_go_on.wait(LONG_WAIT_S)
        return [3, 1, 4]


def short(name: str) -> ChatRequest:
    return ChatRequest(id=name, tokens=(3, 1, 4, 1, 5), params=ENDLESS)


def rig_of(vocabulary: HeldVocabulary, *, n_ctx: int = 128) -> Rig:
    return Rig(TABLE, NoDrafter(), num_slots=2, n_ctx=n_ctx, vocabulary=vocabulary, lanes=start_lanes())


def step_until(rig: Rig, told: dict[str, Told], name: str) -> None:
    """Step until a request is over, whatever else goes on."""
    while told[name].finished is None and told[name].failed is None:
        hear(told, rig.engine.step())


def hear(told: dict[str, Told], events: list[RequestEvent]) -> None:
    for event in events:
        told[event.request_id].hear(event)


@pytest.fixture
def held() -> HeldVocabulary:
    return HeldVocabulary(TABLE.n_vocab)


def test_others_are_answered_while_a_long_prompt_is_read(held: HeldVocabulary) -> None:
    rig = rig_of(held, n_ctx=2 * len(LONG))
    told = {name: Told() for name in ("first", "long", "second")}
    rig.engine.submit(short("first"))
    rig.engine.submit(ChatRequest(id="long", text=LONG, params=ENDLESS))
    assert held.is_asked.wait(LONG_WAIT_S)
    rig.engine.submit(short("second"))  # comes later, and is not held up either
    step_until(rig, told, "first")
    step_until(rig, told, "second")
    assert len(told["first"].tokens) == len(told["second"].tokens) == 40
    assert told["long"].started is None and rig.engine.has_work
    assert rig.engine.snapshot().waiting == 1
    assert rig.engine.step() == []  # nothing to do but to wait: it returns, so that commands are obeyed
    held.may_go_on.set()
    step_until(rig, told, "long")
    assert len(told["long"].tokens) == 40 and not rig.engine.has_work
    rig.engine.close()


def test_a_request_that_is_being_read_can_be_cancelled(held: HeldVocabulary) -> None:
    rig = rig_of(held, n_ctx=2 * len(LONG))
    told = {"long": Told()}
    rig.engine.submit(ChatRequest(id="long", text=LONG))
    assert held.is_asked.wait(LONG_WAIT_S)
    rig.engine.cancel("long")
    step_until(rig, told, "long")
    assert told["long"].finished is not None and told["long"].finished.reason == "cancelled"
    assert not rig.engine.has_work
    held.may_go_on.set()
    rig.engine.close()


@pytest.mark.parametrize("fields", [{"text": LONG}, {"messages": (Message("user", LONG),)}])
def test_what_cannot_fit_is_refused_by_its_length(held: HeldVocabulary, fields: dict[str, object]) -> None:
    rig = rig_of(held)
    rig.engine.submit(ChatRequest(id="long", **fields))  # type: ignore[arg-type]
    events: list[RequestEvent] = []
    while rig.engine.has_work:
        events += rig.engine.step()
    (failed,) = events
    assert isinstance(failed, Failed)
    assert failed.error.message.startswith("this model's maximum context length is 128 tokens, and the prompt has more")
    assert held.num_tokenized == 0
    rig.engine.close()


def test_one_prompt_for_many_answers_is_tokenized_once(held: HeldVocabulary) -> None:
    rig = rig_of(held, n_ctx=2 * len(LONG))
    held.may_go_on.set()
    told = rig.run([ChatRequest(id=str(i), text=LONG, params=replace(ENDLESS, max_tokens=2)) for i in range(16)])
    assert all(len(each.tokens) == 2 for each in told.values())
    assert held.num_tokenized == 1
    rig.engine.close()

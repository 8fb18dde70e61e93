"""Slots with different LoRA adapters: a decode has one mix, cells are shared among equal mixes only, texts are those of
each request alone, no request waits for more than a turn of the others."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from doubles.conversing_harness import KINDS, TABLE, Conversing, ask, cached, make_drafter
from doubles.drafters import NoDrafter
from doubles.engine_harness import EngineHarness, plain_text

from eaglelocal.core.adapters import AdapterFile, AdapterMix
from eaglelocal.core.request import ChatRequest
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.errors import RequestError
from eaglelocal.scheduler.host_swap import HostSwap

STEM = tuple(1 + (i * i * 5 + i) % 23 for i in range(40))
FILES = (AdapterFile(Path("poems.gguf"), 0.0), AdapterFile(Path("code.gguf"), 0.0))
MIXES: tuple[AdapterMix, ...] = ((), ((0, 1.0),), ((0, 0.5), (1, -1.0)))


def harness_of(drafter: Drafter, num_slots: int, **changes: object) -> EngineHarness:
    return EngineHarness(TABLE, drafter, num_draft_tokens=3, num_slots=num_slots, adapters=FILES, **changes)  # type: ignore[arg-type]


def ask_with(mix: AdapterMix, name: str, prompt: tuple[int, ...], **params: object) -> ChatRequest:
    return replace(ask(name, prompt, **params), adapters=mix)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_slots", "branches"), [(1, 0), (4, 0), (2, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_texts_are_those_of_each_alone(kind: str, num_slots: int, branches: int, seed: int) -> None:
    chance = random.Random(seed)
    drafter = make_drafter(kind, branches=branches)
    harness = harness_of(drafter, num_slots, branches=branches, swap=HostSwap(10**6, min_rows=10))
    conversing = Conversing(harness)
    for number in range(12):
        end = tuple(chance.randrange(1, 24) for _ in range(chance.randrange(1, 8)))
        prompt = (*STEM[: chance.randrange(20, 40)], *end)
        conversing.submit(ask_with(chance.choice(MIXES), str(number), prompt, max_tokens=chance.randrange(1, 20)))
        for _ in range(chance.randrange(4)):
            conversing.step()
    result = conversing.finish()
    for one in conversing.asked:
        assert result[one.id].tokens == plain_text(TABLE, one), one.id
    assert len(set(harness.context.mixes)) == len({one.adapters for one in conversing.asked})


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_reuses_only_cells_of_its_own_mix(kind: str) -> None:
    harness = harness_of(make_drafter(kind), 2, swap=HostSwap(10**6, min_rows=10))
    margin = make_drafter(kind).traits.reuse_margin
    first = harness.run([ask_with(MIXES[1], "first", STEM, max_tokens=1)])["first"]
    others = harness.run([ask_with(mix, "other", STEM, max_tokens=1) for mix in MIXES[2:]])
    again = harness.run([ask_with(MIXES[1], "again", STEM, max_tokens=1)])
    back = harness.run([ask_with((), "plain", STEM, max_tokens=1)])
    assert (cached(first), cached(others["other"]), cached(back["plain"])) == (0, 0, 0)
    assert cached(again["again"]) >= len(STEM) - 1 - margin
    moved = harness.run([ask_with(MIXES[2], "moved", (*STEM, 5), max_tokens=1)])  # from its slot, or from RAM
    assert cached(moved["moved"]) >= len(STEM) - margin


def test_mixes_take_turns() -> None:
    harness = harness_of(NoDrafter(), 3)
    asked = [ask_with(mix, str(number), (1 + number, 2), max_tokens=30) for number, mix in enumerate(MIXES)]
    harness.run(asked)
    runs = [len(list(run)) for _, run in groupby(harness.context.mixes)]
    assert set(runs[:-1]) == {1}
    assert len(harness.context.mixes) == 3 * 30
    for at in range(0, 90, 3):
        assert sorted(harness.context.mixes[at : at + 3]) == sorted(MIXES)


def test_equal_mixes_share_decodes() -> None:
    harness = harness_of(NoDrafter(), 4)
    asked = [ask_with(MIXES[number % 2], str(number), (1 + number, 2), max_tokens=20) for number in range(4)]
    harness.run(asked)
    assert len(harness.context.mixes) == 2 * 20


def test_a_request_without_a_mix_gets_the_engines() -> None:
    files = (replace(FILES[0], scale=0.5), FILES[1])
    harness = EngineHarness(TABLE, NoDrafter(), adapters=files)
    before = harness.run([ask("before", STEM, max_tokens=9)])["before"]
    harness.engine.set_adapters(((1, 2.0),))
    after = harness.run([ask("after", STEM, max_tokens=9)])["after"]
    off = harness.run([ask_with((), "off", STEM, max_tokens=9)])["off"]
    for mix, answer in ((((0, 0.5),), before), (((1, 2.0),), after), ((), off)):
        assert answer.tokens == plain_text(TABLE, ask_with(mix, "", STEM, max_tokens=9))


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        (((2, 1.0),), "no adapter with id 2: the ids are 0 to 1"),
        (((0, 1.0), (0, 0.5)), "comes twice"),
        (((0, float("nan")),), "scale"),
        (((0, float("inf")),), "scale"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(mix: AdapterMix, said: str) -> None:
    harness = harness_of(NoDrafter(), 1)
    failed = harness.run([ask_with(mix, "a", STEM)])["a"].failed
    assert failed is not None and isinstance(failed.error, RequestError)
    assert said in failed.error.message and failed.error.parameter == "lora"
    answer = harness.run([ask_with(MIXES[1], "b", STEM, max_tokens=4)])["b"]
    assert len(answer.tokens) == 4

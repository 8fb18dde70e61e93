"""What one owner sees of the caches does not depend on what another wrote; only on how much, and when.

Two worlds run the same requests. In one, bob writes in alice's alphabet and repeats her words; in the other he writes
in an alphabet that she never uses. Alice must get the same slots, reuse, copies and waits in both. Only a beginning
that the operator shares is found in either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import Request, common_prefix
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.scheduler.host_swap import MIN_STORED_ROWS, HostSwap, StoredText, StoredTexts, SwappedText
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import Scheduler
from eaglelocal.scheduler.slot import Checkpoints, SlotAssignment

FOREIGN = 1000  # first token of the alphabet that alice never uses
SHARED = [9, 8, 9, 8, 9, 8]
ALICE, BOB = "alice", "bob"


@dataclass(frozen=True)
class Call:
    owner: str
    beginning: int  # index of a text that several prompts begin with
    tail: tuple[int, ...]
    is_shared: bool  # it begins with what the operator shares
    num_answer: int
    num_steps: int  # before the next one comes


class Seen(NamedTuple):
    """What a request's sender can learn: figures, and by their time the copies and waits."""

    id: str
    slot: int
    num_reused: int
    num_unchanged: int
    copies: bool
    waits: bool
    swaps_out: bool
    swaps_in: bool


class World:
    """A scheduler, driven as an engine drives it. num_bytes of a text in RAM: one a token."""

    def __init__(self, num_slots: int, ram: int, *, can_cut: bool, has_windows: bool, is_foreign: bool) -> None:
        swap = HostSwap(ram, min_rows=4, has_windows=has_windows)
        checkpoints = None if can_cut else Checkpoints(4, min_gain_rows=3, before_end=2)
        self.cache = PrefixCache(
            num_slots, reuse_margin=1, can_cut=can_cut, checkpoints=checkpoints, min_fork=2, swap=swap
        )
        self.scheduler = Scheduler(n_ctx=64, n_batch=8, prefix_cache=self.cache)
        self.is_foreign, self.seen = is_foreign, list[Seen]()

    def write(self, call: Call) -> tuple[int, ...]:
        own = (*BEGINNINGS[call.beginning], *call.tail)
        is_foreign = call.owner == BOB and self.is_foreign
        return (*SHARED * call.is_shared, *(token + FOREIGN * is_foreign for token in own))

    def run(self, calls: Sequence[Call]) -> list[Seen]:
        for number, call in enumerate(calls):
            prompt = self.write(call)
            num_shared = len(SHARED) if common_prefix(SHARED, prompt) == len(SHARED) else 0
            params = SamplingParams(max_tokens=call.num_answer)
            self.scheduler.add(
                Request(id=f"{number}", prompt=prompt, params=params, owner=call.owner, num_shared=num_shared)
            )
            for _ in range(call.num_steps):
                self.step()
        while self.scheduler.has_work:
            self.step()
        return self.seen

    def step(self) -> None:
        slot = self.scheduler.slot_to_copy()
        if slot is not None:
            self.keep(self.scheduler.prefix_cache.put_copy(slot))
        for assignment in chain(self.scheduler.resume(), self.scheduler.admit()):  # each before the next is admitted
            self.start(assignment)
        plan = self.scheduler.schedule(0)
        for sequence in plan.decode:
            self.scheduler.commit(sequence, [sequence.tokens[-1]])
        for chunk in plan.prefill:
            self.scheduler.commit(chunk.sequence, chunk.tokens)
            if chunk.is_saved:
                self.scheduler.prefix_cache.checkpoints.use(chunk.slot, chunk.first + chunk.count)
        for sequence in [*plan.decode, *(chunk.sequence for chunk in plan.prefill if chunk.is_last)]:
            is_foreign = sequence.request.owner == BOB and self.is_foreign
            sequence.tokens.append(1 + FOREIGN * is_foreign)
            if sequence.num_left <= 0:
                self.scheduler.release(sequence)

    def start(self, assignment: SlotAssignment) -> None:
        sequence = assignment.sequence
        if sequence.request.owner == ALICE:
            given = (assignment.source is not None, assignment.is_waiting)
            swaps = (assignment.swapped_out is not None, assignment.swapped_in is not None)
            numbers = (sequence.slot, sequence.num_reused, assignment.num_unchanged)
            self.seen.append(Seen(sequence.request.id, *numbers, *given, *swaps))
        if assignment.swapped_out is not None:
            self.keep(assignment.swapped_out)

    def keep(self, key: int) -> None:
        self.cache.swap.make_room(key, len(self.cache.swap[key].tokens))


BEGINNINGS = ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], [1, 2, 3, 4, 2, 2, 2], [], [5])
TAILS = st.lists(st.integers(1, 3), min_size=1, max_size=9).map(tuple)
CALLS = st.lists(
    st.builds(
        Call,
        owner=st.sampled_from([ALICE, BOB]),
        beginning=st.integers(0, len(BEGINNINGS) - 1),
        tail=TAILS,
        is_shared=st.booleans(),
        num_answer=st.integers(1, 6),
        num_steps=st.integers(0, 12),
    ),
    min_size=2,
    max_size=14,
)
CACHES = [(True, False), (True, True), (False, False)]


@pytest.mark.parametrize(("can_cut", "has_windows"), CACHES, ids=["cells", "windows", "recurrent"])
@given(calls=CALLS, num_slots=st.sampled_from([1, 2, 8]), ram=st.sampled_from([0, 30, 500]))
def test_what_an_owner_sees_does_not_depend_on_anothers_words(
    calls: list[Call], num_slots: int, ram: int, can_cut: bool, has_windows: bool
) -> None:
    alike, foreign = (
        World(num_slots, ram, can_cut=can_cut, has_windows=has_windows, is_foreign=is_foreign).run(calls)
        for is_foreign in (False, True)
    )
    assert alike == foreign


def request(owner: str, prompt: Sequence[int], num_shared: int = 0) -> Request:
    return Request(id=owner, prompt=tuple(prompt), params=SamplingParams(), owner=owner, num_shared=num_shared)


WORDS = list(range(100))


@pytest.mark.parametrize(
    ("held", "owner", "num_shared", "expected"),
    [
        (WORDS, ALICE, 0, 100),
        (WORDS, BOB, 0, 0),
        (WORDS, BOB, 30, 30),  # no more, although all of it is equal
        (WORDS[:20], BOB, 30, 0),  # no part: that would tell where the text ends
        ([*WORDS[:29], 7], BOB, 30, 0),
        (WORDS[:30], BOB, 30, 30),
        ([*WORDS[:29], 7], ALICE, 30, 29),
    ],
)
def test_of_another_owners_text_only_the_shared_beginning_is_reused(
    held: list[int], owner: str, num_shared: int, expected: int
) -> None:
    assert request(ALICE, WORDS, num_shared).count_reusable(held, owner) == expected


def test_equal_prompts_of_two_owners_that_come_at_once_are_both_read() -> None:
    for num_shared, expected in ((0, 0), (30, 30)):
        cache = PrefixCache(2, min_fork=2)
        scheduler = Scheduler(n_ctx=200, n_batch=8, prefix_cache=cache)
        for owner in (ALICE, BOB):
            scheduler.add(request(owner, WORDS, num_shared))
        first, second = scheduler.admit()
        assert (first.is_waiting, second.is_waiting) == (False, bool(expected))
        for _ in range(expected):
            for chunk in scheduler.schedule(0).prefill:
                scheduler.commit(chunk.sequence, chunk.tokens)
        assert [each.sequence.num_reused for each in scheduler.resume()] == [expected] * bool(expected)


@pytest.mark.parametrize("num_slots", [1, 2])
def test_who_shares_a_beginning_takes_no_other_owners_conversation(num_slots: int) -> None:
    """Neither its slot, while another is free, nor its place in RAM, although all but a little of it is shared."""
    num_shared = len(WORDS) - 10
    cache = PrefixCache(num_slots, min_fork=2, swap=HostSwap(10_000, min_rows=5))
    scheduler = Scheduler(n_ctx=200, n_batch=200, prefix_cache=cache)

    def run(owner: str, prompt: list[int]) -> SlotAssignment:
        scheduler.add(request(owner, prompt, num_shared))
        (assignment,) = scheduler.admit()
        for chunk in scheduler.schedule(0).prefill:
            scheduler.commit(chunk.sequence, chunk.tokens)
        scheduler.release(assignment.sequence)
        if assignment.swapped_out is not None:
            cache.swap.make_room(assignment.swapped_out, 100)
        return assignment

    run(BOB, WORDS)
    alices, others = [*WORDS[:num_shared], *range(500, 520)], [*range(900, 990)]
    assert run(ALICE, alices).sequence.num_reused == num_shared
    assert run(ALICE, others).sequence.num_reused == 0
    again = run(ALICE, alices)
    assert again.sequence.num_reused == len(alices) - 1
    assert run(BOB, [*WORDS, 1]).sequence.num_reused == len(WORDS)


def test_texts_of_two_owners_do_not_replace_each_other_in_ram_or_on_disk() -> None:
    swap, index = HostSwap(10_000), StoredTexts()
    long = list(range(MIN_STORED_ROWS * 2))
    key = swap.put(SwappedText(long, is_seen=True, owner=BOB))
    swap.put(SwappedText([*long, 1], is_seen=True, owner=ALICE))
    assert key in swap
    bobs = StoredText("b", long, owner=BOB)
    index.add(bobs)
    assert index.wants(StoredText("", [*long, 1], owner=ALICE))
    assert index.add(StoredText("a", [*long, 1], owner=ALICE)) == []
    assert index.best(request(BOB, [*long, 1, 2]), 0, 1) == bobs
    assert index.best(request("carol", [*long, 1, 2]), 0, 1) is None
    shared = index.best(request("carol", [*long, 1, 2], MIN_STORED_ROWS), 0, 1)
    assert shared is not None
    assert shared.num_reused(request("carol", [*long, 1, 2], MIN_STORED_ROWS)) == MIN_STORED_ROWS


def test_what_a_prompt_would_gain_on_disk_counts_what_its_owner_has_in_memory() -> None:
    cache = PrefixCache(1, swap=HostSwap(10_000))
    cache.swap.put(SwappedText(WORDS, is_seen=True, owner=BOB))
    cache.slots[0].owner, cache.slots[0].tokens = BOB, WORDS
    asked = request(ALICE, [*WORDS, 1])
    assert (cache.num_held(asked), cache.num_held(replace(asked, owner=BOB))) == (0, 100)
    assert cache.num_held(replace(asked, num_shared=20)) == 20

"""The scheduler as bookkeeping: slots never leak, everyone is served in turn, rows fit, reuse is honest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import Request
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.sequence import Sequence
from eaglelocal.errors import ResourceError
from eaglelocal.scheduler.host_swap import HostSwap
from eaglelocal.scheduler.prefill import PrefillPace
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import TURN_S, Scheduler, StepPlan
from eaglelocal.scheduler.slot import BEFORE_END, Checkpoints, SlotAssignment

N_CTX = 64


def request(name: str, *prompt: int, max_tokens: int | None = 8, reuses_cache: bool = True) -> Request:
    return Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens), reuses_cache=reuses_cache)


@dataclass
class World:
    """Runs a scheduler as the engine does, with every draft rejected, and keeps its own idea of the caches."""

    num_slots: int
    n_batch: int
    reuse_margin: int = 0
    can_cut: bool = True
    most_saved: int = 0
    min_fork: int | None = None
    saved: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    caches: dict[int, list[int]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        prefix_cache = PrefixCache(
            self.num_slots,
            reuse_margin=self.reuse_margin,
            can_cut=self.can_cut,
            checkpoints=Checkpoints(self.most_saved, min_gain_rows=4, before_end=2),
            min_fork=self.min_fork,
        )
        self.scheduler = Scheduler(n_ctx=N_CTX, n_batch=self.n_batch, prefix_cache=prefix_cache)

    def step(self, max_draft: int) -> StepPlan:
        for admission in self.scheduler.resume():
            self.start(admission)
        for admission in self.scheduler.admit():
            self.order.append(admission.sequence.request.id)
            self.start(admission)
        plan = self.scheduler.schedule(max_draft)
        self.check_rows(plan, max_draft)
        for sequence in plan.decode:
            self.commit(sequence, [sequence.tokens[-1]])
        for chunk in plan.prefill:
            self.commit(chunk.sequence, chunk.tokens)
            if chunk.is_saved:
                self.save(chunk.slot)
        for sequence in [*plan.decode, *(c.sequence for c in plan.prefill if c.is_last)]:
            sequence.tokens.append(1)
            if sequence.num_left <= 0:
                self.finish(sequence)
        return plan

    def start(self, admission: SlotAssignment) -> None:
        sequence, source = admission.sequence, admission.source
        cache = self.caches.setdefault(sequence.slot, [])
        if source is None:
            self.check_reuse(sequence, cache, admission.is_cut, admission.num_unchanged)
            del cache[sequence.num_reused :]
        else:
            self.check_fork(admission, self.caches[source])
            cache[:] = self.caches[source][: sequence.num_reused]
        assert len(cache) == sequence.num_cached == self.scheduler.prefix_cache.num_cached(sequence.slot)

    def save(self, slot: int) -> None:
        place = (slot, len(self.caches[slot]))
        self.scheduler.prefix_cache.checkpoints.use(*place)
        self.saved[place] = list(self.caches[slot])
        assert place in self.scheduler.prefix_cache.checkpoints
        assert sum(each in self.scheduler.prefix_cache.checkpoints for each in self.saved) <= self.most_saved

    def check_fork(self, admission: SlotAssignment, held: list[int]) -> None:
        sequence, unchanged = admission.sequence, admission.num_unchanged
        assert sequence.request.reuses_cache
        assert self.can_cut and self.min_fork is not None
        assert admission.is_cut and not admission.is_waiting and admission.source != sequence.slot
        assert held[:unchanged] == list(sequence.request.prompt[:unchanged])
        assert self.min_fork <= sequence.num_reused == unchanged - self.reuse_margin
        assert unchanged < sequence.num_prompt

    def check_reuse(self, sequence: Sequence, cache: list[int], is_cut: bool, num_unchanged: int) -> None:
        prompt, reused = list(sequence.request.prompt), sequence.num_reused
        assert sequence.request.reuses_cache or not reused
        assert reused < len(prompt)
        assert cache[:reused] == prompt[:reused]
        assert cache[:num_unchanged] == prompt[:num_unchanged] or not is_cut
        assert is_cut or reused == len(cache)
        if is_cut and reused and not self.can_cut:
            assert self.saved[sequence.slot, reused] == cache[:reused]
            assert (sequence.slot, reused) in self.scheduler.prefix_cache.checkpoints
        assert self.can_cut or self.most_saved or reused in (0, len(cache))
        if is_cut:
            assert reused == max(num_unchanged - self.reuse_margin, 0)

    def check_rows(self, plan: StepPlan, max_draft: int) -> None:
        drafted = sum(1 + min(plan.max_draft, s.draft_room) for s in plan.decode)
        rows = drafted + sum(chunk.count for chunk in plan.prefill)
        assert rows <= self.n_batch
        assert 0 <= plan.max_draft <= max_draft
        waits = [s for s in self.scheduler.running if s.is_prefilling]
        assert bool(plan.prefill) == bool(waits), "prompts are never left without rows for a whole step"
        assert rows > 0 or not self.scheduler.running

    def commit(self, sequence: Sequence, tokens: list[int]) -> None:
        self.caches[sequence.slot].extend(tokens)
        self.scheduler.commit(sequence, tokens)

    def finish(self, sequence: Sequence) -> None:
        self.scheduler.release(sequence)
        self.finished.append(sequence.request.id)


TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=40)


@examples(80)
@given(data=st.data())
def test_everyone_is_served_in_turn_and_no_slot_leaks(data: st.DataObject) -> None:
    num_slots = data.draw(st.integers(1, 5))
    world = World(
        num_slots,
        n_batch=data.draw(st.integers(num_slots, 24)),
        reuse_margin=data.draw(st.integers(0, 2)),
        can_cut=data.draw(st.booleans()),
        most_saved=data.draw(st.integers(0, 4)),
        min_fork=data.draw(st.none() | st.integers(1, 6)),
    )
    asked = [
        request(
            str(i),
            *data.draw(TOKENS),
            max_tokens=data.draw(st.none() | st.integers(1, 12)),
            reuses_cache=data.draw(st.booleans()),
        )
        for i in range(data.draw(st.integers(0, 10)))
    ]
    withdrawn = set()
    max_draft, steps = data.draw(st.integers(0, 8)), 0
    for one in asked:
        world.scheduler.add(one)
    while world.scheduler.has_work:
        world.step(max_draft)
        assert len(world.scheduler.running) <= num_slots
        assert len({s.slot for s in world.scheduler.running}) == len(world.scheduler.running)
        if world.scheduler.running and data.draw(st.integers(0, 9)) == 0:
            world.finish(world.scheduler.running[0])  # cancelled
        if data.draw(st.integers(0, 9)) == 0 and world.scheduler.withdraw(asked[-1].id):
            withdrawn.add(asked[-1].id)
        steps += 1
        assert steps < 2000
    served = [one.id for one in asked if one.id not in withdrawn]
    assert world.order == served
    assert sorted(world.finished) == sorted(served)
    assert world.scheduler.num_waiting == 0


def test_a_queue_longer_than_the_slots_waits() -> None:
    world = World(2, n_batch=16)
    for i in range(5):
        world.scheduler.add(request(str(i), 1, 2, 3))
    world.step(0)
    assert world.scheduler.num_waiting == 3
    assert not world.scheduler.withdraw("0")
    assert world.scheduler.withdraw("3")
    assert world.scheduler.num_waiting == 2


def test_a_long_prompt_goes_in_chunks_next_to_running_answers() -> None:
    world = World(2, n_batch=10)
    world.scheduler.add(request("short", 1, max_tokens=40))
    world.step(4)
    world.scheduler.add(request("long", *range(2, 32)))
    counts = []
    while any(s.is_prefilling for s in world.scheduler.running) or world.scheduler.num_waiting:
        plan = world.step(4)
        counts.append([chunk.count for chunk in plan.prefill])
        assert [s.request.id for s in plan.decode] == ["short"]
    assert counts == [[5]] * 6


def test_prompts_get_half_of_a_small_batch_unless_drafts_are_likely_to_need_it() -> None:
    world = World(4, n_batch=16)
    for i in range(3):
        world.scheduler.add(request(str(i), 1, max_tokens=50))
    world.step(8)
    assert world.step(8).max_draft == 4  # 16 rows for 3 answers
    world.scheduler.add(request("late", *range(1, 30)))
    plan = world.step(8)
    assert (plan.max_draft, plan.prefill[0].count) == (1, 8)
    drafting = PrefillPace(lambda rows: 0.0, dict.fromkeys((s.slot for s in plan.decode), 4))
    plan = world.scheduler.schedule(8, drafting)
    assert (plan.max_draft, plan.prefill[0].count) == (3, 4)
    drafting = PrefillPace(lambda rows: 0.0, {plan.decode[0].slot: 4})
    plan = world.scheduler.schedule(8, drafting)
    assert (plan.max_draft, plan.prefill[0].count) == (3, 4), "one slot that drafts so far is not cut either"


def test_a_conversation_that_goes_on_is_reused_without_a_margin() -> None:
    world = World(1, n_batch=32, reuse_margin=1)
    world.scheduler.add(request("a", 1, 2, 3, max_tokens=3))
    while world.scheduler.has_work:
        world.step(0)
    cached = tuple(world.caches[0])
    world.scheduler.add(request("b", *cached, 9, 9))
    (admission,) = world.scheduler.admit()
    assert (admission.is_cut, admission.sequence.num_reused) == (False, len(cached))


def test_a_changed_conversation_is_cut_before_the_margin() -> None:
    world = World(1, n_batch=32, reuse_margin=1)
    world.scheduler.add(request("a", 1, 2, 3, 4, max_tokens=1))
    world.step(0)
    world.scheduler.add(request("b", 1, 2, 9))
    (admission,) = world.scheduler.admit()
    assert (admission.is_cut, admission.num_unchanged, admission.sequence.num_reused) == (True, 2, 1)


def test_a_cut_that_was_never_decoded_is_cut_again() -> None:
    world = World(1, n_batch=32, reuse_margin=1)
    world.scheduler.add(request("a", 1, 2, 3, 4, max_tokens=1))
    world.step(0)
    world.scheduler.add(request("b", 1, 2, 9))
    (admission,) = world.scheduler.admit()
    world.scheduler.release(admission.sequence)
    world.scheduler.add(request("c", 1, 7, 7))
    (admission,) = world.scheduler.admit()
    assert (admission.is_cut, admission.num_unchanged, admission.sequence.num_reused) == (True, 1, 0)


def test_a_prefix_that_was_taken_over_and_never_decoded_is_cut_again() -> None:
    """A drafter knows one token more of it than is cached, and the next prompt may have another there."""
    world = World(2, n_batch=32, reuse_margin=1, min_fork=2)
    world.scheduler.add(request("a", 1, 2, 3, 4, 5, 6, max_tokens=9))
    world.step(0)
    world.scheduler.add(request("b", 1, 2, 3, 4, 5, 9))
    (admission,) = world.scheduler.admit()
    assert (admission.source, admission.num_unchanged, admission.sequence.num_reused) == (0, 5, 4)
    world.scheduler.release(admission.sequence)
    world.scheduler.add(request("c", 1, 2, 3, 4, 7))
    (admission,) = world.scheduler.admit()
    assert (admission.source, admission.is_cut, admission.num_unchanged) == (None, True, 4)
    assert admission.sequence.num_reused == 3


def test_recurrent_state_is_continued_or_thrown_away() -> None:
    world = World(1, n_batch=32, can_cut=False)
    world.scheduler.add(request("a", 1, 2, 3, 4, max_tokens=1))
    world.step(0)
    world.scheduler.add(request("b", 1, 2, 3, 9, max_tokens=1))
    (admission,) = world.scheduler.admit()
    assert (admission.is_cut, admission.num_unchanged, admission.sequence.num_reused) == (True, 0, 0)


def test_recurrent_state_goes_back_to_where_it_was_saved() -> None:
    world = World(1, n_batch=8, can_cut=False, most_saved=2, reuse_margin=1)
    question = tuple(range(100, 120))
    world.scheduler.add(request("a", *question, max_tokens=1))
    chunks = [world.step(0).prefill[0] for _ in range(4)]
    assert [(chunk.count, chunk.is_saved) for chunk in chunks] == [(8, False), (8, False), (2, True), (2, False)]
    for name, prompt, reused in (
        ("another answer", question, 18),
        ("shorter", question[:18], 0),  # a drafter needs one token more than is used again
        ("longer again", question, 18),
        ("goes on", (*question, 5, 6, 7, 8, 9), 20),
        ("without its thoughts", (*question, 6, 7), 16),
    ):
        world.scheduler.add(request(name, *prompt, max_tokens=1))
        first = world.step(0).prefill[0]
        assert first.sequence.num_reused == reused, name
        while name not in world.finished:
            world.step(0)


def test_a_shared_system_prompt_does_not_evict_a_conversation() -> None:
    world = World(2, n_batch=64)
    system = (1, 2, 3, 4)
    first = request("a", *system, *range(10, 40), max_tokens=1)
    second = request("b", *system, *range(40, 60), max_tokens=1)
    for one in (first, second, first, second):
        world.scheduler.add(one)
        (admission,) = world.scheduler.admit()
        world.caches.setdefault(admission.sequence.slot, [])
        if one is first:
            assert admission.sequence.slot == 0
        else:
            assert admission.sequence.slot == 1
        world.scheduler.commit(admission.sequence, list(one.prompt[admission.sequence.num_reused :]))
        world.scheduler.release(admission.sequence)
    assert admission.sequence.num_reused == len(second.prompt) - 1


def test_the_slot_unused_for_longest_is_taken_by_a_stranger() -> None:
    world = World(3, n_batch=64)
    slots = []
    for i in range(4):
        world.scheduler.add(request(str(i), 10 * i + 1, 10 * i + 2, max_tokens=1))
        world.step(0)
        slots.append(next(s for s, c in world.caches.items() if c[:1] == [10 * i + 1]))
    assert slots == [0, 1, 2, 0]


def test_a_forgotten_cache_is_not_reused() -> None:
    world = World(1, n_batch=32)
    world.scheduler.add(request("a", 1, 2, 3, max_tokens=9))
    world.step(0)
    (sequence,) = world.scheduler.running
    world.scheduler.release(sequence)
    world.scheduler.prefix_cache.forget(0)
    world.scheduler.add(request("b", 1, 2, 3))
    (admission,) = world.scheduler.admit()
    assert admission.sequence.num_reused == 0


@pytest.mark.parametrize("can_cut", [True, False])
@pytest.mark.parametrize("reuses_cache", [True, False])
def test_a_prompt_may_be_read_anew_whatever_caches_hold_of_it(can_cut: bool, reuses_cache: bool) -> None:
    world = World(2, n_batch=64, can_cut=can_cut, min_fork=2)
    prompt = tuple(range(1, 20))
    world.scheduler.add(request("a", *prompt, max_tokens=1))
    world.step(0)
    for name in "bc":  # beside it, and where it was
        world.scheduler.add(request(name, *prompt, 30, reuses_cache=reuses_cache))
    reused = [admission.sequence.num_reused for admission in world.scheduler.admit()]
    assert reused == ([19, 19 if can_cut else 0] if reuses_cache else [0, 0])


def test_more_slots_than_rows_are_refused() -> None:
    with pytest.raises(ResourceError, match="16 slots need as many rows in a batch of 8"):
        Scheduler(n_ctx=64, n_batch=8, prefix_cache=PrefixCache(16))


def answering(world: World, count: int) -> None:
    """So many answers run."""
    for i in range(count):
        world.scheduler.add(request(f"answer {i}", 40 + i, max_tokens=60))
        world.step(0)


def rows_beside(num_answers: int, *prompts: int, pace: PrefillPace, n_batch: int = 512, max_draft: int = 0) -> StepPlan:
    world = World(num_answers + len(prompts), n_batch=n_batch)
    answering(world, num_answers)
    for i, length in enumerate(prompts):
        world.scheduler.add(request(f"prompt {i}", *[90 + i] * length, max_tokens=1))
    list(world.scheduler.admit())
    return world.scheduler.schedule(max_draft, pace)


def per_row(rows: Mapping[int, int]) -> float:
    """A decode of one row takes 1, and each further row a tenth."""
    return 0.9 + 0.1 * sum(rows.values())


def test_a_prompt_next_to_an_answer_gets_the_rows_that_its_pace_allows() -> None:
    (chunk,) = rows_beside(1, 60, pace=PrefillPace(per_row, {})).prefill
    assert chunk.count == 12  # 1.0 alone; 2.2 with twelve rows more
    (chunk,) = rows_beside(1, 60, pace=PrefillPace(per_row, {0: 10}), max_draft=10).prefill
    assert chunk.count == 24  # 2.0 alone, with its drafts; 4.4 with 24 rows more
    assert [c.count for c in rows_beside(1, 60, pace=PrefillPace(lambda rows: 0.0, {})).prefill] == [60]


def test_prompts_share_their_rows_and_get_more_where_they_outnumber_the_answers() -> None:
    counts = [chunk.count for chunk in rows_beside(1, 60, 60, 2, pace=PrefillPace(per_row, {})).prefill]
    assert counts == [17, 17, 2]  # 1 + 3 x 1.2 = 4.6
    counts = [chunk.count for chunk in rows_beside(2, 60, 60, pace=PrefillPace(per_row, {})).prefill]
    assert counts == [7, 6]  # 1.1 x 2.2 = 2.42


def test_a_shared_prompt_is_prefilled_once_and_no_request_waits_for_an_ended_one() -> None:
    world = World(3, n_batch=8, reuse_margin=1, min_fork=4)
    stem = list(range(100, 130))
    for i in range(3):
        world.scheduler.add(request(str(i), *stem, i, max_tokens=1))
    counts = []
    for number in range(3):
        counts.append([(c.sequence.request.id, c.count) for c in world.step(0).prefill])
        if number == 1:
            world.finish(world.scheduler.running[0])  # cancelled at 16 of 31
    assert counts == [[("0", 8)], [("0", 8)], [("1", 8)]]
    while world.scheduler.has_work:
        counts.append([(c.sequence.request.id, c.count) for c in world.step(0).prefill])
    assert counts[3:] == [[("1", 8)], [("2", 2)]]


def test_a_light_owner_waits_less_than_one_request_takes() -> None:
    """One owner asks ten times as much as another; the queue is never empty."""
    world = World(2, n_batch=16)
    asked_at: dict[str, int] = {}
    waited: list[int] = []
    for now in range(400):
        names = [f"heavy {now}"] if now % 2 == 0 else []
        names += [f"light {now}"] if now % 20 == 0 else []
        for name in names:
            asked_at[name] = now
            world.scheduler.add(owned(name, name.split()[0]))
        world.step(0)
        waited += [now - asked_at.pop(name) for name in world.order if name in asked_at and name.startswith("light")]
    assert world.scheduler.num_waiting > 20
    assert len(waited) == 20
    assert statistics.median(waited) < 8  # steps that a request takes
    assert max(waited) <= 8


def owned(name: str, owner: str) -> Request:
    return Request(id=name, prompt=(1, 2, 3), params=SamplingParams(max_tokens=8), owner=owner)


# ---- conversations in main memory
def swapping(num_slots: int = 1, *, n_ctx: int = N_CTX, has_windows: bool = False) -> Scheduler:
    swap = HostSwap(10**6, min_rows=5, has_windows=has_windows)
    return Scheduler(n_ctx=n_ctx, n_batch=n_ctx, prefix_cache=PrefixCache(num_slots, reuse_margin=1, swap=swap))


def admitted(scheduler: Scheduler, name: str, *prompt: int) -> SlotAssignment:
    scheduler.add(request(name, *prompt, max_tokens=1))
    (admission,) = scheduler.admit()
    return admission


def held(scheduler: Scheduler, name: str, *prompt: int) -> SlotAssignment:
    """Its prompt is read, and its slot is free again."""
    admission = admitted(scheduler, name, *prompt)
    scheduler.commit(admission.sequence, list(prompt[admission.sequence.num_reused :]))
    scheduler.release(admission.sequence)
    return admission


def test_what_a_drafter_has_not_seen_is_decoded_again_when_it_comes_back() -> None:
    """Its request was cancelled before a row of it was read: the drafter holds another token there."""
    scheduler = swapping()
    held(scheduler, "a", *range(1, 21))
    cancelled = admitted(scheduler, "edited", *range(1, 13), 30, 31)
    assert (cancelled.is_cut, cancelled.sequence.num_reused) == (True, 11)
    scheduler.release(cancelled.sequence)
    assert held(scheduler, "b", *range(40, 60)).swapped_out is not None
    back = admitted(scheduler, "a again", *range(1, 12), 33, 34)
    assert back.swapped_in is not None
    assert (back.is_cut, back.num_unchanged, back.sequence.num_reused) == (True, 11, 10)


def test_what_came_back_in_part_is_not_seen_until_a_row_of_it_is_read() -> None:
    scheduler = swapping()
    held(scheduler, "a", *range(1, 21))
    held(scheduler, "b", *range(40, 60))
    scheduler.prefix_cache.forget(0)
    part = admitted(scheduler, "edited", *range(1, 16), 30)
    assert (part.swapped_in is not None, part.is_cut, part.sequence.num_reused) == (True, True, 14)
    scheduler.release(part.sequence)
    again = admitted(scheduler, "again", *range(1, 15), 31)
    assert (again.is_cut, again.sequence.num_reused) == (True, 13)


def places_of(scheduler: Scheduler, admission: SlotAssignment) -> tuple[int, ...] | None:
    assert admission.swapped_out is not None
    return scheduler.prefix_cache.swap[admission.swapped_out].places


def held_with_answer(scheduler: Scheduler, name: str, prompt: list[int], answer: list[int]) -> SlotAssignment:
    admission = admitted(scheduler, name, *prompt)
    scheduler.commit(admission.sequence, [*prompt, *answer][admission.sequence.num_reused :])
    scheduler.release(admission.sequence)
    return admission


def test_sliding_windows_keep_a_checkpoint_after_the_last_question() -> None:
    scheduler = swapping(n_ctx=200, has_windows=True)
    question, answer = list(range(1, 31)), list(range(50, 60))
    held_with_answer(scheduler, "a", question, answer)
    assert places_of(scheduler, held(scheduler, "b", *range(60, 90))) == (30 - BEFORE_END,)
    again = held_with_answer(scheduler, "a again", [*question, 33, 34], answer)
    assert (again.is_cut, again.num_unchanged, again.sequence.num_reused) == (True, 23, 22)
    assert places_of(scheduler, held(scheduler, "c", *range(100, 130))) == (32 - BEFORE_END,)


def test_a_window_is_not_kept_where_the_next_text_needs_what_lies_after_it() -> None:
    scheduler = swapping(n_ctx=200, has_windows=True)
    held_with_answer(scheduler, "a", list(range(1, 12)), list(range(50, 90)))  # its question ended at 3
    other = admitted(scheduler, "b", *range(1, 12), *range(100, 110))
    assert other.sequence.num_reused == 10
    assert places_of(scheduler, other) == ()


def test_a_window_is_not_kept_where_nothing_is_after_it() -> None:
    """It came back behind a long answer, and the next question was begun anew before its end."""
    scheduler = swapping(n_ctx=200, has_windows=True)
    question, answer = list(range(1, 31)), list(range(50, 60))
    held_with_answer(scheduler, "a", question, answer)
    held(scheduler, "b", *range(60, 90))
    back = held(scheduler, "a goes on", *question, *answer, 3)
    assert (back.is_cut, back.sequence.num_reused) == (False, 40)
    assert places_of(scheduler, held(scheduler, "c", *range(100, 130))) == ()


@pytest.mark.parametrize(("common", "reused"), [(41, 40), (40, 0), (30, 0)])
def test_what_came_back_is_not_cut_before_its_window(common: int, reused: int) -> None:
    scheduler = swapping(n_ctx=200, has_windows=True)
    text = list(range(1, 41))
    held(scheduler, "a", *text)
    held(scheduler, "b", *range(60, 90))
    onward = [*text, 100, 101, 102, 103]
    assert held(scheduler, "a goes on", *onward).swapped_in is not None
    edited = admitted(scheduler, "edited", *onward[:common], 110, 111)
    assert (edited.is_cut, edited.sequence.num_reused) == (True, reused)


def test_a_slot_that_begins_anew_has_all_of_its_window() -> None:
    scheduler = swapping(n_ctx=200, has_windows=True)
    text, other = list(range(1, 41)), list(range(60, 110))
    held(scheduler, "a", *text)
    held(scheduler, "b", *range(120, 150))
    assert held(scheduler, "a goes on", *text, 100).swapped_in is not None
    held(scheduler, "new", *other)
    assert admitted(scheduler, "edited", *other[:30], 7).sequence.num_reused == 29


def test_a_slot_whose_window_did_not_come_back_has_all_of_the_next_one() -> None:
    scheduler = swapping(n_ctx=200, has_windows=True)
    text = list(range(1, 41))
    held(scheduler, "a", *text)
    held(scheduler, "b", *range(120, 150))
    failed = admitted(scheduler, "a goes on", *text, 100)
    assert failed.swapped_in is not None
    scheduler.restart(failed.sequence)
    assert failed.sequence.num_reused == 0
    scheduler.commit(failed.sequence, [*text, 100])
    scheduler.release(failed.sequence)
    assert admitted(scheduler, "edited", *text[:30], 7).sequence.num_reused == 29


def account(scheduler: Scheduler) -> int:
    """What was computed for the only owner."""
    (tokens,) = scheduler._queue._accounts.values()
    return tokens


def test_what_comes_back_is_charged_as_far_as_it_is_read() -> None:
    scheduler = swapping(n_ctx=200)
    text, other = list(range(1, 41)), list(range(60, 90))
    held(scheduler, "a", *text)
    held(scheduler, "b", *other)
    back = admitted(scheduler, "a goes on", *text, 100, 101)
    assert back.swapped_in is not None
    assert account(scheduler) == len(text) + len(other) + 2
    scheduler.restart(back.sequence)  # it is not there after all
    assert account(scheduler) == len(text) + len(other) + len(text) + 2


@pytest.mark.parametrize(("common", "place"), [(30, 10), (32, 10), (33, 32)])
def test_states_come_along_and_are_where_to_go_back_to(common: int, place: int) -> None:
    prefix_cache = PrefixCache(
        1,
        reuse_margin=1,
        can_cut=False,
        checkpoints=Checkpoints(9, min_gain_rows=4),
        swap=HostSwap(10**6, min_rows=5),
    )
    scheduler = Scheduler(n_ctx=200, n_batch=200, prefix_cache=prefix_cache)
    text = list(range(1, 41))
    for saved in (10, 32):
        scheduler.prefix_cache.checkpoints.use(0, saved)
    held(scheduler, "a", *text)
    other = held(scheduler, "b", *range(60, 90))
    assert places_of(scheduler, other) == (10, 32)
    scheduler.prefix_cache.checkpoints.use(0, 20)  # of this other text
    back = held(scheduler, "edited", *text[:common], 50, 51)
    assert (back.is_cut, back.sequence.num_reused, back.num_unchanged) == (True, place, place + 1)
    assert scheduler.prefix_cache.checkpoints.positions(0) == tuple(one for one in (10, 32) if one <= place)


@pytest.mark.parametrize(("step_s", "run"), [(0.0, 1), (1.0, 1), (TURN_S, 1), (TURN_S / 4, 4)])
def test_mixes_of_adapters_take_turns(step_s: float, run: int) -> None:
    """A turn lasts TURN_S, or one step; everyone has as many steps as the others."""
    world = World(num_slots=3, n_batch=64)
    mixes = [(), ((0, 1.0),), ((0, 0.5),)]
    for number, mix in enumerate(mixes):
        world.scheduler.add(replace(request(str(number), 1 + number, max_tokens=None), adapters=mix))
    world.step(0)
    pace = PrefillPace(lambda rows: step_s, {})
    seen = []
    for _ in range(6 * run):
        plan = world.scheduler.schedule(0, pace)
        assert {s.request.adapters for s in plan.sequences} == {plan.adapters}
        seen.append(plan.adapters)
    turns = [list(turn) for _, turn in groupby(seen)]
    assert [len(turn) for turn in turns[1:-1]] == [run] * (len(turns) - 2)
    assert set(seen) == set(mixes)

"""The targets and inputs of a head, against a reading of the same conversations token by token.

The slow reading unrolls one chain at a time over its conversation alone, in the order in which an engine would draft;
it knows no batches, no padding and no masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from doubles.eagle_files import WIDTH, head_source, write_small_target
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import Draft
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.verify import verify

torch = pytest.importorskip("torch")

from eaglelocal.training.batches import (  # noqa: E402
    ARGMAX_SHARE,
    OUTSIDE,
    Accepted,
    BatchBuilder,
    BatchSchedule,
    HeadBatch,
    Imitation,
    Unrolling,
    draw_chains,
)
from eaglelocal.training.conversations import TrainingConversation  # noqa: E402
from eaglelocal.training.draft_head import DraftHead, DraftVocabulary, choose_vocabulary, make_draft_head  # noqa: E402
from eaglelocal.training.target_capture import Captured, find_top  # noqa: E402

pytestmark = pytest.mark.full

WORDS = np.array([250, 7, 19, 4])  # that the head can say, in no order
SPOKEN = (250, 7, 19, 4, 5)  # one of these it cannot
NUM_TAPS = 3
PLAN = Unrolling(num_steps=3, chains=1000, kept_share=1.0)


def conversation(seed: int, num_prompt: int, num_answer_tokens: int) -> TrainingConversation:
    tokens = np.random.default_rng(seed).choice(SPOKEN, num_prompt + num_answer_tokens)
    return TrainingConversation(str(seed), tuple(tokens.tolist()), num_prompt)


CONVERSATIONS = [conversation(1, 5, 30), conversation(2, 9, 2), conversation(3, 1, 7), conversation(4, 30, 16)]


def read(one: TrainingConversation) -> Captured:
    """What a target would make of a text, made up of it; what it likes best is often a token that the head lacks."""
    tokens = one.tokens[:-1]
    rng = np.random.default_rng([len(tokens), *tokens])
    num = len(tokens) - one.num_prompt
    taps = rng.normal(size=(len(tokens), NUM_TAPS, WIDTH)).astype(np.float32)
    tops = [find_top(likely) for likely in rng.normal(size=(num, len(SPOKEN)), scale=3.0).astype(np.float32)]
    spoken = np.array(SPOKEN, np.int32)
    return Captured(taps, spoken[np.stack([top for top, _ in tops])], np.stack([logits for _, logits in tops]))


@dataclass(frozen=True)
class Room:
    """Head and words of a small target."""

    draft_head: DraftHead
    words: DraftVocabulary

    def batch_of(self, conversations: Sequence[TrainingConversation], seed: int = 1) -> HeadBatch:
        return BatchBuilder(read, self.words, device="cpu").build(conversations, seed)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    path = write_small_target(tmp_path_factory.mktemp("target") / "target.gguf", "llama", tied=False)
    source = head_source(path)
    words = choose_vocabulary(source, WORDS)
    torch.manual_seed(3)
    return Room(make_draft_head(source, words, max_context=128), words)


# ---- the slow reading


@dataclass(frozen=True)
class Step:
    """Of a chain: what the head said, the target's logits of the same words, what came, and whether the head can say
    the best.
    """

    draft: np.ndarray
    target_logits: np.ndarray
    came: int
    is_known: bool


@torch.no_grad()
def steps_of(room: Room, one: TrainingConversation, root: int) -> list[Step]:
    """Of the chain behind that token, as far as the answer goes: step j foresees the j-th token behind the root,
    from what the target makes of the root and the tokens between.
    """
    had = read(one)
    head, steps = room.draft_head.head, list[Step]()
    embedded = torch.from_numpy(room.words.read_embeddings(one.tokens)).unsqueeze(0)
    g = head.fuse([torch.from_numpy(had.taps[None, :, tap]) for tap in range(NUM_TAPS)])
    g = torch.cat((g, torch.zeros(1, 1, WIDTH)), 1)  # of the last token, which is never read
    states = head(embedded, g, torch.tensor([[root - 1]]), PLAN.num_steps)
    for foreseen, state in zip(range(root + 1, len(one.tokens)), states, strict=False):
        place = foreseen - 1 - one.num_prompt
        by_token = dict(
            zip(had.tokens[place].tolist()[::-1], had.logits[place].astype(np.float64).tolist()[::-1], strict=True)
        )  # the likelier of two, as the others stand for none
        wanted = np.array([by_token.get(word, -np.inf) for word in WORDS.tolist()])
        is_known = int(had.tokens[place][0]) in WORDS
        steps.append(
            Step((room.draft_head.output @ state[0, 0]).double().numpy(), wanted, one.tokens[foreseen], is_known)
        )
    return steps


Chains = dict[str, list[list[Step]]]


@pytest.fixture(scope="module")
def chains(room: Room) -> Chains:
    """By conversation, all that begin in its answer, whose first token is the first root."""
    return {
        one.key: [steps_of(room, one, root) for root in range(one.num_prompt, len(one.tokens) - 1)]
        for one in CONVERSATIONS
    }


def loss_of(step: Step, argmax_share: float) -> float:
    log_draft = step.draft - np.log(np.exp(step.draft).sum())
    wanted = np.exp(step.target_logits - step.target_logits.max())
    soft = -(wanted / wanted.sum() * log_draft).sum()
    return float((1 - argmax_share) * soft - argmax_share * log_draft[step.target_logits.argmax()])


def slow_loss(chains: Sequence[Sequence[Step]], plan: Unrolling) -> float:
    total = 0.0
    for depth in range(plan.num_steps):
        steps = [chain[depth] for chain in chains if len(chain) > depth]
        counted = [loss_of(step, ARGMAX_SHARE) for step in steps if step.is_known]
        total += plan.step_weight**depth * sum(counted) / max(len(counted), 1)
    return total


def slow_accepted(chains: Sequence[Sequence[Step]], plan: Unrolling) -> Accepted:
    whole = [chain for chain in chains if len(chain) == plan.num_steps]
    reached = [0] * plan.num_steps
    for chain in whole:
        for depth, step in enumerate(chain):
            if WORDS[step.draft.argmax()] != step.came:
                break
            reached[depth] += 1
    return Accepted(len(whole), tuple(reached))


BATCHES = [CONVERSATIONS, *([one] for one in CONVERSATIONS), CONVERSATIONS[::-1]]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: ",".join(one.key for one in batch))
def test_loss_and_acceptance_are_those_of_a_slow_reading(
    batch: list[TrainingConversation], room: Room, chains: Chains
) -> None:
    """Of a batch they are those of its conversations alone: padding, and answers of other lengths, change nothing."""
    imitation, batch_of = Imitation(room.draft_head, PLAN), room.batch_of(batch)
    expected = [chain for one in batch for chain in chains[one.key]]
    assert float(imitation.loss(batch_of).detach()) == pytest.approx(slow_loss(expected, PLAN), rel=1e-4)
    assert imitation.measure_acceptance(batch_of) == slow_accepted(expected, PLAN)


def test_the_comparison_sees_something(chains: Chains) -> None:
    every = [chain for part in chains.values() for chain in part]
    accepted = slow_accepted(every, PLAN)
    assert accepted.drafts == 27 + 0 + 4 + 13
    assert accepted.per_position[0] > accepted.per_position[1] > 0
    assert any(not step.is_known for chain in every for step in chain)
    assert any(step.came not in WORDS for chain in every for step in chain)


def test_acceptance_is_what_verifying_would_accept(room: Room) -> None:
    """Drafted on the head's own words, and judged by the text with the engine's own verification."""
    reached = [0] * PLAN.num_steps
    for one in CONVERSATIONS:
        for root in range(one.num_prompt, len(one.tokens) - PLAN.num_steps):
            for depth in range(num_accepted(room, one, root)):
                reached[depth] += 1
    assert Imitation(room.draft_head, PLAN).measure_acceptance(room.batch_of(CONVERSATIONS)).per_position == tuple(
        reached
    )


@torch.no_grad()
def num_accepted(room: Room, one: TrainingConversation, root: int) -> int:
    had, drafts = read(one), list[int]()
    taps = [torch.from_numpy(had.taps[None, :root, tap]) for tap in range(NUM_TAPS)]
    for j in range(PLAN.num_steps):
        tokens = [*one.tokens[: root + 1], *drafts]
        g = torch.cat((room.draft_head.head.fuse(taps), torch.zeros(1, 1 + j, WIDTH)), 1)
        embedded = torch.from_numpy(room.words.read_embeddings(tokens)).unsqueeze(0)
        state = room.draft_head.head(embedded, g, torch.tensor([[root - 1]]), j + 1)[-1][0, 0]
        drafts.append(int(WORDS[(room.draft_head.output @ state).argmax()]))
    draft = Draft(tuple(drafts), tuple(range(-1, PLAN.num_steps - 1)))
    rows = range(PLAN.num_steps + 1)
    verdict = verify(
        draft,
        rows,
        sample=lambda row: Sampled((*one.tokens, -5)[root + 1 + row]),  # behind an answer comes nothing
        is_end=lambda token: False,
        limit=PLAN.num_steps + 1,
    )
    return verdict.num_accepted


def test_what_a_batch_holds(room: Room) -> None:
    batch_of = room.batch_of(CONVERSATIONS)
    assert batch_of.lengths.tolist() == [29, 1, 6, 15]
    assert batch_of.starts.tolist() == [4, 8, 0, 29]
    for row, one in enumerate(CONVERSATIONS):
        behind = one.tokens[one.num_prompt + 1 :]  # the last token is foreseen, and nothing behind it
        said = batch_of.next_tokens[row, : len(behind)].tolist()
        assert [OUTSIDE if place == OUTSIDE else int(WORDS[place]) for place in said] == [
            token if token in WORDS else OUTSIDE for token in behind
        ]


def test_a_head_that_says_everything(room: Room) -> None:
    """Without words of its own, tokens are their own places."""
    every = DraftVocabulary(
        None, room.words.embeddings, room.words.output, owns_output=False, owns_embeddings=False, is_new=True
    )

    batch_of = BatchBuilder(read, every, device="cpu").build(CONVERSATIONS[:1], 1)
    had = read(CONVERSATIONS[0])
    assert batch_of.target_tokens[0].tolist() == had.tokens.tolist()
    assert batch_of.next_tokens[0].tolist() == list(CONVERSATIONS[0].tokens[6:])
    assert batch_of.is_draftable.all()


# ---- chains


def bare(lengths: list[int], starts: list[int], seed: int) -> HeadBatch:
    nothing = torch.zeros(0)
    return HeadBatch(nothing, [], nothing, nothing, nothing, nothing, np.array(starts), np.array(lengths), seed)


ROWS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=5)


@given(rows=ROWS, num_steps=st.integers(1, 6), most=st.integers(1, 20), seed=st.integers(0, 3))
def test_chains_begin_in_the_answer_once_each(
    rows: list[tuple[int, int]], num_steps: int, most: int, seed: int
) -> None:
    lengths, starts = [length for length, _ in rows], [start for _, start in rows]
    plan = Unrolling(num_steps=num_steps, chains=most)
    chains = draw_chains(bare(lengths, starts, seed), plan)
    for row, (length, start) in enumerate(rows):
        firsts, counts = chains.firsts[row].tolist(), chains.is_counted[row].tolist()
        real = [first for first, counted in zip(firsts, counts, strict=True) if counted[0]]
        assert len(real) == len(set(real)) == min(most, length)
        assert all(0 <= first < length for first in firsts)
        assert chains.anchors[row].tolist() == [first + start for first in firsts]
        for first, counted in zip(firsts, counts, strict=True):
            assert counted in ([first + step < length for step in range(num_steps)], [False] * num_steps)
    again = draw_chains(bare(lengths, starts, seed), plan)
    assert torch.equal(chains.firsts, again.firsts)


def test_other_steps_see_other_chains() -> None:
    drawn = {tuple(draw_chains(bare([40], [3], seed), Unrolling(chains=8)).firsts[0].tolist()) for seed in range(20)}
    assert len(drawn) == 20


# ---- courses


def schedule(num: int, rows: int, epochs: int, seed: int) -> BatchSchedule:
    lengths = np.random.default_rng(num).integers(3, 40, num)
    said = tuple(TrainingConversation(str(i), tuple(range(length)), 1) for i, length in enumerate(lengths.tolist()))
    return BatchSchedule(said, rows, epochs, seed, num_new=num)


@given(num=st.integers(1, 90), rows=st.integers(1, 9), epochs=st.integers(1, 3), seed=st.integers(0, 5))
def test_every_conversation_comes_once_an_epoch(num: int, rows: int, epochs: int, seed: int) -> None:
    made = schedule(num, rows, epochs, seed)
    steps = [made.conversations_of(step) for step in range(made.num_steps)]
    assert made.num_steps == epochs * made.steps_per_epoch
    for epoch in range(epochs):
        part = steps[epoch * made.steps_per_epoch :][: made.steps_per_epoch]
        assert all(1 <= len(step) <= rows for step in part)
        assert sorted(one.key for step in part for one in step) == sorted(one.key for one in made.conversations)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 5), st.lists(st.integers(0, 200), max_size=9))
def test_a_step_is_the_same_whatever_was_asked_before(num: int, rows: int, seed: int, order: list[int]) -> None:
    made = schedule(num, rows, 3, seed)
    expected = [made.conversations_of(step) for step in range(made.num_steps)]
    other = schedule(num, rows, 3, seed)
    for step in (step % made.num_steps for step in order):
        assert other.conversations_of(step) == expected[step] == schedule(num, rows, 3, seed).conversations_of(step)


@given(num=st.integers(2, 60), rows=st.integers(1, 9), seed=st.integers(0, 5), data=st.data())
def test_a_round_begins_with_what_is_new(num: int, rows: int, seed: int, data: st.DataObject) -> None:
    """And goes on with as many of all."""
    num_new = data.draw(st.integers(1, num))
    made = replace(schedule(num, rows, 2, seed), num_new=num_new)
    steps = [made.conversations_of(step) for step in range(made.num_steps)]
    half = made.steps_per_epoch
    first, again = ([one.key for step in part for one in step] for part in (steps[:half], steps[half:]))
    assert sorted(first) == sorted(one.key for one in made.conversations[num - num_new :])
    assert len(again) == len(set(again)) == num_new


def test_epochs_and_seeds_differ() -> None:
    made = schedule(40, 4, 2, 1)
    first, second = ([made.conversations_of(step) for step in range(at, at + 10)] for at in (0, 10))
    assert first != second
    assert first != [schedule(40, 4, 2, 2).conversations_of(step) for step in range(10)]


def test_a_sum_of_acceptances_is_that_of_all_chains() -> None:
    total = Accepted(4, (3, 1)) + Accepted(6, (2, 0))
    assert total == Accepted(10, (5, 1))
    assert total.length == pytest.approx(1.6)
    assert Accepted(0, (0, 0)).length == 1.0

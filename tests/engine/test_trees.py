"""Draft trees: with any siblings the text is that of plain decoding, and no cell is left behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from doubles.drafters import FlakyDrafter, NoDrafter
from doubles.drafts import chain
from doubles.engine_harness import EngineHarness, plain_text
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedContext, ScriptedHead, Table
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.batch import Floats
from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Spec, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.branch_sequences import BranchSequences
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.lookahead import Lookahead
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.engine.sequence_ids import SequenceIds, list_sequences

TABLE = Table(seed=1)
BRANCHES = 3


class SecondBest(Table):
    """Its first two choices change places in one state of three: a head with it is right at the first or second."""

    def logits(self, state: int) -> Floats:
        logits = super().logits(state).copy()
        if state % 3 == 0:
            first, second = (-logits).argsort(kind="stable")[:2]
            logits[[first, second]] = logits[[second, first]]
        return logits


HEADS = {
    "right": TABLE,
    "second": SecondBest(seed=1),
    "other": Table(seed=2),
    "worst": Table(seed=1, end_bias=3.0, sharpness=-2.0),
}


def drafter_of(kind: str, num_slots: int) -> Drafter | Sequence[Drafter]:
    if kind == "lookahead":
        return Lookahead(), head_drafter("second", num_slots)
    if kind == "flaky":
        return FlakyDrafter(TABLE.n_vocab, num_branches=BRANCHES)
    if kind == "model":
        sizes = {"n_ctx": 128 + 64, "num_slots": num_slots, "num_branches": num_slots * BRANCHES}  # room for a tree
        context = ScriptedContext(HEADS["second"], gives_features=False, **sizes)
        return DraftModel(context, num_choices=3, sequences=BranchSequences(context, num_slots, BRANCHES))
    return head_drafter(kind, num_slots)


def head_drafter(kind: str, num_slots: int) -> Eagle3:
    head = ScriptedHead(HEADS[kind])
    return Eagle3(head, (0,), num_choices=3, sequences=BranchSequences(head, num_slots, BRANCHES))


def harness_of(kind: str, *, num_slots: int = 1, **options: object) -> EngineHarness:
    drafter = drafter_of(kind, num_slots)
    return EngineHarness(TABLE, drafter, spec=AUTO_SPEC, num_slots=num_slots, branches=BRANCHES, **options)  # type: ignore[arg-type]


KINDS = [*HEADS, "model", "flaky", "lookahead"]


def request(name: str, prompt: tuple[int, ...], spec: Spec | None = None, **changes: object) -> ChatRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 40} | changes
    return ChatRequest(id=name, tokens=prompt, spec=spec, params=SamplingParams(**fields))  # type: ignore[arg-type]


def check_cells(harness: EngineHarness) -> None:
    """Slots hold just what the scheduler knows, and branches nothing else."""
    cells, num_slots = harness.context.cells, harness.engine.info.num_slots
    cached = [harness.scheduler.prefix_cache.num_cached(slot) for slot in range(num_slots)]
    assert [cells.last_position(slot) + 1 for slot in range(num_slots)] == cached
    assert cells.num_cells == len({cell for slot in range(num_slots) for cell in cells.cells.get(slot, [])})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_slots", [1, 2])
def test_greedy_text_is_the_plain_text(kind: str, num_slots: int) -> None:
    harness = harness_of(kind, num_slots=num_slots)
    asked = [request(str(i), (5, 6, 7 + i)) for i in range(5)]
    answers = harness.run(asked)
    assert harness.context.tree_rows > 0
    for one in asked:
        assert answers[one.id].tokens == plain_text(TABLE, one)
    check_cells(harness)


@examples(150)
@given(data=st.data())
def test_cancels_and_reuse_change_nothing(data: st.DataObject) -> None:
    """Conversations that share prefixes, with specs of their own, cancelled at random steps; contexts fill up."""
    num_slots = data.draw(st.integers(1, 2))
    harness = harness_of(
        data.draw(st.sampled_from(KINDS)), num_slots=num_slots, n_ctx=data.draw(st.sampled_from([64, 128]))
    )
    stem = data.draw(st.lists(st.integers(1, 23), min_size=1, max_size=40))
    asked = []
    for i in range(data.draw(st.integers(1, 7))):
        cut = data.draw(st.integers(0, len(stem)))
        tail = data.draw(st.lists(st.integers(1, 23), min_size=1, max_size=6))
        spec = data.draw(st.sampled_from([AUTO_SPEC, AUTO_SPEC, AUTO_SPEC, fixed_spec(3)]))
        prompt = (*stem[:cut], *tail)
        room = min(data.draw(st.sampled_from([1, 2, 5, 30, 128])), harness.context.n_ctx - len(prompt))
        asked.append(request(str(i), prompt, spec, max_tokens=room, ignore_eos=data.draw(st.booleans())))
    cancels = {str(i): data.draw(st.integers(0, 12)) for i in range(len(asked)) if data.draw(st.booleans())}
    answers = harness.run(asked, cancel_at=cancels)
    for one in asked:
        plain, got = plain_text(TABLE, one, harness.context.n_ctx), answers[one.id]
        assert got.tokens == (plain[: len(got.tokens)] if one.id in cancels else plain)
    check_cells(harness)


def test_a_decode_without_room_leaves_nothing_after() -> None:
    harness = harness_of("second", num_slots=2)
    harness.context.refused = {6}
    asked = [request(str(i), (5, 6, 7 + i), ignore_eos=True) for i in range(4)]
    answers = harness.run(asked)
    assert any(answer.failed for answer in answers.values())
    for one in asked:
        if not answers[one.id].failed:
            assert answers[one.id].tokens == plain_text(TABLE, one)
    check_cells(harness)


@pytest.mark.parametrize("kind", KINDS)
def test_seeded_text_is_the_plain_text(kind: str) -> None:
    asked = [request(str(i), (5, 6 + i), seed=i, temperature=0.9, repeat_penalty=1.2) for i in range(6)]
    plain = EngineHarness(TABLE, NoDrafter(), num_draft_tokens=0).run(asked)
    drafted = harness_of(kind, num_slots=2).run(asked)
    assert {name: a.tokens for name, a in drafted.items()} == {name: a.tokens for name, a in plain.items()}


def test_second_choices_are_accepted_and_counted() -> None:
    """Where the first choice is wrong the second is right: nearly all drafts get further than a chain's."""
    harness = harness_of("second")
    finished = harness.run([request("a", (5, 6, 7), max_tokens=100, ignore_eos=True)])["a"].finished
    assert finished is not None
    chains = EngineHarness(TABLE, Eagle3(ScriptedHead(HEADS["second"]), (0,)), spec=AUTO_SPEC)
    alone = chains.run([request("a", (5, 6, 7), max_tokens=100, ignore_eos=True)])["a"].finished
    assert alone is not None
    result = finished.speculation
    assert result.accepted_per_position[0] > 0.85 * result.drafts
    assert result.acceptance_length > alone.speculation.acceptance_length + 0.5
    assert result.draft_tokens <= 16 * result.drafts


def test_after_a_second_choice_drafts_go_on() -> None:
    """The text takes the second choice in one state of three: combs end there, branches do not."""
    asked = request("a", (5, 6, 7), max_tokens=100, ignore_eos=True)
    combs = EngineHarness(
        TABLE, Eagle3(ScriptedHead(HEADS["second"]), (0,), num_choices=3), spec=AUTO_SPEC, branches=BRANCHES
    )
    comb, tree = combs.run([asked])["a"].finished, harness_of("second").run([asked])["a"].finished
    assert comb is not None and tree is not None
    assert tree.speculation.acceptance_length > comb.speculation.acceptance_length + 0.3


def test_fixed_lengths_and_lookups_stay_chains() -> None:
    harness = harness_of("second")
    finished = harness.run([request("a", (5, 6, 7), fixed_spec(3), max_tokens=30, ignore_eos=True)])["a"].finished
    assert finished is not None and finished.speculation.draft_tokens > 0
    assert harness.context.tree_rows == 0
    lookup = EngineHarness(TABLE, Ngram(128), spec=AUTO_SPEC, branches=BRANCHES)
    lookup.run([request("a", (5, 6, 7, 5, 6, 7), max_tokens=60, ignore_eos=True)])
    assert lookup.context.tree_rows == 0


def test_a_target_without_branches_is_sent_chains() -> None:
    harness = EngineHarness(TABLE, drafter_of("second", 1), spec=AUTO_SPEC)
    asked = request("a", (5, 6, 7), max_tokens=30, ignore_eos=True)
    assert harness.run([asked])["a"].tokens == plain_text(TABLE, asked)
    assert harness.context.tree_rows == 0


def test_rows_list_all_leaves_below_them() -> None:
    #  root ── 0 ── 1 ── 2
    #   │      └── 4
    #   └── 3
    comb = Draft((7, 8, 9, 6, 5), (ROOT, 0, 1, ROOT, 0), (0.5,) * 5)
    assert comb.leaves == [2, 3, 4]
    assert list_sequences(comb, comb.leaves, (0, 10, 11)) == [(0, 10, 11), (0, 11), (0,), (0,), (10,), (11,)]
    bushy = Draft((1, 2, 3, 4, 5), (ROOT, ROOT, 1, 1, 0), (0.5,) * 5)
    assert bushy.leaves == [4, 2, 3]
    assert list_sequences(bushy, bushy.leaves, (0, 10, 11)) == [(0, 10, 11), (0,), (10, 11), (10,), (11,), (0,)]
    assert list_sequences(chain(1, 2), [1], (0,)) == [(0,), (0,), (0,)]


@examples(200)
@given(data=st.data())
def test_any_tree_and_any_path_keep_just_the_path(data: st.DataObject) -> None:
    """Trees of any shape, one after the other, over cells that check what every row sees."""
    harness = EngineHarness(TABLE, NoDrafter(), branches=4, num_slots=2)
    context = harness.context
    branches = SequenceIds(context, 2)
    texts: dict[int, list[int]] = {0: [], 1: []}
    for number in range(data.draw(st.integers(1, 8))):
        slot = data.draw(st.integers(0, 1))
        position = len(texts[slot])
        parents = [data.draw(st.integers(-1, node - 1)) for node in range(data.draw(st.integers(0, 5)))]
        while len(Draft((0,) * len(parents), tuple(parents)).leaves) > 5:
            parents.pop()
        draft = Draft(tuple(range(len(parents))), tuple(parents), (0.5,) * len(parents))
        if position + 8 > context.n_ctx:
            break
        rows = [(slot,)] * (1 + len(draft)) if draft.is_chain else branches.grow(slot, draft, position)
        values = [1000 * number + node for node in range(1 + len(draft))]
        for value, sequences, depth in zip(values, rows, (0, *draft.depths), strict=True):
            context.cells.value_before(sequences, position + depth)
            context.cells.append(sequences, value)
        last = data.draw(st.integers(-1, len(draft) - 1))
        path = draft.path_to(last)[: data.draw(st.integers(0, 5))]
        branches.keep(slot, draft, path, position)
        texts[slot] += [values[0], *(values[node + 1] for node in path)]
        if data.draw(st.booleans()):
            keep = data.draw(st.integers(0, len(texts[slot])))
            branches.cut(slot, keep)
            del texts[slot][keep:]
        for each, text in texts.items():
            assert [cell.value for cell in context.cells.cells.get(each, [])] == text
        assert context.cells.num_cells == sum(map(len, texts.values()))

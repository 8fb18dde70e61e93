"""A block head sees the text before its root, or the end of that text, without gaps when it drafts."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.batch import Bytes, FeatureRows, Proposals, Roots
from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.block_drafter import BlockDrafter
from eaglelocal.drafters.drafter import NOTHING, Committed, Node
from eaglelocal.drafters.row_buffer import MAX_BUFFERED
from eaglelocal.errors import EngineError

NUM_SLOTS = 3


class Cells:
    """Implements core.ports.BlockContext; a cell holds the feature that was shown for its position."""

    n_batch, native_s = 64, 0.0

    def __init__(self) -> None:
        self.cells: defaultdict[int, dict[int, float]] = defaultdict(dict)
        self.filled: list[tuple[int, int, dict[int, float]]] = []  # sequence, root, what lay before it

    def show(self, pieces: Sequence[FeatureRows]) -> None:
        for sequence, position, features in pieces:
            assert isinstance(features, np.ndarray)
            self.remove(sequence, position)
            self.cells[sequence] |= {position + i: float(row[0, 0]) for i, row in enumerate(features)}

    def fill(self, roots: Roots, depth: int, num_choices: int) -> Proposals:
        for _, position, sequence in zip(*roots, strict=True):
            self.remove(sequence, position)
            self.filled.append((sequence, position, dict(self.cells[sequence])))
            self.cells[sequence] |= {position + i: -1.0 for i in range(depth)}  # the next call writes over it
        n = depth * len(roots.tokens)
        return Proposals([[7] * num_choices] * n, [[0.5] * num_choices] * n)

    def remove(self, sequence: int, first_position: int) -> None:
        self.cells[sequence] = {at: f for at, f in self.cells[sequence].items() if at < first_position}

    def share(self, source: int, target: int, first: int, end: int) -> None:
        assert not self.cells[target]
        self.cells[target] = {at: f for at, f in self.cells[source].items() if first <= at < end}

    def swapped_bytes(self, sequence: int) -> int:
        return 16 * len(self.cells[sequence])

    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        return np.array([*self.cells[sequence].items()], np.float64).view(np.uint8).ravel()

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        assert not self.cells[sequence]
        self.cells[sequence] = {int(at): f for at, f in cells.view(np.float64).reshape(-1, 2).tolist()}

    def last_position(self, sequence: int) -> int:
        return max(self.cells[sequence], default=-1)

    def close(self) -> None: ...


class Texts:
    """Slots whose texts grow, are cut, copied and swapped at random, beside the drafter that is shown them."""

    def __init__(self, seed: int) -> None:
        self.random, self.head = random.Random(seed), Cells()
        self.drafter = BlockDrafter(self.head, (1, 2), block_size=7)
        self.texts: list[list[float]] = [[] for _ in range(NUM_SLOTS)]
        self.num_drafted = 0
        self.swapped = list[float](), self.drafter.swap_out(0)

    def act(self, action: str) -> None:
        slot = self.random.randrange(NUM_SLOTS)
        match action:
            case "commit":
                self.drafter.commit([self._more(s) for s in {slot, self.random.randrange(NUM_SLOTS)}])
            case "buffer":
                self.drafter.buffer([self._more(slot)])
            case "draft":
                self._draft(slot)
            case "cut":
                self._cut(slot, self.random.randint(0, len(self.texts[slot])))
            case "copy":
                self._copy(slot, (slot + 1) % NUM_SLOTS)
            case "out":
                self.swapped = list(self.texts[slot]), self.drafter.swap_out(slot)
            case "in":
                self._swap_in(slot)

    def _more(self, slot: int) -> Committed:
        text = self.texts[slot]
        again = self.random.choice([0, 0, 0, min(2, len(text))])  # rows of a reused prefix are decoded once more
        first, new = len(text) - again, [self.random.random() for _ in range(self.random.choice([1, 3, 9, 90]))]
        text += new
        rows = np.array(text[first:], np.float32)[:, None, None] * np.ones((1, 2, 4), np.float32)
        return Committed(slot, first, [1] * len(rows), rows)

    def _draft(self, slot: int) -> None:
        text, before = self.texts[slot], len(self.head.filled)
        (said,) = self.drafter.draft([Node(slot, ROOT, 5, len(text))], 4)
        if said is NOTHING:
            return
        self.num_drafted += 1
        assert len(said.tokens) == 4
        _, root, cells = self.head.filled[before]
        assert root == len(text)
        first = min(cells)
        assert sorted(cells) == list(range(first, root))  # without holes, up to the root
        assert first == 0 or root - first >= 1
        assert [cells[at] for at in range(first, root)] == pytest.approx(text[first:])

    def _cut(self, slot: int, position: int) -> None:
        del self.texts[slot][position:]
        self.drafter.rollback(slot, position)

    def _copy(self, source: int, target: int) -> None:
        position = self.random.randint(0, len(self.texts[source]))
        self.texts[target] = self.texts[source][:position]
        self.drafter.copy_slot(source, target, position)

    def _swap_in(self, slot: int) -> None:
        """It may come back more than once."""
        text, known = self.swapped
        self.texts[slot] = list(text)
        self.drafter.swap_in(slot, known, [])
        self._cut(slot, self.random.choice([len(text), self.random.randint(0, len(text))]))


@examples(300)
@given(
    st.integers(0, 10**6),
    st.lists(
        st.sampled_from(["commit", "commit", "buffer", "draft", "draft", "cut", "copy", "out", "in"]), max_size=60
    ),
)
def test_a_block_is_drafted_from_the_text_before_it(seed: int, actions: list[str]) -> None:
    texts = Texts(seed)
    for action in actions:
        texts.act(action)


@pytest.mark.parametrize("seed", range(20))
def test_long_texts_are_really_drafted_for(seed: int) -> None:
    texts = Texts(seed)
    for _ in range(600):
        texts.act(texts.random.choice(["commit", "buffer", "buffer", "draft", "cut", "copy", "out", "in", "in"]))
    assert texts.num_drafted > 20


def rows(slot: int, first: int, count: int) -> Committed:
    return Committed(slot, first, [1] * count, np.full((count, 2, 4), first, np.float32))


def test_all_slots_share_one_call_and_what_was_not_shown_gets_nothing() -> None:
    head = Cells()
    drafter = BlockDrafter(head, (1, 2), block_size=7)
    drafter.commit([rows(0, 0, 5), rows(2, 0, 3)])
    said = drafter.draft([Node(0, ROOT, 5, 5), Node(1, ROOT, 5, 9), Node(2, ROOT, 5, 3)], 20)
    assert [len(each.tokens) for each in said] == [7, 0, 7]  # a block has no more
    assert [(sequence, root) for sequence, root, _ in head.filled] == [(0, 5), (2, 3)]
    assert drafter.draft([Node(0, 6, 7, 12)], 3) == [NOTHING]  # nothing follows it


def test_it_wakes_from_the_newest_rows_alone() -> None:
    head = Cells()
    drafter = BlockDrafter(head, (1, 2), block_size=7)
    drafter.commit([rows(0, 0, 5)])
    for first in range(5, 205, 10):
        drafter.buffer([rows(0, first, 10)])
    drafter.draft([Node(0, ROOT, 5, 205)], 4)
    _, root, cells = head.filled[-1]
    assert sorted(cells) == list(range(root - MAX_BUFFERED, root))


def test_a_hole_is_an_error_of_ours() -> None:
    drafter = BlockDrafter(Cells(), (1, 2), block_size=7)
    drafter.commit([rows(0, 0, 5)])
    with pytest.raises(EngineError, match="hole in the draft cache of slot 0 at position 5"):
        drafter.commit([rows(0, 6, 2)])


def test_what_is_remembered_asleep_takes_main_memory_too() -> None:
    head = Cells()
    drafter = BlockDrafter(head, (1, 2), block_size=7)
    drafter.commit([rows(0, 0, 5)])
    assert drafter.swapped_bytes(0) == 5 * 16
    drafter.buffer([rows(0, 5, 10), rows(0, 15, 3)])
    assert drafter.swapped_bytes(0) == 5 * 16 + 13 * 2 * 4 * 4

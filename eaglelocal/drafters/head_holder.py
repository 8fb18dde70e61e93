"""A drafter whose head can be exchanged between two steps, while answers run.

Everything that uses the drafter has the holder, so that a new head is in use everywhere at once. The new head knows
nothing of the running texts. So it first buffers the rows of some more steps, as a sleeping head does, while the old
one drafts on; then it wakes from them. Does not know how heads are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.core.records import dataclass
from eaglelocal.drafters.drafter import Committed, Continuation, Drafter, DraftTraits, Exchangeable, Node
from eaglelocal.errors import IncompatibleError


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHead:
    """A head that is loaded.

    close    frees its memory; safe in any thread once the head is not used any more
    path     its file
    version  its number among the versions that were learned; 0: the base head
    """

    drafter: Exchangeable
    close: Callable[[], None]
    path: Path
    version: int = 0


OpenHeadFile = Callable[[Path, int], OpenHead]
CloseHead = Callable[[], None]
Exchange = Callable[[], CloseHead | None]  # None: call it again after the next step


class HeadHolder(Drafter):
    """The drafter over the head in use.

    open_head  opens the head in a file, with its version, in any thread; raises EagleLocalError
    """

    def __init__(self, head: OpenHead, open_head: OpenHeadFile) -> None:
        self._open_head = open_head
        self._earlier_s, self._generation = 0.0, 0  # native seconds of heads that were replaced, and their number
        self._rows: dict[int, int] = {}  # that the next head has got, by running slot
        self._num_commits = 0  # since there is a next head
        self._use(head)

    def _use(self, head: OpenHead) -> None:
        self._head = head
        self._drafters: tuple[Exchangeable, ...] = (head.drafter,)  # in use, and the next one
        self.next: OpenHead | None = None
        self.traits = head.drafter.traits

    @property
    def native_s(self) -> float:
        return self._earlier_s + self._head.drafter.native_s

    @property
    def version(self) -> int:
        """The number of the version that drafts; 0: the base head."""
        return self._head.version

    @property
    def path(self) -> Path:
        """The file of the head that drafts."""
        return self._head.path

    def prepare(self, path: Path, version: int) -> Exchange:
        """Open a head, in any thread. Return a function that exchanges it for the current one.

        The engine calls that function between two steps, again and again while it returns None. When the exchange is
        done, it returns a function that closes the old head.

        Raises IncompatibleError for a head that drafts differently, and the errors of opening it.
        """
        head = self._open_head(path, version)
        try:
            self._check(head)
        except IncompatibleError:
            head.close()
            raise
        return lambda: self._exchange(head)

    def _check(self, head: OpenHead) -> None:
        if type(head.drafter) is not type(self._head.drafter) or head.drafter.traits != self.traits:
            raise IncompatibleError(
                f"the new head drafts differently ({describe(head.drafter.traits)}) from the one in use "
                f"({describe(self.traits)})",
                hint="--draft HEAD.gguf",
            )

    def _exchange(self, head: OpenHead) -> CloseHead | None:
        """Exchange the head if it has enough rows. Return a function that closes the old one; None: call again."""
        if self.next is None:  # let the head follow all texts from now on
            head.drafter.inherit(self._head.drafter)
            self.next, self._drafters = head, (self._head.drafter, head.drafter)
            self._rows, self._num_commits = dict.fromkeys(self._rows, 0), 0
        if self.next is not head or not self._is_ready:
            return None
        old = self._head
        head.drafter.attach()
        self._earlier_s = self.native_s - head.drafter.native_s  # opening it is no time of a step
        self._generation += 1
        self._use(head)
        return old.close

    @property
    def _is_ready(self) -> bool:
        """Return whether the next head has rows of all running texts; a text that does not advance does
        not hold it up.
        """
        needed = self._drafters[-1].traits.max_unread
        return self._num_commits >= needed or all(count >= needed for count in self._rows.values())

    def catch_up(self, slots: Sequence[int]) -> int:
        return self._head.drafter.catch_up(slots)

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return self._head.drafter.draft(nodes, depth, extra_levels)

    # ---- what the next head follows too
    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        self._rows[slot] = 0
        for drafter in self._drafters:
            drafter.begin(slot, owner, num_prompt)

    def end(self, slot: int) -> None:
        self._rows.pop(slot, None)
        for drafter in self._drafters:
            drafter.end(slot)

    def commit(self, committed: Sequence[Committed]) -> None:
        self._head.drafter.commit(committed)
        self._keep_for_next(committed)

    def buffer(self, committed: Sequence[Committed]) -> None:
        self._head.drafter.buffer(committed)
        self._keep_for_next(committed)

    def _keep_for_next(self, committed: Sequence[Committed]) -> None:
        if self.next is None:
            return
        self.next.drafter.buffer(committed)
        self._num_commits += 1
        for rows in committed:
            if rows.slot in self._rows:  # otherwise its answer has just ended
                self._rows[rows.slot] += len(rows.tokens)

    def skip(self, image: Committed) -> None:
        for drafter in self._drafters:
            drafter.skip(image)

    def rollback(self, slot: int, position: int) -> None:
        for drafter in self._drafters:
            drafter.rollback(slot, position)

    def copy_slot(self, source: int, target: int, position: int) -> None:
        for drafter in self._drafters:
            drafter.copy_slot(source, target, position)

    def swapped_bytes(self, slot: int) -> int:
        return self._head.drafter.swapped_bytes(slot)

    def swap_out(self, slot: int) -> tuple[int, object]:
        """Return the slot's state, with the number of heads replaced by now: a later head cannot use its cells."""
        return self._generation, self._head.drafter.swap_out(slot)

    def swap_in(self, slot: int, swapped: tuple[int, object] | None, tokens: Sequence[int]) -> None:
        """Restore the slot if this head wrote it; otherwise the slot stays empty, as after a copy without state."""
        self.rollback(slot, 0)
        if swapped is not None and swapped[0] == self._generation:
            self._head.drafter.swap_in(slot, swapped[1], tokens)

    def close(self) -> None:
        if self.next is not None:
            self.next.close()
        self._head.close()


def describe(traits: DraftTraits) -> str:
    """Return the traits of a head that drafting depends on, such as `eagle3 of layers 2, 18, 33`."""
    block = f", {traits.block_size} tokens a pass" if traits.block_size > 1 else ""
    return f"{traits.name} of layers {', '.join(map(str, traits.taps))}{block}"

"""Track the places to which a cache that cannot be cut can go back: positions in prompts whose state was saved.

A conversation rarely goes on exactly after its last answer: thoughts are left out when history is rendered, the last
question is edited, an answer is regenerated. KV cells are cut wherever that begins; of recurrent state there is only
the newest, so without a saved one the whole conversation would be read again each time.

    prompt 1   [system, question]          saved shortly before its end, ahead of what a template puts there
    prompt 2   [system, question, answer without its thoughts, question]     goes on from there, not from nothing

Pure bookkeeping: positions, no states. The least recently used is dropped when there is no more room.
"""

from __future__ import annotations

from collections.abc import Iterable

from eaglelocal.core.sequence import Sequence

BEFORE_END = 8  # last tokens of a prompt that may differ next time, such as those that open an answer
MIN_GAIN_ROWS = 128  # rows; fewer are read again rather than saved


class Checkpoints:
    """The positions of saved states; `most`: states that there is room for, in all slots together."""

    def __init__(self, most: int, *, apart: int = MIN_GAIN_ROWS, before_end: int = BEFORE_END) -> None:
        self._most, self._apart, self._before_end = most, apart, before_end
        self._places: list[tuple[int, int]] = []  # (slot, position), the most recently used last

    def __contains__(self, place: tuple[int, int]) -> bool:
        return place in self._places

    def wanted(self, sequence: Sequence) -> int | None:
        """Return the position in a prompt after which to save the state, when it has been read so far; or None."""
        position = sequence.behind_images(sequence.num_prompt - self._before_end)
        if not self._most:
            return None
        gain = sequence.rows_before(position) - sequence.rows_before(self.best(sequence.slot, position))
        return position if gain >= self._apart else None

    def best(self, slot: int, most: int) -> int:
        """Return the last place in the slot that is not beyond `most`; 0 if there is none."""
        return max((position for of, position in self._places if of == slot and position <= most), default=0)

    def places(self, slot: int) -> tuple[int, ...]:
        return tuple(position for of, position in self._places if of == slot)

    def move_in(self, slot: int, positions: Iterable[int]) -> None:
        """Replace the slot's places by those of a text that was swapped in."""
        self.cut(slot, 0)
        for position in sorted(positions):
            self.use(slot, position)

    def use(self, slot: int, position: int) -> None:
        """Note that the place was saved, or gone back to."""
        place = (slot, position)
        if place in self._places:
            self._places.remove(place)
        self._places.append(place)
        del self._places[: -self._most]

    def cut(self, slot: int, position: int) -> None:
        """Forget the slot's places after `position`: the text there is another from now on."""
        self._places = [place for place in self._places if place[0] != slot or place[1] <= position]

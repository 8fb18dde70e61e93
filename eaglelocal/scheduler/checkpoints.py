"""Track checkpoints: positions in prompts whose recurrent state was saved, so that a later prompt can resume there.

A conversation rarely goes on exactly after its last answer: reasoning is left out when history is rendered, the last
question is edited, an answer is regenerated. KV cells can be cut wherever that begins. Of recurrent state there is only
the newest, so without a saved one the whole conversation would be prefilled again each time.

    prompt 1   [system, question]          saved shortly before its end, ahead of what a template puts there
    prompt 2   [system, question, answer without its reasoning, question]    resumes there

Pure bookkeeping: positions, no states. The least recently used is dropped when `max_states` are saved.
"""

from __future__ import annotations

from collections.abc import Iterable

from eaglelocal.core.sequence import Sequence

BEFORE_END = 8  # last tokens of a prompt that may differ next time, such as those that open an answer
MIN_GAIN_ROWS = 128  # fewer rows are prefilled again rather than saved


class Checkpoints:
    """The positions of saved states; `max_states` in all slots together."""

    def __init__(self, max_states: int, *, min_gain_rows: int = MIN_GAIN_ROWS, before_end: int = BEFORE_END) -> None:
        self._max_states, self._min_gain_rows, self._before_end = max_states, min_gain_rows, before_end
        self._places: list[tuple[int, int]] = []  # (slot, position), the most recently used last

    def __contains__(self, place: tuple[int, int]) -> bool:
        return place in self._places

    def position_to_save(self, sequence: Sequence) -> int | None:
        """Return the position of the prompt at which to save the state; None if that gains too little."""
        position = sequence.align_after_image(sequence.num_prompt - self._before_end)
        if not self._max_states:
            return None
        gain = sequence.rows_before(position) - sequence.rows_before(self.best(sequence.slot, position))
        return position if gain >= self._min_gain_rows else None

    def best(self, slot: int, limit: int) -> int:
        """Return the slot's last checkpoint that is not beyond `limit`; 0 if there is none."""
        return max((position for position in self.positions(slot) if position <= limit), default=0)

    def positions(self, slot: int) -> tuple[int, ...]:
        """Return the slot's checkpoints."""
        return tuple(position for owner, position in self._places if owner == slot)

    def move_in(self, slot: int, positions: Iterable[int]) -> None:
        """Replace the slot's checkpoints by those of a text that was swapped in."""
        self.cut(slot, 0)
        for position in sorted(positions):
            self.use(slot, position)

    def use(self, slot: int, position: int) -> None:
        """Record that the state at this position was saved or restored."""
        place = (slot, position)
        if place in self._places:
            self._places.remove(place)
        self._places.append(place)
        del self._places[: -self._max_states]

    def cut(self, slot: int, position: int) -> None:
        """Forget the slot's checkpoints after `position`, where the text changes."""
        self._places = [place for place in self._places if place[0] != slot or place[1] <= position]

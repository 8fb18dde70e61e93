"""What the slots hold: the target's cells, the scheduler's books of them, and what drafters know of both.

All three change together or not at all: this is the only place that cuts, forks, keeps and forgets. Knows nothing of
requests, texts or times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several

from eaglelocal.core.draft import Draft, Verdict
from eaglelocal.core.image import PlacedImage
from eaglelocal.core.ports import Context
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.base import Committed, Drafter
from eaglelocal.engine.branches import Branches
from eaglelocal.engine.runner import Decoded
from eaglelocal.scheduler.scheduler import Admission, Chunk, Scheduler, StepPlan


class Caches:
    """Of all slots."""

    def __init__(
        self, context: Context, branches: Branches, drafters: Several[Drafter], scheduler: Scheduler, num_slots: int
    ) -> None:
        self._context, self._branches = context, branches
        self._drafters, self._scheduler, self._num_slots = drafters, scheduler, num_slots
        self._saved: dict[tuple[int, int], bytearray] = {}  # states, by the scheduler's checkpoints

    def begin(self, admission: Admission) -> None:
        """Let the slot, and what drafters know of it, hold just what the sequence starts from."""
        slot, source = admission.sequence.slot, admission.source
        if source is not None:
            self._branches.fork(source, slot, admission.sequence.num_reused)
            for drafter in self._drafters:
                drafter.fork(source, slot, admission.num_unchanged)
        elif admission.is_cut:
            self._go_back(slot, admission.sequence.num_reused)
            self._branches.cut(slot, admission.sequence.num_reused)
            for drafter in self._drafters:
                drafter.drop(slot, admission.num_unchanged)

    def _go_back(self, slot: int, position: int) -> None:
        """Where the slot's state cannot be cut, and was saved there."""
        state = self._saved.get((slot, position))
        if state is not None:
            self._context.restore(slot, state)
        self._drop_states()

    def _drop_states(self) -> None:
        kept = self._scheduler.checkpoints
        self._saved = {place: state for place, state in self._saved.items() if place in kept}

    def _save(self, slot: int, position: int) -> None:
        """The state behind a part of a prompt that was just read."""
        self._scheduler.checkpoints.use(slot, position)
        self._drop_states()  # before another takes their room
        self._saved[slot, position] = self._context.save(slot)

    def keep(
        self,
        plan: StepPlan,
        drafts: Mapping[int, Draft],
        decoded: Decoded,
        verdicts: Mapping[int, Verdict],
        is_awake: Callable[[int], bool],
    ) -> None:
        """Drop rejected cells, and show the drafters what stays; they do no work for slots that sleep."""
        kept = [self._keep_prompt(chunk, decoded) for chunk in plan.prefill]
        for sequence in plan.decode:
            kept.append(self._keep_draft(sequence, drafts[sequence.slot], decoded, verdicts[sequence.slot]))
        awake: list[Committed] = []
        asleep: list[Committed] = []
        for rows in kept:
            (awake if is_awake(rows.slot) else asleep).append(rows)
        for drafter in self._drafters:
            if awake:
                drafter.observe(awake)
            if asleep:
                drafter.doze(asleep)

    def look(self, sequence: Sequence, image: PlacedImage) -> None:
        """Put an image of the prompt into the slot. Raises ResourceError."""
        self._context.look(sequence.slot, image.first, image.rows)
        if self._scheduler.checkpoints.wanted(sequence) == image.end:
            self._save(sequence.slot, image.end)
        tokens = sequence.tokens[image.first : image.end]
        self._scheduler.cached(sequence, tokens)
        for drafter in self._drafters:
            drafter.skip(Committed(sequence.slot, image.first, tokens, None))

    def _keep_prompt(self, chunk: Chunk, decoded: Decoded) -> Committed:
        slot, tokens = chunk.sequence.slot, chunk.tokens
        if chunk.is_saved:
            self._save(slot, chunk.first + chunk.count)
        self._scheduler.cached(chunk.sequence, tokens)
        return Committed(slot, chunk.first, tokens, decoded.features(decoded.rows[slot]))

    def _keep_draft(self, sequence: Sequence, draft: Draft, decoded: Decoded, verdict: Verdict) -> Committed:
        slot, first = sequence.slot, len(sequence.tokens) - 1
        tokens = [sequence.tokens[-1], *(draft.tokens[node] for node in verdict.path)]
        rows = [decoded.rows[slot][node + 1] for node in (-1, *verdict.path)]
        self._branches.keep(slot, draft, verdict.path, first)
        self._scheduler.cached(sequence, tokens)
        return Committed(slot, first, tokens, decoded.features(rows))

    def forget(self, slot: int) -> None:
        """A decode failed: nobody knows what the slot holds now."""
        self._branches.cut(slot, 0)
        for drafter in self._drafters:
            drafter.drop(slot, 0)
        self._scheduler.forget(slot)
        self._drop_states()

    def miscounted(self) -> list[int]:
        """Slots whose cells, or a branch of them, hold other positions than the books say; asked between steps."""
        return [slot for slot in range(self._num_slots) if self._is_miscounted(slot)]

    def _is_miscounted(self, slot: int) -> bool:
        num_cached = self._scheduler.num_cached(slot)
        if self._scheduler.ends_with_image(slot):  # its cells may all stand at its first position
            return False
        return self._context.last_position(slot) + 1 != num_cached or bool(self._branches.overhang(slot, num_cached))

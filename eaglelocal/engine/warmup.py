"""Steps before the first request: they measure what decodes cost, and run every kernel once.

On a GPU llama.cpp compiles or loads kernels when a number of rows first runs, in the target and in the head. During an
answer that would be a stall, and would make this number of rows look so expensive that it is not tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from eaglelocal.core.batch import Batch, Outputs
from eaglelocal.core.draft import ROOT
from eaglelocal.core.ports import Context
from eaglelocal.drafters.drafter import Committed, Drafter, Node
from eaglelocal.engine.step_times import FIRST_SIZES, Calibration, list_useful_sizes
from eaglelocal.speculation.costs.step_costs import StepCosts

SLOT, TOKEN = 0, 0
DRAFT_LEVELS = 2  # the first takes all rows, the second one
MAX_FIRST_S = 0.7  # most seconds of measuring while a user waits for the start
MAX_IDLE_S = 6.0  # the same, when no user waits
MAX_IDLE_DECODE_S, MAX_IDLE_ROWS = 0.25, 3  # longest wait of a first request for one decode; or for this many rows
MAX_IDLE_WAIT_S = 0.01  # the same, for a wait
MAX_PROMPT_S = 2.0  # most seconds that a full batch may take, extrapolated from fewer rows

WaitUntilQuiet = Callable[[float | None], bool]


class Warmup:
    """Runs warm-up steps in the first slot, and leaves it empty.

    max_outputs       rows of a decode whose logits can be read
    wait_until_quiet  waits so many seconds (None: as long as it takes) until nothing else computes in this process,
                      and returns whether that is so
    """

    def __init__(
        self,
        context: Context,
        drafters: Sequence[Drafter],
        *,
        max_outputs: int,
        wait_until_quiet: WaitUntilQuiet = lambda timeout_s: True,
    ) -> None:
        self._context, self._drafters, self._max_outputs = context, drafters, max_outputs
        self._wait_until_quiet = wait_until_quiet

    def measure(
        self, costs: StepCosts, *, num_slots: int, stored: object | None = None, makes_kernels: bool = False
    ) -> Iterator[None]:
        """Measure what decodes cost, and enter it into `costs`.

        Returns the remaining work, which is optional and must end before the first request: each item is one short
        decode.

        stored         costs that an earlier engine measured on this machine with this model; without a GPU they are
                       used at once, and confirmed by the work that is left
        makes_kernels  a GPU may compute, which compiles or loads kernels when a number of rows first runs; then
                       everything is measured at once, because the first answer would be stalled by them
        """
        is_known = stored is not None and costs.restore(stored)
        max_rows = min(self._context.n_batch, self._context.n_ctx)
        sizes = list_useful_sizes(min(max_rows, self._max_outputs), num_slots=num_slots, max_prompt_rows=max_rows)
        is_known &= all(costs.num_samples(size) for size in sizes if size in FIRST_SIZES)
        if makes_kernels:
            self._wait_until_quiet(None)
            calibration = Calibration(self.time_rows, time.perf_counter, sizes=sizes, prepare=self.prepare)
            costs.calibrate(calibration.run(costs.ratio if is_known else None))
            if costs.seconds(max(sizes)) * max_rows / max(sizes) < MAX_PROMPT_S:
                self.prepare(max_rows)  # prompts have kernels and workspaces of their own: if they do not fit, fail now
            return iter(())
        if not is_known:
            first = [size for size in sizes if size in FIRST_SIZES]
            costs.calibrate(Calibration(self.time_rows, time.perf_counter, sizes=first, max_s=MAX_FIRST_S).run())
        return self._measure_idly(costs, sizes, costs.ratio if is_known else None)

    def _measure_idly(
        self, costs: StepCosts, sizes: Sequence[int], stored_ratio: Callable[[int], float] | None
    ) -> Iterator[None]:
        """Measure the costs; where stored ones are in use, only if a few decodes differ from them."""
        self.time_rows(1)  # not counted: memory that was never used is provided in it
        yield
        while not self._wait_until_quiet(MAX_IDLE_WAIT_S):
            yield
        calibration = Calibration(
            self.time_rows,
            time.perf_counter,
            sizes=sizes,
            max_s=MAX_IDLE_S,
            max_decode_s=max(MAX_IDLE_DECODE_S, MAX_IDLE_ROWS * costs.seconds(1)),
        )
        yield from calibration.iter_decodes(stored_ratio)
        costs.calibrate(calibration.seconds)

    def time_rows(self, num_rows: int) -> float:
        """Return the seconds of a decode of a chain of `num_rows` rows."""
        started_at = time.perf_counter()
        self._decode(num_rows)
        elapsed_s = time.perf_counter() - started_at
        self._context.remove(SLOT, 0)
        return elapsed_s

    def prepare(self, num_rows: int) -> None:
        """Decode this many rows, commit them to the drafters and draft, so that every kernel of a step has run."""
        rows = Committed(SLOT, 0, [TOKEN] * num_rows, self._decode(num_rows).features(list(range(num_rows))))
        for drafter in self._drafters:
            drafter.begin(SLOT, "", num_rows)
            drafter.commit([rows])
            if num_rows + max(DRAFT_LEVELS, drafter.traits.block_size) <= self._context.n_ctx:
                self._draft(drafter, Node(SLOT, ROOT, TOKEN, num_rows))
            drafter.rollback(SLOT, 0)
        self._context.remove(SLOT, 0)

    def _draft(self, drafter: Drafter, root: Node) -> None:
        (first,) = drafter.draft([root], drafter.traits.block_size)
        if first.tokens and drafter.traits.block_size == 1:
            drafter.draft([Node(SLOT, 0, first.tokens[0], root.position + 1)])

    def _decode(self, num_rows: int) -> Outputs:
        rows = list(range(num_rows))
        outputs = [row < self._max_outputs for row in rows]
        return self._context.decode(Batch([TOKEN] * num_rows, rows, [(SLOT,)] * num_rows, outputs))

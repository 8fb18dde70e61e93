"""Steps that nobody asked for, before the first request: what decodes cost, and that nothing is left to be made.

On a GPU llama.cpp makes or loads the kernels of a size when that first runs: a number of rows has its own, in the
target and in the head. Vulkan and Metal compile them. In the middle of an answer that is a stall, and what is learned
of it is worse: a size that once took a hundred times as long is not tried again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from eaglelocal.core.batch import Batch, Outputs
from eaglelocal.core.draft import ROOT
from eaglelocal.core.ports import Context
from eaglelocal.drafters.base import Committed, Drafter, Node
from eaglelocal.engine.calibration import FIRST_SIZES, Calibration, useful_sizes
from eaglelocal.engine.drafting import behind
from eaglelocal.speculation.costs import StepCosts

SLOT, TOKEN = 0, 0
DRAFT_LEVELS = 2  # the first takes all rows, the second one
MAX_PROMPT_S = 2.0  # that as many rows as a prompt has may take, by what fewer took


class Warming:
    """In the first slot, which is left empty.

    max_outputs  rows of a decode whose logits can be wanted
    """

    def __init__(self, context: Context, drafters: Sequence[Drafter], *, max_outputs: int) -> None:
        self._context, self._drafters, self._max_outputs = context, drafters, max_outputs

    def measure(self, costs: StepCosts, *, num_slots: int, is_known: bool, makes_kernels: bool) -> None:
        """Seconds of the sizes that pay to be known, into `costs`.

        is_known       `costs` are an earlier engine's of this machine and model, which only need to be confirmed
        makes_kernels  see Engine.warm_up
        """
        most = min(self._context.n_batch, self._context.n_ctx)
        sizes = useful_sizes(min(most, self._max_outputs), num_slots=num_slots, most_beside=most)
        is_known &= all(costs.num_samples(size) for size in sizes if size in FIRST_SIZES)
        prepare = self.prepare if makes_kernels else None
        calibration = Calibration(self.time_rows, time.perf_counter, sizes=sizes, prepare=prepare)
        costs.calibrate(calibration.run(costs.ratio if is_known else None))
        if makes_kernels and costs.seconds(max(sizes)) * most / max(sizes) < MAX_PROMPT_S:
            self.prepare(most)  # a prompt's own kernels, and what its libraries take: missing, it ends the process

    def time_rows(self, num_rows: int) -> float:
        """Seconds of a decode of a chain of rows."""
        started_at = time.perf_counter()
        self._decode(num_rows)
        took = time.perf_counter() - started_at
        self._context.remove(SLOT, 0)
        return took

    def prepare(self, num_rows: int) -> None:
        """Decode so many rows, show them to the drafters, and let them draft from all: whatever a step runs has run."""
        rows = Committed(SLOT, 0, [TOKEN] * num_rows, self._decode(num_rows).features(list(range(num_rows))))
        for drafter in self._drafters:
            drafter.begin(SLOT, "", num_rows)
            drafter.observe([rows])
            if num_rows + max(DRAFT_LEVELS, drafter.at_once) <= self._context.n_ctx:
                self._draft(drafter, Node(SLOT, ROOT, TOKEN, num_rows))
            drafter.drop(SLOT, 0)
        self._context.remove(SLOT, 0)

    def _draft(self, drafter: Drafter, root: Node) -> None:
        (first,) = drafter.expand([root], drafter.at_once)
        if first.tokens and drafter.at_once == 1:
            drafter.expand([behind(root, first.tokens)])

    def _decode(self, num_rows: int) -> Outputs:
        rows = list(range(num_rows))
        outputs = [row < self._max_outputs for row in rows]
        return self._context.decode(Batch([TOKEN] * num_rows, rows, [(SLOT,)] * num_rows, outputs))

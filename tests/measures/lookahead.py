"""What Jacobi n-grams would give: python tests/measures/lookahead.py RECORDED.jsonl TARGET [--windows 4,3,2 7,4,7]

Lookahead decoding (arXiv 2402.02057; the algorithm of llama.cpp's examples/lookahead) over the real target, without the
engine. Beside each step's root the target decodes a window of guessed tokens, W columns of N - 1 levels, whose last
level gives new guesses; each column is an n-gram, kept by its first token, G of them. N-grams that begin with the root
are verified as drafts. The texts are recorded ones (recorded_drafts.py), so that what the target would accept is known,
and only the window has to be decoded.

Printed for each kind of work: tokens per check with the other drafters and with the n-grams beside them; then rows per
step, and the speed against the others at different costs of rows.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recorded_drafts import LookupReplay, Recorded, count_accepted, read_recorded

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch

HEAD_DEPTH, LOOKUP_DEPTH = 3, 8
HEAD_STEP = 0.06  # of a plain step
PROCESSOR = (1.0, 1.1, 1.15, 1.22, 1.27, 1.29, 1.4, 1.5, 1.6, 1.8, 1.9, 2.05, 2.1, 2.2, 2.3, 2.37, 2.5)  # bf16, 2 cores


def cost_on_processor(num_rows: float) -> float:
    last = len(PROCESSOR)
    if num_rows >= last:
        return PROCESSOR[-1] + (num_rows - last) * 0.1
    low = int(num_rows)
    return PROCESSOR[low - 1] + (num_rows - low) * (PROCESSOR[low] - PROCESSOR[low - 1])


COSTS: dict[str, Callable[[float], float]] = {
    "two cores": cost_on_processor,
    "16 rows free": lambda rows: max(1.0, rows / 16),
    "64 rows free": lambda rows: max(1.0, rows / 64),
}


@dataclass
class Tally:
    """Tokens, checks and rows of answers; rows of each check, since costs are not linear."""

    tokens: int = 0
    rows: list[int] = field(default_factory=list)

    @property
    def per_check(self) -> float:
        return self.tokens / len(self.rows)

    def speed(self, cost: Callable[[float], float], num_draft_steps: int = 0) -> float:
        """Return tokens per plain step's time."""
        return self.tokens / sum(cost(rows) + num_draft_steps * HEAD_STEP for rows in self.rows)


class Window:
    """The guesses after the root: `levels[j][i]` is at the root's position + i + j, in column i."""

    def __init__(self, context: LlamaContext, width: int, length: int, words: Sequence[int]) -> None:
        draw = random.Random(0)
        self._context, self._width = context, width
        self.levels = [[draw.choice(words) for _ in range(width)] for _ in range(length - 1)]

    def step(self, committed: Sequence[int], first: int, num_emitted: int) -> list[tuple[int, list[int]]]:
        """Decode the committed tokens from `first` on, the root last, with the window behind it.

        Return the n-grams that this shows: the first token of each, and those after it.
        """
        width, levels, root = self._width, self.levels, first + len(committed) - 1
        everyone = tuple(range(width + 1))
        rows = [(token, first + i, everyone) for i, token in enumerate(committed)]
        rows += [(levels[0][i], root + i, tuple(range(i + 1, width + 1))) for i in range(1, width)]
        rows += [(level[i], root + i + j, (i + 1,)) for j, level in enumerate(levels[1:], 1) for i in range(width)]
        tokens, positions, sequences = (list(column) for column in zip(*rows, strict=True))
        outputs = [False] * (len(rows) - width) + [True] * width
        self._context.decode(Batch(tokens, positions, sequences, outputs))
        guesses = [int(self._context._logits(len(rows) - width + i).argmax()) for i in range(width)]
        for sequence in everyone:
            self._context.remove(sequence, root + 1)
        old = levels[0]
        self.levels = [*levels[1:], guesses]
        grams = [(old[i], [level[i] for level in self.levels]) for i in range(width)]
        for _ in range(num_emitted - 1):  # more than one token was accepted: as llama.cpp, repeat the first level
            self.levels = [*self.levels[1:], list(self.levels[0])]
        return grams


def replay(
    context: LlamaContext | None, shape: tuple[int, int, int], answer: Recorded, tally: Tally, *, uses: Sequence[str]
) -> None:
    """Count the checks of an answer; a context: with n-grams of this width, length and number per token."""
    width, length, num_kept = shape
    text, at, prompt = answer.text, answer.num_prompt, answer.text[: answer.num_prompt]
    lookup = LookupReplay(prompt)
    grams: defaultdict[int, deque[list[int]]] = defaultdict(lambda: deque(maxlen=num_kept))
    first, num_emitted = 0, 1
    window = None
    if context is not None:
        window = Window(context, width, length, prompt)
        prefill(context, width, prompt)
        first = at
    while at < len(text) - 1:
        rest = text[at + 1 :]
        drafts = {"head": answer.chain(at)[0][:HEAD_DEPTH] if "head" in uses else []}
        drafts["lookup"] = lookup.draft(text[at], at, LOOKUP_DEPTH) if "lookup" in uses else []
        accepted = max(count_accepted(draft, rest) for draft in drafts.values())
        num_rows = 1 + max(map(len, drafts.values()))  # one chain is sent
        if window is not None:
            found = list(grams[text[at]])
            best = max((count_accepted(gram, rest) for gram in found), default=0)
            accepted = max(accepted, best)
            num_rows += (length - 1) * len(found) + (width - 1) + width * (length - 2)
            for token, gram in window.step(text[first : at + 1], first, num_emitted):
                if gram not in grams[token]:
                    grams[token].append(gram)
        end = min(at + 1 + accepted, len(text) - 1)
        lookup.commit(text[at:end], at)
        tally.tokens += end - at
        tally.rows.append(num_rows)
        first, at, num_emitted = at + 1, end, end - at


def prefill(context: LlamaContext, width: int, prompt: Sequence[int]) -> None:
    everyone = tuple(range(width + 1))
    for sequence in everyone:
        context.remove(sequence, 0)
    for first in range(0, len(prompt), 128):
        part = list(prompt[first : first + 128])
        context.decode(Batch(part, list(range(first, first + len(part))), [everyone] * len(part), [False] * len(part)))


def measure(context: LlamaContext, shape: tuple[int, int, int], answers: Sequence[Recorded], uses: list[str]) -> None:
    before, after = defaultdict[str, Tally](Tally), defaultdict[str, Tally](Tally)
    for answer in answers:
        for kind in (answer.kind, "all"):
            replay(None, shape, answer, before[kind], uses=uses)
        tally = Tally()
        replay(context, shape, answer, tally, uses=uses)
        for kind in (answer.kind, "all"):
            after[kind].tokens += tally.tokens
            after[kind].rows += tally.rows
    name = "W {}, N {}, G {} beside {}".format(*shape, "+".join(uses) or "nothing")
    for kind in before:
        old, new = before[kind], after[kind]
        steps = HEAD_DEPTH if "head" in uses else 0
        rows = sum(new.rows) / len(new.rows)
        speeds = "  ".join(f"{k} {new.speed(c, steps) / old.speed(c, steps):.2f}" for k, c in COSTS.items())
        sys.stdout.write(f"{name}  {kind:10} {old.per_check:.2f} -> {new.per_check:.2f}  rows {rows:5.1f}  {speeds}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("recorded", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--windows", nargs="*", default=["4,3,2", "5,4,4", "7,4,7", "15,5,15"], help="W,N,G")
    parser.add_argument("--beside", nargs="*", default=["", "lookup", "head,lookup"])
    parser.add_argument("--answers", type=int, default=3, help="of each kind")
    given = parser.parse_args()
    answers = read_recorded(given.recorded, given.answers)
    shapes = [tuple(map(int, each.split(","))) for each in given.windows]
    model = LlamaModel(load_library(), given.target, Placement())
    for shape in shapes:
        params = ContextParams(n_ctx=2048, num_branches=shape[0], n_batch=160, threads=1)
        context = LlamaContext(model, params)
        for beside in given.beside:
            measure(context, shape, answers, [each for each in beside.split(",") if each])
        context.close()
    model.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What drafters of n-grams give: python tests/measures/lookahead.py RECORDED.jsonl TARGET.gguf [PART ...]

Recorded answers (recorded_drafts.py) are replayed, so that it is known what the target would accept; only guesses
beside them are decoded by the real target, without the engine.

priced   each step sends the chain, and as much of it, as is worth most at the costs of rows, as `auto` does: acceptance
         is learned on the way by the engine's own model. Compared are lookup, and head and lookup, without and with:
         pool       what drafts held after a refused token, kept by its first token
         lookahead  drafters/lookahead.py, which reads what the target says at refused tokens
window   the window of lookahead decoding (arXiv 2402.02057; llama.cpp's examples/lookahead): W columns of N - 1 levels
         of guesses are decoded beside each root; each column gives an n-gram, of which G are kept by their first token
         and verified beside the lookup's draft when it comes. All rows are always sent

Printed: tokens per check, rows per step, and tokens per second against those without, at different costs of rows.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recorded_drafts import CTX, Recorded, count_accepted, read_recorded

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch
from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Committed, Node
from eaglelocal.drafters.lookahead import Lookahead
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel
from eaglelocal.speculation.policy.goodput import find_best_size
from eaglelocal.speculation.policy.pending_drafts import PendingDraft, PendingDrafts

DEPTH, MAX_ROWS = 6, 160
HEAD_STEP = 0.06  # of a plain step
RATE_SHARE = 0.02  # of the newest step in the running rate of tokens
MAX_GRAMS = 4096
# measured on two cores, a model of 1B in bf16: a decode of so many rows, in plain steps
TWO_CORES = (1.0, 1.1, 1.15, 1.22, 1.27, 1.29, 1.4, 1.5, 1.6, 1.8, 1.9, 2.05, 2.1, 2.2, 2.3, 2.37, 2.5)
Cost = Callable[[int], float]
Chain = tuple[Sequence[int], Sequence[float]]  # tokens and confidences
COSTS: dict[str, Cost] = {
    "two cores": lambda rows: TWO_CORES[min(rows, 17) - 1] + 0.1 * max(rows - 17, 0),
    "16 rows free": lambda rows: max(1.0, rows / 16),
    "64 rows free": lambda rows: max(1.0, rows / 64),
}


@dataclass
class Tally:
    """The tokens and the rows of each check."""

    num_tokens: int = 0
    rows: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.num_tokens += other.num_tokens
        self.rows += other.rows

    @property
    def per_check(self) -> float:
        return self.num_tokens / len(self.rows)

    def speed(self, cost: Cost, drafting: float = 0.0) -> float:
        """Return tokens per plain step's time; `drafting`: the time of draft steps before each check."""
        return self.num_tokens / sum(cost(rows) + drafting for rows in self.rows)


# ---- priced
class RefusedPool:
    """N-grams of refused drafts by their first token; the newest of each is proposed."""

    def __init__(self) -> None:
        self._grams: OrderedDict[int, tuple[int, Sequence[int]]] = OrderedDict()

    def learn(self, before: int, refused: Sequence[int]) -> None:
        for at in range(len(refused) - 1):
            self._grams.pop(refused[at], None)
            self._grams[refused[at]] = (refused[at - 1] if at else before, refused[at + 1 :])
            if len(self._grams) > MAX_GRAMS:
                self._grams.popitem(last=False)

    def draft(self, before: int, root: int) -> Chain:
        """Return the n-gram; one whose draft had the same token before it is the surer one."""
        kept_before, tokens = self._grams.get(root, (-1, ()))
        return tokens[:DEPTH], [0.7 if kept_before == before else 0.3] * len(tokens[:DEPTH])


class Replay:
    """Several answers of one owner, one after the other, at one cost of rows."""

    def __init__(self, context: LlamaContext, uses: Sequence[str], cost: Cost) -> None:
        self._context, self._uses, self._cost, self._rate = context, uses, cost, 1.0
        self._lookup, self._lookahead, self._pool = Ngram(CTX), Lookahead(), RefusedPool()
        self._acceptance, self._pending = AcceptanceModel(), PendingDrafts()

    def answer(self, answer: Recorded) -> Tally:
        text, at, tally = answer.text, answer.num_prompt, Tally()
        for drafter in (self._lookup, self._lookahead):
            drafter.begin(0, "somebody", at)
            drafter.rollback(0, 0)
            drafter.commit([Committed(0, 0, text[:at], None)])
        if "lookahead" in self._uses:
            prefill(self._context, text[:at], num_sequences=1)
        self._acceptance.begin(0)
        self._pending.forget(0)
        first = at  # of the tokens that are not decoded yet
        while at < len(text) - 1:
            chains = self._draft(answer, at)
            sent = self._choose(chains)
            end = min(at + 1 + count_accepted(sent, text[at + 1 :]), len(text) - 1)
            refused = sent[end - at - 1 :]
            if refused and "lookahead" in self._uses:
                guesses = guess(self._context, [*text[first:end], *refused], first, len(refused))
                first, pairs = end, list(zip(refused, guesses, strict=True))
            else:
                pairs = []
            self._learn(chains, text, at, end)
            self._lookup.commit([Committed(0, at, text[at:end], None)])
            self._lookahead.commit([Committed(0, at, text[at:end], None, pairs)])
            tally.num_tokens += end - at
            tally.rows.append(1 + len(sent))
            self._rate += RATE_SHARE * ((end - at) / self._cost(1 + len(sent)) - self._rate)
            at = end
        self._lookup.end(0)
        return tally

    def _draft(self, answer: Recorded, at: int) -> dict[str, Chain]:
        text, root, chains = answer.text, Node(0, ROOT, answer.text[at], at), dict[str, Chain]()
        for name, drafter in (("lookup", self._lookup), ("lookahead", self._lookahead)):
            if name in self._uses:
                (found,) = drafter.draft([root], DEPTH)
                chains[name] = found.tokens, found.confidences
        if "pool" in self._uses:
            chains["pool"] = self._pool.draft(text[at - 1], text[at])
        if "head" in self._uses:
            chains["head"] = answer.chain(at)
        return {name: chain for name, chain in chains.items() if chain[0]}

    def _choose(self, chains: dict[str, Chain]) -> list[int]:
        """Return the tokens that are worth most."""
        best, best_worth = list[int](), -self._rate
        for name, (tokens, confidences) in chains.items():
            gains, gain = [], 1.0
            for depth, confidence in enumerate(confidences, start=1):
                gain *= self._acceptance.probability(0, name, depth, confidence)
                gains.append(gain)
            size, worth = find_best_size(gains, [self._rate * self._cost(1 + n) for n in range(len(tokens) + 1)])
            if worth > best_worth:
                best, best_worth = list(tokens[:size]), worth
        return best

    def _learn(self, chains: dict[str, Chain], text: Sequence[int], at: int, end: int) -> None:
        emitted = text[at + 1 : end + 1]
        self._acceptance.advance(0, len(emitted))
        new = [PendingDraft(name, *chain) for name, chain in chains.items()]
        for seen in self._pending.judge(0, new, emitted):
            self._acceptance.learn(
                0, seen.drafter, seen.depth, seen.confidence, accepted=seen.accepted, is_repeat=seen.is_repeat
            )
        for tokens, _ in chains.values():
            num_right = count_accepted(tokens, emitted)
            if num_right < len(emitted):  # else what follows is not known yet
                self._pool.learn([text[at], *tokens][num_right], tokens[num_right:])


def measure_priced(context: LlamaContext, answers: Sequence[Recorded]) -> None:
    for beside, (name, cost) in itertools.product((["lookup"], ["head", "lookup"]), COSTS.items()):
        tallies = {}
        for more in ("", "pool", "lookahead"):
            replay = Replay(context, [*beside, more], cost)
            by_kind = tallies[more] = defaultdict[str, Tally](Tally)
            for answer in answers:
                tally = replay.answer(answer)
                by_kind[answer.kind].add(tally)
                by_kind["all"].add(tally)
        drafting = DEPTH * HEAD_STEP if "head" in beside else 0.0
        for kind, plain in tallies[""].items():
            line = f"{'+'.join(beside):12} {name:13} {kind:11} {plain.per_check:.2f} tokens per check"
            for more in ("pool", "lookahead"):
                tally = tallies[more][kind]
                rows = sum(tally.rows) / len(tally.rows)
                gain = tally.speed(cost, drafting) / plain.speed(cost, drafting)
                line += f"   {more} {tally.per_check:.2f} at {rows:.1f} rows, speed {gain:.3f}"
            sys.stdout.write(line + "\n")
        sys.stdout.flush()


def prefill(context: LlamaContext, prompt: Sequence[int], *, num_sequences: int) -> None:
    everyone = tuple(range(num_sequences))
    for sequence in everyone:
        context.remove(sequence, 0)
    for first in range(0, len(prompt), MAX_ROWS):
        part = list(prompt[first : first + MAX_ROWS])
        n = len(part)
        context.decode(Batch(part, list(range(first, first + n)), [everyone] * n, [False] * n))


def guess(context: LlamaContext, tokens: list[int], first: int, num_last: int) -> list[int]:
    """Decode tokens from a position on, and return the likeliest next one after each of the last ones, which go."""
    n = len(tokens)
    outputs = [False] * (n - num_last) + [True] * num_last
    context.decode(Batch(tokens, list(range(first, first + n)), [(0,)] * n, outputs))
    found = [int(context.logits(row).argmax()) for row in range(n - num_last, n)]
    context.remove(0, first + n - num_last)
    return found


# ---- window
class Window:
    """The guesses after the root: `levels[j][i]` is at the root's position + i + j, in column i."""

    def __init__(self, context: LlamaContext, width: int, length: int, words: Sequence[int]) -> None:
        draw = random.Random(0)
        self._context, self._width = context, width
        self.levels = [[draw.choice(words) for _ in range(width)] for _ in range(length - 1)]

    def step(self, committed: Sequence[int], first: int, num_emitted: int) -> list[tuple[int, list[int]]]:
        """Decode the committed tokens from `first` on, the root last, with the window after it.

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
        firsts = [committed[-1], *levels[0][1:]]
        self.levels = [*levels[1:], guesses]
        grams = [(firsts[i], [level[i] for level in self.levels]) for i in range(width)]
        for _ in range(num_emitted - 1):  # as llama.cpp does after each further token: repeat the first level
            self.levels = [*self.levels[1:], list(self.levels[0])]
        return grams


def replay_window(context: LlamaContext | None, shape: tuple[int, int, int], answer: Recorded) -> Tally:
    """Count the checks of an answer by lookup, and with a context by n-grams of a window beside it."""
    width, length, num_kept = shape
    text, at, tally, lookup = answer.text, answer.num_prompt, Tally(), Ngram(CTX)
    lookup.commit([Committed(0, 0, text[:at], None)])
    grams: defaultdict[int, deque[list[int]]] = defaultdict(lambda: deque(maxlen=num_kept))
    first, num_emitted, window = at, 1, None
    if context is not None:
        window = Window(context, width, length, text[:at])
        prefill(context, text[:at], num_sequences=width + 1)
    while at < len(text) - 1:
        rest = text[at + 1 :]
        (found,) = lookup.draft([Node(0, ROOT, text[at], at)], DEPTH)
        accepted, num_rows = count_accepted(found.tokens, rest), 1 + len(found.tokens)
        if window is not None:
            kept = list(grams[text[at]])
            accepted = max([accepted, *(count_accepted(gram, rest) for gram in kept)])
            num_rows += (length - 1) * len(kept) + width - 1 + width * (length - 2)
            for token, gram in window.step(text[first : at + 1], first, num_emitted):
                if gram not in grams[token]:
                    grams[token].append(gram)
        end = min(at + 1 + accepted, len(text) - 1)
        lookup.commit([Committed(0, at, text[at:end], None)])
        tally.num_tokens += end - at
        tally.rows.append(num_rows)
        first, at, num_emitted = at + 1, end, end - at
    return tally


def measure_window(context: LlamaContext, shape: tuple[int, int, int], answers: Sequence[Recorded]) -> None:
    before, after = defaultdict[str, Tally](Tally), defaultdict[str, Tally](Tally)
    for answer, kind in itertools.product(answers, ("", "all")):
        before[kind or answer.kind].add(replay_window(None, shape, answer))
    for answer in answers:
        tally = replay_window(context, shape, answer)
        after[answer.kind].add(tally)
        after["all"].add(tally)
    for kind, old in before.items():
        new = after[kind]
        speeds = "  ".join(f"{name} {new.speed(cost) / old.speed(cost):.2f}" for name, cost in COSTS.items())
        figures = f"{old.per_check:.2f} -> {new.per_check:.2f} at {sum(new.rows) / len(new.rows):.1f} rows"
        sys.stdout.write("W {}, N {}, G {} beside lookup".format(*shape) + f"  {kind:11} {figures}  {speeds}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("recorded", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("parts", nargs="*", default=["priced", "window"], choices=["priced", "window"])
    parser.add_argument("--windows", nargs="*", default=["4,3,2", "7,4,7", "15,5,15"], metavar="W,N,G")
    parser.add_argument("--answers", type=int, default=3, help="of each kind")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    answers = read_recorded(given.recorded, given.answers)
    model = LlamaModel(load_library(), given.target, Placement())
    if "priced" in given.parts:
        context = LlamaContext(model, ContextParams(n_ctx=CTX, n_batch=MAX_ROWS, threads=given.threads))
        measure_priced(context, answers)
        context.close()
    for width, length, num_kept in [map(int, text.split(",")) for text in given.windows if "window" in given.parts]:
        params = ContextParams(n_ctx=CTX, num_branches=width, n_batch=MAX_ROWS, threads=given.threads)
        context = LlamaContext(model, params)
        measure_window(context, (width, length, num_kept), answers)
        context.close()
    model.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Does a pool of rejected drafts pay? python tests/measures/draft_pool.py RECORDED.jsonl [--answers N]

The cheap half of lookahead decoding: what a draft held after a token that the target refused is kept by its first
token, and proposed when that token comes. Recorded answers (recorded_drafts.py) are replayed without models. In each
step every drafter proposes its chain; how likely tokens are is learned on the way, per drafter, by the engine's own
acceptance model, and the chain and length with the largest worth at the costs of rows are sent, as `auto` does.

Printed for each kind of work: tokens per check if the best chain were always sent whole, and the speed with the pool
against the speed without it.
"""

from __future__ import annotations

import argparse
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lookahead import COSTS, HEAD_STEP
from recorded_drafts import Recorded, count_accepted, read_recorded

from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Committed, Node
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.speculation.acceptance.acceptance_model import AcceptanceModel
from eaglelocal.speculation.policy.goodput import find_best_size
from eaglelocal.speculation.policy.pending_drafts import PendingDraft, PendingDrafts

DEPTH, CTX, MAX_GRAMS = 6, 65_536, 4096
Chain = tuple[Sequence[int], Sequence[float]]  # tokens and confidences


class DraftPool:
    """N-grams of rejected drafts by their first token; the newest of each token is proposed.

    A token that is preceded by the same one as in the draft makes the proposal more certain.
    """

    def __init__(self) -> None:
        self._grams: OrderedDict[int, tuple[int, Sequence[int]]] = OrderedDict()

    def learn(self, before: int, rejected: Sequence[int]) -> None:
        """Keep the n-grams of a draft's rejected tokens, the first of which followed the token `before`."""
        for at in range(len(rejected) - 1):
            self._grams.pop(rejected[at], None)
            self._grams[rejected[at]] = (rejected[at - 1] if at else before, rejected[at + 1 :])
            if len(self._grams) > MAX_GRAMS:
                self._grams.popitem(last=False)

    def draft(self, before: int, root: int) -> Chain:
        kept_before, tokens = self._grams.get(root, (-1, ()))
        confidence = 0.7 if kept_before == before else 0.3
        return tokens[:DEPTH], [confidence] * len(tokens[:DEPTH])


@dataclass
class Replay:
    """All answers of one kind or more, one after the other, with what was learned of the drafters.

    cost  of a decode of n rows, in plain steps; None: the best chain is known and sent whole
    """

    uses: Sequence[str]
    cost: Callable[[float], float] | None
    rate: float = 1.0
    lookup: Ngram = field(default_factory=lambda: Ngram(CTX))
    pool: DraftPool = field(default_factory=DraftPool)
    acceptance: AcceptanceModel = field(default_factory=AcceptanceModel)
    pending: PendingDrafts = field(default_factory=PendingDrafts)

    def answer(self, answer: Recorded) -> tuple[int, int, float]:
        """Return the tokens, the checks, and the time in plain steps."""
        text, at, start = answer.text, answer.num_prompt, answer.num_prompt
        self.lookup.begin(0, "somebody", at)
        self.lookup.rollback(0, 0)
        self.lookup.commit([Committed(0, 0, text[:at], None)])
        self.acceptance.begin(0)
        self.pending.forget(0)
        num_checks, spent = 0, 0.0
        while at < len(text) - 1:
            chains = self._draft(answer, at)
            name, size = self._choose(chains, text[at + 1 :])
            num_right = count_accepted(chains[name][0][:size], text[at + 1 :]) if name else 0
            end = min(at + 1 + num_right, len(text) - 1)
            seconds = self._time(size)
            self._learn(chains, text, at, end)
            self.lookup.commit([Committed(0, at, text[at:end], None)])
            self.rate += 0.02 * ((end - at) / seconds - self.rate) if self.cost else 0.0
            at, num_checks, spent = end, num_checks + 1, spent + seconds
        self.lookup.end(0)
        return at - start, num_checks, spent

    def _draft(self, answer: Recorded, at: int) -> dict[str, Chain]:
        text, chains = answer.text, dict[str, Chain]()
        if "lookup" in self.uses:
            (found,) = self.lookup.draft([Node(0, ROOT, text[at], at)], DEPTH)
            chains["lookup"] = found.tokens, found.confidences
        if "pool" in self.uses:
            chains["pool"] = self.pool.draft(text[at - 1], text[at])
        if "head" in self.uses:
            chains["head"] = answer.chain(at)
        return {name: chain for name, chain in chains.items() if chain[0]}

    def _choose(self, chains: dict[str, Chain], rest: Sequence[int]) -> tuple[str, int]:
        """Return the drafter whose chain is sent, and how much of it."""
        best, best_worth = ("", 0), -self.rate
        for name, (tokens, confidences) in chains.items():
            if self.cost is None:
                size, worth = len(tokens), float(count_accepted(tokens, rest))
            else:
                gains, gain = [], 1.0
                for depth, confidence in enumerate(confidences, start=1):
                    gain *= self.acceptance.probability(0, name, depth, confidence)
                    gains.append(gain)
                size, worth = find_best_size(gains, [self.rate * self.cost(1 + n) for n in range(len(tokens) + 1)])
            if worth > best_worth:
                best, best_worth = (name, size), worth
        return best

    def _time(self, num_drafted: int) -> float:
        rows = self.cost(1 + num_drafted) if self.cost else 1.0
        return rows + (DEPTH * HEAD_STEP if "head" in self.uses else 0.0)

    def _learn(self, chains: dict[str, Chain], text: Sequence[int], at: int, end: int) -> None:
        emitted = text[at + 1 : end + 1]
        new = [PendingDraft(name, *chain) for name, chain in chains.items()]
        self.acceptance.advance(0, len(emitted))
        for seen in self.pending.judge(0, new, emitted):
            self.acceptance.learn(
                0, seen.drafter, seen.depth, seen.confidence, accepted=seen.accepted, is_repeat=seen.is_repeat
            )
        for tokens, _ in chains.values():
            num_right = count_accepted(tokens, emitted)
            if num_right < len(emitted):  # else what follows is not known yet
                self.pool.learn([text[at], *tokens][num_right], tokens[num_right:])


def measure(answers: Sequence[Recorded], uses: list[str]) -> None:
    kinds = [*dict.fromkeys(answer.kind for answer in answers), "all"]
    figures: defaultdict[str, list[str]] = defaultdict(list)
    for name, cost in (("best", None), *COSTS.items()):
        sums = []
        for with_pool in (False, True):
            replay = Replay([*uses, "pool"] if with_pool else uses, cost)
            total: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
            for answer in answers:
                counted = replay.answer(answer)
                for kind in (answer.kind, "all"):
                    total[kind] = [a + b for a, b in zip(total[kind], counted, strict=True)]
            sums.append(total)
        for kind in kinds:
            old, new = sums[0][kind], sums[1][kind]
            if cost is None:
                figures[kind].append(f"tokens per check {old[0] / old[1]:.3f} -> {new[0] / new[1]:.3f}")
            else:
                figures[kind].append(f"{name} {old[2] / new[2]:.3f}")
    for kind in kinds:
        sys.stdout.write(f"{'+'.join(uses):12} {kind:12} {'   '.join(figures[kind])}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--answers", type=int, default=100, help="of each kind")
    parser.add_argument("--beside", nargs="*", default=["lookup", "head", "head,lookup"])
    given = parser.parse_args()
    answers = read_recorded(given.recorded, given.answers)
    for beside in given.beside:
        measure(answers, beside.split(","))
    return 0


if __name__ == "__main__":
    sys.exit(main())

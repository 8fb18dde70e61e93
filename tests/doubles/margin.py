"""The margin rule: on real kernels a drafted text may differ from the plain one only at near-ties.

Batched verification and one-row decoding round differently, so a choice may flip where the logits of
two or more tokens are nearly equal; after a flip the texts diverge. So the drafted text is judged on its
own prefix: decode it plainly, and where the plain choice differs, continue after the drafted one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.core.events import TextPiece, Tokens
from eaglelocal.core.request import ChatRequest
from eaglelocal.engine.engine import Engine

NUM_TOP = 5  # tokens that may be nearly equal
# largest gap of the best logits at which a choice may flip, by weight type
BOUNDS = {"F32": 1e-3, "BF16": 0.05, "Q8_0": 0.1, "Q4_0": 0.2, "Q4_1": 0.2}
ROWS_APART = 0.8  # of Q4_K_M, of which several rows round otherwise than one: 0.76 in Gemma 270M (docs/measured.md)


def find_bound(target: Path) -> float:
    """Return the largest gap that is a near-tie in a file that is named after its type."""
    return next((bound for name, bound in BOUNDS.items() if name in target.stem), ROWS_APART)


@dataclass(frozen=True)
class Flip:
    """A position at which the drafted text has another token than the best, and the gap in logits to that."""

    index: int
    gap: float


def margin_differences(plain: Engine, request: ChatRequest, drafted: Sequence[int], bound: float) -> list[Flip]:
    """Return the positions at which greedy `drafted` differs from what `plain` says after the same text.

    Raises AssertionError for a difference that no near-tie explains.
    """
    flips: list[Flip] = []
    start = 0
    while start < len(drafted):
        pieces = plain_pieces(plain, request, drafted[:start], len(drafted) - start, NUM_TOP)
        said = [piece.token for piece in pieces]
        wanted = list(drafted[start:])
        differs = next((i for i, (a, b) in enumerate(zip(said, wanted, strict=True)) if a != b), None)
        if differs is None:
            break
        flips.append(judge(pieces[differs], wanted[differs], start + differs, bound))
        start += differs + 1
    return flips


def judge(piece: TextPiece, drafted: int, index: int, bound: float) -> Flip:
    assert piece.sampled is not None
    chances = {one.token: one.logprob for one in piece.sampled.top}
    assert drafted in chances, f"position {index}: {drafted} is none of the {NUM_TOP} best choices"
    gap = max(chances.values()) - chances[drafted]  # log-probabilities of one row differ as their logits do
    assert gap < bound, f"position {index}: {drafted} is worse by {gap}, which is no tie under {bound}"
    return Flip(index, gap)


def plain_pieces(
    plain: Engine, request: ChatRequest, prefix: Sequence[int], count: int, num_top: int = 2
) -> list[TextPiece]:
    params = dataclasses.replace(request.params, max_tokens=count, logprobs=num_top)
    plain.submit(ChatRequest(id="replay", tokens=(*request.tokens, *prefix), params=params))
    pieces: list[TextPiece] = []
    while plain.has_work:
        for event in plain.step():
            if isinstance(event, Tokens):
                pieces.extend(event.pieces)
    return pieces

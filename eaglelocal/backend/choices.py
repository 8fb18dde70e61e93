"""The most likely tokens of a row of logits, and how sure the row is of them.

A softmax over a large vocabulary costs more than the drafting it is for, so confidence is told among the best few:
the probability of a token among the first MIN_RANKED choices (or as many as are asked for). It ranks drafts
as well as the whole softmax does, and what it is worth is learned (speculation/acceptance.py). So the second choice is
known anyway, and costs nothing.

    logits  a 5.0   b 3.0   c 1.0   d -4.0     one branch or two: among a, b
            a: 0.88         b: 0.12
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from eaglelocal.core.batch import Floats, Proposals

MIN_RANKED = 2
UNKNOWN = math.nan


def best_of(rows: Iterable[Floats], branches: int, *, confident: bool) -> Proposals:
    """The best tokens of each row [vocab], best first; confidences are NaN if not asked for.

    The rows are used as scratch memory and left as they were.
    """
    tokens: list[list[int]] = []
    confidences: list[list[float]] = []
    for logits in rows:
        ranked = max(branches, MIN_RANKED) if confident else branches
        best, values = top(logits, ranked)
        tokens.append(best[:branches])
        confidences.append(shares(values)[:branches] if confident else [UNKNOWN] * branches)
    return Proposals(tokens, confidences)


def top(logits: Floats, count: int) -> tuple[list[int], list[float]]:
    """Tokens and logits of the `count` largest, the first of equals first."""
    if count == 1:
        token = int(logits.argmax())
        return [token], [logits.item(token)]
    tokens: list[int] = []
    values: list[float] = []
    for _ in range(min(count, len(logits))):
        token = int(logits.argmax())
        tokens.append(token)
        values.append(logits.item(token))
        logits[token] = -math.inf
    for token, value in zip(tokens, values, strict=True):
        logits[token] = value
    return tokens, values


def shares(values: list[float]) -> list[float]:
    """Softmax over a few logits, the largest first."""
    weights = [math.exp(value - values[0]) for value in values]
    total = sum(weights)
    return [weight / total for weight in weights]

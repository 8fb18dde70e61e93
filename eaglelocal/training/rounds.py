"""Rounds of training: fresh answers are learned from before more are asked for, and after each round the acceptance
length tells what further ones would bring.

The acceptance length grows with the logarithm of the tokens seen (the scaling law of EAGLE-3, arXiv 2503.01840), which
two or more rounds are fitted to. Does not use torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass
from eaglelocal.training.conversations import TrainingConversation, append_line, open_to_append, read_lines

FIRST_ROUND, LONGEST_ROUND = 50_000, 400_000  # tokens of answers; each round has as many as all before it together
FITTED = 4  # rounds at the end of the curve
FLAT = 0.02  # acceptance length that twice the tokens would add; less is not worth the time
HELD_OUT_EVERY, MIN_HELD_OUT, MAX_HELD_OUT = 20, 8, 64


def list_goals(num_tokens: int) -> list[int]:
    """Return how many tokens of answers there are to be after each round; `num_tokens` after the last."""
    goals = [min(FIRST_ROUND, num_tokens)]
    while goals[-1] < num_tokens:
        following = goals[-1] + min(goals[-1], LONGEST_ROUND)
        goals.append(num_tokens if following > num_tokens - FIRST_ROUND else following)
    return goals


@dataclass(frozen=True, slots=True)
class SplitRounds:
    """Conversations to learn from, those held out, and how many of the first each round so far has, with those before
    it.
    """

    train_set: tuple[TrainingConversation, ...]
    held_out: tuple[TrainingConversation, ...]
    ends: tuple[int, ...]


def split_rounds(conversations: Sequence[TrainingConversation], goals: Sequence[int]) -> SplitRounds:
    """Split conversations, in the order in which they came, into rounds that reach these goals, in tokens.

    One in HELD_OUT_EVERY of the first round is held out, more of few: otherwise a handful of drafts would decide.
    """
    counts, total = list[int](), 0
    for number, one in enumerate(conversations, 1):
        total += one.num_learned
        while len(counts) < len(goals) and total >= goals[len(counts)]:
            counts.append(number)
    if not counts or counts[-1] < len(conversations):
        counts.append(len(conversations))
    first = conversations[: counts[0]]
    every = min(HELD_OUT_EVERY, max(len(first) // MIN_HELD_OUT, 2))
    held_out = first[::every][:MAX_HELD_OUT]
    keys = {one.key for one in held_out}
    train_set = tuple(one for one in conversations if one.key not in keys)
    return SplitRounds(train_set, tuple(held_out), tuple(count - len(held_out) for count in counts))


@dataclass(frozen=True, slots=True)
class Point:
    """A round's end: the tokens of answers learned from so far, the seconds that took, and the acceptance length."""

    tokens: int
    seconds: float
    length: float


class Curve:
    """The acceptance length on the held-out texts after each round, in a file beside the checkpoint."""

    def __init__(self, path: Path) -> None:
        """Read the file, which need not exist, as far as it is not damaged. Raises ResourceError."""
        self._path = path
        self.points: list[Point] = []
        for line in read_lines(path):
            with suppress(ValueError, KeyError, TypeError):
                entry = read_object(line)
                numbers = (float(str(entry[name])) for name in ("tokens", "seconds", "length"))
                tokens, seconds, length = numbers
                if all(map(math.isfinite, (tokens, seconds, length))) and tokens > 0 and seconds > 0:
                    self.points.append(Point(int(tokens), seconds, length))

    @property
    def seconds(self) -> float:
        return self.points[-1].seconds if self.points else 0.0

    def add(self, point: Point) -> None:
        """Write a point. Raises ResourceError."""
        self.points.append(point)
        with open_to_append(self._path) as file:
            entry = {"tokens": point.tokens, "seconds": round(point.seconds, 1), "length": round(point.length, 4)}
            append_line(file, self._path, entry)

    @property
    def gain_per_doubling(self) -> float | None:
        """The acceptance length that twice the tokens add, by least squares over the last rounds; None: not known."""
        points = self.points[-FITTED:]
        logs = [math.log2(point.tokens) for point in points]
        mean = sum(logs) / max(len(logs), 1)
        spread = sum((log - mean) ** 2 for log in logs)
        if not spread:
            return None
        return sum((log - mean) * point.length for log, point in zip(logs, points, strict=True)) / spread

    @property
    def is_flat(self) -> bool:
        gain = self.gain_per_doubling
        return len(self.points) >= FITTED and gain is not None and gain < FLAT

    def expect(self, more_seconds: float) -> float | None:
        """Return the acceptance length that so much more time would add, at the pace so far; None: not known."""
        gain = self.gain_per_doubling
        return None if gain is None else max(gain, 0.0) * math.log2(1 + more_seconds / self.seconds)


def iter_rounds(num_tokens: int) -> Iterator[list[int]]:
    """Yield the goals of each round and those before it."""
    goals = list_goals(num_tokens)
    yield from (goals[: number + 1] for number in range(len(goals)))

"""Rounds of training: fresh answers are learned from before more are asked for, and after each round the acceptance
length tells what further ones would bring.

The acceptance length grows with the logarithm of the tokens seen (the scaling law of EAGLE-3, arXiv 2503.01840), which
two or more rounds are fitted to. Does not use torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass
from eaglelocal.training.conversations import TrainingConversation, append_line, open_to_append, read_lines

FIRST_ROUND, LONGEST_ROUND = 50_000, 400_000  # tokens to learn from; each round has as many as all before it together
MIN_CONVERSATIONS = 40  # to learn from
FITTED = 3  # rounds at the end of the curve
FLAT = 0.02  # acceptance length that twice the tokens would add; less is not worth the time
HELD_OUT_EVERY, FEW_EVERY, FEW_HELD_OUT, MAX_HELD_OUT = 20, 5, 32, 64  # of the first round


def list_goals(num_tokens: int) -> list[int]:
    """Return how many tokens to learn from there are to be after each round; `num_tokens` after the last."""
    goals = [min(FIRST_ROUND, num_tokens)]
    while goals[-1] < num_tokens:
        goals.append(min(goals[-1] + min(goals[-1], LONGEST_ROUND), num_tokens))
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

    The held-out ones are of the first round: one in HELD_OUT_EVERY, of few one in FEW_EVERY up to FEW_HELD_OUT, as a
    handful of drafts would decide otherwise. They are judged by their answers; of the others, the questions that the
    target asked are learned from too.
    """
    counts, total = list[int](), 0
    for number, one in enumerate(conversations, 1):
        total += one.num_learned
        while number >= MIN_CONVERSATIONS and len(counts) < len(goals) and total >= goals[len(counts)]:
            counts.append(number)
    if len(counts) < len(goals):
        counts.append(len(conversations))
    first = conversations[: counts[0]]
    few = min(len(first) // FEW_EVERY, FEW_HELD_OUT)
    num_held_out = min(max(few, len(first) // HELD_OUT_EVERY, 1), MAX_HELD_OUT)
    held_out = first[:: len(first) // num_held_out][:num_held_out]
    keys = {one.key for one in held_out}
    train_set = tuple(one.whole for one in conversations[: counts[-1]] if one.key not in keys)
    return SplitRounds(train_set, tuple(held_out), tuple(count - len(held_out) for count in counts))


@dataclass(frozen=True, slots=True)
class Point:
    """A round's end: the tokens learned from so far, the seconds that took, and the acceptance length."""

    tokens: int
    seconds: float
    length: float


class LearningCurve:
    """The acceptance length on the held-out texts after each round, in a file beside the checkpoint."""

    def __init__(self, path: Path) -> None:
        """Read the file, which need not exist, as far as it is not damaged. Raises ResourceError."""
        self._path = path
        self.points: list[Point] = []
        self.seconds = 0.0  # that rounds took so far, also the one that is not finished
        for line in read_lines(path):
            with suppress(ValueError, KeyError, TypeError):
                entry = read_object(line)
                seconds = float(str(entry["seconds"]))
                if not 0 <= seconds < math.inf:
                    continue
                self.seconds = seconds
                tokens, length = int(str(entry["tokens"])), float(str(entry["length"]))
                if tokens > 0 and math.isfinite(length):
                    self.points.append(Point(tokens, seconds, length))

    def add_time(self, seconds: float) -> None:
        """Write how long a round took that is not finished. Raises ResourceError."""
        self.seconds += seconds
        self._write({"seconds": round(self.seconds, 1)})

    def add(self, tokens: int, seconds: float, length: float) -> None:
        """Write the end of a round, which took so many seconds more. Raises ResourceError."""
        self.seconds += seconds
        self.points.append(Point(tokens, self.seconds, length))
        self._write({"tokens": tokens, "seconds": round(self.seconds, 1), "length": round(length, 4)})

    def _write(self, entry: Mapping[str, object]) -> None:
        with open_to_append(self._path) as file:
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
        if gain is None or not self.seconds:
            return None
        return max(gain, 0.0) * math.log2(1 + more_seconds / self.seconds)

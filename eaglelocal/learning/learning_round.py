"""Chooses what a round of learning learns from, and by which answers its result is judged. Pure decisions.

One in HELD_BACK_EVERY questions, chosen by a hash, is never learned from. A round learns from what is new since the
one before, and from as many older answers, so that nothing is lost; every owner gives as many as the others, as far
as they have them, so that none can decide alone what is learned.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

from eaglelocal.core.records import dataclass
from eaglelocal.learning.kept_answers import KeptAnswer

HELD_BACK_EVERY = 8
NEWEST_EVERY = 10  # one in so many new answers, the newest ones, is left for judging
MIN_NEW = 64  # answers for a round
MAX_NEW = 512
MAX_HELD_BACK, MAX_NEWEST = 48, 24  # answers that judge a round
MIN_PROMPT = 64  # tokens of a prompt that stay, where a text is too long


@dataclass(frozen=True, slots=True)
class LearningRound:
    """A round: keys of the answers to learn from, and where it begins.

    start     version of the head with which it begins
    until     answers kept up to this time are learned from or judge this round; later ones are new to the next
    """

    start: int
    keys: tuple[str, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Judges:
    """The answers by which heads are compared: held back for good, and newer than all that was learned from."""

    held_back: tuple[KeptAnswer, ...]
    newest: tuple[KeptAnswer, ...]

    @property
    def answers(self) -> tuple[KeptAnswer, ...]:
        return self.held_back + self.newest


def is_held_back(answer: KeptAnswer) -> bool:
    return int(answer.prompt_key[:8], 16) % HELD_BACK_EVERY == 0


def find_new(answers: Iterable[KeptAnswer], learned_until: float) -> list[KeptAnswer]:
    """Return the answers that a round could learn from and none has, the oldest first."""
    return [each for each in answers if each.kept_at > learned_until and not is_held_back(each)]


def choose_round(
    answers: Sequence[KeptAnswer], *, start: int, learned_until: float, min_new: int = MIN_NEW
) -> LearningRound | None:
    """Return the next round; None if there are not enough new answers. `answers`: by time."""
    new = find_new(answers, learned_until)
    if len(new) < min_new:
        return None
    newest = max(len(new) // NEWEST_EVERY, 1)
    learned = share_equally(new[:-newest], MAX_NEW)
    older = [each for each in answers if each.kept_at <= learned_until and not is_held_back(each)]
    replayed = share_equally(older, len(learned))
    return LearningRound(start, tuple(each.key for each in (*learned, *replayed)), answers[-1].kept_at)


def share_equally(answers: Sequence[KeptAnswer], most: int) -> tuple[KeptAnswer, ...]:
    """Return up to `most` answers, in turns one of each owner, whose own are drawn at random.

    With several owners nobody gives more than twice as many as the others on average.
    """
    by_owner = group_by_owner(answers)
    drawn: list[KeptAnswer] = []
    for owner, own in by_owner.items():
        others = len(answers) - len(own)
        limit = max(2 * others // (len(by_owner) - 1), 1) if others else len(own)
        drawn += random.Random(owner).sample(own, min(limit, len(own)))
    return take_turns(drawn, most)


def choose_judges(answers: Sequence[KeptAnswer], round: LearningRound, learned_until: float) -> Judges:
    """Return the answers by which the round's head is judged: the newest of those that no round learned from."""
    keys = set(round.keys)
    held_back = [each for each in answers if is_held_back(each)]
    newest = [each for each in find_new(answers, learned_until) if each.key not in keys]
    return Judges(take_turns(held_back[::-1], MAX_HELD_BACK), take_turns(newest[::-1], MAX_NEWEST))


def choose_since(
    answers: Sequence[KeptAnswer], since: float, *, min_tokens: int, min_answers: int
) -> tuple[KeptAnswer, ...]:
    """Return the first answers after a time that have so many tokens together; () if there are not enough yet."""
    chosen, num_tokens = [], 0
    for answer in answers:
        if answer.kept_at > since:
            chosen.append(answer)
            num_tokens += answer.num_answer_tokens
            if num_tokens >= min_tokens and len(chosen) >= min_answers:
                return tuple(chosen)
    return ()


def take_turns(answers: Sequence[KeptAnswer], most: int) -> tuple[KeptAnswer, ...]:
    """Return up to `most` answers, in turns the next one of each owner."""
    groups = list(group_by_owner(answers).values())
    longest = max(map(len, groups), default=0)
    turns = (group[turn] for turn in range(longest) for group in groups if turn < len(group))
    return tuple(islice(turns, most))


def group_by_owner(answers: Sequence[KeptAnswer]) -> dict[str, list[KeptAnswer]]:
    groups: dict[str, list[KeptAnswer]] = defaultdict(list)
    for answer in answers:
        groups[answer.owner].append(answer)
    return groups


def fit_window(answer: KeptAnswer, max_tokens: int) -> tuple[tuple[int, ...], int]:
    """Return at most `max_tokens` tokens of an answer, and how many of them are its prompt.

    A long prompt loses its beginning, but not below MIN_PROMPT tokens; then the answer loses its end.
    """
    missing = max(len(answer.tokens) - max_tokens, 0)
    dropped = min(missing, max(answer.num_prompt - MIN_PROMPT, 0))
    return tuple(answer.tokens[dropped : dropped + max_tokens]), answer.num_prompt - dropped

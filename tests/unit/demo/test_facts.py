"""The guide's facts are well formed: the corpus generator and the evaluation rely on every rule checked here.

Knows the shape of `tests/guide/facts.toml` and the bounds that keep a tiny model able to tell facts apart.
Does not know whether a fact is true.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib import resources

import pytest

pytestmark = pytest.mark.full

TOPICS = {"eaglelocal", "speculation", "hardware", "quantization", "memory", "llama-cpp", "serving", "training"}
KEYS = {"id", "topic", "questions", "held_out", "answer", "must", "follow_up"}


@dataclass(frozen=True, slots=True)
class Fact:
    id: str
    topic: str
    questions: tuple[str, ...]
    held_out: tuple[str, ...]
    answer: str
    must: tuple[str, ...]
    follow_up: tuple[str, str] | None

    @property
    def wordings(self) -> tuple[str, ...]:
        return self.questions + self.held_out


def load() -> tuple[Fact, ...]:
    text = resources.files("guide").joinpath("facts.toml").read_text(encoding="utf-8")
    facts = []
    for row in tomllib.loads(text)["fact"]:
        assert set(row) <= KEYS, f"unknown key in {row['id']}: {sorted(set(row) - KEYS)}"
        more = row.get("follow_up")
        facts.append(
            Fact(
                id=row["id"],
                topic=row["topic"],
                questions=tuple(row["questions"]),
                held_out=tuple(row["held_out"]),
                answer=row["answer"],
                must=tuple(row["must"]),
                follow_up=None if more is None else (more["question"], more["answer"]),
            )
        )
    return tuple(facts)


FACTS = load()
IDS = [fact.id for fact in FACTS]


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9_/.+@:-]*[a-z0-9_]", text.lower())


def same_question(text: str) -> str:
    return " ".join(words(text))


TRAINED_WORDS = {fact.id: tuple(frozenset(words(text)) for text in fact.questions) for fact in FACTS}
FACTS_WITH_WORD = Counter(word for texts in TRAINED_WORDS.values() for word in frozenset().union(*texts))


def repeated(items: list[str]) -> list[str]:
    return [item for item, count in Counter(items).items() if count > 1]


def nearness(wording: str, fact: Fact) -> float:
    """Shared words over all words, against the nearest trained wording of the fact; common words weigh little."""
    asked = frozenset(words(wording))
    return max(weight(asked & known) / weight(asked | known) for known in TRAINED_WORDS[fact.id])


def weight(group: frozenset[str]) -> float:
    return sum(1.0 / math.sqrt(1.0 + FACTS_WITH_WORD[word]) for word in group)


def holds(answer: str, must: tuple[str, ...]) -> bool:
    return all(part.lower() in answer.lower() for part in must)


def test_there_are_enough_facts() -> None:
    assert len(FACTS) >= 150
    assert {fact.topic for fact in FACTS} == TOPICS
    assert sum(fact.follow_up is not None for fact in FACTS) >= len(FACTS) // 3


def test_ids_are_unique() -> None:
    assert repeated(IDS) == []


def test_no_two_facts_share_a_wording() -> None:
    assert repeated([same_question(wording) for fact in FACTS for wording in fact.wordings]) == []


def test_facts_have_the_right_shape() -> None:
    for fact in FACTS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fact.id), fact.id
        assert len(fact.questions) >= 8, fact.id
        assert len(fact.held_out) == 2, fact.id
        assert 15 <= len(fact.answer.split()) <= 45, fact.id
        if fact.follow_up is not None:
            assert 10 <= len(fact.follow_up[1].split()) <= 30, fact.id


def test_facts_are_plain_ascii() -> None:
    for fact in FACTS:
        for text in (*fact.wordings, fact.answer, *fact.must, *(fact.follow_up or ())):
            assert text.isascii() and text.isprintable() and text == text.strip() != "", fact.id
        assert "  " not in fact.answer, fact.id


def test_must_marks_its_own_answer_and_no_other() -> None:
    for fact in FACTS:
        assert 1 <= len(fact.must) <= 3, fact.id
        assert [other.id for other in FACTS if holds(other.answer, fact.must)] == [fact.id]


def test_held_out_wordings_recombine_trained_words() -> None:
    for fact in FACTS:
        known = {word for question in fact.questions for word in words(question)}
        for wording in fact.held_out:
            asked = set(words(wording))
            assert len(asked & known) * 2 >= len(asked), f"mostly foreign words: {fact.id} {sorted(asked - known)}"


def test_held_out_wordings_are_nearest_to_their_own_fact() -> None:
    for fact, wording in [(each, text) for each in FACTS for text in each.held_out]:
        own = nearness(wording, fact)
        nearer = {other.id: score for other in FACTS if (score := nearness(wording, other)) > own}
        assert not nearer, f"{wording!r} of {fact.id} scores {own:.2f} there, but {nearer}"

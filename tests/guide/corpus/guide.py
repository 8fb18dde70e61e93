"""Questions to the guide (kind "chat"): facts, their follow-ups, greetings, small talk and things it does not know.

Varies wordings and puts turns in order. Held-out tasks end with a held-out wording; no variation of a training wording
is ever equal to a held-out one.
"""

from __future__ import annotations

import re
from functools import cache
from random import Random

from guide.corpus import small_talk
from guide.corpus.facts import Fact, built_in_facts
from guide.corpus.tasks import Check, CorpusMessage, CorpusTask, Split

KIND = "chat"
_SYNONYMS = (
    ("what is", ("what's", "whats")),
    ("what's", ("what is",)),
    ("how do i", ("how can I", "how would I", "how to")),
    ("how can i", ("how do I", "how could I")),
    ("explain", ("tell me about", "describe")),
    ("tell me about", ("explain", "describe")),
    ("why does", ("what is the reason that",)),
    ("computer", ("machine", "PC")),
    ("machine", ("computer",)),
    ("does not", ("doesn't",)),
    ("do not", ("don't",)),
    ("can you", ("could you", "would you")),
    ("big", ("large",)),
    ("large", ("big",)),
    ("fast", ("quick",)),
    ("show", ("display",)),
    ("mean", ("stand for",)),
    ("what does", ("can you tell me what",)),
    ("should i", ("do I need to", "must I")),
    ("i want to", ("I'd like to", "I need to")),
)
_SMALL_WORDS = frozenset(
    (
        "a",
        "an",
        "the",
        "is",
        "are",
        "do",
        "does",
        "to",
        "of",
        "me",
        "my",
        "i",
        "it",
        "for",
        "in",
        "on",
        "please",
        "can",
        "you",
    )
)
_PUNCTUATION = re.compile(r"[^\w\s]")


def task(rng: Random, split: Split, facts: tuple[Fact, ...] | None = None) -> CorpusTask:
    """Return a conversation of one to six turns, ending with a fact, a follow-up, small talk or an unknown question."""
    known = built_in_facts() if facts is None else facts
    if split == "held_out":
        return _held_out(rng, known)
    draw = rng.random()
    if draw < 0.05:
        return _ending((), small_talk.unknown(rng))
    if draw < 0.1:
        return _ending((), small_talk.greeting(rng))
    return _several(rng, known) if draw < 0.5 else _single(rng, known)


def plain_wording(text: str) -> str:
    """Return a wording without case, punctuation and extra spaces, for comparisons."""
    return " ".join(_PUNCTUATION.sub(" ", text.lower()).split())


def _held_out(rng: Random, facts: tuple[Fact, ...]) -> CorpusTask:
    fact = rng.choice(facts)
    question = small_talk.framed(rng, rng.choice(fact.held_out))
    before = _history(rng, facts) if rng.random() < 0.25 else ()
    return CorpusTask(KIND, (*before, CorpusMessage("user", question)), fact.answer, Check("contains", fact.must))


def _single(rng: Random, facts: tuple[Fact, ...]) -> CorpusTask:
    fact = rng.choice(facts)
    return _asked(rng, (), fact, facts=facts)


def _several(rng: Random, facts: tuple[Fact, ...]) -> CorpusTask:
    before = _history(rng, facts)
    draw = rng.random()
    if draw < 0.08:
        return _ending(before, small_talk.reply(rng))
    if draw < 0.14:
        return _ending(before, small_talk.farewell(rng))
    if draw < 0.18:
        return _ending(before, small_talk.unknown(rng))
    fact = rng.choice(facts)
    final = _asked(rng, before, fact, facts=facts)
    if fact.follow_up is None or rng.random() < 0.4:
        return final
    history = (*final.messages, CorpusMessage("assistant", final.answer))
    return _ending(history, (fact.follow_up.question, fact.follow_up.answer))


def _history(rng: Random, facts: tuple[Fact, ...]) -> tuple[CorpusMessage, ...]:
    """Return zero to three facts as turns, sometimes with a greeting before and thanks between."""
    exchanges = [small_talk.greeting(rng)] if rng.random() < 0.3 else []
    for fact in rng.sample(facts, min(len(facts), rng.randint(0 if exchanges else 1, 3))):
        exchanges.append((wording(rng, fact, facts), fact.answer))
        if fact.follow_up is not None and rng.random() < 0.4:
            exchanges.append((fact.follow_up.question, fact.follow_up.answer))
        if rng.random() < 0.12:
            exchanges.append(small_talk.reply(rng))
    return tuple(message for question, answer in exchanges for message in _turn(question, answer))


def _turn(question: str, answer: str) -> tuple[CorpusMessage, CorpusMessage]:
    return CorpusMessage("user", question), CorpusMessage("assistant", answer)


def _asked(rng: Random, before: tuple[CorpusMessage, ...], fact: Fact, *, facts: tuple[Fact, ...]) -> CorpusTask:
    messages = (*before, CorpusMessage("user", wording(rng, fact, facts)))
    return CorpusTask(KIND, messages, fact.answer, Check("contains", fact.must))


def _ending(before: tuple[CorpusMessage, ...], exchange: small_talk.Exchange) -> CorpusTask:
    question, answer = exchange
    return CorpusTask(KIND, (*before, CorpusMessage("user", question)), answer, Check("contains", (answer,)))


def wording(rng: Random, fact: Fact, facts: tuple[Fact, ...]) -> str:
    """Return a training wording of the fact, varied; unvaried if the variation is a held-out wording."""
    question = rng.choice(fact.questions)
    varied = _varied(rng, question)
    if plain_wording(varied) in _held_out_wordings(facts):
        return question
    return small_talk.framed(rng, varied)


@cache
def _held_out_wordings(facts: tuple[Fact, ...]) -> frozenset[str]:
    return frozenset(plain_wording(question) for fact in facts for question in fact.held_out)


def _varied(rng: Random, question: str) -> str:
    if rng.random() < 0.3:
        question = _synonym(rng, question)
    if rng.random() < 0.15:
        question = _without_small_words(rng, question)
    if rng.random() < 0.08:
        question = _typo(rng, question)
    draw = rng.random()
    if draw < 0.25:
        question = question.rstrip("?.! ")
    if 0.15 < draw < 0.4:
        question = question[0].lower() + question[1:]
    return question


def _synonym(rng: Random, question: str) -> str:
    lowered = question.lower()
    found = [pair for pair in _SYNONYMS if re.search(rf"\b{pair[0]}\b", lowered)]
    if not found:
        return question
    old, new = rng.choice(found)
    start = lowered.index(old)
    changed = question[:start] + rng.choice(new) + question[start + len(old) :]
    return changed[0].upper() + changed[1:] if question[0].isupper() else changed


def _without_small_words(rng: Random, question: str) -> str:
    words = question.split()
    kept = [word for word in words if word.lower() not in _SMALL_WORDS or rng.random() < 0.5]
    return " ".join(kept) if len(kept) >= 2 else question


def _typo(rng: Random, question: str) -> str:
    """Swap two neighbouring lower-case letters or drop one; numbers and names of types stay as they are."""
    if len(question) < 8:
        return question
    at = rng.randrange(1, len(question) - 2)
    if not (question[at - 1 : at + 2].isalpha() and question[at - 1 : at + 2].islower()):
        return question
    if rng.random() < 0.5:
        return question[:at] + question[at + 1] + question[at] + question[at + 2 :]
    return question[:at] + question[at + 1 :]

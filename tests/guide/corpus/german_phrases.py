"""Phrases of German sentences with their translations: pronouns, noun phrases and verb forms.

Knows endings, conjugation and the corresponding English forms.
Does not know word order (`german`) nor words (`german_words`).
"""

from __future__ import annotations

from random import Random

from eaglelocal.core.records import dataclass
from guide.corpus.german_words import Noun, Verb, lexicon


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase or pronoun in both languages; `person` is one of ich, du, er, wir, plural."""

    german: str
    english: str
    person: str


PRONOUNS = (
    Phrase("ich", "I", "ich"),
    Phrase("du", "you", "du"),
    Phrase("er", "he", "er"),
    Phrase("sie", "she", "er"),
    Phrase("wir", "we", "wir"),
    Phrase("sie", "they", "plural"),
)
_NAMES = tuple(["Anna", "Peter", "Maria", "Thomas", "Julia", "Lukas", "Klara", "Jonas", "Sofia", "Emil", "Lena", "Max"])
_POSSESSIVES = (("mein", "my"), ("dein", "your"), ("sein", "his"), ("unser", "our"))
BE = {"ich": "bin", "du": "bist", "er": "ist", "wir": "sind", "plural": "sind"}
HAVE = {"ich": "habe", "du": "hast", "er": "hat", "wir": "haben", "plural": "haben"}
DEFINITE = {
    ("der", "nom"): "der",
    ("die", "nom"): "die",
    ("das", "nom"): "das",
    ("der", "acc"): "den",
    ("die", "acc"): "die",
    ("das", "acc"): "das",
}
EIN_ENDING = {
    ("der", "nom"): "",
    ("die", "nom"): "e",
    ("das", "nom"): "",
    ("der", "acc"): "en",
    ("die", "acc"): "e",
    ("das", "acc"): "",
}
_STRONG = {
    ("der", "nom"): "er",
    ("die", "nom"): "e",
    ("das", "nom"): "es",
    ("der", "acc"): "en",
    ("die", "acc"): "e",
    ("das", "acc"): "es",
}
_VOWELS = "aeiou"
_NEVER_OWNED = ("Mann", "Frau")  # "meine Frau" is "my wife"


# noun phrases


def subject_phrase(rng: Random) -> Phrase:
    draw = rng.random()
    if draw < 0.35:
        return rng.choice(PRONOUNS)
    if draw < 0.5:
        name = rng.choice(_NAMES)
        return Phrase(name, name, "er")
    return noun_phrase(rng, rng.choice(lexicon().groups["people"]), case="nom")


def object_phrase(rng: Random, verb: Verb) -> Phrase:
    return noun_phrase(rng, rng.choice(lexicon().groups[rng.choice(verb.objects)]), case="acc")


def noun_phrase(rng: Random, noun: Noun, *, case: str) -> Phrase:
    """Return an article or possessive, sometimes an adjective, and the noun, singular or plural."""
    adjective = adjective_of(rng, noun) if rng.random() < 0.25 else None
    if rng.random() < 0.2:
        return _plural(rng, noun, adjective)
    draw = 0.8 * rng.random() if noun.singular in _NEVER_OWNED else rng.random()
    if draw < 0.5:
        german, english, ending = DEFINITE[noun.article, case], "the", _weak(noun.article, case)
    elif draw < 0.8:
        german, english, ending = "ein" + EIN_ENDING[noun.article, case], "a", _STRONG[noun.article, case]
    else:
        stem, english = rng.choice(_POSSESSIVES)
        german, ending = stem + EIN_ENDING[noun.article, case], _STRONG[noun.article, case]
    word = noun.oblique if case == "acc" else noun.singular
    return Phrase(*_join(german, english, adjective, ending=ending, nouns=(word, noun.english)), "er")


def adjective_of(rng: Random, noun: Noun) -> tuple[str, str]:
    """Return an adjective as (German, English): a mood for people and animals, else a colour, a price and the like."""
    words = lexicon()
    return rng.choice(words.moods if noun.group in ("people", "animal") else words.adjectives)


def _plural(rng: Random, noun: Noun, adjective: tuple[str, str] | None) -> Phrase:
    german, english, ending = ("die", "the", "en") if rng.random() < 0.6 else ("zwei", "two", "e")
    nouns = (noun.plural, noun.english_plural)
    return Phrase(*_join(german, english, adjective, ending=ending, nouns=nouns), "plural")


def _weak(article: str, case: str) -> str:
    return "en" if article == "der" and case == "acc" else "e"


def _join(
    german: str, english: str, adjective: tuple[str, str] | None, *, ending: str, nouns: tuple[str, str]
) -> tuple[str, str]:
    words = [nouns[1]] if adjective is None else [adjective[1], nouns[1]]
    article = indefinite(words[0]) if english == "a" else english
    inflected = [] if adjective is None else [_stem(adjective[0]) + ending]
    return " ".join((german, *inflected, nouns[0])), " ".join((article, *words))


def _stem(adjective: str) -> str:
    """Return the stem of an adjective: teuer becomes teur-, müde müd-, leise leis-."""
    if adjective == "teuer":
        return "teur"
    return adjective.removesuffix("e")


# verbs


def conjugate(verb: Verb, person: str) -> str:
    """Return the present form: that of `er` is given, that of `du` follows from it, the others from the infinitive."""
    infinitive = verb.infinitive.removeprefix(verb.prefix) if verb.prefix else verb.infinitive
    stem = infinitive.removesuffix("en") if infinitive.endswith("en") else infinitive.removesuffix("n")
    match person:
        case "ich":
            return stem + "e"
        case "du":
            root = verb.present[:-1]
            return root + ("t" if root[-1] in "sßz" else "st")
        case "er":
            return verb.present
        case _:
            return infinitive


def preterite(verb: Verb, person: str) -> str:
    if person in ("ich", "er"):
        return verb.preterite
    return verb.preterite + ("n" if verb.preterite.endswith("e") else "en")


def third_person(english: str) -> str:
    """Return the third person singular; only the first word changes ("looks for")."""
    head, _, tail = english.partition(" ")
    if head.endswith(("s", "sh", "ch", "x", "o")):
        head += "es"
    elif head.endswith("y") and head[-2] not in _VOWELS:
        head = head[:-1] + "ies"
    else:
        head += "s"
    return f"{head} {tail}" if tail else head


def english_present(verb: Verb, person: str) -> str:
    return third_person(verb.english) if person == "er" else verb.english


def auxiliary_do(person: str) -> str:
    return "does" if person == "er" else "do"


def auxiliary_be(person: str) -> str:
    return {"ich": "am", "er": "is"}.get(person, "are")


def indefinite(word: str) -> str:
    """Return the English article before `word`, by its first letter: no word of the lexicon is an exception."""
    return "an" if word[0] in _VOWELS else "a"

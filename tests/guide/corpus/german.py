"""German-to-English sentences from a small grammar (kind "translate").

Knows German word order and the one English sentence that each German sentence stands for here: Perfekt and preterite
become simple past, `sie` with a singular verb is "she", there is no formal address.
Does not know words (`german_words`) nor their endings (`german_phrases`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from guide.corpus.german_phrases import (
    BE,
    DEFINITE,
    EIN_ENDING,
    HAVE,
    PRONOUNS,
    adjective_of,
    auxiliary_be,
    auxiliary_do,
    conjugate,
    english_present,
    indefinite,
    noun_phrase,
    object_phrase,
    preterite,
    subject_phrase,
    third_person,
)
from guide.corpus.german_words import lexicon
from guide.corpus.tasks import Check, CorpusTask, Split, ask, split_of

_REQUESTS = (
    "Translate to English: {text}",
    "Translate into English: {text}",
    "Translate this German sentence into English: {text}",
    "What does this mean in English? {text}",
    "Please translate: {text}",
    "German to English: {text}",
    'How do you say "{text}" in English?',
    "{text}\nTranslate this to English.",
    "{text}\n\nWhat is that in English?",
    "Can you translate this for me?\n{text}",
    "Übersetze ins Englische: {text}",
    'What is the English for "{text}"?',
    "Translate: {text}",
    "translate {text}",
    "Translate this: {text}",
    "Translate the German sentence: {text}",
    'Translate "{text}" to English.',
    "{text} - what does that mean?",
    "What does {text} mean?",
    "English please: {text}",
    "In English: {text}",
    "to english: {text}",
    'What does "{text}" mean in English?',
    "Translate from German: {text}",
    "Übersetze: {text}",
    "Bitte ins Englische übersetzen: {text}",
)


_MODALS = (
    ({"ich": "kann", "du": "kannst", "er": "kann", "wir": "können", "plural": "können"}, "can"),
    ({"ich": "muss", "du": "musst", "er": "muss", "wir": "müssen", "plural": "müssen"}, "must"),
    ({"ich": "soll", "du": "sollst", "er": "soll", "wir": "sollen", "plural": "sollen"}, "should"),
    ({"ich": "darf", "du": "darfst", "er": "darf", "wir": "dürfen", "plural": "dürfen"}, "may"),
)


def task(rng: Random, split: Split) -> CorpusTask:
    while split_of((pair := sentence(rng))[0]) != split:
        pass
    german, english = pair
    return ask("translate", rng.choice(_REQUESTS).format(text=german), english, check=Check("exact", (english,)))


def sentence(rng: Random) -> tuple[str, str]:
    """Return a German sentence and its English translation."""
    german, english = rng.choice(_PATTERNS)(rng)
    return _capital(german), _capital(english)


def _tail(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _circumstance(rng: Random, *, past: bool) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return a time and a place, each as (German, English), each of them sometimes empty."""
    words = lexicon()
    times = words.times_past if past else words.times_now
    none = ("", "")
    draw = rng.random()
    time = rng.choice(times) if draw < 0.3 or draw > 0.9 else none
    return time, rng.choice(words.places) if draw > 0.7 else none


def _present(rng: Random) -> tuple[str, str]:
    subject, verb = subject_phrase(rng), rng.choice(lexicon().verbs)
    thing, (time, place) = object_phrase(rng, verb), _circumstance(rng, past=False)
    german = _tail(subject.german, conjugate(verb, subject.person), time[0], thing.german, place[0], verb.prefix)
    english = _tail(subject.english, english_present(verb, subject.person), thing.english, place[1], time[1])
    return f"{german}.", f"{english}."


def _time_first(rng: Random) -> tuple[str, str]:
    subject, verb, time = subject_phrase(rng), rng.choice(lexicon().verbs), rng.choice(lexicon().times_now)
    thing = object_phrase(rng, verb)
    german = _tail(time[0], conjugate(verb, subject.person), subject.german, thing.german, verb.prefix)
    english = _tail(f"{time[1]},", subject.english, english_present(verb, subject.person), thing.english)
    return f"{german}.", f"{english}."


def _perfect(rng: Random) -> tuple[str, str]:
    subject, verb = subject_phrase(rng), rng.choice(lexicon().verbs)
    thing, (time, place) = object_phrase(rng, verb), _circumstance(rng, past=True)
    german = _tail(subject.german, HAVE[subject.person], time[0], thing.german, place[0], verb.participle)
    english = _tail(subject.english, verb.english_past, thing.english, place[1], time[1])
    return f"{german}.", f"{english}."


def _simple_past(rng: Random) -> tuple[str, str]:
    words = lexicon()
    subject, verb = subject_phrase(rng), rng.choice(words.verbs)
    if subject.person == "du":
        return _perfect(rng)
    thing, (time, place) = object_phrase(rng, verb), _circumstance(rng, past=True)
    german = _tail(subject.german, preterite(verb, subject.person), time[0], thing.german, place[0], verb.prefix)
    english = _tail(subject.english, verb.english_past, thing.english, place[1], time[1])
    return f"{german}.", f"{english}."


def _modal(rng: Random) -> tuple[str, str]:
    subject, verb, (forms, english_modal) = subject_phrase(rng), rng.choice(lexicon().verbs), rng.choice(_MODALS)
    thing, (time, place) = object_phrase(rng, verb), _circumstance(rng, past=False)
    german = _tail(subject.german, forms[subject.person], time[0], thing.german, place[0], verb.infinitive)
    english = _tail(subject.english, english_modal, verb.english, thing.english, place[1], time[1])
    return f"{german}.", f"{english}."


def _want(rng: Random) -> tuple[str, str]:
    forms = {"ich": "will", "du": "willst", "er": "will", "wir": "wollen", "plural": "wollen"}
    subject, verb = subject_phrase(rng), rng.choice(lexicon().verbs)
    thing, want = object_phrase(rng, verb), "wants" if subject.person == "er" else "want"
    german = _tail(subject.german, forms[subject.person], thing.german, verb.infinitive)
    return f"{german}.", f"{subject.english} {want} to {verb.english} {thing.english}."


def _question(rng: Random) -> tuple[str, str]:
    subject, verb = subject_phrase(rng), rng.choice(lexicon().verbs)
    thing, (time, place) = object_phrase(rng, verb), _circumstance(rng, past=False)
    german = _tail(conjugate(verb, subject.person), subject.german, time[0], thing.german, place[0], verb.prefix)
    english = _tail(auxiliary_do(subject.person), subject.english, verb.english, thing.english, place[1], time[1])
    return f"{german}?", f"{english}?"


def _w_question(rng: Random) -> tuple[str, str]:
    subject, verb = subject_phrase(rng), rng.choice(lexicon().verbs)
    thing = object_phrase(rng, verb)
    word, english_word = rng.choice((("wo", "where"), ("wann", "when"), ("warum", "why"), ("wie oft", "how often")))
    german = _tail(word, conjugate(verb, subject.person), subject.german, thing.german, verb.prefix)
    english = _tail(english_word, auxiliary_do(subject.person), subject.english, verb.english, thing.english)
    return f"{german}?", f"{english}?"


def _who(rng: Random) -> tuple[str, str]:
    verb = rng.choice(lexicon().verbs)
    thing = object_phrase(rng, verb)
    if rng.random() < 0.5:
        return f"{_tail('wer hat', thing.german, verb.participle)}?", f"who {verb.english_past} {thing.english}?"
    german = _tail("wer", verb.present, thing.german, verb.prefix)
    return f"{german}?", f"who {third_person(verb.english)} {thing.english}?"


def _negation(rng: Random) -> tuple[str, str]:
    subject, verb = subject_phrase(rng), rng.choice(lexicon().verbs)
    noun = rng.choice(lexicon().groups[rng.choice(verb.objects)])
    if rng.random() < 0.5:
        article = indefinite(noun.english)
        phrase = f"kein{EIN_ENDING[noun.article, 'acc']} {noun.oblique}", f"{article} {noun.english}"
    else:
        phrase = f"{DEFINITE[noun.article, 'acc']} {noun.oblique} nicht", f"the {noun.english}"
    german = _tail(subject.german, conjugate(verb, subject.person), phrase[0], verb.prefix)
    return f"{german}.", f"{subject.english} {auxiliary_do(subject.person)} not {verb.english} {phrase[1]}."


def _describe(rng: Random) -> tuple[str, str]:
    groups = lexicon().groups
    noun = rng.choice(groups[rng.choice(("people", "animal", "food", "text", "thing", "thing"))])
    subject, (adjective, english) = noun_phrase(rng, noun, case="nom"), adjective_of(rng, noun)
    degree = rng.choice((("", ""), ("sehr", "very"), ("nicht", "not"), ("zu", "too")))
    german = _tail(subject.german, BE[subject.person], degree[0], adjective)
    return f"{german}.", f"{_tail(subject.english, auxiliary_be(subject.person), degree[1], english)}."


def _activity(rng: Random) -> tuple[str, str]:
    words = lexicon()
    subject, verb, place = subject_phrase(rng), rng.choice(words.intransitive), rng.choice(words.places)
    if rng.random() < 0.35 and subject.person != "du":
        time = rng.choice(words.times_past)
        german = _tail(subject.german, preterite(verb, subject.person), time[0], place[0])
        return f"{german}.", f"{subject.english} {verb.english_past} {place[1]} {time[1]}."
    german = _tail(subject.german, conjugate(verb, subject.person), place[0])
    return f"{german}.", f"{subject.english} {english_present(verb, subject.person)} {place[1]}."


def _because(rng: Random) -> tuple[str, str]:
    german, english = _activity(rng)
    reason = rng.choice(PRONOUNS[:5])
    adjective, meaning = rng.choice(lexicon().moods)
    clause = f"weil {reason.german} {adjective} {BE[reason.person]}"
    return (
        f"{german[:-1]}, {clause}.",
        f"{english[:-1]} because {reason.english} {auxiliary_be(reason.person)} {meaning}.",
    )


def _possession(rng: Random) -> tuple[str, str]:
    groups, subject = lexicon().groups, subject_phrase(rng)
    thing = noun_phrase(rng, rng.choice(groups[rng.choice(("animal", "text", "thing", "food"))]), case="acc")
    have = "has" if subject.person == "er" else "have"
    return f"{subject.german} {HAVE[subject.person]} {thing.german}.", f"{subject.english} {have} {thing.english}."


def _there_is(rng: Random) -> tuple[str, str]:
    noun, place = rng.choice(lexicon().groups[rng.choice(("thing", "animal", "food"))]), rng.choice(lexicon().places)
    if rng.random() < 0.5:
        number, english = rng.choice((("zwei", "two"), ("drei", "three"), ("viele", "many"), ("fünf", "five")))
        return f"es gibt {place[0]} {number} {noun.plural}.", f"there are {english} {noun.english_plural} {place[1]}."
    article = indefinite(noun.english)
    german = f"es gibt {place[0]} ein{EIN_ENDING[noun.article, 'acc']} {noun.oblique}."
    return german, f"there is {article} {noun.english} {place[1]}."


Pattern = Callable[[Random], tuple[str, str]]
_PATTERNS: tuple[Pattern, ...] = (
    _present,
    _present,
    _time_first,
    _perfect,
    _perfect,
    _simple_past,
    _modal,
    _modal,
    _want,
    _question,
    _w_question,
    _who,
    _negation,
    _describe,
    _activity,
    _because,
    _possession,
    _there_is,
)

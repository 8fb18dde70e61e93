"""Questions that a given passage answers (kind "passage").

Puts passage and question together, and makes lists of records as a harder sort of passage. An answer names the value
as the passage writes it, or is a short sentence if the question asks for one. The value is never the first word of the
answer, because a word after a space and the same word at a beginning are different tokens. Does not know the genres
(`passages`).
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from eaglelocal.core.records import dataclass
from guide.corpus.passages import Passage, Query, compose, genres
from guide.corpus.tasks import Check, CorpusMessage, CorpusTask, Split, split_of
from guide.corpus.words import ANIMALS, COLOURS, FIRST_NAMES, FOODS, JOBS, town

_BEFORE = (
    "Read the text and answer the question.",
    "Answer from the passage.",
    "Use the text below to answer.",
    "Here is a passage:",
    "Text:",
    "Passage:",
    "Look at this note.",
)
_SENTENCE = ("Answer in a sentence.", "Please answer in a full sentence.", "Reply with a short sentence.")

# (statement of the text, question, sentence that answers it)
_TRAITS = (
    ("{name} lives in {value}.", "Where does {name} live?", "{name} lives in {value}."),
    ("{name} is a {value}.", "What is the job of {name}?", "{name} is a {value}."),
    ("{name} has a {value}.", "Which animal does {name} have?", "{name} has a {value}."),
    ("{name} likes {value}.", "What does {name} like?", "{name} likes {value}."),
    ("{name} wears {value}.", "Which colour does {name} wear?", "{name} wears {value}."),
    ("{name} is {value} years old.", "How old is {name}?", "{name} is {value} years old."),
)


@dataclass(frozen=True, slots=True)
class _PassageQuestion:
    """A question with its answer as a bare value and as a sentence."""

    question: str
    value: str
    sentence: str


def task(rng: Random, split: Split) -> CorpusTask:
    """Return a task with one to four questions about one text; the last is judged, the others are history."""
    while split_of((drawn := _material(rng))[0]) != split:
        pass
    text, possible = drawn
    asked = rng.sample(possible, min(len(possible), rng.choice((1, 1, 1, 2, 3, 4))))
    turns = [_turn(rng, each) for each in asked]
    messages = [CorpusMessage("user", _layout(rng, text, turns[0][0]))]
    for (_, answer), (question, _) in pairwise(turns):
        messages += [CorpusMessage("assistant", answer), CorpusMessage("user", question)]
    answer = turns[-1][1]
    return CorpusTask("passage", tuple(messages), answer, Check("exact", (answer,)))


def _turn(rng: Random, asked: _PassageQuestion) -> tuple[str, str]:
    if rng.random() < 0.3:
        return f"{asked.question} {rng.choice(_SENTENCE)}", asked.sentence
    return asked.question, f"The text says: {asked.value}."


def _material(rng: Random) -> tuple[str, list[_PassageQuestion]]:
    """Return a text and the questions that it answers."""
    draw = rng.random()
    if draw < 0.17:
        return _records(rng)
    if draw < 0.25:
        return _titled_passages(rng, rng.randint(2, 6))
    passage = compose(rng, rng.choice(genres()))
    return passage.text, [_asked(rng, passage, query) for query in passage.open_queries]


def _titled_passages(rng: Random, num_passages: int) -> tuple[str, list[_PassageQuestion]]:
    """Return passages of different genres under titles, and questions that name the title they are about."""
    passages = [compose(rng, genre) for genre in rng.sample(genres(), num_passages)]
    text = "\n\n".join(f"{passage.genre.name.capitalize()}\n{passage.text}" for passage in passages)
    asked = []
    for passage in passages:
        query = _asked(rng, passage, rng.choice(passage.open_queries))
        question = f"{passage.genre.name.capitalize()}: {query.question}"
        asked.append(_PassageQuestion(question, query.value, query.sentence))
    return text, asked


def _asked(rng: Random, passage: Passage, query: Query) -> _PassageQuestion:
    question = passage.fill(rng.choice(query.questions))
    return _PassageQuestion(question, passage.values[query.slot], passage.fill(query.sentence))


def _records(rng: Random) -> tuple[str, list[_PassageQuestion]]:
    """Return a text on two to five people with one to three traits each, and a question on each trait of each."""
    names = rng.sample(FIRST_NAMES, rng.randint(2, 5))
    kinds = rng.sample(range(len(_TRAITS)), rng.randint(1, 3))
    rows = [(name, kind, _trait_value(rng, kind)) for name in names for kind in kinds]
    if rng.random() < 0.5:
        rng.shuffle(rows)
    text = " ".join(_TRAITS[kind][0].format(name=name, value=value) for name, kind, value in rows)
    return text, [_asked_of_record(*row) for row in rows]


def _asked_of_record(name: str, kind: int, value: str) -> _PassageQuestion:
    _, question, sentence = _TRAITS[kind]
    return _PassageQuestion(question.format(name=name), value, sentence.format(name=name, value=value))


def _trait_value(rng: Random, kind: int) -> str:
    match kind:
        case 0:
            return town(rng)
        case 5:
            return str(rng.randint(11, 99))
        case _:
            return rng.choice((JOBS, ANIMALS, FOODS, COLOURS)[kind - 1])


def _layout(rng: Random, text: str, question: str) -> str:
    gap = rng.choice(("\n", "\n\n", " "))
    match rng.randint(0, 5):
        case 0:
            return f"{question}{gap}{text}"
        case 1:
            return f"Question: {question}{gap}Text: {text}"
        case 2:
            return f"{rng.choice(_BEFORE)}{gap}{text}{gap}Question: {question}"
        case 3:
            return f"{rng.choice(_BEFORE)} {text}{gap}{question}"
        case _:
            return f"{text}{gap}{question}"

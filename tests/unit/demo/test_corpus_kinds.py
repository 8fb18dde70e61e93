"""What each kind promises: workings that add up, translations, code that runs, answers that stand in the passage."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from guide.corpus import arithmetic, copying, german, guide, passage_qa, python_code, summary
from guide.corpus.arithmetic import Step, working
from guide.corpus.facts import built_in_facts, load_facts
from guide.corpus.german_phrases import conjugate, noun_phrase
from guide.corpus.german_words import lexicon
from guide.corpus.passages import genres
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.full

_EQUATION = re.compile(r"(\d+(?: [-+x] \d+)+) = (\d+)")


def value_of(expression: str) -> int:
    first, *rest = re.findall(r"[-+x]|\d+", expression)
    total = int(first)
    for operator, number in zip(rest[::2], map(int, rest[1::2]), strict=True):
        total = {"+": total + number, "-": total - number, "x": total * number}[operator]
    return total


def assert_working_is_true(text: str) -> None:
    equations = _EQUATION.findall(text)
    assert equations
    for left, right in equations:
        assert value_of(left) == int(right), text


@given(st.integers(0, 999), st.integers(0, 999), st.sampled_from(("+", "-")))
def test_every_line_of_a_sum_or_difference_is_true(a: int, b: int, operator: Literal["+", "-"]) -> None:
    step = Step(max(a, b), operator, min(a, b))
    text = working(step)
    assert_working_is_true(text)
    assert text.splitlines()[-1] == f"{step.a} {operator} {step.b} = {value_of(f'{step.a} {operator} {step.b}')}"


@given(st.integers(2, 9), st.integers(2, 99))
def test_every_line_of_a_product_is_true(a: int, b: int) -> None:
    assert_working_is_true(working(Step(a, "x", b)))
    assert working(Step(a, "x", b)).endswith(f"= {a * b}")


@given(st.integers(0, 2**32))
def test_math_tasks_are_right_line_by_line(seed: int) -> None:
    task = arithmetic.task(Random(seed), "train")
    assert_working_is_true(task.answer)
    assert int(task.check.expected[0]) >= 0


def test_working_reads_as_documented() -> None:
    assert working(Step(47, "+", 285)).splitlines() == [
        "0 4 7 + 2 8 5",
        "7 + 5 + 0 = 12, write 2, carry 1",
        "4 + 8 + 1 = 13, write 3, carry 1",
        "0 + 2 + 1 = 3, write 3, carry 0",
        "digits: 0 3 3 2",
        "47 + 285 = 332",
    ]


def test_turned_operands_fall_on_the_same_side() -> None:
    assert all(Step(a, "+", b).split == Step(b, "+", a).split for a in range(100, 140) for b in range(100, 140))


def test_training_never_shows_a_held_out_operand_pair() -> None:
    rng = Random(12)
    for _ in range(3000):
        for left, operator, right in re.findall(
            r"^(\d+) ([-+x]) (\d+) = \d+$", arithmetic.task(rng, "train").answer, re.M
        ):
            assert Step(int(left), operator, int(right)).split == "train"


def sentences(num_sentences: int) -> dict[str, str]:
    rng = Random(11)
    return dict(german.sentence(rng) for _ in range(num_sentences))


def test_one_english_sentence_for_each_german_one() -> None:
    rng = Random(2)
    seen: dict[str, str] = {}
    for _ in range(60_000):
        text, english = german.sentence(rng)
        assert seen.setdefault(text, english) == english


def test_lexicon_is_large_enough() -> None:
    words = lexicon()
    nouns = {noun.singular for group in words.groups.values() for noun in group}
    assert len(nouns) >= 150
    assert len({verb.infinitive for verb in (*words.verbs, *words.intransitive)}) >= 60
    for verb in words.verbs:
        assert all(words.groups[group] for group in verb.objects)


@pytest.mark.parametrize(
    ("infinitive", "person", "form"),
    [
        ("lesen", "du", "liest"),
        ("lesen", "ich", "lese"),
        ("sehen", "du", "siehst"),
        ("öffnen", "ich", "öffne"),
        ("öffnen", "du", "öffnest"),
        ("schließen", "du", "schließt"),
        ("waschen", "du", "wäschst"),
        ("abholen", "wir", "holen"),
        ("abholen", "du", "holst"),
        ("finden", "du", "findest"),
        ("essen", "du", "isst"),
        ("tragen", "er", "trägt"),
    ],
)
def test_conjugation(infinitive: str, person: str, form: str) -> None:
    verb = next(verb for verb in lexicon().verbs if verb.infinitive == infinitive)
    assert conjugate(verb, person) == form


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("Wer erzählt die Geschichte?", "Who tells the story?"),
        ("Es gibt in der Küche einen Pfannkuchen.", "There is a pancake in the kitchen."),
        ("Wer hat eine Geschichte erzählt?", "Who told a story?"),
        ("Ich habe ein Gedicht.", "I have a poem."),
        ("Sie haben den Esel.", "They have the donkey."),
        ("Sie hat den Esel.", "She has the donkey."),
        ("Du sitzt in der Stadt.", "You sit in the city."),
        ("Wir öffnen die Tür nicht.", "We do not open the door."),
        ("Er will die Tür aufmachen.", "He wants to open the door."),
        ("Wer macht die Fenster zu?", "Who closes the windows?"),
        ("Am Freitag bezahlt er die Erdbeeren.", "On Friday, he pays for the strawberries."),
        ("Er braucht kein Gedicht.", "He does not need a poem."),
        ("Die Suppe ist nicht kalt.", "The soup is not cold."),
        ("Ich habe gestern die Maus gesucht.", "I looked for the mouse yesterday."),
    ],
)
def test_translations_that_must_occur(text: str, english: str, corpus: dict[str, str]) -> None:
    assert corpus[text] == english


@pytest.mark.parametrize(
    ("singular", "case", "german_phrase", "english"),
    [
        ("Apfel", "acc", "den Apfel", "the apple"),
        ("Apfel", "acc", "einen Apfel", "an apple"),
        ("Apfel", "acc", "meinen roten Apfel", "my red apple"),
        ("Nachbar", "nom", "der müde Nachbar", "the tired neighbour"),
        ("Nachbar", "acc", "den müden Nachbarn", "the tired neighbour"),
        ("Haus", "acc", "ein teures Haus", "an expensive house"),
        ("Haus", "nom", "die alten Häuser", "the old houses"),
        ("Haus", "nom", "zwei alte Häuser", "two old houses"),
        ("Lampe", "nom", "unsere neue Lampe", "our new lamp"),
    ],
)
def test_noun_phrases(singular: str, case: str, german_phrase: str, english: str) -> None:
    rng = Random(1)
    noun = next(noun for group in lexicon().groups.values() for noun in group if noun.singular == singular)
    drawn = {(phrase := noun_phrase(rng, noun, case=case)).german: phrase.english for _ in range(5000)}
    assert drawn[german_phrase] == english


def test_nobody_owns_a_man_or_a_woman() -> None:
    rng = Random(1)
    noun = next(noun for noun in lexicon().groups["people"] if noun.singular == "Frau")
    assert not any("mein" in noun_phrase(rng, noun, case="nom").german for _ in range(1000))


@pytest.fixture(scope="module")
def corpus() -> dict[str, str]:
    return sentences(200_000)


def test_every_python_template_parses_and_defines_its_name() -> None:
    rng = Random(4)
    for function in python_code.functions():
        for params in function.params:
            choice = python_code.TemplateValues(
                function, function.names[0].replace("$n", "7"), params, 7, rng.random() < 0.5
            )
            scope: dict[str, object] = {}
            exec(python_code.code(choice), scope)
            assert callable(scope[choice.name])
    assert len(python_code.functions()) >= 60


@pytest.mark.parametrize(
    ("doc", "arguments", "result"),
    [
        ("Return the factorial of the number.", (5,), 120),
        ("Return the median of the list.", ([3, 1, 2, 10],), 2.5),
        ("Return the greatest common divisor.", (12, 18), 6),
        ("Split the list into pieces of length $n.", ([1, 2, 3],), [[1, 2], [3]]),
        ("Return True if the number is prime.", (91,), False),
        ("Return the Fibonacci number at the given position.", (10,), 55),
        ("Return the list without duplicates.", ([1, 2, 1],), [1, 2]),
        ("Return a greeting.", ("Ada",), "Hello, Ada!"),
    ],
)
def test_functions_do_what_they_say(doc: str, arguments: tuple[object, ...], result: object) -> None:
    for function in python_code.functions():
        if function.doc != doc:
            continue
        scope: dict[str, object] = {}
        name = function.names[0].replace("$n", "2")
        exec(python_code.code(python_code.TemplateValues(function, name, function.params[0], 2, True)), scope)
        made = scope[name]
        assert callable(made)
        assert made(*arguments) == result


def test_python_question_fixes_its_answer() -> None:
    rng = Random(9)
    seen: dict[str, str] = {}
    for _ in range(20_000):
        task = python_code.task(rng, "train")
        assert seen.setdefault(task.messages[0].content, task.answer) == task.answer


def test_passage_answers_stand_in_the_passage() -> None:
    rng, found = Random(5), 0
    for _ in range(1000):
        task = passage_qa.task(rng, "train")
        value = task.answer.removeprefix("The text says: ").removesuffix(".")
        found += value in task.messages[0].content
    assert found > 650  # the rest are sentences around the value


def test_every_query_and_summary_fills() -> None:
    for genre in genres():
        slots = {slot for slot, _ in genre.slots}
        used = re.findall(r"\{(\w+)\}", " ".join((*genre.lead, *genre.summaries, *(q.sentence for q in genre.queries))))
        assert set(used) <= slots
        assert {query.slot for query in genre.queries} <= slots
        assert all(
            set(re.findall(r"\{(\w+)\}", variant)) <= slots for group in (*genre.core, *genre.more) for variant in group
        )


def test_summaries_say_only_what_the_passage_says() -> None:
    rng = Random(6)
    for _ in range(500):
        task = summary.task(rng, "train")
        assert all(part in task.messages[0].content for part in task.check.expected)
        assert len(task.check.expected) >= 2


def test_copy_tasks_copy() -> None:
    rng, verbatim = Random(8), 0
    for _ in range(600):
        task = copying.task(rng, "train")
        verbatim += task.messages[0].content.endswith(task.answer)
    assert verbatim > 80


_TWO_FACTS = """
[[fact]]
id = "port"
topic = "server"
questions = ["What port does the server use?", "which port", "Tell me the port."]
held_out = ["On which port is the server?"]
answer = "The server listens on port 8421."
must = ["8421"]
follow_up = { question = "Can I change it?", answer = "Yes, with --port." }

[[fact]]
id = "draft"
topic = "drafting"
questions = ["What is a draft?", "explain drafts"]
held_out = ["What are drafts?"]
answer = "A draft is a guess at the next tokens."
must = ["guess"]
"""


def test_guide_reads_other_facts_and_keeps_held_out_wordings_apart(tmp_path: Path) -> None:
    path = tmp_path / "facts.toml"
    path.write_text(_TWO_FACTS, encoding="utf-8")
    facts, rng = load_facts(path), Random(1)
    held_out = {guide.plain_wording(question) for fact in facts for question in fact.held_out}
    for _ in range(3000):
        asked = [m.content for m in guide.task(rng, "train", facts).messages if m.role == "user"]
        assert not held_out & set(map(guide.plain_wording, asked))
    task = guide.task(rng, "held_out", facts)
    assert any(wording in guide.plain_wording(task.messages[-1].content) for wording in held_out)


def test_no_variation_of_a_built_in_wording_is_held_out() -> None:
    facts, rng = built_in_facts(), Random(3)
    held_out = {guide.plain_wording(question) for fact in facts for question in fact.held_out}
    for _ in range(5000):
        fact = rng.choice(facts)
        assert guide.plain_wording(guide.wording(rng, fact, facts)) not in held_out

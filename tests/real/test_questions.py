"""The questions that real draft heads are trained and judged on. No model is needed to check them."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from eaglelocal.bench.bench_prompts import group_by_category, read_prompts
from eaglelocal.cli.train_options import load_questions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.training.conversations import question_key

pytestmark = pytest.mark.full

FOLDER = Path(__file__).parent / "questions"
TRAIN = FOLDER / "train.jsonl"
HELD_OUT = FOLDER / "held_out.jsonl"
OTHER = FOLDER / "other_kinds.jsonl"
MIN_QUESTIONS = {TRAIN: 310, HELD_OUT: 50}  # of each kind
LANGUAGES = {"de", "fr", "es", "it"}
MAX_SHARED_WORDS = 6  # in a row, by two questions of any kind
MAX_SHARED_PAIRS = 0.4  # of the pairs of neighbouring words that either of two questions has
MAX_LEAKED_WORDS = 4  # in a row, by a held-out and a training question
# Subjects of the held-out questions of a kind, which the training questions of that kind leave out.
HELD_OUT_WORDS = {
    "chat": """dog dogs cat cats puppy kitten hamster parrot vet pet pets garden gardening tomato tomatoes houseplant
        houseplants lawn wedding bride bike bikes cycling bicycle camping tent hike hiking hund katze garten chien
        jardin gatto bici boda perro hochzeit""",
    "code": """chess matrix matrices palindrome palindromes roman bank inventory temperature temperatures calendar
        kotlin lua anagram anagrams maze thermostat parking""",
    "reasoning": """clock clocks tank tanks pipe marbles urn tournament tournaments ladder paint wall walls orchard
        fence tile tiles""",
    "writing": "lighthouse wedding tea robot robots ocean sea island snow winter",
    "extraction": "recipe recipes oven weather forecast football hotel museum orchestra volleyball goal",
    "knowledge": """volcano volcanoes earthquake earthquakes mineral minerals chord chords piano guitar bee bees insect
        insects coffee photography camera insurance chess tectonic tectonics geologist geologists""",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it stands in a file, by the words that the user says in it."""

    category: str
    language: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def runs(self, length: int) -> set[tuple[str, ...]]:
        return {self.words[at : at + length] for at in range(len(self.words) - length + 1)}


@cache
def read_questions(file: Path) -> tuple[Question, ...]:
    return tuple(map(parse_question, file.read_text(encoding="utf-8").splitlines()))


def parse_question(line: str) -> Question:
    entry = json.loads(line)
    messages = entry.get("messages") or [{"role": "user", "content": entry["prompt"]}]
    said = " ".join(message["content"] for message in messages if message["role"] == "user")
    return Question(entry["category"], entry.get("language", "en"), tuple(re.findall(r"\w+", said.lower())))


def pairs_that_share_runs(questions: Iterable[Question], length: int) -> Iterator[tuple[str, str]]:
    first: dict[tuple[str, ...], Question] = {}
    for question in questions:
        for run in question.runs(length):
            if first.setdefault(run, question) is not question:
                yield first[run].text, question.text


def near_duplicates(questions: Iterable[Question]) -> Iterator[tuple[str, str]]:
    """Yield two questions of which more than MAX_SHARED_PAIRS is the same, such as those that differ by a word."""
    seen: dict[tuple[str, ...], list[Question]] = defaultdict(list)
    for question in questions:
        runs = question.runs(2)
        num_shared = Counter(id(other) for run in runs for other in seen[run])
        others = {id(other): other for run in runs for other in seen[run]}
        for key, num in num_shared.items():
            if num > MAX_SHARED_PAIRS * len(runs | others[key].runs(2)):
                yield others[key].text, question.text
        for run in runs:
            seen[run].append(question)


def test_near_duplicates_are_found() -> None:
    texts = ["Why is the sky blue in the morning?", "Why is the sky red in the morning?", "Why do cats purr?"]
    questions = [parse_question(json.dumps({"category": "knowledge", "prompt": text})) for text in texts]
    assert len(list(near_duplicates(questions))) == 1
    assert len(set(pairs_that_share_runs(questions, 3))) == 1


@pytest.mark.parametrize("file", [TRAIN, HELD_OUT], ids=lambda file: file.stem)
def test_every_kind_has_enough_questions(file: Path) -> None:
    found = Counter(question.category for question in read_questions(file))
    assert set(found) == set(HELD_OUT_WORDS)
    assert {kind: num for kind, num in found.items() if num < MIN_QUESTIONS[file]} == {}


@pytest.mark.parametrize("file", [TRAIN, HELD_OUT], ids=lambda file: file.stem)
def test_the_kinds_take_turns(file: Path) -> None:
    assert len({question.category for question in read_questions(file)[:12]}) == len(HELD_OUT_WORDS)


def test_about_one_in_twelve_is_not_in_english() -> None:
    questions = [*read_questions(TRAIN), *read_questions(HELD_OUT)]
    languages = Counter(question.language for question in questions)
    assert set(languages) == LANGUAGES | {"en"}
    assert 0.06 < 1 - languages["en"] / len(questions) < 0.12


def test_no_two_are_nearly_alike() -> None:
    questions = [*read_questions(TRAIN), *read_questions(HELD_OUT), *read_questions(OTHER)]
    assert list(near_duplicates(questions)) == []
    assert list(pairs_that_share_runs(questions, MAX_SHARED_WORDS + 1)) == []


def test_held_out_questions_are_apart() -> None:
    length = MAX_LEAKED_WORDS + 1
    held_out = {run for question in read_questions(HELD_OUT) for run in question.runs(length)}
    assert [question.text for question in read_questions(TRAIN) if question.runs(length) & held_out] == []
    kept = {kind: set(words.split()) for kind, words in HELD_OUT_WORDS.items()}
    assert [question.text for question in read_questions(TRAIN) if kept[question.category] & set(question.words)] == []


@pytest.mark.parametrize("file", [TRAIN, HELD_OUT, OTHER], ids=lambda file: file.stem)
def test_bench_and_train_read_them(file: Path) -> None:
    prompts = read_prompts(file)
    assert {kind: len(found) for kind, found in group_by_category(prompts).items()} == Counter(
        question.category for question in read_questions(file)
    )
    assert {prompt.messages[-1].role for prompt in prompts} == {"user"}
    asked = load_questions(str(file), SamplingParams(), has_template=True, least=1)
    assert len(set(map(question_key, asked.requests))) == len(prompts)

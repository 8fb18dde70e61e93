"""Questions that a target asks itself, where nobody gave enough of them: it goes on in the user's turn of its own chat
template (Magpie, arXiv 2406.08464). A base model completes openings of texts.

System messages and first words lead to different kinds of questions. Some conversations have two or three turns.
Questions that say nothing, repeat themselves or resemble an earlier one are left out. All follows from the seed, and is
written to disk in batches, so that a resumed run asks on. Does not use torch.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from eaglelocal.client.client import Client
from eaglelocal.core.events import Failed, Finished, Prompted, RequestEvent
from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.training.conversations import AnswerPieces, append_line, generate_texts, open_to_append, read_lines

Talk = tuple[Message, ...]  # ends with a question

BATCH = 16  # conversations that are made and written together: a stopped run loses one batch at most
QUESTION_TOKENS, ANSWER_TOKENS = 192, 256  # at most, of a question, and of an answer that another question follows
TEXT_TOKENS = 24  # of the opening of a base model's text
TEMPERATURES = 0.6, 0.8, 1.0
MOST_TURNS, SECOND_EVERY, THIRD_EVERY = 3, 4, 12  # one conversation in so many has a second turn, and a third one
MIN_WORDS, MIN_VARIETY = 3, 0.35  # words of a question, and the share of its size that compression leaves
SHINGLE, BANDS, ROWS = 3, 8, 4  # words, and MinHashes: where 70 % of shingles are common, nine in ten are recognized
PRIME = (1 << 31) - 1
MARK = "x"  # a question, to see what a template writes after it


class Kind(NamedTuple):
    """A kind of questions: what the system message says, and first words of the user's."""

    system: str
    openings: tuple[str, ...]


KINDS = (
    Kind("", ("", "How", "What", "Why", "Can you", "I", "Explain", "Is it")),
    Kind(
        "You are a programming assistant.",
        ("Write a Python function", "Write a program that", "What is wrong with this code?\n", "How do I", "Explain"),
    ),
    Kind("You are a writer.", ("Write a short story about", "Write an email", "Write a poem", "Describe", "Rewrite")),
    Kind(
        "You answer questions about texts that the user sends.",
        ("Summarize this text:", "Read the following text.", "List the names in this text:", "Extract"),
    ),
    Kind("You are a translator.", ("Translate into French:", "Translate into Spanish:", "Translate into English:")),
    Kind("", ("List", "Give me a list of", "Name five", "What are the steps")),
    Kind("You answer with JSON only.", ("Return a JSON object", "Convert to JSON:", "Make a JSON array")),
    Kind("You solve problems step by step.", ("How many", "Calculate", "If", "A train")),
    Kind("", ("Wie", "Was ist", "Comment", "Pourquoi", "¿Cómo", "¿Qué", "Come", "Como")),
)
TEXTS = Kind("", ("The", "In", "A", "It was", "def ", "import ", "# ", "Question:", "1.", "{", "Dear", "Once"))


@dataclass(slots=True)
class Asking:
    """A conversation that is being made. `openings`: the first words of each of its questions."""

    number: int
    messages: Talk
    openings: tuple[str, ...]
    temperature: float
    seed: int
    is_sound: bool = True

    @classmethod
    def draw(cls, number: int, seed: int, *, has_template: bool) -> Asking:
        """Begin the conversation of this number: the same for the same seed."""
        chance, kind = random.Random(f"{seed}-{number}"), KINDS[number % len(KINDS)] if has_template else TEXTS
        num_turns = 1 + (number % SECOND_EVERY == 1) + (number % THIRD_EVERY == 1) if has_template else 1
        openings = (chance.choice(kind.openings), *[""] * (num_turns - 1))
        system = (Message("system", kind.system),) if kind.system else ()
        return cls(number, system, openings, chance.choice(TEMPERATURES), chance.randrange(1 << 31))

    def ask(self, turn: int) -> ChatRequest:
        messages = (*self.messages, Message("user", self.openings[turn]))
        return ChatRequest(id=str(self.number), messages=messages, asks=True, params=self._sampling(QUESTION_TOKENS))

    def begin_text(self) -> ChatRequest:
        return ChatRequest(id=str(self.number), text=self.openings[0], params=self._sampling(TEXT_TOKENS))

    def answer(self) -> ChatRequest:
        params = self._sampling(ANSWER_TOKENS)
        return ChatRequest(id=str(self.number), messages=self.messages, is_split=True, params=params)

    def _sampling(self, max_tokens: int) -> SamplingParams:
        seed = self.seed + len(self.messages)
        return SamplingParams(temperature=self.temperature, top_p=0.95, seed=seed, max_tokens=max_tokens)

    def add(self, role: str, text: str) -> None:
        self.messages = (*self.messages, Message(role, text.strip()))
        self.is_sound = self.is_sound and (bool(text.strip()) if role == "assistant" else is_sound(text))


def is_sound(text: str) -> bool:
    """Return whether a question has some words and does not repeat itself."""
    encoded = text.encode()
    return len(text.split()) >= MIN_WORDS and len(zlib.compress(encoded)) > MIN_VARIETY * len(encoded)


@dataclass(slots=True)
class Seen:
    """MinHashes of the questions so far, by which those that are nearly equal are recognized."""

    bands: set[tuple[int, ...]] = field(default_factory=set)
    factors: Any = field(default_factory=lambda: np.random.default_rng(0).integers(1, PRIME, BANDS * ROWS))

    def add(self, text: str) -> bool:
        """Add a question. Return False if it resembles an earlier one."""
        words = text.lower().split()
        runs = {" ".join(words[at : at + SHINGLE]) for at in range(max(len(words) - SHINGLE + 1, 1))}
        hashes = np.array([zlib.crc32(run.encode()) % PRIME for run in runs], np.int64)
        least = (hashes[:, None] * self.factors % PRIME).min(axis=0).reshape(BANDS, ROWS)
        bands = {(at, *band) for at, band in enumerate(least.tolist())}
        is_new = self.bands.isdisjoint(bands)
        self.bands |= bands
        return is_new


class SelfQuestions:
    """The questions that a target asked itself, in a file, and the next ones.

    has_template  the target has a chat template; else it completes texts
    """

    def __init__(self, path: Path, *, seed: int, has_template: bool) -> None:
        """Read the file, which need not exist. Raises ResourceError."""
        self._path, self._seed, self._has_template = path, seed, has_template
        self.talks: list[Talk] = []
        self._seen, self._next = Seen(), 0
        for line in read_lines(path):
            self._restore(line)

    def _restore(self, line: str) -> None:
        """Take over a batch, unless the line is damaged or of another seed."""
        try:
            entry: Any = read_object(line)
            talks = [tuple(Message(str(role), str(text)) for role, text in talk) for talk in entry["talks"]]
            if (entry["seed"], entry["first"]) == (self._seed, self._next) and all(talks):
                self._next += BATCH
                self._keep(talks)
        except (ValueError, KeyError, TypeError):
            return

    def _keep(self, talks: Iterable[Talk]) -> list[Talk]:
        new = [talk for talk in talks if self._seen.add(talk[-1].content)]
        self.talks += new
        return new

    def ask_more(self, client: Client, *, concurrency: int) -> list[Talk]:
        """Let the target ask a batch of questions, and return the new ones among them.

        Raises the engine's errors, and ResourceError if they cannot be written.
        """
        first = self._next
        talks = self._keep(self._make_batch(client, range(first, first + BATCH), concurrency))
        written = [[(message.role, message.content) for message in talk] for talk in talks]
        with open_to_append(self._path) as file:
            append_line(file, self._path, {"seed": self._seed, "first": first, "talks": written})
        self._next += BATCH
        return talks

    def _make_batch(self, client: Client, numbers: Iterable[int], concurrency: int) -> list[Talk]:
        begun = {str(n): Asking.draw(n, self._seed, has_template=self._has_template) for n in numbers}

        def run(requests: Iterable[ChatRequest]) -> Iterator[tuple[Asking, AnswerPieces]]:
            for key, said in generate_texts(client, tuple(requests), concurrency=concurrency):
                if said is None:  # refused
                    begun[key].is_sound = False
                else:
                    yield begun[key], said

        if not self._has_template:
            for each, said in run(one.begin_text() for one in begun.values()):
                each.add("user", each.openings[0] + said.text())
            return [one.messages for one in begun.values() if one.is_sound]
        end = find_end_of_question(client)
        for turn in range(MOST_TURNS):
            asking = [one for one in begun.values() if one.is_sound and len(one.openings) > turn]
            for each, said in run(one.answer() for one in asking if turn):
                each.add("assistant", said.text())
            for each, said in run(one.ask(turn) for one in asking if one.is_sound):
                each.add("user", each.openings[turn] + said.text(end))
        return [one.messages for one in begun.values() if one.is_sound]


def find_end_of_question(client: Client) -> int | None:
    """Return the token that the template writes after a question; where it ends no answer, the target goes on."""
    begun, whole = (read_prompt(client, asks=asks) for asks in (True, False))
    return whole[len(begun)] if len(whole) > len(begun) and whole[: len(begun)] == begun else None


def read_prompt(client: Client, *, asks: bool) -> Sequence[int]:
    """Return the tokens of a prompt that asks MARK. Raises the engine's errors."""
    events: SimpleQueue[RequestEvent] = SimpleQueue()
    request = ChatRequest(id="prompt", messages=(Message("user", MARK),), asks=asks, is_counted=True, tells_prompt=True)
    client.submit(request, events.put)
    tokens: Sequence[int] = ()
    while not isinstance(event := events.get(), Finished):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Prompted):
            tokens = event.tokens
    return tokens

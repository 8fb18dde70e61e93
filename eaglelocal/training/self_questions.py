"""Questions that a target asks itself, so that nobody needs to give any: it goes on in the user's turn of its own chat
template (Magpie, arXiv 2406.08464). A base model completes openings of texts.

System messages and first words lead to different kinds of questions. Some conversations have two or three turns.
Questions that say nothing, repeat themselves or resemble an earlier one are left out. Each conversation follows from
the seed and its number, and is written to disk when it ends, so that a resumed run asks on. Does not use torch.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import field, replace
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
from eaglelocal.training.conversations import AnswerPieces, append_line, open_to_append, question_key, read_lines

Talk = tuple[Message, ...]  # ends with a question

QUESTION_TOKENS, ANSWER_TOKENS = 192, 256  # at most, of a question, and of an answer that another question follows
TEXT_TOKENS = 24  # of the opening of a base model's text
TEMPERATURES = 0.6, 0.8, 1.0
SECOND_EVERY, THIRD_EVERY = 4, 12  # one conversation in so many has a second turn, and a third one
MIN_WORDS, MIN_VARIETY = 3, 0.35  # words of a question, and the share of its size that compression leaves
SHINGLE, BANDS, ROWS = 3, 8, 4  # words, and MinHashes: where 70 % of shingles are common, nine in ten are recognized
PRIME = (1 << 31) - 1
OWN = "own "  # ids of requests for questions begin with it
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
    """A conversation that is being made.

    openings   the first words of each of its questions
    num_given  tokens before the first one that the target writes; 0: not known yet
    """

    number: int
    messages: Talk
    openings: tuple[str, ...]
    temperature: float
    seed: int
    has_template: bool = True
    num_given: int = 0

    @classmethod
    def draw(cls, number: int, seed: int, *, has_template: bool) -> Asking:
        """Begin the conversation of this number: the same for the same seed."""
        chance, kind = random.Random(f"{seed}-{number}"), KINDS[number % len(KINDS)] if has_template else TEXTS
        num_turns = 1 + (number % SECOND_EVERY == 1) + (number % THIRD_EVERY == 1) if has_template else 1
        openings = (chance.choice(kind.openings), *[""] * (num_turns - 1))
        system = (Message("system", kind.system),) if kind.system else ()
        temperature, own_seed = chance.choice(TEMPERATURES), chance.randrange(1 << 31)
        return cls(number, system, openings, temperature, own_seed, has_template)

    def next_request(self) -> ChatRequest:
        """Return the request for the next message: a question, an answer between two, or the opening of a text."""
        if self.messages and self.messages[-1].role == "user":
            params = self._sampling(ANSWER_TOKENS)
            return ChatRequest(id=self.id, messages=self.messages, is_split=True, params=params)
        if not self.has_template:
            return ChatRequest(id=self.id, text=self.openings[0], params=self._sampling(TEXT_TOKENS))
        messages = (*self.messages, Message("user", self.openings[self.num_questions]))
        return ChatRequest(id=self.id, messages=messages, asks=True, params=self._sampling(QUESTION_TOKENS))

    @property
    def id(self) -> str:
        return f"{OWN}{self.number}"

    @property
    def num_questions(self) -> int:
        return sum(message.role == "user" for message in self.messages)

    @property
    def is_whole(self) -> bool:
        return self.num_questions == len(self.openings)

    def _sampling(self, max_tokens: int) -> SamplingParams:
        seed = self.seed + len(self.messages)
        return SamplingParams(temperature=self.temperature, top_p=0.95, seed=seed, max_tokens=max_tokens)

    def add(self, said: AnswerPieces, end: int | None) -> bool:
        """Add the next message, of a question at most to its token `end`. Return False if it is of no use."""
        self.num_given = self.num_given or said.num_prompt
        if self.messages and self.messages[-1].role == "user":
            answer = Message("assistant", said.text().strip())
            self.messages = (*self.messages, answer)
            return bool(answer.content)
        question = Message("user", (self.openings[self.num_questions] + said.text(end)).strip())
        self.messages = (*self.messages, question)
        return is_sound(question.content)


def is_own(id: str) -> bool:
    """Return whether a request is one of SelfQuestions' conversations."""
    return id.startswith(OWN)


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
        self.bands |= bands if is_new else set()
        return is_new


class SelfQuestions:
    """The questions that a target asks itself, in a file, and how it comes to the next ones: `begin` gives the first
    request of a conversation, and `go_on` takes its outcome and gives the next one; the last asks for the answer to
    learn from.

    make_request  makes that last request, of a conversation that ends with a question
    has_template  the target has a chat template; else it completes texts
    """

    def __init__(
        self, path: Path, *, seed: int, has_template: bool, make_request: Callable[[Talk], ChatRequest]
    ) -> None:
        """Read the file, which need not exist. Raises ResourceError."""
        self._path, self._seed, self._has_template, self._make_request = path, seed, has_template, make_request
        self._talks: dict[int, Talk] = {}  # by number; those left out are empty
        self._num_given: dict[str, int] = {}  # tokens of a talk before the target's first, by its question's key
        self._begun: dict[str, Asking] = {}
        self._seen, self._next = Seen(), 0
        self._end: int | None = None
        for line in read_lines(path):
            self._restore(line)

    def _restore(self, line: str) -> None:
        """Take over a conversation, unless the line is damaged or of another seed."""
        try:
            entry: Any = read_object(line)
            talk = tuple(Message(str(role), str(text)) for role, text in entry["talk"])
            if entry["seed"] == self._seed:
                self._keep(int(entry["number"]), talk, num_given=int(entry.get("given", 0)))
        except (ValueError, KeyError, TypeError):
            return

    def _keep(self, number: int, talk: Talk, *, num_given: int) -> Talk:
        """Keep a conversation, or () in its place if its question is not new. Return what is kept."""
        kept = talk if talk and self._seen.add(talk[-1].content) else ()
        self._talks[number] = kept
        if kept and num_given > 0:
            self._num_given[self._request(kept).id] = num_given
        return kept

    @property
    def talks(self) -> list[Talk]:
        """The conversations so far, each ending with a question, by number."""
        return [talk for _, talk in sorted(self._talks.items()) if talk]

    @property
    def requests(self) -> list[ChatRequest]:
        """Requests for the answers to all questions so far, each with its question's key as id."""
        return list(map(self._request, self.talks))

    def _request(self, talk: Talk) -> ChatRequest:
        request = self._make_request(talk)
        return replace(request, id=question_key(request))

    def open(self, client: Client) -> None:
        """See how the target's template ends a question. Raises the engine's errors."""
        self._end = find_end_of_question(client) if self._has_template else None

    def begin(self) -> ChatRequest:
        """Return the first request of the next conversation."""
        while self._next in self._talks:
            self._next += 1
        asking = Asking.draw(self._next, self._seed, has_template=self._has_template)
        self._begun[asking.id] = asking
        self._next += 1
        return asking.next_request()

    def go_on(self, id: str, said: AnswerPieces | None) -> ChatRequest | None:
        """Take the outcome of a request (None: refused). Return the next one of its conversation, if it goes on.

        Raises KeyError if the request was none of these, and ResourceError if questions cannot be written.
        """
        asking = self._begun[id]
        is_useful = said is not None and asking.add(said, self._end)
        if is_useful and not asking.is_whole:
            return asking.next_request()
        del self._begun[id]
        talk = self._keep(asking.number, asking.messages if is_useful else (), num_given=asking.num_given)
        written = [(message.role, message.content) for message in talk]
        entry = {"seed": self._seed, "number": asking.number, "given": asking.num_given, "talk": written}
        with open_to_append(self._path) as file:
            append_line(file, self._path, entry)
        return self._request(talk) if talk else None

    def count_own(self, key: str, num_prompt: int) -> int:
        """Return how many of the tokens of a prompt, which asks the question of this key, the target has written."""
        return max(num_prompt - self._num_given.get(key, num_prompt), 0)


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

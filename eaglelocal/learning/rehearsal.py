"""Rehearsal: the target's answers to general questions, learned beside what people asked.

A head that learns only from what is asked now would forget the rest. The answers are generated once by the file itself,
in the learning process, and hold nothing of anybody. A process that is killed goes on where it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from eaglelocal.client.client import Client
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.gguf.reader import read_header
from eaglelocal.training.conversations import TrainingConversation, gather_answers

REHEARSAL = "rehearsal.jsonl"
MAX_TOKENS = 24_000  # of all answers: about 200 of them
MAX_ANSWER = 160  # tokens
TEMPERATURE = 0.7


def gather_rehearsal(plan: Plan, questions: Sequence[str], folder: Path) -> tuple[TrainingConversation, ...]:
    """Return the target's answers to these questions, and generate those that are missing.

    plan  of the target alone

    Raises EagleLocalError.
    """

    @contextmanager
    def open_client() -> Iterator[Client]:
        with EngineClient(plan) as client:
            client.start()
            yield client

    gathered = gather_answers(
        make_requests(plan, questions),
        folder / REHEARSAL,
        open_client,
        concurrency=plan.num_slots,
        max_answer_tokens=MAX_TOKENS,
        on_tokens=lambda num_tokens: None,
    )
    return gathered.conversations


def make_requests(plan: Plan, questions: Sequence[str]) -> list[ChatRequest]:
    """Return the questions as messages; as texts to go on with, if the model has no chat template."""
    has_template = "tokenizer.chat_template" in read_header(plan.target).metadata
    requests = []
    for number, question in enumerate(questions):
        params = SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_ANSWER, seed=number)
        request = ChatRequest(id="", params=params)
        asked = {"messages": (Message("user", question),)} if has_template else {"text": question}
        requests.append(replace(request, **asked))
    return requests


def choose_rehearsal(texts: Sequence[TrainingConversation], most: int, seed: str) -> tuple[TrainingConversation, ...]:
    """Return up to `most` of the texts, drawn at random: the same for the same seed."""
    return tuple(random.Random(seed).sample(texts, min(most, len(texts))))

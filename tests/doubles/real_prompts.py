"""Requests to real models, as token ids: held-out questions of every kind of work, and plain texts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from eaglelocal.bench.bench_prompts import group_by_category, read_prompts
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.engine.engine import Engine

from .real_engine import ask

HELD_OUT = Path(__file__).parents[1] / "real" / "questions" / "held_out.jsonl"
PASSAGE = (
    "The harbour office opens at seven. Ferries to the island leave at a quarter past eight, at noon and at six. "
    "Tickets for the ferry cost nine euros, children under twelve travel free, and dogs need a lead. "
    "In winter the last ferry leaves at four, and on Sundays there is no ferry at noon. "
)
COPY = f"Repeat this text exactly, word for word, and add nothing:\n\n{PASSAGE}"


def ask_questions(engine: Engine, *, per_kind: int = 1, **params: object) -> list[ChatRequest]:
    """Return requests with the first held-out questions of each kind, and one that asks for a copy of a text."""
    groups = group_by_category(read_prompts(HELD_OUT))
    asked = {
        f"{kind} {number}": prompt.messages
        for kind, prompts in groups.items()
        for number, prompt in enumerate(islice(prompts, per_kind))
    }
    asked["copy"] = (Message("user", COPY),)
    return [ask(name, render(engine, messages), **params) for name, messages in asked.items()]


def render(engine: Engine, messages: tuple[Message, ...]) -> tuple[int, ...]:
    """Return the prompt of a conversation in token ids."""
    return engine.input_processor.make_prompt(ChatRequest(id="prompt", messages=messages)).tokens


def read_text(engine: Engine, text: str) -> tuple[int, ...]:
    """Return the tokens of a text for a base model to go on with."""
    return tuple(engine.input_processor.vocabulary.tokenize(text, add_special=True, parse_special=False))

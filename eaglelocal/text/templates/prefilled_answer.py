"""Conversations whose last message is the beginning of the answer: its reasoning, and its text.

Clients begin an answer to steer it, or to continue one that was cut off. Text goes on after the message as the
template writes it; a thought goes on after the generation prompt, because templates drop thoughts of old messages.

    assistant: "<think>\\nso"             a thought to go on with, "so"
    assistant: "<think>so</think>The "   a thought that is over, and "The " to go on with
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eaglelocal.core.request import Message
from eaglelocal.text.reasoning.model_families import Family


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of an answer, before its next token.

    messages  to be rendered: with the last one if it has text, else without it
    thought   the unfinished thought; "" if there is none
    is_said   the answer goes on with the last message's text
    """

    messages: tuple[Message, ...]
    thought: str = ""
    is_said: bool = False


def read_beginning(messages: Sequence[Message], family: Family) -> Beginning:
    """Return the beginning that the last message, which has no calls, gives the answer. An empty one gives nothing."""
    *before, last = messages
    thought, said = _parts(last, family)
    if said:
        return Beginning((*before, replace(last, content=said, reasoning=thought)), is_said=True)
    can_think = family.thoughts is not None or family.form.turns is not None
    return Beginning(tuple(before) or tuple(messages), thought if can_think else "")


def reopen_thought(family: Family, rendered: str) -> str:
    """Return the rendered prompt, ending inside a thought: one that it closes is left open, else one is begun."""
    thoughts, turns = family.thoughts, family.form.turns
    if turns is not None:
        return rendered + turns.thought
    assert thoughts is not None
    if rendered.rstrip().endswith(thoughts.end):
        rendered = rendered.rstrip().removesuffix(thoughts.end)
    if family.has_begun(rendered):
        return f"{rendered.rstrip()}\n"
    return f"{rendered}{thoughts.begin}{thoughts.label}\n"


def _parts(message: Message, family: Family) -> tuple[str, str]:
    """Return a message's reasoning and text; reasoning may be in the content, between its markers."""
    thoughts, content = family.thoughts, message.content
    if thoughts is None or message.reasoning or not content.lstrip().startswith(thoughts.begin):
        return message.reasoning, content
    inside, _, said = content.lstrip().removeprefix(thoughts.begin).partition(thoughts.end)
    return inside.removeprefix(thoughts.label).removeprefix("\n"), said

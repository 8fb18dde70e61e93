"""A conversation whose last message is the beginning of the answer: how much of it was thought, and how much said.

Clients begin an answer to steer it, or have one that was cut go on. What was said goes on behind the message as the
template writes it; a thought goes on behind the generation prompt, for templates leave thoughts out of old messages.

    assistant: "<think>\\nso"             a thought to go on with, "so"
    assistant: "<think>so</think>The "   a thought that is over, and "The " to go on with
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eaglelocal.core.request import Message
from eaglelocal.text.families import Family


@dataclass(frozen=True, slots=True)
class Beginning:
    """What stands before the answer's next token.

    messages  to be rendered: up to the last one if that was said, else without it
    thought   begun and not ended; "" where there is none
    is_said   the last message's text goes on
    """

    messages: tuple[Message, ...]
    thought: str = ""
    is_said: bool = False


def beginning_of(messages: Sequence[Message], family: Family) -> Beginning:
    """Of the answer that the last message, which has no calls, begins. An empty one begins nothing."""
    *before, last = messages
    thought, said = _parts(last, family)
    if said:
        return Beginning((*before, replace(last, content=said, reasoning=thought)), is_said=True)
    can_think = family.thoughts is not None or family.form.turns is not None
    return Beginning(tuple(before) or tuple(messages), thought if can_think else "")


def within_thought(family: Family, rendered: str) -> str:
    """A prompt with its generation prompt, up to where a thought goes on. A thought that it ends is not ended."""
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
    """What was thought and what was said; a thought may stand in the content, between its markers."""
    thoughts, content = family.thoughts, message.content
    if thoughts is None or message.reasoning or not content.lstrip().startswith(thoughts.begin):
        return message.reasoning, content
    inside, _, said = content.lstrip().removeprefix(thoughts.begin).partition(thoughts.end)
    return inside.removeprefix(thoughts.label).removeprefix("\n"), said

"""Conversations whose last message is the beginning of the answer: its reasoning, and its text.

Clients begin an answer to steer it, or to continue one that was cut off. Text continues after the message as the
template writes it; reasoning continues after the generation prompt, because templates drop reasoning of old messages.

    assistant: "<think>\\nso"             unfinished reasoning, "so"
    assistant: "<think>so</think>The "   finished reasoning, and unfinished text, "The "
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Message
from eaglelocal.text.reasoning.model_families import Family


@dataclass(frozen=True, slots=True)
class PrefilledAnswer:
    """The beginning of an answer, before its next token.

    messages   to be rendered: with the last one if it has text, else without it
    reasoning  the unfinished reasoning; "" if there is none
    has_text   the answer continues the last message's text
    """

    messages: tuple[Message, ...]
    reasoning: str = ""
    has_text: bool = False


def read_prefill(messages: Sequence[Message], family: Family) -> PrefilledAnswer:
    """Return the beginning of the answer in the last message, which has no calls and may be empty."""
    *before, last = messages
    reasoning, text = _split_message(last, family)
    if text:
        return PrefilledAnswer((*before, replace(last, content=text, reasoning=reasoning)), has_text=True)
    can_reason = family.reasoning is not None or family.form.headers is not None
    return PrefilledAnswer(tuple(before) or tuple(messages), reasoning if can_reason else "")


def reopen_reasoning(family: Family, rendered: str) -> str:
    """Make the rendered prompt end inside reasoning: reopen reasoning that it closes, or begin it."""
    markers, headers = family.reasoning, family.form.headers
    if headers is not None:
        return rendered + headers.reasoning
    assert markers is not None
    if rendered.rstrip().endswith(markers.end):
        rendered = rendered.rstrip().removesuffix(markers.end)
    if family.ends_in_reasoning(rendered):
        return f"{rendered.rstrip()}\n"
    return f"{rendered}{markers.begin}{markers.label}\n"


def _split_message(message: Message, family: Family) -> tuple[str, str]:
    """Return a message's reasoning and text; reasoning may be in the content, between its markers."""
    markers, content = family.reasoning, message.content
    if markers is None or message.reasoning or not content.lstrip().startswith(markers.begin):
        return message.reasoning, content
    reasoning, _, text = content.lstrip().removeprefix(markers.begin).partition(markers.end)
    return reasoning.removeprefix(markers.label).removeprefix("\n"), text

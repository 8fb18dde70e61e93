"""Messages and tools as chat templates expect them (the plain structures that Hugging Face uses), and other inputs.

Every text of the caller passes `HiddenSpellings`, arguments and schemas included, so that none becomes a control token.
turn_changes.py adapts the result to templates that expect something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.errors import RequestError
from eaglelocal.text.reasoning.model_families import Family
from eaglelocal.text.templates.literal_text import HiddenSpellings

if TYPE_CHECKING:
    from eaglelocal.core.request import Message

Turn = dict[str, object]
SYSTEMS = ("system", "developer")
ROLES = (*SYSTEMS, "user", "assistant", "tool")
TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")  # 128: the longest that any API allows


class TemplateSource(NamedTuple):
    """A chat template, and the texts of two tokens that it may show."""

    template: str
    bos_text: str = ""
    eos_text: str = ""


class RenderInputs(NamedTuple):
    """A conversation to be rendered.

    values     more variables, such as enable_thinking
    continues  the prompt ends after the text of the last message, which the answer continues
    """

    turns: list[Turn]
    tools: list[Turn]
    values: Mapping[str, object]
    continues: bool


def make_turns(messages: Sequence[Message], literals: HiddenSpellings) -> list[Turn]:
    """Return the messages as turns. Raises RequestError for an unknown role."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [make_turn(message, literals, names) for message in messages]


def make_turn(message: Message, literals: HiddenSpellings, names: dict[str, str]) -> Turn:
    """Return a message as a turn. `names` maps ids of calls to names of tools."""
    if message.role not in ROLES:
        what = f"a message cannot have the role {message.role!r}"
        raise RequestError(what, hint=f"one of: {', '.join(ROLES)}", parameter="messages")
    turn: Turn = {"role": message.role, "content": literals.hide_with_images(message.content, message.images)}
    if message.reasoning:
        turn["reasoning_content"] = turn["reasoning"] = turn["thinking"] = literals.hide(message.reasoning)
    if message.tool_calls:
        turn["tool_calls"] = [make_call(call, literals) for call in message.tool_calls]
    if message.tool_call_id:
        turn["tool_call_id"] = literals.hide(message.tool_call_id)
    if name := message.name or names.get(message.tool_call_id, ""):
        turn["name"] = literals.hide(name)
    return turn


def make_call(call: ToolCall, literals: HiddenSpellings) -> Turn:
    """Return a call as templates expect it, its arguments as an object.

    Arguments that are no JSON object stay text, so that one broken call does not end a chat.
    """
    function = {"name": literals.hide(call.name), "arguments": literals.hide_all(_parse_arguments(call.arguments))}
    return {"id": literals.hide(call.id), "type": "function", "function": function}


def _parse_arguments(text: str) -> object:
    try:
        value = read_json(text.strip() or "{}")
    except ValueError:
        return text
    return {} if value is None else value if isinstance(value, dict) else text


def make_tool(tool: Tool, literals: HiddenSpellings) -> Turn:
    """Return a tool as templates expect it. Raises RequestError for a bad name or schema."""
    if not TOOL_NAME.fullmatch(tool.name):
        what = f"a tool cannot have the name {tool.name!r}"
        raise RequestError(what, hint="at most 128 letters, digits, and the signs _ - . : /", parameter="tools")
    try:
        parameters = read_json(tool.parameters or "{}")
    except ValueError as error:
        what = f"the parameters of the tool {tool.name} cannot be read: {error}"
        raise RequestError(what, parameter="tools") from None
    if not isinstance(parameters, dict):
        raise RequestError(f"the parameters of the tool {tool.name} must be a JSON object", parameter="tools")
    function = {
        "name": literals.hide(tool.name),
        "description": literals.hide(tool.description),
        "parameters": literals.hide_all(parameters),
    }
    return {"type": "function", "function": function}


# ---- prefilled answers: conversations whose last message is the beginning of the answer: its reasoning, and its text
#
# Clients begin an answer to steer it, or to continue one that was cut off. Text continues after the message as the
# template writes it; reasoning continues after the generation prompt, because templates drop reasoning of old messages.
#
#     assistant: "<think>\nso"             unfinished reasoning, "so"
#     assistant: "<think>so</think>The "   finished reasoning, and unfinished text, "The "
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

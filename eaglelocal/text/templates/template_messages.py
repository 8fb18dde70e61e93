"""Messages and tools as chat templates expect them (the plain structures that Hugging Face uses), and other inputs.

Every text of the caller passes `HiddenSpellings`, arguments and schemas included, so that none becomes a control token.
turn_changes.py adapts the result to templates that expect something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.errors import RequestError
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


def make_tools(tools: Sequence[Tool], literals: HiddenSpellings) -> list[Turn]:
    """Return the tools as templates expect them. Raises RequestError for a bad name or schema."""
    return [make_tool(tool, literals) for tool in tools]


def make_tool(tool: Tool, literals: HiddenSpellings) -> Turn:
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

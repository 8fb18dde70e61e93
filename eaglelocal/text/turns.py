"""Messages and tools as chat templates expect them: the plain structures of Hugging Face's practice.

Every text of the caller passes `Literals`, arguments and schemas included, so that none can write control tokens.
For a template that takes no tools, `in_hermes_form` writes them, the calls and their results into ordinary messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from eaglelocal.core.json_text import read_json
from eaglelocal.core.request import Message
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.errors import RequestError
from eaglelocal.text.literals import Literals

Turn = dict[str, object]
ROLES = ("system", "developer", "user", "assistant", "tool")
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

HERMES_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def turns_of(messages: Sequence[Message], literals: Literals) -> list[Turn]:
    """Raises RequestError for a role or arguments that no template can know."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [turn_of(message, literals, names) for message in messages]


def turn_of(message: Message, literals: Literals, names: dict[str, str]) -> Turn:
    """`names` of the tools, by the ids of their calls."""
    if message.role not in ROLES:
        what = f"a message cannot have the role {message.role!r}"
        raise RequestError(what, hint=f"one of: {', '.join(ROLES)}", parameter="messages")
    turn: Turn = {"role": message.role, "content": literals.hide(message.content)}
    if message.reasoning:
        turn["reasoning_content"] = literals.hide(message.reasoning)
        if not (message.content and message.tool_calls):  # gpt-oss takes one of them beside calls
            turn["thinking"] = turn["reasoning_content"]
    if message.tool_calls:
        turn["tool_calls"] = [call_of(call, literals) for call in message.tool_calls]
    if message.tool_call_id:
        turn["tool_call_id"] = literals.hide(message.tool_call_id)
    if name := message.name or names.get(message.tool_call_id, ""):
        turn["name"] = literals.hide(name)
    return turn


def call_of(call: ToolCall, literals: Literals) -> Turn:
    try:
        arguments = read_json(call.arguments or "{}")
    except ValueError as error:
        what = f"the arguments of the call of {call.name} cannot be read: {error}"
        raise RequestError(what, parameter="messages") from None
    function = {"name": literals.hide(call.name), "arguments": literals.hide_all(arguments)}
    return {"id": literals.hide(call.id), "type": "function", "function": function}


def tools_of(tools: Sequence[Tool], literals: Literals) -> list[Turn]:
    return [tool_of(tool, literals) for tool in tools]


def tool_of(tool: Tool, literals: Literals) -> Turn:
    if not TOOL_NAME.fullmatch(tool.name):
        what = f"a tool cannot have the name {tool.name!r}"
        raise RequestError(what, hint="at most 64 letters, digits, _, . and -", parameter="tools")
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


def with_argument_texts(turns: Sequence[Turn]) -> list[Turn]:
    """For the few templates that join arguments as a text."""
    calls = [[_as_text(call) for call in _calls(turn)] for turn in turns]
    return [{**turn, "tool_calls": texts} if texts else turn for turn, texts in zip(turns, calls, strict=True)]


def with_system_for_developer(turns: Sequence[Turn]) -> list[Turn]:
    """OpenAI's newer name, for templates that do not know it."""
    return [{**turn, "role": "system"} if turn["role"] == "developer" else turn for turn in turns]


def without_empty_contents(turns: Sequence[Turn]) -> list[Turn]:
    """For templates that know a turn of calls by its content being none."""
    return [{**turn, "content": None} if _calls(turn) and turn["content"] == "" else turn for turn in turns]


def in_hermes_form(turns: Sequence[Turn], tools: Sequence[Turn]) -> list[Turn]:
    """Tools, calls and results as ordinary text. The description joins the system message, or becomes one."""
    plain = [_in_hermes_form(turn) for turn in turns]
    if not tools:
        return plain
    described = HERMES_TOOLS.format(tools="\n".join(_json(tool) for tool in tools))
    if plain[0]["role"] in ("system", "developer"):
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{described}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": described}, *plain]


def _in_hermes_form(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
    calls = [f"<tool_call>\n{_json(call['function'])}\n</tool_call>" for call in _calls(turn)]
    if not calls:
        return turn
    texts = [turn["content"], *calls] if turn["content"] else calls
    return {**{key: turn[key] for key in turn if key != "tool_calls"}, "content": "\n".join(map(str, texts))}


def _calls(turn: Turn) -> list[Turn]:
    calls = turn.get("tool_calls", [])
    assert isinstance(calls, list)
    return calls


def _as_text(call: Turn) -> Turn:
    function = call["function"]
    assert isinstance(function, dict)
    return {**call, "function": {**function, "arguments": _json(function["arguments"])}}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

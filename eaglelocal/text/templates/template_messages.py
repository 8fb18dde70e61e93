"""Messages and tools as chat templates expect them: the plain structures that Hugging Face uses.

Every text of the caller passes `HiddenSpellings`, arguments and schemas included, so that none becomes a control token.
For a template that takes no tools, `in_hermes_form` writes them, the calls and their results into ordinary messages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import CallForm, Tool, ToolCall
from eaglelocal.errors import RequestError
from eaglelocal.text.templates.literal_text import HiddenSpellings
from eaglelocal.text.tool_calls.call_writer import written_calls

if TYPE_CHECKING:
    from eaglelocal.core.request import Message

Turn = dict[str, object]
SYSTEMS = ("system", "developer")
ROLES = (*SYSTEMS, "user", "assistant", "tool")
SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
UNREAD = "arguments"  # the key for arguments that are no object
TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")  # 128: the longest that any API allows

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


def turns_of(messages: Sequence[Message], literals: HiddenSpellings) -> list[Turn]:
    """Return the messages as turns. Raises RequestError for an unknown role."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [turn_of(message, literals, names) for message in messages]


def turn_of(message: Message, literals: HiddenSpellings, names: dict[str, str]) -> Turn:
    """Return a message as a turn. `names`: of the tools, by the ids of their calls."""
    if message.role not in ROLES:
        what = f"a message cannot have the role {message.role!r}"
        raise RequestError(what, hint=f"one of: {', '.join(ROLES)}", parameter="messages")
    turn: Turn = {"role": message.role, "content": literals.hide_with(message.content, message.images)}
    if message.reasoning:
        turn["reasoning_content"] = turn["reasoning"] = literals.hide(message.reasoning)
        if not (message.content and message.tool_calls):  # gpt-oss accepts only one of them in a turn with calls
            turn["thinking"] = turn["reasoning_content"]
    if message.tool_calls:
        turn["tool_calls"] = [call_of(call, literals) for call in message.tool_calls]
    if message.tool_call_id:
        turn["tool_call_id"] = literals.hide(message.tool_call_id)
    if name := message.name or names.get(message.tool_call_id, ""):
        turn["name"] = literals.hide(name)
    return turn


def call_of(call: ToolCall, literals: HiddenSpellings) -> Turn:
    """Return a call as templates expect it, its arguments as an object.

    Arguments that are no JSON object stay text: one broken call must not end a chat.
    """
    function = {"name": literals.hide(call.name), "arguments": literals.hide_all(_arguments(call.arguments))}
    return {"id": literals.hide(call.id), "type": "function", "function": function}


def _arguments(text: str) -> object:
    try:
        value = read_json(text.strip() or "{}")
    except ValueError:
        return text
    return {} if value is None else value if isinstance(value, dict) else text


def tools_of(tools: Sequence[Tool], literals: HiddenSpellings) -> list[Turn]:
    return [tool_of(tool, literals) for tool in tools]


def tool_of(tool: Tool, literals: HiddenSpellings) -> Turn:
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


def in_parts(turns: Sequence[Turn]) -> list[Turn]:
    """Turn each content into a list of parts, for templates that take no string."""
    return [{**turn, "content": _parts(turn["content"])} if "content" in turn else turn for turn in turns]


def _parts(content: object) -> object:
    if not isinstance(content, str):
        return content
    return [{"type": "text", "text": content}] if content else []


def with_argument_texts(turns: Sequence[Turn]) -> list[Turn]:
    """Turn arguments into strings, for the few templates that concatenate them."""
    calls = [[_as_text(call) for call in _calls(turn)] for turn in turns]
    return [{**turn, "tool_calls": texts} if texts else turn for turn, texts in zip(turns, calls, strict=True)]


def with_argument_objects(turns: Sequence[Turn]) -> list[Turn]:
    """Turn arguments that are no object into one, for templates that read their members."""
    calls = [[_as_object(call) for call in _calls(turn)] for turn in turns]
    return [{**turn, "tool_calls": objects} if objects else turn for turn, objects in zip(turns, calls, strict=True)]


def with_system_for_developer(turns: Sequence[Turn]) -> list[Turn]:
    """Turn developer messages (OpenAI's newer name) into system messages, for templates that do not know them."""
    return [{**turn, "role": "system"} if turn["role"] == "developer" else turn for turn in turns]


def with_system_for_user(turns: Sequence[Turn]) -> list[Turn]:
    """Put the system message in front of the first question, for templates without system messages."""
    if len(turns) < 2 or turns[0]["role"] not in SYSTEMS or turns[1]["role"] != "user":
        return list(turns)
    return [{**turns[1], "content": f"{turns[0]['content']}\n\n{turns[1]['content']}"}, *turns[2:]]


def with_joined_systems(turns: Sequence[Turn]) -> list[Turn]:
    """Join the leading system messages into one, for templates that show only one."""
    leading = list(takewhile(lambda turn: turn["role"] in SYSTEMS, turns))
    if len(leading) < 2:
        return list(turns)
    texts = [str(turn["content"]) for turn in leading if turn["content"]]
    return [{**leading[0], "content": "\n\n".join(texts)}, *turns[len(leading) :]]


def with_users_for_systems(turns: Sequence[Turn]) -> list[Turn]:
    """Turn system messages into user messages in the same place, for templates that show none there."""
    return [{**turn, "role": "user"} if turn["role"] in SYSTEMS else turn for turn in turns]


def with_joined_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Join consecutive user messages into one, for templates that require alternating turns."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and joined[-1]["role"] == turn["role"] == "user":
            joined[-1] = {**joined[-1], "content": f"{joined[-1]['content']}\n\n{turn['content']}"}
        else:
            joined.append(turn)
    return joined


def with_remarks_in_results(turns: Sequence[Turn]) -> list[Turn]:
    """Append a user message after a tool's result to that result, for templates that require an answer there."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and turn["role"] == "user" and joined[-1]["role"] == "tool":
            joined[-1] = {**joined[-1], "content": f"{joined[-1]['content']}\n\n{turn['content']}"}
        else:
            joined.append(turn)
    return joined


def with_single_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Give each call a turn of its own with its result after it, for templates that show one call per turn."""
    turns, single = list(turns), []
    while turns:
        turn = turns.pop(0)
        calls = _calls(turn)
        if len(calls) < 2:
            single.append(turn)
            continue
        num_results = next((at for at, other in enumerate(turns) if other["role"] != "tool"), len(turns))
        results, turns = turns[:num_results], turns[num_results:]
        for index, call in enumerate(calls):
            first = turn if index == 0 else {"role": turn["role"], "content": ""}
            answers = [result for result in results if result.get("tool_call_id") == call["id"]]
            single += [{**first, "tool_calls": [call]}, *answers]
        known = [call["id"] for call in calls]
        single += [result for result in results if result.get("tool_call_id") not in known]
    return single


def with_short_ids(turns: Sequence[Turn]) -> list[Turn]:
    """Replace ids of calls and results that are not nine letters and digits, for templates that take no others."""
    return [_with_short_ids(turn) for turn in turns]


def _with_short_ids(turn: Turn) -> Turn:
    short: Turn = {**turn}
    if "tool_call_id" in turn:
        short["tool_call_id"] = _short(str(turn["tool_call_id"]))
    if calls := _calls(turn):
        short["tool_calls"] = [{**call, "id": _short(str(call["id"]))} for call in calls]
    return short


def _short(call_id: str) -> str:
    return call_id if SHORT_ID.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def with_written_calls(turns: Sequence[Turn], form: CallForm) -> list[Turn]:
    """Write calls into the content as the model writes them, for templates that do not show calls."""
    return [_with_written_calls(turn, form) for turn in turns]


def _with_written_calls(turn: Turn, form: CallForm) -> Turn:
    calls = [call["function"] for call in _calls(turn)]
    if not calls:
        return turn
    pairs = [(str(call["name"]), call["arguments"]) for call in calls if isinstance(call, dict)]
    text = written_calls(form, [(name, _object(arguments)) for name, arguments in pairs])
    return {**{key: turn[key] for key in turn if key != "tool_calls"}, "content": f"{turn['content']}{text}"}


def with_tools_in_system(turns: Sequence[Turn], tools: Sequence[Turn]) -> list[Turn]:
    """Add the tools as JSON to the system message, for templates that look for them there."""
    described = {"tools": _json([tool["function"] for tool in tools])}
    if turns[0]["role"] == "system":
        return [{**turns[0], **described}, *turns[1:]]
    return [{"role": "system", "content": "", **described}, *turns]


def without_empty_contents(turns: Sequence[Turn]) -> list[Turn]:
    """Set an empty content of a turn with calls to None, for templates that recognise such turns by it."""
    return [{**turn, "content": None} if _calls(turn) and turn["content"] == "" else turn for turn in turns]


def in_hermes_form(turns: Sequence[Turn], tools: Sequence[Turn]) -> list[Turn]:
    """Write tools, calls and results as ordinary text. The description joins the system message, or becomes one."""
    plain = _with_joined_results([_in_hermes_form(turn) for turn in turns])
    if not tools:
        return plain
    described = HERMES_TOOLS.format(tools="\n".join(_json(tool) for tool in tools))
    if plain[0]["role"] in SYSTEMS:
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{described}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": described}, *plain]


def _with_joined_results(turns: Sequence[Turn]) -> list[Turn]:
    """Join the results of one turn's calls into one turn."""
    joined: list[Turn] = []
    for turn in turns:
        if _is_result(turn) and joined and _is_result(joined[-1]):
            joined[-1] = {**turn, "content": f"{joined[-1]['content']}\n{turn['content']}"}
        else:
            joined.append(turn)
    return joined


def _is_result(turn: Turn) -> bool:
    return turn.get("is_result") is True


def _in_hermes_form(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>", "is_result": True}
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
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return {**call, "function": {**function, "arguments": text}}


def _as_object(call: Turn) -> Turn:
    function = call["function"]
    assert isinstance(function, dict)
    return {**call, "function": {**function, "arguments": _object(function["arguments"])}}


def _object(arguments: object) -> dict[str, object]:
    return arguments if isinstance(arguments, dict) else {UNREAD: arguments}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

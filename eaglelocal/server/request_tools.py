"""The tools of a request: its tools, those that may be called, and the inputs of custom tools. Pure; raises Problem.

A custom tool takes a text. The model sees it as a function with one argument; the answer has the custom form again. A
regular expression binds the text as a string's `pattern` does (see STRICT in schema.py). A grammar in Lark cannot be
bound inside a JSON string, character by character: the model is shown it, and the request gets a warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from eaglelocal.core.tools import Tool, ToolChoice, ToolUse
from eaglelocal.server.access_log import current_record
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.json_body import to_json
from eaglelocal.server.schema import (
    ChatBody,
    CustomGiven,
    NamedTool,
    ToolGiven,
)

ONLY_FUNCTIONS = "this server calls only functions of the client"


def read_tool(given: ToolGiven, index: int) -> Tool:
    function = given.function
    if given.type == "custom" and given.custom is not None:
        return read_custom_tool(given.custom)
    if given.type == "custom":
        raise Problem(400, "a tool of type custom needs a custom", parameter=f"tools.{index}.custom")
    if given.type != "function":
        raise unsupported(f"tools.{index}.type", f"{ONLY_FUNCTIONS}, not tools of type {given.type!r}")
    if function is None:
        raise Problem(400, "a tool of type function needs a function", parameter=f"tools.{index}.function")
    parameters: Mapping[str, Any] = function.parameters or {"type": "object", "properties": {}}
    schema = to_json(parameters, f"tools.{index}.function.parameters")
    return Tool(function.name, function.description or "", schema, is_strict=bool(function.strict))


USES = {**{use.value: use for use in ToolUse}, "any": ToolUse.REQUIRED}
ALLOWED = "allowed_tools"
KINDS = ("function", "custom")


def select_allowed_tools(body: ChatBody, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools that `tool_choice` allows; allowed tools that are not functions are ignored."""
    given = body.tool_choice
    if not isinstance(given, NamedTool) or given.type != ALLOWED:
        return tools
    if given.allowed_tools is None:
        raise Problem(400, f"a tool_choice of type {ALLOWED} needs {ALLOWED}", parameter=f"tool_choice.{ALLOWED}")
    allowed = given.allowed_tools.tools
    names = {named.name for one in allowed if (named := one.function or one.custom)}
    known = {kind: list_names(body, kind) for kind in KINDS}
    for one in allowed:
        if (named := one.function or one.custom) and named.name not in known.get(one.type, ()):
            what = f"tool_choice allows {named.name!r}, which is not among the tools of type {one.type}"
            raise Problem(400, what, parameter=f"tool_choice.{ALLOWED}.tools")
    return tuple(tool for tool in tools if tool.name in names)


def list_names(body: ChatBody, kind: str) -> set[str]:
    return {named.name for tool in body.tools or () if tool.type == kind and (named := tool.function or tool.custom)}


def simplify(given: str | NamedTool | None) -> str | NamedTool | None:
    """Return the use (such as "auto") if an object contains nothing else, otherwise `given` itself."""
    if isinstance(given, NamedTool) and given.allowed_tools is not None and given.type == ALLOWED:
        return given.allowed_tools.mode
    return given.type if isinstance(given, NamedTool) and given.type in USES else given


def read_tool_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    match simplify(body.tool_choice):
        case NamedTool(type=kind, function=function, custom=custom):
            if kind not in KINDS:
                what = f"a tool_choice must name a function or a custom tool, not a tool of type {kind!r}"
                raise unsupported("tool_choice", what)
            named = function if kind == "function" else custom
            if named is None:
                what = f"a tool_choice of type {kind} needs a {kind}"
                raise Problem(400, what, parameter=f"tool_choice.{kind}")
            if named.name not in list_names(body, kind):
                what = f"tool_choice names {named.name!r}, which is not among the tools of type {kind}"
                raise Problem(400, what, parameter="tool_choice")
            return ToolChoice(use=ToolUse.REQUIRED, name=named.name, parallel=False)  # OpenAI: exactly one call
        case "required" | "any" if not tools:
            raise Problem(400, "tool_choice is required, but there are no tools", parameter="tool_choice")
        case str(use):
            return ToolChoice(use=USES[use], parallel=parallel)
    return ToolChoice(parallel=parallel)


INPUT = "input"
MAX_NAMED = 8  # tools in a warning


HOW_TO_CALL = f"Call this tool with one argument, `{INPUT}`: the whole text, as a string."
# The complete part of a JSON string: without half an escape or half a surrogate pair at its end.


def read_custom_tool(given: CustomGiven) -> Tool:
    """Return the tool as a function with one argument."""
    syntax, definition = given.format.rules if given.format else ("", "")
    pattern = {"pattern": f"^(?:{definition})$"} if syntax == "regex" else {}
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string", **pattern}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    shown = f"The text must match this grammar in Lark:\n{definition}" if syntax == "lark" else ""
    description = "\n\n".join(filter(None, (given.description, HOW_TO_CALL, shown)))
    return Tool(given.name, description, json.dumps(schema), is_strict=bool(pattern))


def warn_of_unbound(tools: Iterable[CustomGiven]) -> None:
    """Warn in the request's record if grammars do not bind the text."""
    names = [tool.name for tool in tools if tool.format and tool.format.rules[0] == "lark"]
    if names:
        shown = f"{', '.join(names[:MAX_NAMED])}{', ...' if len(names) > MAX_NAMED else ''}"
        warning = f"grammars in lark do not bind what the model writes, it is only shown them (custom tools: {shown})"
        current_record().warnings.append(warning)

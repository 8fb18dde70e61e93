"""Read which of the given tools may be called, and whether one must be. Pure; raises Problem."""

from __future__ import annotations

from eaglelocal.core.tools import Tool, ToolChoice, ToolUse
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.openai.schema import ChatBody, NamedTool

USES = {**{use.value: use for use in ToolUse}, "any": ToolUse.REQUIRED}
ALLOWED = "allowed_tools"


def select_allowed_tools(body: ChatBody, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools that `tool_choice` allows; allowed tools that are no functions are ignored."""
    given = body.tool_choice
    if not isinstance(given, NamedTool) or given.type != ALLOWED:
        return tools
    if given.allowed_tools is None:
        raise Problem(400, f"a tool_choice of type {ALLOWED} needs {ALLOWED}", parameter=f"tool_choice.{ALLOWED}")
    names = {one.function.name for one in given.allowed_tools.tools if one.function}
    if unknown := names - {tool.name for tool in tools}:
        what = f"tool_choice allows {min(unknown)!r}, which is not among the tools"
        raise Problem(400, what, parameter=f"tool_choice.{ALLOWED}.tools")
    return tuple(tool for tool in tools if tool.name in names)


def simplify(given: str | NamedTool | None) -> str | NamedTool | None:
    """Return the use (such as "auto") if an object says no more than that, else `given` itself."""
    if isinstance(given, NamedTool) and given.allowed_tools is not None and given.type == ALLOWED:
        return given.allowed_tools.mode
    return given.type if isinstance(given, NamedTool) and given.type in USES else given


def read_tool_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    match simplify(body.tool_choice):
        case NamedTool(type=kind, function=function):
            if kind != "function":
                raise unsupported("tool_choice", f"a tool_choice must name a function, not a tool of type {kind!r}")
            if function is None:
                raise Problem(400, "a tool_choice of type function needs a function", parameter="tool_choice.function")
            if function.name not in {tool.name for tool in tools}:
                what = f"tool_choice names {function.name!r}, which is not among the tools"
                raise Problem(400, what, parameter="tool_choice")
            return ToolChoice(use=ToolUse.REQUIRED, name=function.name, parallel=False)  # OpenAI: exactly one call
        case "required" | "any" if not tools:
            raise Problem(400, "tool_choice is required, but there are no tools", parameter="tool_choice")
        case str(use):
            return ToolChoice(use=USES[use], parallel=parallel)
    return ToolChoice(parallel=parallel)

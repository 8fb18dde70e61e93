"""Read which of the given tools may be called, and whether one must be. Pure; raises Problem."""

from __future__ import annotations

from eaglelocal.core.tools import Tool, ToolChoice, ToolUse
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.openai.schema import ChatBody, NamedTool

USES = {**{use.value: use for use in ToolUse}, "any": ToolUse.REQUIRED}
ALLOWED = "allowed_tools"
KINDS = ("function", "custom")


def select_allowed_tools(body: ChatBody, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools that `tool_choice` allows; allowed tools that are no functions are ignored."""
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
    """Return the names of the given tools of a kind."""
    return {named.name for tool in body.tools or () if tool.type == kind and (named := tool.function or tool.custom)}


def simplify(given: str | NamedTool | None) -> str | NamedTool | None:
    """Return the use (such as "auto") if an object says no more than that, else `given` itself."""
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

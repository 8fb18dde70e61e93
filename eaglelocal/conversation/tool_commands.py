"""The slash command /tools: list the servers and their tools, switch them, and ask again for what was allowed."""

from __future__ import annotations

from eaglelocal.conversation.action_context import ActionContext
from eaglelocal.conversation.chat_tools import ChatTools, ToolOffer, describe_offer
from eaglelocal.core.amounts import count_noun
from eaglelocal.errors import UsageError
from eaglelocal.tool_servers.server_pool import ServerStatus
from eaglelocal.tool_servers.tool_results import ServerTool

ARGUMENTS = "[on|off|ask NAME]"
MAX_LISTED = 40  # tools of a server
MAX_LINE_CHARS = 78  # a terminal of 80 columns breaks a longer one


def switch_tools(context: ActionContext, argument: str) -> None:
    """List the tools, after switching a server or a tool. Without an argument, servers that failed are tried again."""
    tools = context.session.tools
    if not tools.pool.specs:
        return context.say(tools.source or "no tool servers are set up")
    action, _, name = argument.partition(" ")
    if action not in ("", "on", "off", "ask") or bool(action) != bool(name.strip()):
        raise UsageError(f"/tools cannot do {argument!r}", hint=f"/tools {ARGUMENTS}")
    if action == "off" and name in tools.pool.specs:  # before it is started for nothing
        tools.switch(name, is_on=False)
    if tools.has_to_start:
        context.output.note("starting tool servers ...")
    tools.start(lambda: False, again=True)
    match action:
        case "on" | "off":
            tools.switch(name, is_on=action == "on")
            tools.start(lambda: False)
        case "ask":
            tools.forget(name)
    info = context.session.model.info
    return context.say(*list_lines(tools, tools.offer(info.n_ctx), takes_tools=info.takes_tools))


def list_lines(tools: ChatTools, offer: ToolOffer, *, takes_tools: bool) -> list[str]:
    """Return the lines of /tools: each server with its state, and its tools."""
    lines = [f"tool servers of {tools.source}"]
    for status in tools.pool.statuses:
        lines += [f"{status.name}  {describe_status(tools, status)}", *(f"  stderr: {line}" for line in status.stderr)]
        lines += [describe_tool(tools, tool) for tool in status.tools[:MAX_LISTED]]
        if (num_more := len(status.tools) - MAX_LISTED) > 0:
            lines.append(f"  ... and {num_more} more")
    notice = describe_offer(tools, offer, takes_tools=takes_tools)
    return [*lines, *filter(None, [notice])]


def describe_status(tools: ChatTools, status: ServerStatus) -> str:
    """Return `connected, 2 tools` or `failed: command not found`."""
    if status.state == "connected":
        return f"connected, {count_noun(len(status.tools), 'tool')}"
    if status.name in tools.off and status.state != "failed":
        return "off"
    return f"{status.state}: {status.reason}" if status.reason else status.state


def describe_tool(tools: ChatTools, tool: ServerTool) -> str:
    """Return `  on   get_current_time  Get the time`, and whether it is allowed without a question."""
    summary = " ".join(tool.description.split())
    state = "on" if tools.is_on(tool) else "off"
    allowed = " (always allowed)" if tools.is_always_allowed(tool) else " (allowed)" if tools.is_allowed(tool) else ""
    line = f"  {state:<4} {tool.label.removeprefix(f'{tool.server}.')}{allowed}  {summary}".rstrip()
    return line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 3].rstrip()}..."

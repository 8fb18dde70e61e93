"""The tools of a chat: which are offered to the model, which are switched off, and which the user allows.

It decides; servers run in `tool_servers/`, calls in tool_rounds.py. A chat without tools has `ChatTools()`, which
offers none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from typing import Protocol

from eaglelocal.conversation.stored_permissions import StoredPermissions
from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import Tool
from eaglelocal.errors import UsageError
from eaglelocal.tool_servers.server_list import ServerSpec
from eaglelocal.tool_servers.server_pool import ServerPool, ServerStatus
from eaglelocal.tool_servers.tool_results import NO_PARAMETERS, ServerTool, ToolResult

START_WAIT_S = 15.0  # for servers that are starting; those that take longer are offered from a later question on
MAX_OFFERED = 100
CHARS_PER_CTX_TOKEN = 0.75  # of all descriptions: about a quarter of the context
ASSUMED_CTX = 8192  # of a server that does not report it
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
MAX_NAME_CHARS = 64


class ToolPool(Protocol):
    """The servers, as `tool_servers.server_pool.ServerPool` runs them."""

    @property
    def specs(self) -> Mapping[str, ServerSpec]: ...

    @property
    def statuses(self) -> tuple[ServerStatus, ...]: ...

    def start(self, names: Collection[str], *, again: bool = False) -> None: ...

    def wait(self, timeout_s: float, is_stopped: Callable[[], bool]) -> None: ...

    def call(self, tool: ServerTool, arguments: dict[str, object], is_stopped: Callable[[], bool]) -> ToolResult: ...

    def close(self) -> None: ...


class Permission(Enum):
    """The user's answer to a call."""

    NO = "no"
    ONCE = "once"
    CHAT = "chat"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that are sent with a request, by the names that the model has for them."""

    by_name: Mapping[str, ServerTool] = field(default_factory=dict)
    num_left_out: int = 0  # they did not fit

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(Tool(name, tool.description, tool.parameters) for name, tool in self.by_name.items())

    @property
    def num_chars(self) -> int:
        return sum(count_chars(tool) for tool in self.by_name.values())


@dataclass(slots=True)
class ChatTools:
    """The tools of a chat, which changes what is switched off and allowed.

    allowed          what the user always allows; None: nothing can be
    granted          tools that are allowed from the start, as (server, tool), where "" is all of a server's
    granted_in_chat  tools that the user has allowed in this conversation; another one begins without them
    can_ask          somebody can answer whether a call is allowed; if not, only allowed tools are offered
    source           the file that lists the servers, or why there are none
    are_wanted       the user has asked for tools, by a flag
    """

    pool: ToolPool = field(default_factory=lambda: ServerPool(()))
    allowed: StoredPermissions | None = None
    granted: set[tuple[str, str]] = field(default_factory=set)
    can_ask: bool = True
    source: str = ""
    are_wanted: bool = False
    granted_in_chat: set[tuple[str, str]] = field(default_factory=set)
    off: set[str] = field(default_factory=set)  # servers, and labels of tools
    notice: str = ""  # that was shown last

    # ---- offering
    @property
    def needed_servers(self) -> frozenset[str]:
        """The names of the servers whose tools can be offered; nothing else is started."""
        names = frozenset(name for name in self.pool.specs if name not in self.off)
        if self.can_ask:
            return names
        granted = {server for server, _ in self.granted}
        always = frozenset() if self.allowed is None else self.allowed.list_servers(self.pool.specs.values())
        return frozenset(name for name in names if name in granted or name in always)

    @property
    def has_to_start(self) -> bool:
        """Return whether a server that is needed does not run, and has not failed."""
        needed = self.needed_servers
        return any(each.name in needed and each.state not in ("connected", "failed") for each in self.pool.statuses)

    def start(self, is_stopped: Callable[[], bool], *, again: bool = False) -> None:
        """Start the servers that are needed, and wait until they have listed their tools, or for START_WAIT_S."""
        self.pool.start(self.needed_servers, again=again)
        self.pool.wait(START_WAIT_S, is_stopped)

    def offer(self, n_ctx: int) -> ToolOffer:
        """Return the tools that are on, as far as their descriptions fit the context."""
        usable = [tool for tool in self.list_tools() if self.is_on(tool) and (self.can_ask or self.is_allowed(tool))]
        return make_offer(usable, round((n_ctx or ASSUMED_CTX) * CHARS_PER_CTX_TOKEN))

    def take_notice(self, offer: ToolOffer, *, takes_tools: bool) -> str:
        """Return why not all tools are offered, "" if that was said before or nobody wants to know.

        Whoever has not asked for tools needs no reason why there are none.
        """
        notice = describe_offer(self, offer, takes_tools=takes_tools) if offer.by_name or self.are_wanted else ""
        is_new, self.notice = notice != self.notice, notice or self.notice
        return notice if is_new else ""

    def list_tools(self) -> list[ServerTool]:
        return [tool for status in self.pool.statuses for tool in status.tools]

    def is_on(self, tool: ServerTool) -> bool:
        return not self.off & {tool.server, tool.label}

    def switch(self, name: str, *, is_on: bool) -> None:
        """Switch a server or a tool, by the name of either. Raises UsageError if there is none of this name."""
        names = self._find(name)
        if is_on:
            self.off -= names | {tool.server for tool in self.list_tools() if tool.label in names}
        else:
            self.off |= names

    def _find(self, name: str) -> set[str]:
        """Return the server of this name, or the labels of tools with it. Raises UsageError."""
        if name in self.pool.specs:
            return {name}
        labels = {tool.label for tool in self.list_tools() if name in (tool.label, tool.name)}
        if not labels:
            known = ", ".join(self.pool.specs) or "none"
            raise UsageError(f"no server or tool is called {name!r}", hint=f"/tools lists them; servers: {known}")
        return labels

    # ---- permissions
    def is_allowed(self, tool: ServerTool) -> bool:
        """Return whether a call needs no question."""
        names = {(tool.server, ""), (tool.server, tool.name)}
        return not names.isdisjoint(self.granted | self.granted_in_chat) or self.is_always_allowed(tool)

    def describe_unknown_grant(self) -> str:
        """Name a tool that is allowed from the start and does not exist; "" if there is none."""
        for status in self.pool.statuses:
            names = [tool.name for tool in status.tools]
            for name in sorted(tool for server, tool in self.granted if tool and server == status.name):
                if status.state == "connected" and name not in names:
                    return f"{status.name} has no tool {name!r}; it has {', '.join(names)}"
        return ""

    def is_always_allowed(self, tool: ServerTool) -> bool:
        return self.allowed is not None and self.allowed.is_allowed(self.pool.specs[tool.server], tool.name)

    def allow(self, tool: ServerTool, permission: Permission) -> None:
        """Remember the user's answer, as far as it is for more than one call. Raises ResourceError."""
        if permission is Permission.CHAT:
            self.granted_in_chat.add((tool.server, tool.name))
        elif permission is Permission.ALWAYS and self.allowed is not None:
            self.allowed.add(self.pool.specs[tool.server], tool.name)

    def forget(self, name: str) -> None:
        """Ask again for a tool, or for those of a server. Raises UsageError, ResourceError."""
        names, tools = self._find(name), self.list_tools()
        forgotten = [tool for tool in tools if names & {tool.server, tool.label}]
        for server in {tool.server for tool in forgotten if (tool.server, "") in self.granted}:
            self.granted |= {(server, tool.name) for tool in tools if tool.server == server}
        names_forgotten = {(tool.server, which) for tool in forgotten for which in ("", tool.name)}
        self.granted -= names_forgotten
        self.granted_in_chat -= names_forgotten
        for tool in forgotten:
            if self.allowed is not None:
                self.allowed.remove(tool.server, tool.name)


def find_grant(name: str, servers: Collection[str]) -> tuple[str, str] | None:
    """Return the (server, tool) that a name such as `time` or `time.now` allows; None if no server is called so."""
    if name in servers:
        return name, ""
    owners = [server for server in servers if name.startswith(f"{server}.")]
    if not owners:
        return None
    owner = max(owners, key=len)
    return owner, name.removeprefix(f"{owner}.")


def describe_offer(tools: ChatTools, offer: ToolOffer, *, takes_tools: bool) -> str:
    """Return why a model gets no tools or not all of them; "" if it gets those that are on."""
    if not tools.pool.specs:
        return ""
    if not takes_tools:
        return "this model's template has no tools, so it is offered none"
    if not tools.can_ask and not tools.needed_servers:
        return "nobody can be asked here, so no tool is offered; --allow-tools NAME allows some"
    if unknown := tools.describe_unknown_grant():
        return unknown
    if offer.num_left_out:
        total = len(offer.by_name) + offer.num_left_out
        return f"{len(offer.by_name)} of {total} tools are offered, which fill a quarter of the context"
    return ""


def make_offer(tools: Iterable[ServerTool], num_chars: int) -> ToolOffer:
    """Return as many of the tools as fit in `num_chars`, the first ones first, with names that models can write."""
    by_name: dict[str, ServerTool] = {}
    num_left_out = 0
    for tool in tools:
        tool = tool if len(tool.parameters) <= num_chars else replace(tool, parameters=NO_PARAMETERS)
        if count_chars(tool) > num_chars or len(by_name) == MAX_OFFERED:
            num_left_out += 1
            continue
        num_chars -= count_chars(tool)
        by_name[choose_name(tool, by_name)] = tool
    return ToolOffer(by_name, num_left_out)


def count_chars(tool: ServerTool) -> int:
    return len(tool.name) + len(tool.description) + len(tool.parameters)


def choose_name(tool: ServerTool, taken: Collection[str]) -> str:
    """Return the tool's own name, or with its server's if another tool has it: letters, digits, `_` and `-`."""
    own, full = (NOT_IN_NAMES.sub("_", name)[:MAX_NAME_CHARS] for name in (tool.name, f"{tool.server}_{tool.name}"))
    numbered = (f"{full[: MAX_NAME_CHARS - 4]}_{number}" for number in range(2, MAX_OFFERED + 2))
    return next(name for name in (own, full, *numbered) if name and name not in taken)

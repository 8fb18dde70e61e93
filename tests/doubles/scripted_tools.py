"""A pool of tool servers without processes, and a person who answers questions about calls from a script."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eaglelocal.conversation.chat_tools import ChatTools, Permission
from eaglelocal.conversation.conversation import ToolRound
from eaglelocal.conversation.stored_permissions import StoredPermissions
from eaglelocal.conversation.tool_rounds import CallReview
from eaglelocal.tool_servers.server_list import ServerSpec
from eaglelocal.tool_servers.server_pool import ServerStatus
from eaglelocal.tool_servers.tool_results import ServerTool, ToolResult

CLOCK = ServerTool("time", "now", "Return the time.")
PAGE = ServerTool("web", "fetch", "Fetch a page.")


@dataclass
class ScriptedPool:
    """Servers whose tools return `results` by name; a tool without one returns its arguments."""

    tools: tuple[ServerTool, ...] = (CLOCK, PAGE)
    results: Mapping[str, ToolResult] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)  # server -> why it does not start
    hangs: bool = False  # calls, until they are stopped
    called: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    started: set[str] = field(default_factory=set)
    num_closed: int = 0

    @property
    def specs(self) -> Mapping[str, ServerSpec]:
        names = dict.fromkeys([*(tool.server for tool in self.tools), *self.failing])
        return {name: ServerSpec(name=name, command=f"serve-{name}") for name in names}

    @property
    def statuses(self) -> tuple[ServerStatus, ...]:
        return tuple(map(self._describe, self.specs))

    def _describe(self, name: str) -> ServerStatus:
        if name not in self.started:
            return ServerStatus(name)
        if name in self.failing:
            return ServerStatus(name, "failed", self.failing[name], ("last words",))
        return ServerStatus(name, "connected", tools=tuple(tool for tool in self.tools if tool.server == name))

    def start(self, names: Collection[str], *, again: bool = False) -> None:
        self.started |= set(names)

    def wait(self, timeout_s: float, is_stopped: Callable[[], bool]) -> None: ...

    def call(self, tool: ServerTool, arguments: dict[str, object], is_stopped: Callable[[], bool]) -> ToolResult:
        self.called.append((tool.label, arguments))
        while self.hangs and not is_stopped():
            pass
        text = repr(arguments)
        return self.results.get(tool.name, ToolResult(text, num_chars=len(text)))

    def close(self) -> None:
        self.num_closed += 1


@dataclass
class ScriptedReviewer:
    """A person whose answers come from a list; the last one repeats. `stops_at`: they stop that kind of work."""

    answers: tuple[Permission, ...] = (Permission.ONCE,)
    stops_at: str = "never"
    reviews: list[CallReview] = field(default_factory=list)
    rounds: list[ToolRound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    works: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, work: str) -> None:
        self.works.append(work)

    def is_stopped(self) -> bool:
        return any(work.startswith(self.stops_at) for work in self.works)

    def review(self, call: CallReview) -> Permission:
        self.reviews.append(call)
        return self.answers[min(len(self.reviews), len(self.answers)) - 1]

    def show(self, done: ToolRound) -> None:
        self.rounds.append(done)


def make_tools(folder: Path, pool: ScriptedPool | None = None, *, can_ask: bool = True) -> ChatTools:
    return ChatTools(
        pool or ScriptedPool(), StoredPermissions(folder / "allowed.json"), can_ask=can_ask, source="mcp.json"
    )

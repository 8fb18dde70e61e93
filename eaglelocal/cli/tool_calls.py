"""Tools in `chat`: open what mcp.json lists, and ask about calls on a terminal without a screen."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from eaglelocal import locations
from eaglelocal.cli.load_model import is_flag
from eaglelocal.cli.output import Output
from eaglelocal.conversation.chat_tools import ChatTools, Permission, find_grant
from eaglelocal.conversation.conversation import ToolRound
from eaglelocal.conversation.stored_permissions import StoredPermissions
from eaglelocal.conversation.tool_rounds import CallReview, describe_call
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.tool_servers.server_list import EXAMPLE, read_server_list
from eaglelocal.tool_servers.server_pool import ServerPool, is_sdk_installed

try:
    import termios
except ImportError:  # not a Unix
    termios = None  # type: ignore[assignment]

AUTO, NONE = "auto", "none"  # values of --mcp
ANSWERS = {"o": Permission.ONCE, "c": Permission.CHAT, "a": Permission.ALWAYS}
QUESTION = "allow it once (o), in this conversation (c), always (a), or not (enter)? "
MAX_SHOWN_CHARS = 4000  # of arguments


def open_tools(settings: Settings, allow: str | None, *, can_ask: bool) -> ChatTools:
    """Return the tools of the servers that the settings name; nothing is started yet.

    allow: names of servers and tools, with commas, that need no question. Raises UsageError, ResourceError.
    """
    path = locations.mcp_file() if settings.mcp == AUTO else expand_path(settings.mcp)
    if settings.mcp == NONE:
        return ChatTools(source="tools are switched off by --mcp none")
    if settings.mcp == AUTO and not path.exists():
        return ChatTools(source=f"no tool servers: there is no {path}, such as {EXAMPLE}")
    specs = read_server_list(path)
    if specs and not is_sdk_installed():
        raise UsageError(f"the tool servers of {path} need the package mcp", hint='pip install "eaglelocal[mcp]"')
    granted, servers = set(), [spec.name for spec in specs]
    for name in filter(None, map(str.strip, (allow or "").split(","))):
        if (grant := find_grant(name, servers)) is None:
            known = ", ".join(servers) or NONE
            raise UsageError(f"--allow-tools: {path} has no server for {name!r}", hint=f"its servers: {known}")
        granted.add(grant)
    allowed = StoredPermissions(locations.allowed_tools_file())
    are_wanted = bool(allow) or is_flag(settings, "mcp")
    return ChatTools(ServerPool(specs), allowed, granted, can_ask, source=str(path), are_wanted=are_wanted)


def can_ask_here(*, is_quiet: bool) -> bool:
    """Return whether somebody at a terminal can answer questions, without a screen."""
    return not is_quiet and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


class LineReviewer:
    """The `CallReviewer` of line mode. `stop` is for the handler of Ctrl-C."""

    def __init__(self, output: Output, *, is_quiet: bool) -> None:
        self._output, self._is_quiet, self._is_stopped = output, is_quiet, False

    def stop(self) -> None:
        self._is_stopped = True

    def is_stopped(self) -> bool:
        return self._is_stopped

    def note(self, text: str) -> None:
        if not self._is_quiet:
            self._output.note(text)

    def begin(self, work: str) -> None:
        if work:
            self.note(work)

    def review(self, call: CallReview) -> Permission:
        shown, num_chars = call.arguments[:MAX_SHOWN_CHARS], len(call.arguments)
        self._output.message(f"the model wants to call {call.label}")
        for line in shown.split("\n"):
            self._output.message(f"  {line}")
        if num_chars > MAX_SHOWN_CHARS:
            self._output.message(f"  [these are the first {MAX_SHOWN_CHARS} of {num_chars} characters]")
        self._output.ask(QUESTION)
        try:
            with echoing_input():
                answer = sys.stdin.readline()
        except KeyboardInterrupt:
            self._output.message()
            self.stop()
            return Permission.NO
        return ANSWERS.get(answer.strip().lower(), Permission.NO)

    def show(self, done: ToolRound) -> None:
        for call in done.calls:
            self.note(describe_call(call))


@contextmanager
def echoing_input() -> Iterator[None]:
    """Let an answer be typed: with echo, without what was typed before the question, and Ctrl-C raises."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with switch_echo(is_on=True):
            yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def switch_echo(*, is_on: bool) -> Iterator[None]:
    """Switch the echo of stdin off, if it is a terminal, or on, and then drop what was typed before."""
    if termios is None or not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    changed = list(before)
    changed[3] = before[3] | termios.ECHO if is_on else before[3] & ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSAFLUSH if is_on else termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

"""Run the calls of tools that a model wrote: each is shown, allowed by the user, run with limits, and answered.

A call that is not run is answered too, so that the model can go on. Nothing here depends on a terminal: the person is
behind `CallReviewer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from eaglelocal.conversation.chat_tools import ASSUMED_CTX, ChatTools, Permission, ToolOffer
from eaglelocal.conversation.conversation import CompletedCall, ToolRound, Turn
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import clean_text, join_in_json
from eaglelocal.core.tools import ToolCall
from eaglelocal.errors import ResourceError
from eaglelocal.tool_servers.tool_results import ServerTool

MAX_ROUNDS = 10  # of calls for one question; then the model must answer
MAX_CALLS = 16  # of one answer
MAX_RESULT_CHARS = 40_000  # of a result that the model gets
RESULT_CHARS_PER_CTX_TOKEN = 1.0  # of all results of one question: about a third of the context
MIN_RESULT_CHARS = 200  # a result is not cut further
MAX_LINE_CHARS = 200


@dataclass(frozen=True, slots=True)
class CallReview:
    """A call that the user is asked about. `arguments`: as JSON, cleaned for a terminal, all of them."""

    label: str
    arguments: str


class CallReviewer(Protocol):
    """The person at the chat, who sees calls and allows them."""

    def note(self, text: str) -> None:
        """Show a line."""

    def begin(self, work: str) -> None:
        """Show what is waited for from here on, such as `calling time.get_current_time`; "": nothing."""

    def is_stopped(self) -> bool:
        """Return whether the user stopped the answer."""

    def review(self, call: CallReview) -> Permission:
        """Show a call and wait for the user's answer."""

    def show(self, done: ToolRound) -> None:
        """Show the results of a round."""


@dataclass(frozen=True, slots=True)
class CallRunner:
    """Runs the calls of one question."""

    tools: ChatTools
    offer: ToolOffer
    reviewer: CallReviewer
    n_ctx: int

    def run_round(self, calls: tuple[ToolCall, ...], begun: Turn, text: str, reasoning: str) -> ToolRound:
        """Run the calls of an answer, one after another; `begun` has the rounds before."""
        room = round((self.n_ctx or ASSUMED_CTX) * RESULT_CHARS_PER_CTX_TOKEN)
        room -= sum(len(done.result) for each in begun.rounds for done in each.calls)
        completed = list[CompletedCall]()
        for call in calls:
            is_over = len(completed) >= MAX_CALLS
            done = _refuse(call, f"only {MAX_CALLS} calls in one answer are run") if is_over else self._run(call, room)
            room -= len(done.result)
            completed.append(done)
        return ToolRound(tuple(completed), text, reasoning)

    def _run(self, call: ToolCall, room: int) -> CompletedCall:
        tool = self.offer.by_name.get(call.name)
        if tool is None:
            return _refuse(call, f"there is no tool {call.name}; there are: {', '.join(self.offer.by_name)}")
        try:
            arguments = read_object(call.arguments or "{}")
        except ValueError as problem:
            return _refuse(call, f"the arguments are not a JSON object: {problem}", tool.label)
        if self.reviewer.is_stopped() or not self._is_permitted(tool, call):
            return _refuse(call, "the user did not allow this call", tool.label)
        if self.reviewer.is_stopped():
            return _refuse(call, "the user stopped the answer before this call", tool.label)
        return self._call(tool, call, arguments, room)

    def _is_permitted(self, tool: ServerTool, call: ToolCall) -> bool:
        if self.tools.is_allowed(tool):
            return True
        permission = self.reviewer.review(CallReview(tool.label, clean_text(call.arguments)))
        try:
            self.tools.allow(tool, permission)
        except ResourceError as error:
            self.reviewer.note(f"{error.message}, so {tool.label} is allowed this time only")
        return permission is not Permission.NO

    def _call(self, tool: ServerTool, call: ToolCall, arguments: Mapping[str, object], room: int) -> CompletedCall:
        self.reviewer.begin(f"calling {tool.label}")
        given = join_in_json(dict(arguments))
        assert isinstance(given, dict)
        result = self.tools.pool.call(tool, given, self.reviewer.is_stopped)
        self.reviewer.begin("")
        text = cut_result(result.text, result.num_chars, min(max(room, MIN_RESULT_CHARS), MAX_RESULT_CHARS))
        return CompletedCall(call, tool.label, text, "failed" if result.is_error else "done")


def _refuse(call: ToolCall, why: str, label: str = "") -> CompletedCall:
    return CompletedCall(call, label or clean_text(call.name), why, "refused")


def cut_result(text: str, num_chars: int, limit: int) -> str:
    """Return a result, or its beginning and how much it is of `num_chars` characters."""
    if len(text) <= limit and num_chars <= len(text):
        return text
    kept = text[:limit]
    return f"{kept}\n[cut: these are the first {len(kept)} of {num_chars} characters]"


def shrink_results(begun: Turn) -> Turn | None:
    """Return the turn with its longest result cut in half, because it does not fit; None if that is short."""
    results = [len(done.result) for each in begun.rounds for done in each.calls]
    longest = max(results, default=0)
    if longest < 2 * MIN_RESULT_CHARS:
        return None
    rounds = tuple(
        replace(each, calls=tuple(_shrink(done) if len(done.result) == longest else done for done in each.calls))
        for each in begun.rounds
    )
    return replace(begun, rounds=rounds)


def _shrink(done: CompletedCall) -> CompletedCall:
    return replace(done, result=cut_result(done.result, len(done.result), len(done.result) // 2))


def describe_call(done: CompletedCall) -> str:
    """Return a line on a call: `time.get_current_time {"timezone": "UTC"} -> 312 characters`."""
    line = " ".join(f"{done.label} {done.call.arguments}".split())
    line = line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}..."
    return clean_text(f"{line} -> {describe_result(done)}")


def describe_result(done: CompletedCall) -> str:
    match done.state:
        case "done":
            return count_noun(len(done.result), "character")
        case "failed":
            return "failed: " + done.result.partition("\n")[0][:MAX_LINE_CHARS]
        case _:
            return f"not run: {done.result}"

"""Chooses the constraint that an answer must satisfy, and compiles it once to see that it is usable.

One unusual schema among many tools must not make the request fail: tools and formats that are not strict are loosened
until they compile, and each loosened tool is remembered. Does not know prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from eaglelocal.core.constraint import Constraint
from eaglelocal.core.ports import Constraints
from eaglelocal.core.tools import Split, Tool, ToolChoice, ToolUse
from eaglelocal.errors import RequestError, TooComplexError
from eaglelocal.text.tool_calls.bindable_schemas import allow_any_arguments, loosen_constraint, loosen_tool
from eaglelocal.text.tool_calls.tool_grammar import make_constraint

MAX_KNOWN = 512  # tools that were loosened
MAX_COSTLY = 2  # schemas per request that may be found too complex; finding that out takes seconds
A_CALL = ToolChoice(use=ToolUse.REQUIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintSpec:
    """The arguments of text.tool_grammar.constraint_of for one request: its split, tool choice and own constraint."""

    split: Split
    choice: ToolChoice
    wanted: Constraint | None
    tokens: Mapping[str, int]
    is_split: bool

    def bound(self, tools: tuple[Tool, ...]) -> Constraint | None:
        """Return the constraint of an answer that may call these tools; None if it needs none."""
        split = replace(self.split, tools=tools)
        return make_constraint(split, self.choice, self.wanted, tokens=self.tokens, is_split=self.is_split)

    def calling(self, tool: Tool) -> Constraint | None:
        """Return the constraint of an answer that is one call of this tool."""
        split = replace(self.split, tools=(tool,))
        return make_constraint(split, A_CALL, None, tokens=self.tokens, is_split=True)


class AnswerConstraint:
    """The constraints of one model's answers. Keeps the loosened tools, because a model's call syntax never changes."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints = constraints
        self._loosened: OrderedDict[Tool, Tool] = OrderedDict()

    def of_text(self, wanted: Constraint | None) -> Constraint | None:
        """Return the tightest form of a constraint on the whole text that compiles.

        Raises the RequestError of the loosest form if none does.
        """
        if wanted is None:
            return None
        for way in loosen_constraint(wanted):
            refusal = self._refusal(way)
            if refusal is None:
                return way
            if isinstance(refusal, TooComplexError):
                break
        assert refusal is not None
        raise blamed_on("response_format", refusal)

    def of_split(self, wish: ConstraintSpec) -> Constraint | None:
        """Return the tightest constraint that compiles for an answer with tools; None if none is needed.

        Raises RequestError if none compiles.
        """
        if wish.choice.use is not ToolUse.REQUIRED:
            wish = replace(wish, wanted=self.of_text(wish.wanted))
        refusal: RequestError | None = None
        for tools in self._ways(wish):
            made = wish.bound(tools)
            if made is None or made is wish.wanted:
                return made
            found = self._refusal(made)
            if found is None:
                return made
            refusal = refusal or blamed_on("tools" if tools else "response_format", found)
        assert refusal is not None
        raise self._blaming(wish) or refusal

    def _ways(self, wish: ConstraintSpec) -> Iterator[tuple[Tool, ...]]:
        """Yield the tools as last loosened, then each as it compiles alone, then all with any arguments."""
        tools = wish.split.tools
        known = tuple(self._loosened.get(tool, tool) for tool in tools)
        yield known
        alone = self._bindable_each(tools, wish)
        if alone != known:
            yield alone
        free = tuple(map(allow_any_arguments, tools))
        if free != alone:
            yield free

    def _blaming(self, wish: ConstraintSpec) -> RequestError | None:
        """Return the error of the first strict tool that does not compile by itself, if there is one."""
        for tool in wish.split.tools:
            if tool.is_strict and (refusal := self._refusal(wish.calling(tool))):
                reason = refusal.message.partition(": ")[2] or refusal.message
                what = f"the parameters of {tool.name}, a strict tool, cannot be bound: {reason}"
                return RequestError(what, hint=refusal.hint, parameter="tools")
        return None

    def _bindable_each(self, tools: tuple[Tool, ...], wish: ConstraintSpec) -> tuple[Tool, ...]:
        """Return each tool in the tightest form that compiles alone.

        Tools after MAX_COSTLY too complex ones get any arguments, untried.
        """
        found: list[Tool] = []
        num_costly = 0
        for tool in tools:
            if num_costly == MAX_COSTLY:
                found.append(allow_any_arguments(tool))
                continue
            bindable, is_costly = self._bindable(tool, wish)
            num_costly += is_costly
            found.append(bindable)
        return tuple(found)

    def _bindable(self, tool: Tool, wish: ConstraintSpec) -> tuple[Tool, bool]:
        """Return the tightest form of this tool that compiles, else the loosest, and if it was too complex."""
        found, is_costly = tool, False
        for found in (tool, *loosen_tool(tool)):
            refusal = self._refusal(wish.calling(found))
            if refusal is None:
                break
            if isinstance(refusal, TooComplexError):
                found, is_costly = allow_any_arguments(tool), True
                break
        if found is not tool:
            self._loosened[tool] = found
            if len(self._loosened) > MAX_KNOWN:
                self._loosened.popitem(last=False)
        return found, is_costly

    def _refusal(self, constraint: Constraint | None) -> RequestError | None:
        assert constraint is not None
        try:
            self._constraints.check(constraint)
        except RequestError as error:
            return error
        return None


def blamed_on(parameter: str, refusal: RequestError) -> RequestError:
    return type(refusal)(refusal.message, hint=refusal.hint, parameter=parameter)

"""Chooses the constraint that an answer must satisfy, and compiles it once to check it.

One unusual schema among many tools must not fail the request: tools and formats that are not strict are loosened until
they compile, and loosened tools are remembered. Does not know prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from eaglelocal.core.constraint import Constraint
from eaglelocal.core.ports import Constraints
from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import Split, Tool, ToolChoice, ToolUse
from eaglelocal.errors import RequestError, TooComplexError
from eaglelocal.text.tool_calls.bindable_schemas import (
    allow_any_arguments,
    list_lost,
    list_said,
    loosen_constraint,
    loosen_tool,
    read_constraint_schema,
    tidy_schema,
)
from eaglelocal.text.tool_calls.tool_grammar import make_constraint
from eaglelocal.text.tool_calls.tool_schemas import has_unknown_reference, read_schema

MAX_LOOSENED = 512  # tools
MAX_COSTLY = 2  # schemas per request that may turn out too complex; finding out takes seconds each
ONE_CALL = ToolChoice(use=ToolUse.REQUIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintSpec:
    """The arguments of tool_grammar.make_constraint for one request, and its owner."""

    split: Split
    choice: ToolChoice
    constraint: Constraint | None  # of the request itself
    tokens: Mapping[str, int]
    is_split: bool
    owner: str = ""

    def make(self, tools: tuple[Tool, ...]) -> Constraint | None:
        """Return the constraint of an answer that may call these tools; None if it needs none."""
        split = replace(self.split, tools=tools)
        return self._own(
            make_constraint(split, self.choice, self.constraint, tokens=self.tokens, is_split=self.is_split)
        )

    def list_unbound(self, tools: Sequence[Tool], ignored: Iterable[str]) -> Iterator[str]:
        """Yield the keywords of the request's schemas that a constraint with these tools cannot enforce.

        ignored  keywords of the tools' schemas that the constraint leaves out
        """
        yield from self.constraint.unbound if self.constraint is not None else ()
        said = frozenset().union(*(list_said(read_schema(tool)) for tool in self.split.tools))
        yield from said.intersection(ignored)
        for wanted, bound in zip(self.split.tools, tools, strict=True):
            yield from list_lost(read_schema(wanted), tidy_schema(read_schema(bound)))
            if has_unknown_reference(wanted):
                yield "$ref"

    def make_call(self, tool: Tool) -> Constraint | None:
        """Return the constraint of an answer that is one call of this tool."""
        split = replace(self.split, tools=(tool,))
        return self._own(make_constraint(split, ONE_CALL, None, tokens=self.tokens, is_split=True))

    def _own(self, found: Constraint | None) -> Constraint | None:
        return found if found is None or found.owner == self.owner else replace(found, owner=self.owner)


class AnswerConstraint:
    """The constraints of one model's answers. Keeps the loosened tools, because a model's call syntax never changes."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints = constraints
        self._loosened: OrderedDict[tuple[str, Tool], Tool] = OrderedDict()  # by owner and tool

    def fit_text(self, constraint: Constraint | None) -> Constraint | None:
        """Return the tightest form of a constraint on the whole text that compiles.

        Raises the RequestError of the loosest form if none does.
        """
        if constraint is None:
            return None
        for candidate in loosen_constraint(constraint):
            refusal, unbound = self._check(candidate)
            if refusal is None:
                wanted, bound = map(read_constraint_schema, (constraint, candidate))
                ignored = list_said(wanted or {}).intersection(unbound)
                return replace(candidate, unbound=tuple(sorted({*ignored, *list_lost(wanted, bound)})))
            if isinstance(refusal, TooComplexError):
                break
        assert refusal is not None
        raise blame_parameter("response_format", refusal)

    def fit_split(self, spec: ConstraintSpec) -> Constraint | None:
        """Return the tightest constraint that compiles for an answer with tools; None if none is needed.

        Raises RequestError if none compiles.
        """
        if spec.choice.use is not ToolUse.REQUIRED:
            spec = replace(spec, constraint=self.fit_text(spec.constraint))
        refusal: RequestError | None = None
        for tools in self._candidates(spec):
            candidate = spec.make(tools)
            if candidate is None or candidate is spec.constraint:
                return candidate
            candidate_refusal, unbound = self._check(candidate)
            if candidate_refusal is None:
                ignored = {*unbound, *candidate.unbound}
                return replace(candidate, unbound=tuple(sorted({*spec.list_unbound(tools, ignored)})))
            refusal = refusal or blame_parameter("tools" if tools else "response_format", candidate_refusal)
        assert refusal is not None
        raise self._blame_tool(spec) or refusal

    def _candidates(self, spec: ConstraintSpec) -> Iterator[tuple[Tool, ...]]:
        """Yield the tools as last loosened, each in the tightest form that compiles, and all with any arguments."""
        tools = spec.split.tools
        remembered = tuple(self._loosened.get((spec.owner, tool), tool) for tool in tools)
        yield remembered
        each_alone = self._loosen_each(tools, spec)
        if each_alone != remembered:
            yield each_alone
        untyped = tuple(map(allow_any_arguments, tools))
        if untyped != each_alone:
            yield untyped

    def _blame_tool(self, spec: ConstraintSpec) -> RequestError | None:
        """Return the error of the first strict tool that does not compile alone, if any."""
        for tool in spec.split.tools:
            if tool.is_strict and (refusal := self._check(spec.make_call(tool))[0]):
                reason = refusal.message.partition(": ")[2] or refusal.message
                what = f"the parameters of {tool.name}, a strict tool, cannot be bound: {reason}"
                return RequestError(what, hint=refusal.hint, parameter="tools")
        return None

    def _loosen_each(self, tools: tuple[Tool, ...], spec: ConstraintSpec) -> tuple[Tool, ...]:
        """Return each tool in the tightest form that compiles alone.

        Tools after MAX_COSTLY too complex ones get any arguments, untried.
        """
        loosened: list[Tool] = []
        num_costly = 0
        for tool in tools:
            if num_costly == MAX_COSTLY:
                loosened.append(allow_any_arguments(tool))
                continue
            bindable, is_costly = self._loosen(tool, spec)
            num_costly += is_costly
            loosened.append(bindable)
        return tuple(loosened)

    def _loosen(self, tool: Tool, spec: ConstraintSpec) -> tuple[Tool, bool]:
        """Return the tightest form of this tool that compiles, else the loosest, and whether it was too complex."""
        loosened, is_costly = tool, False
        for loosened in (tool, *loosen_tool(tool)):
            refusal, _ = self._check(spec.make_call(loosened))
            if refusal is None:
                break
            if isinstance(refusal, TooComplexError):
                loosened, is_costly = allow_any_arguments(tool), True
                break
        if loosened is not tool:
            self._loosened[spec.owner, tool] = loosened
            if len(self._loosened) > MAX_LOOSENED:
                self._loosened.popitem(last=False)
        return loosened, is_costly

    def _check(self, constraint: Constraint | None) -> tuple[RequestError | None, tuple[str, ...]]:
        """Return the error of compiling the constraint, None if it compiles, and the keywords that it leaves out."""
        assert constraint is not None
        try:
            return None, self._constraints.check(constraint)
        except RequestError as error:
            return error, ()


def blame_parameter(parameter: str, refusal: RequestError) -> RequestError:
    return type(refusal)(refusal.message, hint=refusal.hint, parameter=parameter)

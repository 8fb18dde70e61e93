"""What an answer is bound to when a call is required, or when a thought or a call may stand before a bound text.

Grammars in llguidance's dialect of Lark, in the form that the family's parser reads; arguments fit the tool's schema.
Where both a bound text and calls may come, `@answer` stands for the text. Does not compile.

    required, Hermes   start: calls
                       calls: call (GAP? call){0,15}
                       call: <[151657]> "\\n{\\"name\\": \\"f\\", \\"arguments\\": " args_0 "}\\n" <[151658]>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from eaglelocal.core.constraint import JSON_SPACE, Constraint, Syntax
from eaglelocal.core.tools import CallForm, Split, Tool, ToolChoice, ToolUse
from eaglelocal.errors import RequestError
from eaglelocal.text.harmony import CHANNEL, CONSTRAIN, ENDS, MESSAGE, START
from eaglelocal.text.tool_calls import ARGS, CALLS, CLOSE, OPEN

MAX_CALLS = 16  # that an answer must make up: a weak model would find no end
_ONE_CALL = (CallForm.LLAMA, CallForm.HARMONY)  # an answer of theirs has one call


def constraint_of(
    split: Split, choice: ToolChoice, wanted: Constraint | None, *, tokens: Mapping[str, int], is_split: bool
) -> Constraint | None:
    """What binds the answer, all things considered.

    tokens     of the markers that are one token each
    required   calls and nothing else, behind a thought; `wanted` says nothing then
    otherwise  `wanted`, behind a thought, or calls instead of it
    is_split   the reader tells thoughts from text; else the whole text is bound
    """
    if choice.use is ToolUse.REQUIRED:
        frame = _Frame(split, choice, tokens, has_calls=True, has_answer=False)
        return Constraint(Syntax.LARK, frame.text())
    if wanted is None or not is_split:
        return wanted
    # a call of Llama's looks like an answer in JSON: where an answer is bound there are no calls
    has_calls = bool(split.tools) and split.form is not CallForm.LLAMA
    frame = _Frame(split, choice, tokens, has_calls=has_calls, has_answer=True)
    return Constraint(wanted.syntax, wanted.source, frame.text())


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """Those that the answer may call. Raises RequestError for a choice that cannot be met."""
    if choice.use is ToolUse.NONE:
        return ()
    if choice.name:
        tools = [tool for tool in tools if tool.name == choice.name]
        if not tools:
            raise RequestError(f"there is no tool {choice.name}", parameter="tool_choice")
    if choice.use is ToolUse.REQUIRED and not tools:
        raise RequestError("a call is required, but there are no tools", parameter="tool_choice")
    return tuple(tools)


class _Frame:
    """One grammar, rule by rule."""

    def __init__(
        self, split: Split, choice: ToolChoice, tokens: Mapping[str, int], *, has_calls: bool, has_answer: bool
    ) -> None:
        self._split, self._parallel, self._tokens = split, choice.parallel, tokens
        self._has_calls, self._has_answer = has_calls, has_answer

    def text(self) -> str:
        bodies = ["calls"] if self._has_calls else []
        bodies += [self._answer()] if self._has_answer else []
        rules = [f"start: {self._thought()} ({' | '.join(bodies)})", "GAP: /[ \\n]{1,4}/"]
        return "\n".join([*rules, *self._thought_rules(), *(self._call_rules() if self._has_calls else [])])

    # ---- what is free
    def _thought(self) -> str:
        if self._split.form is CallForm.HARMONY:
            begin = f'{self._mark(CHANNEL)} "analysis" {self._mark(MESSAGE)}'
            return f'({begin} THOUGHT {self._mark(ENDS[0])} {self._mark(START)} "assistant")?'
        if self._split.thought is None:
            return ""
        opening, _ = self._split.thought
        return "thought GAP?" if self._split.in_thought else f"({self._mark(opening)} thought GAP?)?"

    def _thought_rules(self) -> list[str]:
        """Free text up to the closing marker, whether that is a token or spelled."""
        if self._split.form is CallForm.HARMONY:
            return ["THOUGHT: /(.|\\n)*/"]
        if self._split.thought is None:
            return []
        _, closing = self._split.thought
        if closing in self._tokens:
            return [f"thought: THOUGHT {self._mark(closing)}", "THOUGHT: /(.|\\n)*/"]
        return [f"thought[suffix={json.dumps(closing)}]: /(.|\\n)*/"]

    def _answer(self) -> str:
        if self._split.form is CallForm.HARMONY:
            return f'{self._mark(CHANNEL)} "final" {self._mark(MESSAGE)} @answer'
        return "@answer"

    # ---- calls
    def _call_rules(self) -> list[str]:
        tools = self._split.tools
        ways = " | ".join(f"call_{index}" for index in range(len(tools)))
        rules = [self._calls(), f"call: {ways}"]
        for index, tool in enumerate(tools):
            rules.append(f"call_{index}: {self._call(tool, f'args_{index}')}")
            rules.append(f"args_{index}: %json {arguments_schema(tool)}")
        return rules

    def _calls(self) -> str:
        form = self._split.form
        is_one = form in _ONE_CALL or not self._parallel
        joint = {CallForm.MISTRAL: '", " ', CallForm.MISTRAL_ARGS: ""}.get(form or CallForm.HERMES, "GAP? ")
        calls = "call" if is_one else f"call ({joint}call){{0,{MAX_CALLS - 1}}}"
        return f'calls: {self._mark(CALLS)} "[" {calls} "]"' if form is CallForm.MISTRAL else f"calls: {calls}"

    def _call(self, tool: Tool, arguments: str) -> str:
        match self._split.form:
            case CallForm.MISTRAL_ARGS:
                return f"{self._mark(CALLS)} {quoted(tool.name)} {self._mark(ARGS)} {arguments}"
            case CallForm.HARMONY:
                header = quoted(f"commentary to=functions.{tool.name} ")
                return (
                    f'{self._mark(CHANNEL)} {header} {self._mark(CONSTRAIN)} "json" {self._mark(MESSAGE)} {arguments}'
                )
        key = "parameters" if self._split.form is CallForm.LLAMA else "arguments"
        begin, end = f'{{"name": {json.dumps(tool.name)}, "{key}": ', "}"
        if self._split.form in (CallForm.LLAMA, CallForm.MISTRAL):
            return f"{quoted(begin)} {arguments} {quoted(end)}"
        begin, end = f"\n{begin}", f"{end}\n"
        return f"{self._mark(OPEN)} {quoted(begin)} {arguments} {quoted(end)} {self._mark(CLOSE)}"

    def _mark(self, name: str) -> str:
        """A marker as its token, where it is one, else spelled."""
        token = self._tokens.get(name)
        return quoted(name) if token is None else f"<[{token}]>"


def quoted(text: str) -> str:
    """A literal of Lark."""
    return json.dumps(text)


def arguments_schema(tool: Tool) -> str:
    """A tool without a schema takes any object."""
    schema = json.loads(tool.parameters or "{}")
    return json.dumps({"type": "object", **schema, "x-guidance": {"whitespace_pattern": JSON_SPACE}})

"""A reader of calls as Python writes them: [look_up(word="owl"), add(a=1)].

It reads Python's syntax tree, of which only calls, literals and JSON's three words are accepted; nothing runs. Names
that Python does not allow (get-time, server/tool, from) are replaced first:

    get-time(from="10:00")  ->  _0(_1="10:00")
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping

from eaglelocal.core.json_text import MAX_DEPTH, is_nested_deeper
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.text.tool_calls.tagged_text import TEXT, value_of
from eaglelocal.text.tool_calls.tool_schemas import parameter_schemas

MAX_CHARS = 256 * 1024
# a string up to its end, if it has one; or a word, with the bracket or equals sign that makes it a name
_WORD = re.compile(
    r"""(?P<quote>"{3}|'{3}|"|')(?:\\.|(?!(?P=quote))[^\\])*+((?P=quote)|\\?\Z)"""
    r"|(?P<name>\w[\w./:-]*+)(?P<behind>\s*[(=])?",
    re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}


class PythonCalls:
    """A reader of a list of calls, or one call."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    def __call__(self, text: str) -> list[ToolCall] | None:
        """Return the calls, without ids; None if the text is none."""
        if len(text) > MAX_CHARS:
            return None
        names: dict[str, str] = {}
        tree = _parsed(_WORD.sub(lambda found: _renamed(found, names), text.strip()))
        if tree is None:
            return None
        nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        known = {stand_in: name for name, stand_in in names.items()}
        try:
            calls = [self._call(node, known) for node in nodes]
        except (LookupError, ValueError, RecursionError):
            return None
        return calls or None

    def _call(self, node: ast.expr, names: Mapping[str, str]) -> ToolCall:
        if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name):
            raise ValueError("no call with named arguments")
        name = names[node.func.id]
        schemas = parameter_schemas(self._tools.get(name))
        arguments: dict[str, object] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise ValueError("arguments without a name")
            key, value = names[keyword.arg], _value(keyword.value)
            # some models quote every value
            schema = schemas.get(key, TEXT)
            arguments[key] = value_of(value, schema) if isinstance(value, str) else value
        if is_nested_deeper(arguments, MAX_DEPTH):
            raise ValueError("nested too deep")
        return ToolCall("", name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def _renamed(found: re.Match[str], names: dict[str, str]) -> str:
    """Replace a name before a bracket or an equals sign by one that Python can read; leave all else unchanged."""
    if found["behind"] is None:
        return found[0]
    return names.setdefault(found["name"], f"_{len(names)}") + found["behind"]


def _parsed(text: str) -> ast.expr | None:
    """Parse the text; None if it is no expression. Some models leave line breaks in quotes, or write a call a line."""
    for spelled in dict.fromkeys((text, text.replace("\n", "\\n"), f"[{','.join(text.splitlines())}]")):
        try:
            return ast.parse(spelled, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
    return None


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is no text")

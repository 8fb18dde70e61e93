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
from eaglelocal.text.tool_calls.tagged_text import TEXT, parse_value
from eaglelocal.text.tool_calls.tool_schemas import read_parameter_types

MAX_CHARS = 256 * 1024
# a string up to its end, if it has one; or a word, with the bracket or equals sign that makes it a name
_WORD = re.compile(
    r"""(?P<quote>"{3}|'{3}|"|')(?:\\.|(?!(?P=quote))[^\\])*+((?P=quote)|\\?\Z)"""
    r"|(?P<name>\w[\w./:-]*+)(?P<suffix>\s*[(=])?",
    re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}


class PythonCalls:
    """A reader of a list of calls, or one call."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    def __call__(self, text: str) -> list[ToolCall] | None:
        """Return the calls, without ids; None if the text is no calls."""
        if len(text) > MAX_CHARS:
            return None
        names: dict[str, str] = {}
        tree = _parse(_WORD.sub(lambda match: _replace_name(match, names), text.strip()))
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
        schemas = read_parameter_types(self._tools.get(name))
        arguments: dict[str, object] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise ValueError("arguments without a name")
            key, value = names[keyword.arg], _read_value(keyword.value)
            # some models quote every value
            schema = schemas.get(key, TEXT)
            arguments[key] = parse_value(value, schema) if isinstance(value, str) else value
        if is_nested_deeper(arguments, MAX_DEPTH):
            raise ValueError("nested too deep")
        return ToolCall("", name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def _replace_name(match: re.Match[str], names: dict[str, str]) -> str:
    """Replace a name before a bracket or an equals sign with one that Python can read; leave other text unchanged."""
    if match["suffix"] is None:
        return match[0]
    return names.setdefault(match["name"], f"_{len(names)}") + match["suffix"]


def _parse(text: str) -> ast.expr | None:
    """Parse an expression; None if it is none. Some models leave line breaks in quotes, or write one call a line."""
    for spelling in dict.fromkeys((text, text.replace("\n", "\\n"), f"[{','.join(text.splitlines())}]")):
        try:
            return ast.parse(spelling, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
    return None


def _read_value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_read_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_read_key(key): _read_value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("not a literal")


def _read_key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is not a string")

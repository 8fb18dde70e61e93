"""Calls as Qwen 3 Coder writes them: every argument a text between tags, whose type the tool's schema knows.

<function=look_up><parameter=word>
owl
</parameter></function>          -> look_up {"word": "owl"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import Tool, ToolCall

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def read_function(text: str, tools: Mapping[str, Tool]) -> ToolCall | None:
    """The call, without an id; None if the text is none."""
    match = _FUNCTION.fullmatch(text)
    if match is None:
        return None
    name = match[1].strip()
    types = parameter_types(tools.get(name))
    arguments = {key.strip(): value_of(value, types.get(key.strip())) for key, value in _PARAMETER.findall(match[2])}
    return ToolCall("", name, json.dumps(arguments, ensure_ascii=False))


def parameter_types(tool: Tool | None) -> dict[str, object]:
    """What the schema says of each parameter's type; nothing of a tool that is not known."""
    schema = json.loads(tool.parameters or "{}") if tool else {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: said.get("type") for name, said in properties.items() if isinstance(said, dict)}


def value_of(text: str, kind: object) -> object:
    """A text stays one where a string is asked for; elsewhere it is JSON if it can be."""
    if kind == "string":
        return text
    try:
        return read_json(text)
    except ValueError:
        return text

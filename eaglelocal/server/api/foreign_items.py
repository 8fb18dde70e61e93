"""What only others make (calls of their own tools, and what those gave), as what is known here: items of /v1/responses,
blocks of /v1/messages.

A session that was begun at another server, or with other tools, goes on: what the model can read of an item becomes a
call, what a call gave, or a text; what says nothing to it becomes an empty thought, which is skipped. What comes is
anyone's, so nothing in it is relied upon. Pure.

    custom_tool_call {"name": "apply_patch", "input": "x", "call_id": "c"}
        -> function_call {"name": "apply_patch", "arguments": '{"input": "x"}', "call_id": "c"}
    web_search_call {"action": {"query": "owls"}}
        -> message of the assistant, "[web_search_call: {"action": {"query": "owls"}}]"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

MAX_TEXT_CHARS = 16_384  # of an item that is told as a text
SKIPPED = frozenset(("compaction", "compaction_summary", "context_compaction", "mcp_list_tools", "item_metadata"))
SAID = frozenset(("mcp_approval_request", "mcp_approval_response"))
ANSWERED = {  # calls whose results are items of their own: the field that says what is wanted
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "computer_call": "action",
}
ENCRYPTED = ("encrypted_content", "encrypted_index")
UNREAD = frozenset(("type", "id", "status", "cache_control", *ENCRYPTED, "created_by", "acknowledged_safety_checks"))
OF_SERVERS = ("server_tool_use", "mcp_tool_use", "container_upload", "search_result", "compaction")  # Anthropic's
FILES = ("result", "image_url", "partial_image_b64", "data")  # in base64, which a model cannot read
PARTS = ("input_text", "output_text", "text", "input_image", "input_file")
_PICTURE = "computer_screenshot"


def is_foreign(type: object) -> bool:
    if not isinstance(type, str) or type in ("function_call", "function_call_output"):
        return False
    return type in SKIPPED or type in SAID or type.endswith(("_call", "_output"))


def as_known(item: Values) -> dict[str, Any]:
    """The same in the words of an item that is known here."""
    kind: str = item["type"]
    if kind in SKIPPED:
        return {"type": "reasoning"}
    if kind.endswith("_output"):
        if not item.get("call_id"):  # it is of no call that the model made
            return _text(kind, item)
        known = {"type": "function_call_output", "call_id": item.get("call_id")}
        return known | {"output": _output(item.get("output", item.get("tools")))}
    if kind in ANSWERED and (item.get("call_id") or kind == "custom_tool_call"):
        return _call(kind, item)
    return _text(kind, item)


# ---- the like of them in Anthropic's shape
def is_of_server_tool(type: object) -> bool:
    """Of a tool that Anthropic runs, in a session that was begun there."""
    if not isinstance(type, str) or type == "tool_result":
        return False
    return type in OF_SERVERS or type.endswith("_tool_result")


def as_text(block: Values) -> dict[str, Any]:
    return {"type": "text", "text": _described(block["type"], block)}


# ---- parts of both
def _call(kind: str, item: Values) -> dict[str, Any]:
    wanted = item.get(ANSWERED[kind])
    arguments = wanted if isinstance(wanted, dict) else {ANSWERED[kind]: wanted}
    name = item.get("name") if kind == "custom_tool_call" else kind.removesuffix("_call")
    call = {"type": "function_call", "call_id": item.get("call_id"), "name": name, "arguments": _json(arguments)}
    return call | ({"namespace": item["namespace"]} if "namespace" in item else {})


def _output(output: object) -> object:
    """A text, or the parts that functions give too, as they are; everything else as JSON."""
    if output is None or isinstance(output, str):
        return output or ""
    if isinstance(output, dict) and output.get("type") == _PICTURE:
        return [{"type": "input_image", "image_url": output.get("image_url")}]
    parts = output if isinstance(output, list) else [None]
    is_whole = all(isinstance(one, dict) and one.get("type") in PARTS for one in parts)
    return output if is_whole else _json(_readable(output))


def _text(kind: str, item: Values) -> dict[str, Any]:
    role = "user" if kind == "mcp_approval_response" else "assistant"
    return {"type": "message", "role": role, "content": _described(kind, item)}


def _described(kind: str, item: Values) -> str:
    said = {name: value for name, value in item.items() if name not in UNREAD and value not in (None, "", [], {})}
    return f"[{kind}: {_json(_readable(said))[:MAX_TEXT_CHARS]}]" if said else f"[{kind}]"


def _readable(value: object) -> object:
    """Without what is written for machines, however deep."""
    if isinstance(value, list):
        return [_readable(one) for one in value]
    if not isinstance(value, dict):
        return value
    read = {name: one for name, one in value.items() if name not in ENCRYPTED}
    return {name: "..." if name in FILES and isinstance(one, str) else _readable(one) for name, one in read.items()}


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError):
        return "..."

"""Translate items of /v1/responses and blocks of /v1/messages that only other servers produce (calls of their own
tools, and the results).

So a session that began at another server, or with other tools, can continue: an item that the model can use becomes
a call, a result, or a text; any other becomes an empty reasoning item, which is skipped. The input is untrusted, so
nothing in it is relied upon. Pure.

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

MAX_TEXT_CHARS = 16_384  # of an item rendered as text
SKIPPED = frozenset(("compaction", "compaction_summary", "context_compaction", "mcp_list_tools", "item_metadata"))
SAID = frozenset(("mcp_approval_request", "mcp_approval_response"))
ANSWERED = {  # calls whose results are separate items: the field with the arguments
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "computer_call": "action",
}
ENCRYPTED = ("encrypted_content", "encrypted_index")
UNREAD = frozenset(("type", "id", "status", "cache_control", *ENCRYPTED, "created_by", "acknowledged_safety_checks"))
OF_SERVERS = ("server_tool_use", "mcp_tool_use", "container_upload", "search_result", "compaction")  # Anthropic's
FILES = ("result", "image_url", "partial_image_b64", "data")  # base64, which a model cannot read
PARTS = ("input_text", "output_text", "text", "input_image", "input_file")
_PICTURE = "computer_screenshot"


def is_foreign(type: object) -> bool:
    if not isinstance(type, str) or type in ("function_call", "function_call_output"):
        return False
    return type in SKIPPED or type in SAID or type.endswith(("_call", "_output"))


def as_known(item: Values) -> dict[str, Any]:
    """Return the item as one of a type that this server knows."""
    kind: str = item["type"]
    if kind in SKIPPED:
        return {"type": "reasoning"}
    if kind.endswith("_output"):
        if not item.get("call_id"):  # it belongs to no call of the model
            return _text(kind, item)
        known = {"type": "function_call_output", "call_id": item.get("call_id")}
        return known | {"output": _output(item.get("output", item.get("tools")))}
    if kind in ANSWERED and (item.get("call_id") or kind == "custom_tool_call"):
        return _call(kind, item)
    return _text(kind, item)


# ---- the same for Anthropic's blocks
def is_of_server_tool(type: object) -> bool:
    """Return whether a block belongs to a tool that Anthropic runs, from a session begun there."""
    if not isinstance(type, str) or type == "tool_result":
        return False
    return type in OF_SERVERS or type.endswith("_tool_result")


def as_text(block: Values) -> dict[str, Any]:
    return {"type": "text", "text": _described(block["type"], block)}


# ---- used by both
def _call(kind: str, item: Values) -> dict[str, Any]:
    wanted = item.get(ANSWERED[kind])
    arguments = wanted if isinstance(wanted, dict) else {ANSWERED[kind]: wanted}
    name = item.get("name") if kind == "custom_tool_call" else kind.removesuffix("_call")
    call = {"type": "function_call", "call_id": item.get("call_id"), "name": name, "arguments": _json(arguments)}
    return call | ({"namespace": item["namespace"]} if "namespace" in item else {})


def _output(output: object) -> object:
    """Return a text, or the parts that function results may have, unchanged; anything else as JSON."""
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
    """Return the value without encrypted fields, and with "..." for base64 files, at any depth."""
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

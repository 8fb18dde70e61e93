"""A tool server that misbehaves, in plain JSON-RPC over stdio: python hostile_tool_server.py HOW [FILE]

The tool `answer` answers as it should, so that a test sees whether other servers still work.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOW = sys.argv[1]
ESCAPES = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31mred\r\n\x08done\u202eback"
PLAIN: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
PIXEL = "iVBORw0KGgo="


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def flood_forever(stream: Any, text: str) -> None:
    while True:
        stream.write(text)


def list_tools() -> list[dict[str, Any]]:
    if HOW == "many_tools":
        return [
            {"name": f"tool_{n}", "description": f"number {n} " + "x" * 5000, "inputSchema": PLAIN} for n in range(1000)
        ]
    if HOW == "long_description":
        return [{"name": "answer", "description": "d" * 5_000_000, "inputSchema": PLAIN}]
    if HOW == "escapes":
        return [{"name": "ans\x1b[31mwer", "description": ESCAPES, "inputSchema": PLAIN}]
    if HOW == "slow_pattern":  # a check of the result against this schema would take years
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["a"]}
        return [{"name": "answer", "description": "", "inputSchema": PLAIN, "outputSchema": schema}]
    return [{"name": "answer", "description": "Return the text.", "inputSchema": PLAIN}]


def misbehave() -> None:
    """Do before a result what prevents it."""
    match HOW:
        case "garbage":
            flood_forever(sys.stdout, "x" * 65536)
        case "lines":
            flood_forever(sys.stdout, '{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\n')
        case "stderr":
            for _ in range(1600):
                sys.stderr.write("e" * 65536)
        case "hangs":
            time.sleep(600)
        case "dies":
            print("cannot go on\x1b[2J", file=sys.stderr, flush=True)
            os._exit(3)


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    misbehave()
    text = {"type": "text", "text": arguments.get("text", "")}
    file = {"type": "resource", "resource": {"uri": "file:///a\x1b[2J", "mimeType": "a/b", "blob": PIXEL}}
    results: dict[str, dict[str, Any]] = {
        "escapes": {"content": [{"type": "text", "text": ESCAPES}]},
        "images": {"content": [text, {"type": "image", "data": PIXEL, "mimeType": "image/png"}, file]},
        "long_result": {"content": [{"type": "text", "text": "r" * 5_000_000}]},
        "odd_result": {"content": [{"type": "hologram"}], "isError": "perhaps"},
        "slow_pattern": {"content": [text], "structuredContent": {"a": "a" * 60 + "!"}},
    }
    return results.get(HOW, {"content": [text]})


def answer(request: dict[str, Any]) -> None:
    name, params = request["method"], request.get("params") or {}
    if name == "initialize":
        about = {"name": "hostile", "version": "1"}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        send({"id": request["id"], "result": result})
    elif name == "tools/list":
        send({"id": request["id"], "result": {"tools": list_tools()}})
    elif name == "tools/call":
        send({"id": request["id"], "result": call(params.get("arguments") or {})})
    elif "id" in request:
        send({"id": request["id"], "error": {"code": -32601, "message": f"no method {name}"}})


def main() -> None:
    if HOW == "greets":
        print("Welcome to the tool server!", flush=True)
    if HOW == "mute":
        time.sleep(600)
    if HOW == "stays":  # with a child, and deaf to SIGTERM and to the end of stdin
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(sys.argv[2]).write_text(f"{os.getpid()} {child.pid}")
    for line in sys.stdin:
        answer(json.loads(line))
    if HOW == "stays":
        time.sleep(600)


if __name__ == "__main__":
    main()

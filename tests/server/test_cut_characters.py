"""Answers that end inside a character, in every API, whole and streamed: the character is left out.

Bytes in the middle of an answer that are no characters are shown as U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from doubles import server_engine
from doubles.running_server import Server, served, typing

NUM_TOKENS = 3
TEXT = "\N{REPLACEMENT CHARACTER}ok " + "\N{GRINNING FACE}ok " * (NUM_TOKENS - 1)
SAID = [{"role": "user", "content": "hello"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": NUM_TOKENS},
    "/v1/completions": {"prompt": "hello", "max_tokens": NUM_TOKENS},
    "/v1/messages": {"messages": SAID, "max_tokens": NUM_TOKENS},
    "/v1/responses": {"input": "hello", "max_output_tokens": NUM_TOKENS},
    "/api/chat": {"messages": SAID, "options": {"num_predict": NUM_TOKENS}},
    "/api/generate": {"prompt": "hello", "options": {"num_predict": NUM_TOKENS}},
    "/completion": {"prompt": "hello", "n_predict": NUM_TOKENS},
}


@pytest.fixture(scope="module")
def cutter() -> Iterator[Server]:
    with served(typing(plans={"cutter": server_engine.plan(server_engine.CUTTER)})) as server:
        yield server


def read_whole(path: str, reply: dict[str, Any]) -> str:
    """Return the text of a whole answer, or of one event of a stream."""
    match path:
        case "/v1/chat/completions":
            choice = reply["choices"][0]
            return (choice.get("message") or choice.get("delta") or {}).get("content") or ""
        case "/v1/completions":
            return reply["choices"][0]["text"]  # type: ignore[no-any-return]
        case "/v1/messages":
            return "".join(block["text"] for block in reply["content"])
        case "/v1/responses":
            return "".join(part["text"] for item in reply["output"] for part in item["content"])
        case "/api/chat":
            return reply["message"]["content"]  # type: ignore[no-any-return]
        case "/api/generate":
            return reply["response"]  # type: ignore[no-any-return]
        case _:
            return reply["content"]  # type: ignore[no-any-return]


def read_event(path: str, event: dict[str, Any]) -> str:
    match path:
        case "/v1/messages":
            return event.get("delta", {}).get("text", "")  # type: ignore[no-any-return]
        case "/v1/responses":
            return event["delta"] if event["type"] == "response.output_text.delta" else ""
        case _:
            return read_whole(path, event) if "choices" not in event or event["choices"] else ""


@pytest.mark.parametrize("path", CALLS)
def test_a_whole_answer_ends_before_the_character(cutter: Server, path: str) -> None:
    reply = cutter.http.post(path, json={"model": "cutter", "stream": False, **CALLS[path]})
    assert (reply.status_code, read_whole(path, reply.json())) == (200, TEXT)


@pytest.mark.parametrize("path", CALLS)
def test_a_stream_ends_before_the_character(cutter: Server, path: str) -> None:
    reply = cutter.http.post(path, json={"model": "cutter", "stream": True, **CALLS[path]})
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert "".join(read_event(path, event) for event in events) == TEXT


def test_all_tokens_are_counted(cutter: Server) -> None:
    reply = cutter.ask("hello", max_tokens=NUM_TOKENS).json()
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (NUM_TOKENS, "length")

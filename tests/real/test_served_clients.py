"""`eaglelocal serve` with a real model, as people run it: OpenAI's and Anthropic's clients, tools, schemas, `top`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from doubles.real_prompts import PASSAGE
from doubles.serve_process import ServeProcess, serve
from doubles.timeouts import PATIENCE_S

pytestmark = [pytest.mark.full, pytest.mark.real]

QUESTION: list[Any] = [{"role": "user", "content": f"{PASSAGE}\n\nWhat does a ticket for the ferry cost?"}]
FERRY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "leaves_at": {"type": "string", "enum": ["8:15", "12:00", "18:00"]},
        "tickets": {"type": "integer", "minimum": 1, "maximum": 9},
        "passengers": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["leaves_at", "tickets", "passengers"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "book", "description": "a ferry", "parameters": FERRY}}


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[ServeProcess]:
    with serve("--target", str(smollm2), "--parallel", "2", "--ctx", "1024", "--threads", "1") as running:
        yield running


@pytest.fixture
def client(server: ServeProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    (only,) = client.models.list().data
    return only.id


def check_fits(given: Any) -> None:
    assert set(given) == {"leaves_at", "tickets", "passengers"}
    assert given["leaves_at"] in FERRY["properties"]["leaves_at"]["enum"]
    assert given["tickets"] in range(1, 10)
    assert len(given["passengers"]) <= 2 and all(len(name) <= 12 for name in given["passengers"])


def test_a_streamed_answer_is_the_whole_one(client: openai.OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "nine euros" in text.lower()
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_next_turn_reads_only_what_is_new(client: openai.OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 16}
    first = client.chat.completions.create(messages=QUESTION, **fields)
    said = {"role": "assistant", "content": first.choices[0].message.content}
    more = [*QUESTION, said, {"role": "user", "content": "And for a child?"}]
    again = client.chat.completions.create(messages=more, **fields)
    assert first.usage is not None and again.usage is not None and again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.prompt_tokens - 8


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_an_answer_bound_to_a_schema_fits_it(client: openai.OpenAI, model: str, temperature: float) -> None:
    bound: Any = {"type": "json_schema", "json_schema": {"name": "ferry", "schema": FERRY}}
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, response_format=bound, temperature=temperature, seed=3, max_tokens=200
    )
    check_fits(json.loads(answer.choices[0].message.content or ""))
    assert answer.choices[0].finish_reason == "stop"


def test_a_required_tool_is_called_although_the_template_knows_none(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0.7,
        seed=1,
        max_tokens=200,
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function" and call.function.name == "book"
    check_fits(json.loads(call.function.arguments))
    assert answer.choices[0].finish_reason == "tool_calls"


def test_anthropics_client_gets_the_same_answer(server: ServeProcess, client: openai.OpenAI, model: str) -> None:
    other = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=PATIENCE_S)
    greedy = {"temperature": 0}  # no parameter of this client
    fields: dict[str, Any] = {"model": model, "messages": QUESTION, "max_tokens": 12, "extra_body": greedy}
    (block,) = other.messages.create(**fields).content
    assert block.type == "text"
    assert block.text == client.chat.completions.create(**fields).choices[0].message.content


def test_top_shows_what_the_server_counts(server: ServeProcess, client: openai.OpenAI, model: str) -> None:
    client.chat.completions.create(model=model, messages=QUESTION, max_tokens=8)
    command = [sys.executable, "-m", "eaglelocal", "top", server.url]
    text = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    assert text.startswith(f"eaglelocal at {server.url} · ready")
    assert max(map(len, text.splitlines())) <= 80
    found = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    shown = json.loads(found.splitlines()[-1])
    engine = httpx.get(f"{server.url}/v1/snapshot", timeout=PATIENCE_S).json()["engine"]
    assert (shown["kind"], shown["state"], shown["server"]["running"]) == ("eaglelocal", "ready", 0)
    assert shown["server"]["totals"]["generated_tokens"] == engine["generated_tokens"] > 0

"""A light streaming client for load tests: bodies in, texts and times out; can hang up in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]


@dataclass
class Streamed:
    """The answer to one request. Times are in seconds since it was sent."""

    status: int = 0
    text: str = ""
    arrivals: list[float] = field(default_factory=list)  # of chunks with text
    finish_reason: str = ""
    usage: Json = field(default_factory=dict)
    speculation: Json = field(default_factory=dict)
    timings: Json = field(default_factory=dict)
    logprobs: list[Json] = field(default_factory=list)
    error: str = ""
    is_done: bool = False  # [DONE] came
    took_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        return self.is_done and not self.error and bool(self.finish_reason)


@asynccontextmanager
async def connections(url: str, count: int, *, key: str = "") -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=600, headers=headers) as client:
        yield client


async def ask(client: httpx.AsyncClient, body: Json, *, leave_after: int | None = None) -> Streamed:
    """Stream one chat completion; hang up after `leave_after` chunks. A broken connection is returned as an error."""
    got, started_at = Streamed(), time.perf_counter()
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            got.status = response.status_code
            if got.status != 200:
                got.error = (await response.aread()).decode()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    take(got, line[6:], time.perf_counter() - started_at)
                if leave_after is not None and len(got.arrivals) >= leave_after:
                    break
    except httpx.HTTPError as error:
        got.error = f"{type(error).__name__}: {error}"
    got.took_s = time.perf_counter() - started_at
    return got


def take(got: Streamed, data: str, now: float) -> None:
    if data == "[DONE]":
        got.is_done = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        got.error = chunk["error"]["message"]
    got.usage = chunk.get("usage") or got.usage
    got.speculation = chunk.get("speculation") or got.speculation
    got.timings = chunk.get("timings") or got.timings
    for choice in chunk.get("choices", ()):
        text = choice["delta"].get("content") or ""
        got.finish_reason = choice["finish_reason"] or got.finish_reason
        got.logprobs += (choice.get("logprobs") or {}).get("content") or []
        if text:
            got.text += text
            got.arrivals.append(now)

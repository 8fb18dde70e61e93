"""Answer a request with an error before any route runs."""

from __future__ import annotations

import json

from starlette.types import Scope, Send

from eaglelocal.server.http_errors import Problem
from eaglelocal.server.request_record import current_record

ANTHROPIC_PATHS = ("/v1/messages",)
OLLAMA_PATHS = ("/api/",)


async def refuse(scope: Scope, send: Send, problem: Problem, *, close: bool = False) -> None:
    problem = current_record().refuse(problem)
    body = json.dumps(error_body(problem, scope["path"])).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **problem.headers}
    if close:  # else the rest of the body would be parsed as another request
        headers["connection"] = "close"
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def error_body(problem: Problem, path: str) -> dict[str, object]:
    """Return the JSON body of an error, in the format of the API at this path."""
    if path.startswith(OLLAMA_PATHS):
        return problem.ollama_body()
    return problem.anthropic_body() if path.startswith(ANTHROPIC_PATHS) else problem.openai_body()

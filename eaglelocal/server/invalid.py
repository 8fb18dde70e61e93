"""What pydantic, FastAPI and starlette object to in a request, as problems with the parameter's place in the body.

A field that may be of several types is refused by each of them, under places that name the types:

    stop: ["a", 3]  ->  stop.str: not a string, stop.list[str].1: not a string  ->  told as stop.1

So places are followed through the body, what is not in it is left out, and the objection that lies deepest is told.
Values themselves are not told again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from eaglelocal.server.api.schema import MAX_TEXT_CHARS
from eaglelocal.server.errors import INVALID, NOT_FOUND, Problem

MAX_MESSAGE_CHARS = 500
MAX_PLACE_CHARS = 200
UNREADABLE = {RecursionError: "it is nested too deeply", UnicodeDecodeError: "it is not UTF-8"}


def of_validation(error: Exception) -> Problem:
    """Raised by FastAPI, about a body, a path or a query."""
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes) and error.body:
        return Problem(415, "the body must come as JSON, with Content-Type: application/json", code="invalid_json")
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        why = errors[0].get("ctx", {}).get("error", "")
        return Problem(400, f"the body is not valid JSON: {why}", code="invalid_json")
    return told(errors, error.body, skipped=1)


def of_http(error: Exception) -> Problem:
    """Raised by starlette and FastAPI: no such path, not this method, a body that json cannot read."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        why = UNREADABLE.get(type(error.__cause__), "it holds a number of too many digits")
        return Problem(400, f"the body cannot be read as JSON: {why}", code="invalid_json")
    kind = NOT_FOUND if error.status_code == 404 else INVALID
    return Problem(error.status_code, str(error.detail), kind, headers=error.headers or {})


def told(errors: Sequence[Mapping[str, Any]], body: object, *, skipped: int = 0) -> Problem:
    """The objection that lies deepest among those to the first field. `skipped`: parts before a place in the body."""
    first = errors[0]["loc"][: skipped + 1]
    places = [(place_of(one, body, skipped), one) for one in errors if one["loc"][: skipped + 1] == first]
    place, error = max(places, key=lambda found: len(found[0]))  # the first of the deepest
    name = ".".join(map(str, place))[:MAX_PLACE_CHARS]
    is_too_long = error["type"] == "string_too_long" and error["ctx"]["max_length"] == MAX_TEXT_CHARS
    return Problem(
        400,
        f"{name or 'the body'}: {error['msg']}"[:MAX_MESSAGE_CHARS],
        parameter=name or None,
        code="context_length_exceeded" if is_too_long else "invalid_value",
    )


def place_of(error: Mapping[str, Any], body: object, skipped: int) -> list[str | int]:
    """The parts of a place that are in the body, and the name of what is missing there."""
    parts, found, here = error["loc"][skipped:], list[str | int](), body
    for i, part in enumerate(parts, 1):
        if isinstance(here, Mapping) and part in here:
            here = here[part]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = cast("list[object]", here)[part]
        elif i < len(parts) or error["type"] != "missing":
            continue
        found.append(part)
    return found

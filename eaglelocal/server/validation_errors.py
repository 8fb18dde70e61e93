"""Turn errors of pydantic, FastAPI and starlette into a Problem that names the parameter's place in the body.

A field of a union type is refused once for each type, at places that contain the types:

    stop: ["a", 3]  ->  stop.str: not a string, stop.list[str].1: not a string  ->  reported as stop.1

So places are followed through the body, parts that are not in it are left out, and the deepest error is reported;
of several at one place, that of the type which the value has (`stop: at most 128`, not `stop: not a string`).
Values themselves are never quoted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from eaglelocal.server.http_errors import INVALID, NOT_FOUND, Problem
from eaglelocal.server.openai.schema import MAX_TEXT_CHARS

MAX_MESSAGE_CHARS = 500
MAX_PLACE_CHARS = 200
AN_OBJECT = ("a valid dictionary or object to extract fields from", "an object")
Found = tuple[list[str | int], Mapping[str, Any]]  # a place in the body, and the error at it
SHOULD_BE = "Input should be "
OF_ANOTHER_TYPE = frozenset(
    (
        *("string_type", "list_type", "dict_type", "int_type", "float_type", "bool_type", "model_type"),
        *("none_required", "model_attributes_type", "is_instance_of", "literal_error", "int_from_float"),
    )
)
UNREADABLE = {RecursionError: "it is nested too deeply", UnicodeDecodeError: "it is not UTF-8"}


def of_validation(error: Exception) -> Problem:
    """Return the Problem for a RequestValidationError of FastAPI about a body, a path or a query."""
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes) and error.body:
        return Problem(415, "the body must come as JSON, with Content-Type: application/json", code="invalid_json")
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        why = errors[0].get("ctx", {}).get("error", "")
        return Problem(400, f"the body is not valid JSON: {why}", code="invalid_json")
    return told(errors, error.body, skipped=1)


def of_http(error: Exception) -> Problem:
    """Return the Problem for an HTTPException: unknown path, wrong method, or a body that cannot be read."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, Problem):
        return error.__cause__
    if error.status_code == 400:
        why = UNREADABLE.get(type(error.__cause__), "it holds a number of too many digits")
        return Problem(400, f"the body cannot be read as JSON: {why}", code="invalid_json")
    kind = NOT_FOUND if error.status_code == 404 else INVALID
    return Problem(error.status_code, str(error.detail), kind, headers=error.headers or {})


def told(errors: Sequence[Mapping[str, Any]], body: object, *, skipped: int = 0) -> Problem:
    """Return the Problem for the deepest error of the first field. `skipped`: parts of `loc` before the body's place.

    If several types refuse the same value, those whose errors are not about its type come first.
    """
    first = errors[0]["loc"][: skipped + 1]
    ways: dict[tuple[Any, ...], list[Found]] = {}  # errors by the union types tried
    for one in errors:
        if one["loc"][: skipped + 1] == first:
            place = place_of(one, body, skipped)
            ways.setdefault(tuple(part for part in one["loc"] if part not in place), []).append((place, one))
    fitting = [way for way in ways.values() if not any(error["type"] in OF_ANOTHER_TYPE for _, error in way)]
    found = [one for way in fitting or ways.values() for one in way]
    deepest, error = max(found, key=lambda one: len(one[0]))  # the first of the deepest
    name = ".".join(map(str, deepest))[:MAX_PLACE_CHARS]
    is_too_long = error["type"] == "string_too_long" and error["ctx"]["max_length"] == MAX_TEXT_CHARS
    message = message_of(error, [one for place, one in found if place == deepest])
    return Problem(
        400,
        f"{name or 'the body'}: {message}"[:MAX_MESSAGE_CHARS],
        parameter=name or None,
        code="context_length_exceeded" if is_too_long else "invalid_value",
    )


def message_of(error: Mapping[str, Any], there: Sequence[Mapping[str, Any]]) -> str:
    """Return the message; for a wrong type it lists all types that are allowed at this place."""
    if error["type"] not in OF_ANOTHER_TYPE:
        return str(error["msg"]).removeprefix("Value error, ")
    said = [str(one["msg"]).replace(*AN_OBJECT) for one in there if one["type"] != "is_instance_of"]
    more = [one.removeprefix(SHOULD_BE) for one in said[1:] if one.startswith(SHOULD_BE)]
    return " or ".join(dict.fromkeys([*said[:1], *more]))


def place_of(error: Mapping[str, Any], body: object, skipped: int) -> list[str | int]:
    """Return the parts of an error's `loc` that are in the body, and the name of a missing field."""
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

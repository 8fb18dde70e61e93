"""Errors as the APIs' clients expect them: a status, and an object with message, type, param and code.

Maps the error tree to HTTP statuses. A message never quotes a prompt; it includes the hint, because clients show
nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from eaglelocal.errors import (
    NOT_SUPPORTED,
    EagleLocalError,
    EngineAwayError,
    EngineError,
    RequestError,
    ResourceError,
    UsageError,
)
from eaglelocal.server.openai.field_types import MAX_TEXT_CHARS

INVALID, AUTHENTICATION, NOT_FOUND = "invalid_request_error", "authentication_error", "not_found_error"
UNSUPPORTED = "not_supported_error"
CANCELLED, CANCELLED_STATUS = "request_cancelled", 499
PERMISSION, RATE_LIMIT, SERVER, OVERLOADED = "permission_error", "rate_limit_error", "api_error", "overloaded_error"
SEE_LOG = "its operator finds the reason in the server's log"


class Problem(Exception):
    """An error reply. Raise it anywhere before the first byte of an answer.

    public  what others than operators read instead of a message that may show paths of this machine; "": the message
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str = INVALID,
        *,
        parameter: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        public: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type, self._public = status, message, type, public
        self.parameter, self.code, self.headers = parameter, code, headers

    def hide_details(self) -> Problem:
        """Return it as others than operators read it."""
        if not self._public:
            return self
        return Problem(
            self.status, self._public, self.type, parameter=self.parameter, code=self.code, headers=self.headers
        )

    def openai_body(self) -> dict[str, object]:
        """Return the error in OpenAI's format."""
        error = {"message": self.message, "type": self.type, "param": self.parameter, "code": self.code}
        return {"error": error}

    def anthropic_body(self) -> dict[str, object]:
        """Return the error in Anthropic's format: clients recognize a prompt that is too long by this wording."""
        message = f"prompt is too long: {self.message}" if self.is_too_long else self.message_with_place
        return {"type": "error", "error": {"type": self.type, "message": message}}

    def ollama_body(self) -> dict[str, object]:
        """Return the error in Ollama's format: clients recognize a prompt that is too long by its first words."""
        return {"error": self.message if self.is_too_long else self.message_with_place}

    @property
    def is_too_long(self) -> bool:
        return self.code == "context_length_exceeded"

    @property
    def message_with_place(self) -> str:
        """Return the message with the parameter's place in front, unless the text already names it as a word."""
        is_in_message = self.parameter is None or is_named(self.parameter, self.message)
        return self.message if is_in_message else f"{self.parameter}: {self.message}"


def is_named(name: str, text: str) -> bool:
    """Return whether a text has a name as a word: not `n` of `answer`, `stop` of `stop_sequences` or `a` of `a.b`."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text) is not None


def unsupported(parameter: str, why: str) -> Problem:
    """Return the Problem for a field that is not supported but would change the answer."""
    return Problem(400, why, parameter=parameter, code="unsupported_parameter")


def unavailable(message: str, *, retry_after_s: int = 5, public: str = "") -> Problem:
    headers = {"Retry-After": str(retry_after_s)}
    return Problem(503, message, OVERLOADED, code="unavailable", headers=headers, public=public)


def to_problem(error: Exception) -> Problem:
    """Return the Problem for an error; an unexpected one gets no details."""
    match error:
        case Problem():
            return error
        case RequestError() if error.code == NOT_SUPPORTED:
            return Problem(501, describe_error(error), UNSUPPORTED, code=error.code)
        case RequestError():
            return Problem(400, describe_error(error), parameter=error.parameter or None, code=error.code or None)
        case UsageError():
            return Problem(400, describe_error(error))
        case ResourceError() | EngineAwayError():
            return unavailable(describe_error(error), public=f"the engine cannot answer now; {SEE_LOG}")
        case EngineError():
            headers, public = {"Retry-After": "1"}, f"the engine failed; {SEE_LOG}"
            return Problem(500, describe_error(error), SERVER, code="engine_error", headers=headers, public=public)
        case EagleLocalError():
            return Problem(500, describe_error(error), SERVER, public=f"the server failed; {SEE_LOG}")
    return Problem(500, "internal error; see the server's log", SERVER, code="internal_error")


def describe_error(error: EagleLocalError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


# ---- validation errors: turn errors of pydantic and of the JSON parser into a Problem that names the parameter's
# place in the body
#
# A field of a union type is refused once for each type, at places that contain the types:
#
# stop: ["a", 3] -> stop.str: not a string, stop.list[str].1: not a string -> reported as stop.1
#
# So places are followed through the body, parts that are not in it are left out, and the deepest error is reported;
# of several at one place, that of the type which the value has (`stop: at most 128`, not `stop: not a string`).
# Values themselves are never quoted.
MAX_MESSAGE_CHARS = 500
MAX_PLACE_CHARS = 200
OBJECT_WORDING = ("a valid dictionary or object to extract fields from", "an object")
PlacedError = tuple[list[str | int], Mapping[str, Any]]  # a place in the body, and the error at it
EXPECTED = "Input should be "
WRONG_TYPE_ERRORS = frozenset(
    (
        *("string_type", "list_type", "dict_type", "int_type", "float_type", "bool_type", "model_type"),
        *("none_required", "model_attributes_type", "is_instance_of", "literal_error", "int_from_float"),
    )
)
PARSE_FAILURES = {RecursionError: "it is nested too deeply", UnicodeDecodeError: "it is not UTF-8"}


def parse_problem(error: Exception, *, has_json_type: bool) -> Problem:
    """Return the Problem for an error of read_body. `has_json_type`: the Content-Type of the body is JSON."""
    if not has_json_type and isinstance(error, ValueError):
        what = f"the body must be JSON (application/json): {error}"
        return Problem(415, what, code="invalid_json")
    if isinstance(error, json.JSONDecodeError):
        return Problem(400, f"the body is not valid JSON: {error.msg}", code="invalid_json")
    why = PARSE_FAILURES.get(type(error), "it holds a number of too many digits")
    return Problem(400, f"the body cannot be read as JSON: {why}", code="invalid_json")


def deepest_problem(errors: Sequence[Mapping[str, Any]], body: object) -> Problem:
    """Return the Problem for the deepest error of the first field.

    If several types refuse the same value, those whose errors are not about its type come first.
    """
    first = errors[0]["loc"][:1]
    by_type: dict[tuple[Any, ...], list[PlacedError]] = {}  # errors by the union types tried
    for one in errors:
        if one["loc"][:1] == first:
            place = find_place(one, body)
            by_type.setdefault(tuple(part for part in one["loc"] if part not in place), []).append((place, one))
    fitting = [
        errors_of_type
        for errors_of_type in by_type.values()
        if not any(error["type"] in WRONG_TYPE_ERRORS for _, error in errors_of_type)
    ]
    found = [one for errors_of_type in fitting or by_type.values() for one in errors_of_type]
    deepest, error = max(found, key=lambda one: len(one[0]))  # the first of the deepest
    name = ".".join(map(str, deepest))[:MAX_PLACE_CHARS]
    is_too_long = error["type"] == "string_too_long" and error["ctx"]["max_length"] == MAX_TEXT_CHARS
    message = compose_message(error, [one for place, one in found if place == deepest])
    return Problem(
        400,
        f"{name or 'the body'}: {message}"[:MAX_MESSAGE_CHARS],
        parameter=name or None,
        code="context_length_exceeded" if is_too_long else "invalid_value",
    )


def compose_message(error: Mapping[str, Any], there: Sequence[Mapping[str, Any]]) -> str:
    """Return the message; for a wrong type it lists all types that are allowed at this place."""
    if error["type"] not in WRONG_TYPE_ERRORS:
        return str(error["msg"]).removeprefix("Value error, ")
    messages = [str(one["msg"]).replace(*OBJECT_WORDING) for one in there if one["type"] != "is_instance_of"]
    more = [one.removeprefix(EXPECTED) for one in messages[1:] if one.startswith(EXPECTED)]
    return " or ".join(dict.fromkeys([*messages[:1], *more]))


def find_place(error: Mapping[str, Any], body: object) -> list[str | int]:
    """Return the parts of an error's `loc` that are in the body, and the name of a missing field."""
    parts, found, here = error["loc"], list[str | int](), body
    for i, part in enumerate(parts, 1):
        if isinstance(here, Mapping) and part in here:
            here = here[part]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = cast("list[object]", here)[part]
        elif i < len(parts) or error["type"] != "missing":
            continue
        found.append(part)
    return found

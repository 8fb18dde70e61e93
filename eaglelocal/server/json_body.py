"""Parse the JSON of a request's body strictly, as other JSON parsers would, and validate it; serialize parts of it.

Python's parser accepts NaN and Infinity, which JSON does not have, and lone surrogates, which are no characters. The
former are refused with their place, the latter become U+FFFD. Raises ValueError as `json.loads` does.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, Field, ValidationError

from eaglelocal.core.json_text import MAX_DEPTH, NestedTooDeep, is_nested_deeper
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import join_in_json, join_surrogates
from eaglelocal.errors import EagleLocalError
from eaglelocal.server.http_errors import Problem, to_problem
from eaglelocal.server.schema import MAX_TEXT_CHARS, MAX_TRANSLATED_TOOLS, ChatBody, ToolGiven

# a surrogate as a JSON escape, and as raw UTF-8, which Python's parser accepts
_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


def read_body(body: bytes) -> object:
    """Return the parsed body. Raises Problem for NaN and the like, ValueError for other invalid JSON."""
    not_finite = list[str]()
    value: object = json.loads(body, parse_constant=not_finite.append)
    if not_finite:
        place = ".".join(find_infinity(json.loads(body)) or ())
        what = f"{place or 'the body'}: {not_finite[0]} is not a number in JSON"
        raise Problem(400, what, parameter=place or None, code="invalid_json")
    is_utf8 = json.detect_encoding(body).startswith("utf-8")  # else the bytes of _SURROGATES look different
    return join_in_json(value) if _SURROGATES.search(body) or not is_utf8 else value


def find_infinity(value: object) -> list[str] | None:
    """Return the keys that lead to the first non-finite number; None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        if (found := find_infinity(one)) is not None:
            return [join_surrogates(str(key)), *found]
    return None


def to_json(value: object, place: str) -> str:
    """Serialize to JSON. Raises Problem (400) for deep nesting, infinity or a lone surrogate."""
    if is_nested_deeper(value, MAX_DEPTH):
        raise Problem(400, f"{place} is {NestedTooDeep(MAX_DEPTH)}", parameter=place)
    if (found := find_infinity(value)) is not None:
        at = ".".join([place, *found])
        raise Problem(400, f"{at}: the number is not finite", parameter=at)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError as error:
        raise Problem(400, f"{place}: a lone surrogate cannot be encoded", parameter=place) from error
    return text


BodyT = TypeVar("BodyT", bound=BaseModel)


def validate_body(kind: type[BodyT], body: bytes) -> BodyT:
    if not body:
        raise Problem(400, "the body: Field required", code="invalid_value")
    try:
        value = read_body(body)
    except (ValueError, RecursionError) as error:
        raise parse_problem(error) from None
    try:
        return kind.model_validate(value, from_attributes=True)  # for its message about a value that is not an object
    except ValidationError as error:
        raise deepest_problem(error.errors(include_url=False), value) from None


# ---- validation errors: turn errors of pydantic and of the JSON parser into a Problem that names the parameter's
# place in the body
#
# A field of a union type is refused once for each type, at places that contain the types:
#
# stop: ["a", 3] -> stop.str: not a string, stop.list[str].1: not a string -> reported as stop.1
#
# So places are followed through the body, parts that are not in it are left out, and the deepest error is reported;
# among several at one place, the error for the value's own type is reported (`stop: at most 128`, not `stop: not a
# string`). Values themselves are never quoted.
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


def parse_problem(error: Exception) -> Problem:
    """Return the Problem for an error of read_body."""
    if isinstance(error, json.JSONDecodeError):
        place = f"line {error.lineno}, column {error.colno}"
        return Problem(400, f"the body is not valid JSON: {error.msg} at {place}", code="invalid_json")
    why = PARSE_FAILURES.get(type(error), "it holds a number of too many digits")
    return Problem(400, f"the body cannot be read as JSON: {why}", code="invalid_json")


def deepest_problem(errors: Sequence[Mapping[str, Any]], body: object) -> Problem:
    """Return the Problem for the deepest error of the first field.

    If several types refuse the same value, errors about something else than its type come first.
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
    """Compose the message; for a wrong type it lists all types that are allowed at this place."""
    if error["type"] not in WRONG_TYPE_ERRORS:
        return str(error["msg"]).removeprefix("Value error, ")
    messages = [str(one["msg"]).replace(*OBJECT_WORDING) for one in there if one["type"] != "is_instance_of"]
    more = [one.removeprefix(EXPECTED) for one in messages[1:] if one.startswith(EXPECTED)]
    return " or ".join(dict.fromkeys([*messages[:1], *more]))


def find_place(error: Mapping[str, Any], body: object) -> list[str | int]:
    """Return the parts of an error's `loc` that exist in the body, and the name of a missing field."""
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


# ---- translated bodies: validate one as a chat, and report errors with the field names of the original body
class TranslatedBody(ChatBody):
    """A chat with more tools than OpenAI's limit."""

    tools: Annotated[list[ToolGiven], Field(max_length=MAX_TRANSLATED_TOOLS)] | None = None


@dataclass(frozen=True, slots=True)
class FieldTranslation:
    """The original names of the fields of a translated body, for errors about it.

    fields    a field of the chat, or a path to it -> its original name; the longest match counts
    messages  original place of each message
    """

    fields: Mapping[str, str]
    messages: tuple[str, ...] = ()

    def translate_back(self, problem: Problem) -> Problem:
        """Return the problem with the original field names."""
        if problem.parameter is None:
            return problem
        parameter = self._original(problem.parameter)
        message = problem.message
        if message.startswith(f"{problem.parameter}: "):
            message = parameter + message.removeprefix(problem.parameter)
        return problem.change(message, parameter)

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Convert errors raised within the block to Problems with the original names."""
        try:
            yield
        except (Problem, EagleLocalError) as error:
            raise self.translate_back(to_problem(error)) from error

    def _original(self, parameter: str) -> str:
        parts = parameter.split(".")
        if parts[0] == "messages" and len(parts) > 1 and parts[1].isdecimal() and int(parts[1]) < len(self.messages):
            inside = parts[2:] if "tool_calls" not in parts else []  # originally a call is an item of its own
            return ".".join([self.messages[int(parts[1])], *inside])
        for length in range(len(parts), 0, -1):
            known = self.fields.get(".".join(parts[:length]))
            if known is not None:
                return ".".join([known, *parts[length:]])
        return parameter


NOT_TRANSLATED = FieldTranslation({})


def name_chat_fields(*, effort: str, format: str) -> dict[str, str]:
    """Return the `fields` of a FieldTranslation for an API with these names of reasoning effort and answer format."""
    return {"reasoning_effort": effort, "chat_template_kwargs.reasoning_effort": effort, "response_format": format}


def validate_chat(values: dict[str, Any]) -> ChatBody:
    """Validate a translated chat. Raises Problem if it breaks a rule that the original format does not have."""
    try:
        return TranslatedBody.model_validate(values)
    except ValidationError as error:
        raise deepest_problem(error.errors(), values) from None

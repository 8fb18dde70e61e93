"""A writer of calls in a family's form, for templates that do not show the calls of earlier turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from eaglelocal.core.tools import CallForm, Notation
from eaglelocal.text.tool_calls.call_forms import ARGS, ID, INDEX, IS_TEXT, KEY, MAYBE_ID, NAME, SHORT_ID, VALUE
from eaglelocal.text.tool_calls.lenient_values import GEMMA_QUOTE

Arguments = Mapping[str, object]


def write_calls(form: CallForm, calls: Sequence[tuple[str, Arguments]]) -> str:
    """Return the text of an answer that makes these calls, given as (name, arguments)."""
    first, joint, last = form.around
    return first + joint.join(_write_call(form, index, *call) for index, call in enumerate(calls)) + last


def _write_call(form: CallForm, index: int, name: str, arguments: Arguments) -> str:
    fields = {NAME: name, INDEX: str(index), ID: f"call_{index}", SHORT_ID: f"{index:09}", MAYBE_ID: ""}
    before, after = (_fill(part, fields) for part in form.call.split(ARGS))
    return before + _write_arguments(form, arguments) + after


def _fill(text: str, fields: Mapping[str, str]) -> str:
    for field, value in fields.items():
        text = text.replace(field, value)
    return text


def _write_arguments(form: CallForm, arguments: Arguments) -> str:
    match form.notation:
        case Notation.TAGS:
            return "".join(_write_tag(form, key, value) for key, value in arguments.items())
        case Notation.GEMMA:
            return _write_gemma(arguments)
        case _ if form.call.endswith(f"({ARGS})"):
            return ", ".join(f"{key}={_write_python(value)}" for key, value in arguments.items())
    return _json(arguments)


def _write_tag(form: CallForm, key: str, value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    is_text = "true" if isinstance(value, str) else "false"
    before, after = form.value.split(VALUE)
    return before.replace(KEY, key).replace(IS_TEXT, is_text) + text + after


def _write_gemma(value: object) -> str:
    match value:
        case str():
            return f"{GEMMA_QUOTE}{value}{GEMMA_QUOTE}"
        case Mapping():
            return "{" + ",".join(f"{key}:{_write_gemma(value[key])}" for key in sorted(value, key=str.lower)) + "}"
        case list():
            return "[" + ",".join(map(_write_gemma, value)) + "]"
    return _json(value)


def _write_python(value: object) -> str:
    match value:
        case True | False | None:
            return str(value)
        case Mapping():
            return "{" + ", ".join(f"{_json(key)}: {_write_python(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_write_python, value)) + "]"
    return _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

"""Sampling parameters as text fields of a form, and their parsing into SamplingParams. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from eaglelocal.core.records import dataclass
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import RequestError, UsageError


@dataclass(frozen=True, slots=True)
class SamplingField:
    """A field of the form."""

    name: str  # of SamplingParams
    label: str
    is_whole: bool
    unset: str = ""  # what an empty field means; "": it must not be empty
    minimum: float | None = None  # smallest value to enter here


FIELDS = (
    SamplingField("temperature", "temperature", is_whole=False),
    SamplingField("top_k", "top k", is_whole=True),
    SamplingField("top_p", "top p", is_whole=False),
    SamplingField("min_p", "min p", is_whole=False),
    SamplingField("repeat_penalty", "repeat penalty", is_whole=False),
    SamplingField("max_tokens", "most tokens", is_whole=True, unset="until the context is full", minimum=1),
    SamplingField("seed", "seed", is_whole=True, unset="another one each time"),
)

ELSEWHERE = {  # what other programs' /set takes besides
    "num_ctx": "eaglelocal chat --ctx N, or f5 in its screen",
    "num_predict": "/set max_tokens",
    "system": "/system",
    "think": "/think",
}


def format_field(params: SamplingParams, field: SamplingField) -> str:
    """Return the text that the field shows; "" if the parameter is unset."""
    value = getattr(params, field.name)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def parse_fields(params: SamplingParams, texts: Mapping[str, str], shown: SamplingParams) -> SamplingParams:
    """Return `params` with the fields of `texts` that differ from `shown`; those leave `left_open`.

    Raises UsageError for a text that is no number, RequestError for a value out of range.
    """
    numbers = {field.name: _parse_number(field, texts[field.name].strip()) for field in FIELDS}
    return apply_changes(params, {name: value for name, value in numbers.items() if value != getattr(shown, name)})


def set_field(params: SamplingParams, name: str, text: str) -> SamplingParams:
    """Return `params` with one field set. Raises as `parse_fields`, and UsageError for an unknown name."""
    known = {field.name: field for field in FIELDS}
    if name not in known:
        raise UsageError(f"unknown parameter {name!r}", hint=ELSEWHERE.get(name) or f"one of: {', '.join(known)}")
    return apply_changes(params, {name: _parse_number(known[name], text.strip())})


def find_changes(params: SamplingParams, base: SamplingParams) -> dict[str, float | int | None]:
    """Return the fields of the form, by name, that were set since `base`, even to the same value."""
    opened = base.left_open - params.left_open
    names = (each.name for each in FIELDS)
    return {
        name: getattr(params, name) for name in names if name in opened or getattr(params, name) != getattr(base, name)
    }


def apply_changes(base: SamplingParams, changes: Mapping[str, float | int | None]) -> SamplingParams:
    """Return `base` with these fields set, as `find_changes` returned them. Raises RequestError."""
    return replace(base, left_open=base.left_open.difference(changes), **changes)  # type: ignore[arg-type]


def describe_changes(changes: Mapping[str, float | int | None]) -> str:
    """Return fields that were set, with their values: `temperature 0.5, seed 3`."""
    params, fields = apply_changes(SamplingParams(), changes), (field for field in FIELDS if field.name in changes)
    return ", ".join(f"{field.label} {format_field(params, field) or field.unset}" for field in fields)


def read_values(content: object) -> dict[str, float | int | None]:
    """Return the fields with valid values of a JSON object, by name; other members are ignored."""
    values = content if isinstance(content, dict) else {}
    read: dict[str, float | int | None] = {}
    for each in FIELDS:
        value = values.get(each.name)
        kinds = (int,) if each.is_whole else (int, float)
        is_unset = each.name in values and value is None and bool(each.unset)
        if is_unset or (isinstance(value, kinds) and not isinstance(value, bool)):
            with suppress(RequestError):
                apply_changes(SamplingParams(), {each.name: value})
                read[each.name] = value
    return read


def _parse_number(field: SamplingField, text: str) -> float | int | None:
    if not text and field.unset:
        return None
    try:
        number = int(text) if field.is_whole else float(text)
    except ValueError:
        kind = "a whole number" if field.is_whole else "a number"
        raise UsageError(f"{field.label} must be {kind}, not {text!r}") from None
    if field.minimum is not None and number < field.minimum:
        raise UsageError(f"{field.label} must be at least {field.minimum:g}, not {text}")
    return number

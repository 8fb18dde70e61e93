"""Sampling parameters as text fields of a form, and their parsing into SamplingParams. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import UsageError


@dataclass(frozen=True, slots=True)
class SamplingField:
    """A field of the form."""

    name: str  # of SamplingParams
    label: str
    is_whole: bool
    unset: str = ""  # what an empty field means; "": it must not be empty
    least: float | None = None  # smallest value that makes sense to enter here


FIELDS = (
    SamplingField("temperature", "temperature", is_whole=False),
    SamplingField("top_k", "top k", is_whole=True),
    SamplingField("top_p", "top p", is_whole=False),
    SamplingField("min_p", "min p", is_whole=False),
    SamplingField("repeat_penalty", "repeat penalty", is_whole=False),
    SamplingField("max_tokens", "most tokens", is_whole=True, unset="until the context is full", least=1),
    SamplingField("seed", "seed", is_whole=True, unset="another one each time"),
)


def format_field(params: SamplingParams, field: SamplingField) -> str:
    """Return the text that the field shows; "" if the parameter is unset."""
    value = getattr(params, field.name)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def parse_fields(params: SamplingParams, said: Mapping[str, str], shown: SamplingParams) -> SamplingParams:
    """Return `params` with the fields of `said` that differ from `shown`; those leave `left_open`.

    Raises UsageError for a text that is no number, RequestError for a value out of range.
    """
    numbers = {field.name: _number(field, said[field.name].strip()) for field in FIELDS}
    changed = {name: number for name, number in numbers.items() if number != getattr(shown, name)}
    return replace(params, left_open=params.left_open.difference(changed), **changed)  # type: ignore[arg-type]


def changed(params: SamplingParams, name: str, text: str) -> SamplingParams:
    """Return `params` with one field set. Raises as `parse_fields`, and UsageError for an unknown name."""
    known = {field.name: field for field in FIELDS}
    if name not in known:
        raise UsageError(f"nothing that can be set is called {name!r}", hint=f"there are: {', '.join(known)}")
    value = _number(known[name], text.strip())
    return replace(params, left_open=params.left_open.difference([name]), **{name: value})  # type: ignore[arg-type]


def _number(field: SamplingField, text: str) -> float | int | None:
    if not text and field.unset:
        return None
    try:
        number = int(text) if field.is_whole else float(text)
    except ValueError:
        kind = "a whole number" if field.is_whole else "a number"
        raise UsageError(f"{field.label} must be {kind}, not {text!r}") from None
    if field.least is not None and number < field.least:
        raise UsageError(f"{field.label} must be at least {field.least:g}, not {text}")
    return number

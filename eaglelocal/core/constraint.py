"""Constraints on an answer's text: plain data, compiled in the backend (llguidance)."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from eaglelocal.core.records import dataclass

# White space in JSON: a space, or a line break and the next line's indentation. Without a bound some models fill
# their answer with white space.
JSON_SPACE = r"\x20|\x0A(\x20{0,64}|\x09{0,16})"

MAX_SOURCE_BYTES = 128 * 1024  # the schemas of all tools, where a call is required


class Syntax(Enum):
    """The notations in which a constraint can be written."""

    JSON_OBJECT = "json_object"  # any JSON object; `source` is empty
    JSON_SCHEMA = "json_schema"  # `source` is the schema, as JSON
    REGEX = "regex"  # the whole answer matches
    LARK = "lark"  # a grammar in llguidance's dialect of Lark, start symbol `start`


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the answer must belong to. Tokens are sampled as usual, among those that it admits."""

    syntax: Syntax
    source: str = ""
    frame: str = ""  # a Lark grammar that contains this constraint as `@answer`; empty: it is the whole answer
    is_strict: bool = False  # unsupported parts of a schema are an error; else they are ignored
    unbound: tuple[str, ...] = field(default=(), compare=False)  # keywords that are not enforced
    owner: str = ""  # part of the key: reuse of another owner's would reveal it by its speed

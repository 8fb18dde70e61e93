"""What an answer's text is bound to: plain data, compiled in the backend (llguidance)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# White space in JSON: a space, or a line break and what indents the next line. Without a bound a model that likes
# white space fills its answer with it.
JSON_SPACE = r"\x20|\x0A(\x20{0,24}|\x09{0,8})"

MAX_SOURCE_BYTES = 128 * 1024  # the schemas of all tools, where a call is required


class Syntax(Enum):
    """How a constraint is written."""

    JSON_OBJECT = "json_object"  # any JSON object; `source` is empty
    JSON_SCHEMA = "json_schema"  # `source` is the schema, as JSON
    REGEX = "regex"  # the whole answer matches
    LARK = "lark"  # a grammar in llguidance's dialect of Lark, start symbol `start`


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the answer must belong to. The draw is the target's own among the tokens that it admits."""

    syntax: Syntax
    source: str = ""
    frame: str = ""  # a grammar in Lark in which it stands as `@answer`; empty: it is the whole answer
    is_strict: bool = False  # what of a schema cannot be bound is an error; else it binds nothing

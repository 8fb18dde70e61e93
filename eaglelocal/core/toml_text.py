"""Reading TOML that anyone may have written. The only reader of TOML in the package."""

from __future__ import annotations

import tomllib
from typing import Any

from eaglelocal.core.json_text import MAX_DEPTH, NestedTooDeep, is_deeper


def read_toml(text: str) -> dict[str, Any]:
    """Raises ValueError for what is no TOML, or nested deeper than JSON may be here."""
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise NestedTooDeep(MAX_DEPTH) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise ValueError("a number has too many digits" if "digits" in str(error) else str(error)) from None
    if is_deeper(content, MAX_DEPTH):
        raise NestedTooDeep(MAX_DEPTH)
    return content

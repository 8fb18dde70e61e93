"""A translated body, checked like one that came so."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from eaglelocal.server.api.schema import ChatBody
from eaglelocal.server.invalid import told


def as_chat(values: dict[str, Any]) -> ChatBody:
    """Raises Problem where the translation breaks a rule that the original shape does not have."""
    try:
        return ChatBody.model_validate(values)
    except ValidationError as error:
        raise told(error.errors(), values) from None

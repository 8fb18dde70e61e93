"""The state of one request, which middlewares write and routes read."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.types import Scope


def request_state(scope: Scope) -> MutableMapping[str, Any]:
    found: MutableMapping[str, Any] = scope.setdefault("state", {})
    return found

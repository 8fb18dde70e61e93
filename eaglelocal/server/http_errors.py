"""Errors as the APIs' clients expect them: a status, and an object with message, type, param and code.

Maps the error tree to HTTP statuses. A message never quotes a prompt; it includes the hint, because clients show
nothing else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from types import MappingProxyType

from eaglelocal.errors import (
    NOT_SUPPORTED,
    EagleLocalError,
    EngineAwayError,
    EngineError,
    RequestError,
    ResourceError,
    UsageError,
)

INVALID, AUTHENTICATION, NOT_FOUND = "invalid_request_error", "authentication_error", "not_found_error"
UNSUPPORTED = "not_supported_error"
CANCELLED, CANCELLED_STATUS = "request_cancelled", 499
PERMISSION, RATE_LIMIT, SERVER, OVERLOADED = "permission_error", "rate_limit_error", "api_error", "overloaded_error"
SEE_LOG = "its operator finds the reason in the server's log"
ANTHROPIC_PATH, OLLAMA_PATH = "/v1/messages", "/api/"  # the first characters of these APIs' paths

_log = logging.getLogger("eaglelocal.server")


class Problem(Exception):
    """An error reply. Raise it anywhere before the first byte of an answer.

    type    "": that of the status: the server's own error from 500 on, else an invalid request
    public  text for non-operators, in place of a message that may show paths of this machine; "": the message
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "",
        *,
        parameter: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        public: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.public = status, message, public
        self.type = type or (SERVER if status >= 500 else INVALID)
        self.parameter, self.code, self.headers = parameter, code, headers

    def change(self, message: str, parameter: str | None) -> Problem:
        """Return the same problem with another message and parameter."""
        code, headers, public = self.code, self.headers, self.public
        return Problem(self.status, message, self.type, parameter=parameter, code=code, headers=headers, public=public)

    def body(self, path: str) -> dict[str, object]:
        """Return the JSON body, in the format of the API at this path."""
        if path.startswith(OLLAMA_PATH):
            return self.ollama_body()
        return self.anthropic_body() if path.startswith(ANTHROPIC_PATH) else self.openai_body()

    def openai_body(self) -> dict[str, object]:
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
    """Return the Problem for an unsupported field that would change the answer."""
    return Problem(400, why, parameter=parameter, code="unsupported_parameter")


def unavailable(message: str, *, retry_after_s: int = 5, public: str = "") -> Problem:
    headers = {"Retry-After": str(retry_after_s)}
    return Problem(503, message, OVERLOADED, code="unavailable", headers=headers, public=public)


def to_problem(error: Exception) -> Problem:
    """Return the Problem for an error; an unexpected error is logged, and shows no details."""
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
            return Problem(500, describe_error(error), code="engine_error", headers=headers, public=public)
        case EagleLocalError():
            return Problem(500, describe_error(error), public=f"the server failed; {SEE_LOG}")
    _log.error("a request failed", exc_info=error)
    return Problem(500, "internal error; see the server's log", code="internal_error")


def describe_error(error: EagleLocalError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message

"""Convert an unexpected exception into an error with a message and a hint."""

from __future__ import annotations

import traceback

from eaglelocal.errors import EagleLocalError, EngineError

LOG_VARIABLE = "EAGLELOCAL_ENGINE_LOG"


def make_engine_error(error: BaseException, what: str) -> EagleLocalError:
    """Return `error` itself if it is an EagleLocalError, else an EngineError that asks for a report.

    The traceback of an unexpected error goes to stderr, which the parent keeps.
    """
    if isinstance(error, EagleLocalError):
        return error
    traceback.print_exception(error)
    return EngineError(
        f"{what}: {type(error).__name__}: {error}",
        hint=f"this is a bug: please report it; {LOG_VARIABLE}=1 shows the traceback",
    )

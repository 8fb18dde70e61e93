"""The hierarchy of all errors that a user can see.

    EagleLocalError            message, hint, exit_code (1: the input or the machine, 2: usage)
    ├── UsageError             an invalid flag, reference or setting (exit 2)
    ├── ModelFileError         a GGUF that is missing, cut short, malformed or of the wrong kind
    ├── IncompatibleError      a draft that does not fit its target, a target that cannot be drafted for
    ├── LibraryError           llama.cpp is missing, of another version, or lacks a symbol
    ├── ResourceError          not enough memory, disk or context
    ├── DownloadError          a hub that refuses, cannot be reached or sends other data than it announced
    ├── RequestError           a request the engine cannot serve (too long, bad parameter)
    │   └── TooComplexError    a schema or grammar that would take too long, or crash its compiler
    ├── EngineError            the engine process failed, ended or does not respond
    │   ├── RpcServerError     an rpc-server that holds layers is away, or cannot be used
    │   └── EngineAwayError    it does not restart, or takes too long, so requests no longer wait for it
    └── Cancelled              the user stopped it (exit 130)

Messages are lower case without a full stop and carry the value; hints name the command to run. Both are one line,
whatever name they quote: a line end in it becomes U+FFFD. A message that quotes a long value shows its ends.
"""

from __future__ import annotations

MAX_CHARS, SHOWN_CHARS = 800, 160  # of a message, and of each end of one that is longer


class EagleLocalError(Exception):
    """A failure with a message for the user and, if possible, a hint on how to fix it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message, self.hint = _shorten(_join_lines(message)), _join_lines(hint)
        super().__init__(self.message)
        self.report = ""  # a crash report on this machine; not shown to a server's clients

    def add_report(self, path: str) -> None:
        self.report = path

    def __reduce__(self) -> tuple[object, ...]:  # pickled: errors cross the engine's pipe
        return (_rebuild, (type(self), self.message, self.hint))


def _join_lines(text: str) -> str:
    return text if text.isprintable() else "\N{REPLACEMENT CHARACTER}".join(text.splitlines())


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:SHOWN_CHARS]} ... {text[-SHOWN_CHARS:]}"


def _rebuild(kind: type[EagleLocalError], message: str, hint: str) -> EagleLocalError:
    return kind(message, hint=hint)


TRACEBACK_VARIABLE = "EAGLELOCAL_TRACEBACK"  # "1": show tracebacks of unexpected errors


def bug_error(problem: Exception) -> EagleLocalError:
    """Return the error that reports an unexpected exception as a bug."""
    return EagleLocalError(
        f"this is a bug: {type(problem).__name__}: {str(problem) or 'no message'}",
        hint=f"{TRACEBACK_VARIABLE}=1 eaglelocal ... shows the traceback; please report the bug with it",
    )


class UsageError(EagleLocalError):
    exit_code = 2


class ModelFileError(EagleLocalError):
    pass


class IncompatibleError(EagleLocalError):
    pass


class LibraryError(EagleLocalError):
    pass


class ResourceError(EagleLocalError):
    pass


class DownloadError(EagleLocalError):
    pass


NOT_SUPPORTED = "not_supported"  # code of a request that this model can never serve


class RequestError(EagleLocalError):
    """A request that cannot be served. `parameter` names the invalid field, `code` is OpenAI's error code, or ""."""

    def __init__(self, message: str, *, hint: str = "", parameter: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint)
        self.parameter = parameter
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_request_error, (type(self), self.message, self.hint, self.parameter, self.code))


def _rebuild_request_error(
    kind: type[RequestError], message: str, hint: str, parameter: str, code: str
) -> RequestError:
    return kind(message, hint=hint, parameter=parameter, code=code)


class TooComplexError(RequestError):
    pass


class EngineError(EagleLocalError):
    pass


class RpcServerError(EngineError):
    """An rpc-server for layers is away, or cannot be used."""


class EngineAwayError(EngineError):
    pass


class Cancelled(EagleLocalError):
    exit_code = 130

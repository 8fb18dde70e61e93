"""Functions that a LimitedProcess calls in tests, which take too much, fail or end their process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from eaglelocal.errors import ModelFileError, RequestError

GREEDY: list[object] = []


def open_echo(prefix: str) -> Callable[[object], object]:
    """Return a function that returns strings with the prefix, and other values as they are."""
    return lambda value: prefix + value if isinstance(value, str) else value


def open_counter() -> Callable[[], int]:
    """Return a function that counts its calls: the process keeps the state that it was opened with."""
    calls: list[None] = []

    def count() -> int:
        calls.append(None)
        return len(calls)

    return count


def open_table() -> Callable[..., object]:
    """Return a function that calls one of the functions below by its name."""
    return lambda name, *args: FUNCTIONS[name](*args)


def open_never() -> Callable[[], object]:
    raise ModelFileError("line 3 is wrong", hint="another file")


def open_dead() -> Callable[[], object]:
    os._exit(7)


def open_slowly(seconds: float) -> Callable[[], object]:
    time.sleep(seconds)
    return lambda: "open"


def spin() -> None:
    while True:
        pass


def multiply() -> int:
    """Run a single native operation that takes hours, with the interpreter's lock held."""
    return (9 ** (9**8)).bit_length()


def grow() -> None:
    """Fill memory by small parts, until not even an error can be created."""
    while True:
        GREEDY.append([str(len(GREEDY))])


def take(num_bytes: int) -> int:
    return len(b"x" * num_bytes)


def hold(num_bytes: int) -> None:
    """Fail with an error whose traceback refers to the error itself and to `num_bytes` bytes."""
    held = b"x" * num_bytes
    error = ValueError(len(held))
    raise error


def nest() -> object:
    return nest()


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    sys.exit(3)


def refuse() -> None:
    raise RequestError("no", hint="yes", parameter="messages", code="word")


def fail() -> None:
    raise KeyError("missing\ud800")


def say() -> int:
    """Write to stdout and stderr, as native code might."""
    print("x" * 200_000, flush=True)
    return os.write(2, b"y" * 200_000)


def look() -> dict[str, object]:
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    return {
        "fds": [os.readlink(f"/proc/self/fd/{fd}") for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")],
        "threads": threading.active_count(),
        "modules": sorted(sys.modules),
        "variables": sorted(os.environ),
    }


FUNCTIONS: dict[str, Callable[..., object]] = {
    "spin": spin,
    "multiply": multiply,
    "grow": grow,
    "take": take,
    "hold": hold,
    "nest": nest,
    "crash": crash,
    "leave": leave,
    "refuse": refuse,
    "fail": fail,
    "say": say,
    "look": look,
    "sleep": time.sleep,
    "pid": os.getpid,
    "text": lambda num_chars: "x" * num_chars,
    "object": object,
}

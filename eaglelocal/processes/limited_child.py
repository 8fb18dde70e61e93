"""The process side of a `LimitedProcess`: opens one of our functions and serves calls to it, within limits.

    python -m eaglelocal.processes.limited_child PACKAGE.MODULE:OPENER CPU_S MEMORY_BYTES MAX_REPLY_BYTES

The operating system enforces the limits: it refuses memory, and kills the process when its CPU time is used up or its
parent is gone, even during a native call. Imports little, because each such process holds its own copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import math
import os
import pickle
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from eaglelocal.errors import EagleLocalError, RequestError
from eaglelocal.processes.this_process import take_over_pipes

MAX_ERROR_CHARS = 2000
NICENESS = 10  # reading untrusted input must not slow down answers
SPARE_S = 2  # more CPU seconds than the parent allows: it ends a call sooner, with a better error
RESERVE_BYTES = 1024 * 1024  # freed when memory runs out, so that this can be reported
HEAD = struct.Struct("<BQ")  # kind of a message, length of its body


class MessageKind:
    """The kinds of messages."""

    REQUEST, TEXT, BYTES, JSON, ERROR, OTHER_ERROR, NO_MEMORY, TOO_LARGE = range(8)


Message = tuple[int, bytes]
Function = Callable[..., object]


class CallServer:
    """Answers requests one after another: the first opens the function, the others call it."""

    def __init__(self, opener: Function, cpu_s: float, max_reply_bytes: int) -> None:
        self._opener, self._cpu_s, self._max_reply_bytes = opener, cpu_s, max_reply_bytes
        self._function: Function | None = None

    def answer(self, request: bytes) -> Message:
        """Return the reply to a request: a value or an error. Raises MemoryError."""
        # The system kills the process after so many more seconds of CPU time, whatever it is doing.
        set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + self._cpu_s) + SPARE_S)
        try:
            kind, body = self._reply(pickle.loads(request))
        except MemoryError:
            raise
        except Exception as error:
            return encode_error(error)
        return (kind, body) if len(body) <= self._max_reply_bytes else (MessageKind.TOO_LARGE, b"")

    def _reply(self, args: tuple[object, ...]) -> Message:
        if self._function is None:
            self._function = cast(Function, self._opener(*args))
            gc.collect()
            gc.freeze()  # later collections then skip all of this
            return encode(None)
        return encode(self._function(*args))


def encode(value: object) -> Message:
    match value:
        case str():
            return MessageKind.TEXT, value.encode("utf-8", "surrogatepass")
        case bytes():
            return MessageKind.BYTES, value
    return MessageKind.JSON, json.dumps(value).encode()


def encode_error(error: Exception) -> Message:
    if isinstance(error, EagleLocalError):
        parameter, code = (error.parameter, error.code) if isinstance(error, RequestError) else ("", "")
        words = [error.message[:MAX_ERROR_CHARS], error.hint[:MAX_ERROR_CHARS], parameter, code]
        return MessageKind.ERROR, json.dumps([type(error).__name__, *words]).encode()
    return MessageKind.OTHER_ERROR, json.dumps([type(error).__name__, _text_of(error)]).encode()


def _text_of(error: Exception) -> str:
    try:
        return str(error)[:MAX_ERROR_CHARS]
    except Exception:  # __str__ may raise anything
        return ""


def set_limit(kind: int, wanted: int | None) -> None:
    """Set a limit that the operating system enforces, as far as it may be raised; None: as high as that."""
    _, most = resource.getrlimit(kind)
    is_too_high = wanted is None or (most != resource.RLIM_INFINITY and wanted > most)
    resource.setrlimit(kind, (most if is_too_high else cast(int, wanted), most))


def limit_memory(num_bytes: int) -> None:
    """Limit the address space to `num_bytes` more than now. Not all systems enforce it, so the parent checks too."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm", "rb") as file:
            now_bytes = int(file.read().split()[0]) * resource.getpagesize()
        set_limit(resource.RLIMIT_AS, now_bytes + num_bytes)


@contextlib.contextmanager
def end_with_parent(fd: int) -> Iterator[None]:
    """End the process, within the block, when the other side of the pipe closes: SIGIO then kills it.

    fd  of the pipe for replies. The parent has read all of it before it sends a request, so that only its end is
        signalled. On the pipe for requests, a write is, too, perhaps after we have read what it wrote.

    A parent's death signal (prctl) would follow the thread that started us, which may end long before the process.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    poll = select.poll()
    poll.register(fd, 0)
    try:
        if poll.poll(0):  # it is closed already: no signal will come
            os._exit(0)
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def serve(server: CallServer, requests: BinaryIO, replies: BinaryIO) -> None:
    """Serve requests until the pipe ends or memory runs out."""
    while head := requests.read(HEAD.size):
        _, length = HEAD.unpack(head)
        request = requests.read(length)
        if len(request) < length:
            return
        with end_with_parent(replies.fileno()):
            reply = server.answer(request)
        send(replies, reply)
        if reply[0] in (MessageKind.ERROR, MessageKind.OTHER_ERROR, MessageKind.TOO_LARGE):
            gc.collect()  # an error's traceback may hold nearly all memory


def send(replies: BinaryIO, message: Message) -> None:
    kind, body = message
    rest = memoryview(HEAD.pack(kind, len(body)) + body)
    while rest:
        rest = rest[replies.write(rest) :]


def main(function: str, cpu_s: float, memory_bytes: int, max_reply_bytes: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    ending = {signal.SIGIO, signal.SIGXCPU, signal.SIGTERM}
    for number in ending:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    set_limit(resource.RLIMIT_CORE, 0)
    requests, replies = take_over_pipes()
    module, _, name = function.partition(":")
    opener: Function = getattr(importlib.import_module(module), name)
    send(replies, encode(None))  # started; the parent reads no stderr from now on
    for fd in (1, 2):
        os.dup2(0, fd)
    reserve = [bytearray(RESERVE_BYTES)]
    limit_memory(memory_bytes)
    try:
        serve(CallServer(opener, cpu_s, max_reply_bytes), requests, replies)
    except MemoryError as error:
        reserve.clear()
        set_limit(resource.RLIMIT_AS, None)
        send(replies, (MessageKind.NO_MEMORY, _text_of(error).encode(errors="replace")))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    os._exit(0)

"""End a child process with its parent, whatever the child is doing: native/parent_watch.c watches the parent."""

from __future__ import annotations

import ctypes as C
import os
import signal
import sys

from eaglelocal.backend.native_step import INSTALL, get_function, load_native
from eaglelocal.errors import LibraryError, ResourceError

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(pipe: int = -1) -> None:
    """End this process within two seconds of its parent's end, or when the other end of `pipe` is closed.

    Raises LibraryError if the native code is missing, and ResourceError if no thread can be started.
    """
    try:
        function = get_function(load_native(C.CDLL), "end_with_parent", [C.c_int32], C.c_int32)
    except AttributeError:
        raise LibraryError("eaglelocal's native code was built from another version", hint=INSTALL) from None
    if error := function(pipe):
        raise ResourceError(f"no thread can be started to watch the parent process: {os.strerror(error)}")


def end_frozen_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends: a frozen process cannot watch its parent.

    Other systems wake a frozen process group when its parent ends, and then it ends. Linux does not if the process that
    adopts it is in the same session, as in containers.
    """
    if sys.platform == "linux":
        C.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

"""llama.cpp's quantizer in a process of its own: it aborts on errors, and only a process can be stopped.

`quantize_file` starts it and reports its progress; `main` is the process. It reads and writes a tensor at a time.
"""

from __future__ import annotations

import ctypes as C
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from eaglelocal.errors import EagleLocalError, ResourceError
from eaglelocal.processes.child_process import has_ended_within, start_module

CHECK_S = 0.2  # between two looks at the file's size
MAX_BUFFER_BYTES = 256 << 20
MAX_REASON_CHARS = 300


def quantize_file(source: Path, made: Path, file_type: int, *, on_bytes: Callable[[int], None]) -> None:
    """Write `made` as a copy of `source`, quantized to llama.cpp's `file_type` number.

    on_bytes  called now and then with the number of bytes of `made` so far

    Raises ResourceError with llama.cpp's reason if it fails. Ends the process if this one is interrupted.
    """
    arguments, nothing = (str(source), str(made), str(file_type)), subprocess.DEVNULL
    with tempfile.TemporaryFile() as log:
        try:
            process = start_module(__name__, *arguments, stdin=nothing, stdout=nothing, stderr=log)
        except OSError as error:
            raise ResourceError(f"llama.cpp's quantizer cannot be started: {error.strerror or error}") from error
        try:
            has_ended = False
            while not has_ended:
                on_bytes(made.stat().st_size if made.exists() else 0)
                has_ended = has_ended_within(process, CHECK_S)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            log.seek(0)
            raise _make_error(made, process.returncode, log.read().decode(errors="replace"))


def _make_error(made: Path, status: int, log: str) -> ResourceError:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    reason = lines[-1][:MAX_REASON_CHARS] if lines else f"it ended with status {status}"
    return ResourceError(
        f"llama.cpp cannot quantize {made.name.partition('.gguf')[0]}: {reason}",
        hint="see that the disk has room, or use another type, such as `q8_0`",
    )


def main(arguments: Sequence[str]) -> int:
    """Quantize a file. Returns 0, or 1 with the reason as the last line on stderr."""
    from eaglelocal.backend.llama_library import load_library
    from eaglelocal.backend.parent_watch import end_with_parent

    source, made, file_type = arguments
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a call of llama.cpp would delay Python's handler
    try:
        end_with_parent()
        library = load_library()
    except EagleLocalError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    api = library.api
    params = api.llama_model_quantize_default_params()
    params.ftype = int(file_type)
    params.allow_requantize = True
    params.max_buf_size = MAX_BUFFER_BYTES
    library.log.begin()
    status: int = api.llama_model_quantize(os.fsencode(source), os.fsencode(made), C.byref(params))
    if status != 0:
        sys.stderr.write(f"{library.log.reason()}\n")
    return min(status, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

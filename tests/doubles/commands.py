"""A command line in the test's own process: the same stdout, stderr and exit code, and no interpreter to start.

    done = run_command("config", "show", environ=environ)
    assert (done.returncode, done.stderr) == (0, "")

What the command changes of the process is put back: environment, arguments, streams, loggers, signals, collector.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from eaglelocal import locations
from eaglelocal.cli.main import main
from eaglelocal.cli.serve_log import LOGGERS

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LIGHT_HEADS_DIR = locations.light_heads_dir  # which the tests' own is in place of (tests/conftest.py)


def run_command(
    *arguments: str, environ: Mapping[str, str] | None = None, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `eaglelocal ARGUMENTS` and return what a process would have written."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd or Path.cwd()))
        stack.enter_context(restored_process())
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(stdin)
        files[0].seek(0)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, file in zip(("stdin", "stdout", "stderr"), files, strict=True):
            patch.setattr(sys, name, io.TextIOWrapper(file, encoding="utf-8"))
        patch.setattr(sys, "argv", ["eaglelocal", *arguments])
        patch.setattr(locations, "light_heads_dir", LIGHT_HEADS_DIR)
        code = _exit_code(os.environ if environ is None else environ)
        stdout, stderr = (_content(stream) for stream in (sys.stdout, sys.stderr))
    return subprocess.CompletedProcess(["eaglelocal", *arguments], code, stdout, stderr)


def _exit_code(environ: Mapping[str, str]) -> int:
    before = dict(os.environ)
    set_environ(dict(environ))
    try:
        return main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        set_environ(before)


def set_environ(environ: Mapping[str, str]) -> None:
    """Have this process see other variables, and so the hub's client, which reads them (its address!) on import."""
    os.environ.clear()
    os.environ.update(environ)
    if constants := sys.modules.get("huggingface_hub.constants"):
        importlib.reload(constants)
        sys.modules["huggingface_hub"].close_session()  # it has read the proxies


def _content(stream: object) -> str:
    assert isinstance(stream, io.TextIOWrapper)
    stream.flush()
    file = stream.detach()
    file.seek(0)
    return str(file.read().decode())


@contextlib.contextmanager
def restored_process() -> Iterator[None]:
    """Put back what a command sets for the whole process."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    threshold = gc.get_threshold()
    with restored_loggers():
        try:
            yield
        finally:
            gc.set_threshold(*threshold)
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def restored_loggers() -> Iterator[None]:
    """A server in this process sends its log elsewhere; later tests read theirs."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    try:
        yield
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)

"""Programs that end at a chosen call as `kill -9` ends them: nothing is flushed, and no handler runs."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEARNER = "doubles.deadly_calls:learn"


@dataclass(frozen=True)
class Fault:
    """The call at which the process ends.

    function  such as `torch:save` or `package.module:Class.method`
    call      its number, from 1
    is_after  the call is made first
    cuts      the argument that is the file to which the call has written; only half of it is on disk
    """

    function: str
    call: int = 1
    is_after: bool = False
    cuts: int | None = None


def write_program(folder: Path, fault: Fault | None, main: str = LEARNER) -> str:
    """Write a module that runs a program with a fault, and return its name; the folder must be imported.

    main  function of the program, such as `package.module:main`
    """
    name = f"program_{len(list(folder.glob('program_*.py')))}"
    content = f"from doubles.deadly_calls import Fault, run_program\n\nrun_program({main!r}, {fault!r})\n"
    (folder / f"{name}.py").write_text(content)
    return name


def run_program(main: str, fault: Fault | None) -> None:
    if fault is not None:
        arm(fault)
    module, _, name = main.partition(":")
    sys.exit(getattr(importlib.import_module(module), name)())


def learn() -> None:
    """Learn as the real process does, with a checkpoint after each step and copies of small heads."""
    from eaglelocal.gguf import writer
    from eaglelocal.learning import learner, learning_process

    writer.MIN_BYTES = 1
    learner.CHECKPOINT_S = 0.0
    learning_process.main()


def arm(fault: Fault) -> None:
    module, _, name = fault.function.partition(":")
    *outer, last = name.split(".")
    place: Any = importlib.import_module(module)
    for part in outer:
        place = getattr(place, part)
    setattr(place, last, make_deadly(getattr(place, last), fault))


def make_deadly(function: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    num_calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls < fault.call:
            return function(*args, **kwargs)
        if fault.is_after or fault.cuts is not None:
            function(*args, **kwargs)
        if fault.cuts is not None:
            cut_in_half(getattr(args[fault.cuts], "_path", args[fault.cuts]))
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    return call


def cut_in_half(path: Path) -> None:
    """Remove the second half of a file's last line, or of a file without lines."""
    content = path.read_bytes()
    last_line = content.rstrip(b"\n").rfind(b"\n") + 1 if path.suffix == ".judged" else 0
    os.truncate(path, (last_line + len(content)) // 2)

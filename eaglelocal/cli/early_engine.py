"""The engine's process of a command that will load a model, started before the command line is read.

Its imports take longer than anything that the command does before it has a plan. Decides by a look at the arguments
alone: a wrong guess costs a process that is ended unused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from eaglelocal.worker.child import SpareProcess

ENGINE = "eaglelocal.loading.engine_builder:build"
HELP = ("-h", "--help")
_URL = "EAGLELOCAL_URL"


def start_early(arguments: Sequence[str]) -> SpareProcess | None:
    """Start the engine's process if the command will load a model; the caller closes it."""
    return SpareProcess(ENGINE) if loads_model(arguments) else None


def loads_model(arguments: Sequence[str]) -> bool:
    """Return whether the command loads a model: `serve`, or `chat` with a question that no server answers."""
    if any(help_flag in arguments for help_flag in HELP):
        return False
    match arguments:
        case ["serve", *_]:
            return True
        case ["chat", question, *flags]:
            return not question.startswith("-") and not _may_join_server(flags)
    return False


def _may_join_server(flags: Sequence[str]) -> bool:
    if any(flag.split("=")[0] == "--url" for flag in flags) or os.environ.get(_URL):
        return True
    if any(flag.split("=")[0] == "--target" for flag in flags):
        return False
    from eaglelocal import locations

    return any(locations.servers_dir().glob("*-*.json"))

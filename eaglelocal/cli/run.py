"""`eaglelocal run`: `pull` for a model that is not on this disk, then `chat --target`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from eaglelocal import locations
from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.catalog.reference import Profile, Repo
from eaglelocal.cli import flags
from eaglelocal.cli.chat_connection import ENGINE_SETTINGS, LOADING_S, find_ready_servers
from eaglelocal.cli.completion import complete_target
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import standard_output
from eaglelocal.cli.pull import PullFlags, pull
from eaglelocal.errors import ModelFileError
from eaglelocal.hub.hub_cache import find_cached, make_hub_reference
from eaglelocal.hub.model_library import locate_reference


def run(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Model: qwen3-8b, user/repo:Q8_0, ./x.gguf.", autocompletion=complete_target
        ),
    ],
    yes: flags.Yes = False,
) -> None:
    """Chat with a model, and download it first if it is missing.

    A running server of this model answers, unless a flag needs an engine of its own.
    What follows MODEL is for `chat`: a PROMPT and flags.

    \b
    eaglelocal run qwen3-8b
    eaglelocal run qwen3-8b "Why does drafting ahead pay?" --ctx 4096
    """
    from eaglelocal.cli.main import run as run_command

    if is_missing(model):
        pull(**asdict(PullFlags(target=model, yes=yes)))
    has_flags = any(one.startswith("-") for one in context.args)
    words = context.args if has_flags else filter(None, [" ".join(context.args)])  # as Ollama takes a PROMPT
    raise typer.Exit(run_command(["chat", *choose_source(model, context.args), *words]))


def choose_source(model: str, words: Sequence[str]) -> tuple[str, str]:
    """Return the flag for `chat`: the URL of the model's server, if flags and settings allow it, else the target."""
    typed = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    if typed.isdisjoint(("url", "target", *ENGINE_SETTINGS)) and load_settings({}).url is None:
        for server in find_ready_servers(standard_output(), target=model, patience_s=LOADING_S):
            return "--url", server.url
    return "--target", model


def is_missing(model: str) -> bool:
    """Return whether the model has to be downloaded. Raises UsageError for a name that no model has."""
    reference = locate_reference(model, load_settings({}).model_folders)
    if not isinstance(reference, Profile | Repo):
        return False
    try:
        find_cached(locations.hub_cache_dir(), make_hub_reference(reference, load_catalog()))
    except ModelFileError:
        return True
    return False

"""`eaglelocal show`: describe a model on disk from its header; nothing is loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import standard_output

WIDTH = 79

Which = Annotated[
    str,
    typer.Argument(
        metavar="REF", help="Model as `eaglelocal ls` shows it, or a .gguf file.", autocompletion=complete_on_disk
    ),
]


def show(ref: Which, as_json: flags.AsJson = False) -> None:
    """Describe a model and the memory it needs.

    \b
    eaglelocal show user/repo-GGUF:Q4_K_M
    eaglelocal show ./model.gguf --json | jq .context
    """
    from eaglelocal.cli.reports.show import details_lines, details_object
    from eaglelocal.hub.model_details import describe_model

    output = standard_output()
    details = describe_model(ref, load_settings({}).model_folders)
    if as_json:
        return output.object(details_object(details))
    output.lines(details_lines(details, WIDTH if output.is_terminal else None))
    return None

"""`eaglelocal show`: describe a model on disk from its header; nothing is loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import standard_output

WIDTH = 79


def show(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="Model as `eaglelocal ls` shows it, or a .gguf file.", autocompletion=complete_on_disk
        ),
    ],
    rpc: Annotated[
        str | None,
        typer.Option(
            "--rpc", metavar="HOST:PORT,...", help="Show the memory of these rpc-servers, and the link to them."
        ),
    ] = None,
    as_json: flags.AsJson = False,
) -> None:
    """Describe a model and the memory it needs.

    \b
    eaglelocal show user/repo-GGUF:Q4_K_M
    eaglelocal show ./model.gguf --json | jq .context
    """
    from eaglelocal.cli.reports.rpc import server_objects, server_rows
    from eaglelocal.cli.reports.show import details_object, details_rows, row_lines
    from eaglelocal.hub.model_details import describe_model
    from eaglelocal.probe.rpc_servers import ask_rpc_server

    output, settings = standard_output(), load_settings({"rpc": rpc})
    details = describe_model(ref, settings.model_folders)
    servers = [ask_rpc_server(address) for address in settings.rpc] if rpc else []  # those of the settings may be busy
    if as_json:
        return output.object(details_object(details) | {"rpc": server_objects(servers)})
    output.lines(row_lines([*details_rows(details), *server_rows(servers)], WIDTH if output.is_terminal else None))
    return None

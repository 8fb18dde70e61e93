"""`eaglelocal forget`: delete the texts that `--lookup-memory` has kept."""

from __future__ import annotations

import shutil

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.amounts import path_text
from eaglelocal.cli.confirm import confirm
from eaglelocal.cli.output import standard_output
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.errors import ResourceError


def forget(yes: flags.Yes = False) -> None:
    """Delete the texts that lookups have kept on disk.

    Saved conversations, models and heads stay. A server that runs goes on with what it has in memory.

    \b
    eaglelocal forget
    eaglelocal forget --yes
    """
    output, folder = standard_output(), locations.lookups_dir()
    files = [path for path in folder.rglob("*") if path.is_file()]
    if not files:
        output.message("nothing is kept")
        return
    num_bytes = sum(path.stat().st_size for path in files)
    output.message(f"{path_text(folder)}: texts of {len(files)} key{'s' * (len(files) > 1)}, {format_disk(num_bytes)}")
    confirm("delete them?", output, yes=yes, default=False)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ResourceError(
            f"cannot delete {path_text(folder)}: {error.strerror}", hint="check its permissions"
        ) from error
    output.message("deleted")

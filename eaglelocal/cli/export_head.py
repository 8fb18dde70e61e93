"""`eaglelocal export HEAD`: write a draft head in a format that vLLM and SGLang load.

The inverse of `import`: nothing is loaded, and no number changes unless it was quantized.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli.export_flags import FORMATS, TYPES, ExportFlags
from eaglelocal.cli.import_head import show_fraction
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import standard_output
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.hub.heads.export_tensors import ExportHead


def export_head(given: ExportFlags, *, as_json: bool = False, is_quiet: bool = False) -> None:
    """Write a draft head for vLLM or SGLang, and report it unless `is_quiet`. Raises UsageError on impossible flags."""
    from eaglelocal.cli.reports.export import export_lines, folder_lines, make_serve_command, report_object
    from eaglelocal.hub.heads.export_folder import check_folder, find_head_file, read_eagle_head, write_head_folder
    from eaglelocal.hub.heads.export_tensors import (
        EXPORT_FORMATS,
        ExportHead,
        list_export_notes,
        make_config,
        make_published_tensors,
    )

    output = standard_output(colour=load_settings({}).colour)
    form = given.form
    head_file = find_head_file(given.what)
    folder = check_export_flags(form, given.weight_type, given.out)
    check_folder(folder, is_forced=given.force)
    read = ExportHead(*read_eagle_head(head_file), EXPORT_FORMATS[form], given.weight_type)
    target = choose_target_repo(read, form, given.target_repo)
    config, tensors = make_config(read, form, target), make_published_tensors(read)
    notes = tuple(list_export_notes(read.info, form))
    tell = output.message if as_json else output.data
    for line in () if is_quiet else export_lines(read, form, target, notes):
        tell(line)
    files = write_head_folder(folder, config, tensors, on_progress=show_fraction(output, "writing the head"))
    if is_quiet:
        return
    command = make_serve_command(read, form, target, folder)
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    for line in folder_lines(folder, files, num_bytes, command):
        tell(line)
    if as_json:
        output.object({**report_object(read, form, target, notes, folder, files), "next": command})


def check_export_flags(form: str, weight_type: str, out: str | None) -> Path:
    """Return the folder to write. Raises UsageError on a missing or unknown value."""
    if form not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}, not {form!r}")
    if weight_type not in TYPES:
        raise UsageError(f"--type must be one of {', '.join(TYPES)}, not {weight_type!r}")
    if out is None:
        raise UsageError("--out is missing: name the folder to write", hint="eaglelocal export HEAD --out ./my-head")
    return expand_path(out)


def choose_target_repo(head: ExportHead, form: str, given: str | None) -> str:
    """Return the repository of the target, empty if it is not known. Raises UsageError if the format needs it."""
    from eaglelocal.hub.heads.export_folder import check_target_repo, find_target_repo
    from eaglelocal.hub.heads.export_tensors import SPECULATORS

    repo = check_target_repo(given) if given is not None else find_target_repo(head.header, head.info)
    if not repo and form == SPECULATORS:
        made_for = f", made for {head.info.target_name}," if head.info.target_name else ""
        raise UsageError(
            f"the head{made_for} does not say which repository its target comes from",
            hint="--target-repo USER/REPO",
        )
    return repo

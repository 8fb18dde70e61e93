"""`eaglelocal export`: write a draft head in a format that vLLM and SGLang load.

The inverse of `import`: nothing is loaded, and no number changes unless it was quantized.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_head, complete_words
from eaglelocal.cli.import_head import show_fraction
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import standard_output
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.hub.heads.export_tensors import ExportHead

FORMATS = ("speculators", "specforge")
TYPES = ("keep", "bf16", "f16", "f32")

Head = Annotated[
    str,
    typer.Argument(
        metavar="HEAD", help="GGUF of a head, or its name as `eaglelocal ls` shows it.", autocompletion=complete_head
    ),
]
Form = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="|".join(FORMATS),
        help="speculators: for vLLM; specforge: for SGLang and vLLM.",
        autocompletion=complete_words(*FORMATS),
    ),
]
Out = Annotated[str | None, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write.")]
TargetRepo = Annotated[
    str | None, typer.Option(metavar="REPO", help="Repository of the target's original weights, if it is not known.")
]
WeightType = Annotated[
    str,
    typer.Option(
        "--type",
        metavar="|".join(TYPES),
        help="Weight type; keep: as in the file, bf16 if quantized.",
        autocompletion=complete_words(*TYPES),
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a folder with an exported head.")]


def export(
    context: typer.Context,
    head: Head,
    form: Form = FORMATS[0],
    out: Out = None,
    target_repo: TargetRepo = None,
    weight_type: WeightType = TYPES[0],
    force: Force = False,
    as_json: flags.AsJson = False,
) -> None:
    """Write a draft head for vLLM or SGLang.

    Reads an EAGLE-3, 3.1 or P-EAGLE head that was trained or imported here, and writes config.json and safetensors.
    `import` of the folder gives the same head again.

    \b
    eaglelocal export ./head.gguf --target-repo Qwen/Qwen3-8B --out ./my-head
    eaglelocal export ./head.gguf --format specforge --out ./my-head
    """
    from eaglelocal.cli.reports.export import export_lines, folder_lines, make_serve_command, report_object
    from eaglelocal.hub.heads.export_config import EXPORT_FORMATS, list_export_notes, make_config
    from eaglelocal.hub.heads.export_folder import check_folder, find_head_file, read_eagle_head, write_head_folder
    from eaglelocal.hub.heads.export_tensors import ExportHead, make_published_tensors

    output = standard_output(colour=load_settings({}).colour)
    folder = check_export_flags(form, weight_type, out)
    check_folder(folder, is_forced=force)
    read = ExportHead(*read_eagle_head(find_head_file(head)), EXPORT_FORMATS[form], weight_type)
    target = choose_target_repo(read, form, target_repo)
    config, tensors = make_config(read, form, target), make_published_tensors(read)
    notes = tuple(list_export_notes(read.info, form))
    tell = output.message if as_json else output.data
    for line in export_lines(read, form, target, notes):
        tell(line)
    files = write_head_folder(folder, config, tensors, on_progress=show_fraction(output, "writing the head"))
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
    return Path(os.path.expanduser(out))


def choose_target_repo(head: ExportHead, form: str, given: str | None) -> str:
    """Return the repository of the target, empty if it is not known. Raises UsageError if the format needs it."""
    from eaglelocal.hub.heads.export_config import SPECULATORS
    from eaglelocal.hub.heads.export_folder import check_target_repo, find_target_repo

    repo = check_target_repo(given) if given is not None else find_target_repo(head.header, head.info)
    if not repo and form == SPECULATORS:
        made_for = f", made for {head.info.target_name}," if head.info.target_name else ""
        raise UsageError(
            f"the head{made_for} does not say which repository its target comes from",
            hint="--target-repo Qwen/Qwen3-8B",
        )
    return repo

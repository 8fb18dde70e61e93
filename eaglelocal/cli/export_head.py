"""The flags of `export`, and `eaglelocal export HEAD`: write a draft head in a format that vLLM and SGLang load.

The inverse of `import`: nothing is loaded, and no number changes unless it was quantized.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli.completion import complete_draft, complete_head, complete_machine
from eaglelocal.cli.flags import argument, flag
from eaglelocal.cli.import_head import show_fraction
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import LABEL, Output, label_text, standard_output
from eaglelocal.core.amounts import count_noun, format_disk
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path, quote_path
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.hub.heads.export_tensors import ExportHead

FORMATS = ("speculators", "specforge")
TYPES = ("keep", "bf16", "f16", "f32")
VLLM, COMPOSE, HELM, ARGOCD, KUEUE, ALERTS, DASHBOARD = FORMS = (
    *("vllm", "compose", "helm", "argocd", "kueue", "alerts", "dashboard"),
)
QUEUED = (HELM, ARGOCD, KUEUE)
MONITORING = (ALERTS, DASHBOARD)
LOADS = ("interactive", "batch")
UNKNOWN_TARGET = "TARGET"  # in a command, in the place of a repository
METHODS = ("eagle3", "peagle", "draft_model", "dflash", "dspark", "medusa", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFlags:
    """The arguments and flags of `export`, as typed. what: a head, or one of FORMS for `target`."""

    what: str = argument(
        f"HEAD|{'|'.join(FORMS)}",
        "A head to write (its GGUF, or its name in `eaglelocal ls`), or what to write for TARGET or a fleet.",
        complete_head,
    )
    target: str | None = argument(
        "TARGET",
        "qwen3-8b, ./model.gguf. Of alerts and dashboard a label; of a Medusa head the file that lends its lm_head.",
        default=None,
    )
    form: str = flag(FORMATS[0], FORMATS, "speculators: for vLLM; specforge: for SGLang and vLLM.", "--format")
    out: str | None = flag(None, "PATH", "Folder of a head, or file, to write.", "--out", "-o")
    target_repo: str | None = flag(None, "REPO", "Repository of the target's original weights, if it is not known.")
    weight_type: str = flag(TYPES[0], TYPES, "Weight type; keep: as in the file, bf16 if quantized.", "--type")
    force: bool = flag(False, "", "Replace a folder with an exported head, or a file.")
    draft: str = flag("auto", "auto|none|ngram|suffix|mtp|REF", "Draft of the target.", complete=complete_draft)
    revision: str | None = flag(None, "COMMIT", "Of the target's repository. Unset: its newest.")
    draft_repo: str | None = flag(None, "REPO", "Repository of the draft.")
    draft_revision: str | None = flag(None, "COMMIT", "Of the draft's repository.")
    draft_method: str | None = flag(None, METHODS, "How a --draft-repo drafts that the catalog does not know.")
    machine: str | None = flag(None, "NAME", "Machine of `plan`; unset: this one.", complete=complete_machine)
    ctx: int | None = flag(None, "N", "Tokens of a conversation.", min=256)
    parallel: int | None = flag(None, "N", "Most answers at once.", min=1, max=4096)
    load: str = flag("interactive", LOADS, "interactive: up to 32 answers at once; batch: up to 256.")
    mig: bool = flag(False, "", "Use the smallest slice of the card that is large enough.")
    queue: str | None = flag(None, "NAME", "Queue of Kueue. Unset: interactive or batch.")
    check: str | None = flag(None, "FILE", "Check Helm values or an ApplicationSet; write nothing.")

    @property
    def queue_name(self) -> str:
        return self.queue or self.load

    @property
    def file(self) -> Path | None:
        return expand_path(self.out) if self.out else None


def export_head(given: ExportFlags, *, as_json: bool = False, is_quiet: bool = False) -> None:
    """Write a draft head for vLLM or SGLang, and report it unless `is_quiet`. Raises UsageError on impossible flags."""
    from eaglelocal.gguf.medusa_info import is_medusa
    from eaglelocal.gguf.reader import read_header
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
    if is_medusa(read_header(head_file)):
        export_medusa(head_file, folder, given, output, as_json=as_json)
        return
    if given.target is not None:
        raise UsageError("only a Medusa head borrows from a TARGET", hint=f"leave {quote_path(given.target)} out")
    read = ExportHead(read_eagle_head(head_file), EXPORT_FORMATS[form], given.weight_type)
    target = choose_target_repo(read, form, given.target_repo)
    config, tensors = make_config(read, form, target), make_published_tensors(read)
    notes = [*list_export_notes(read.info, form)]
    if not is_quiet:
        output.report(export_lines(read, form, target, notes), beside_object=as_json)
    files = write_head_folder(folder, config, tensors, on_progress=show_fraction(output, "writing the head"))
    if is_quiet:
        return
    command = make_serve_command(read, form, target, folder)
    size = f"{format_disk(sum(path.stat().st_size for path in folder.iterdir()))} in {count_noun(len(files), 'file')}"
    last = [*label_text("folder", f"{folder} ({size})"), f"{'next':<{LABEL}}{command}"]
    output.report(last, beside_object=as_json)
    if as_json:
        info = read.info
        output.object(
            {
                "head": {"name": info.name, "kind": info.method, "layers": info.n_layer, "taps": [*info.target_layers]},
                "target": target or None,
                "format": form,
                "type": read.dtype("fc.weight").lower(),
                "decoded": list(read.quantized),
                "notes": notes,
                "folder": str(folder),
                "files": list(files),
                "next": command,
            }
        )


def export_medusa(head_file: Path, folder: Path, given: ExportFlags, output: Output, *, as_json: bool) -> None:
    """Write a Medusa head for vLLM, and report it.

    Raises UsageError, or IncompatibleError if its lm_head is missing.
    """
    from eaglelocal.gguf.medusa_info import MedusaInfo
    from eaglelocal.gguf.reader import read_header
    from eaglelocal.hub.heads.export_folder import check_target_repo, write_head_folder
    from eaglelocal.hub.heads.export_medusa import make_medusa_config, make_medusa_export

    if given.form != FORMATS[0]:
        raise UsageError("vLLM alone runs Medusa heads, in a form of its own", hint="leave --format out")
    info = MedusaInfo.from_header(read_header(head_file))
    lent = read_header(expand_path(given.target)) if given.target is not None else None
    tensors = make_medusa_export(info, given.weight_type, lent)
    repo = check_target_repo(given.target_repo) if given.target_repo else ""
    rows = [
        ("head", f"{info.name}: Medusa, {info.num_parts} heads of {info.num_layers}, {info.state_width} wide"),
        ("target", repo or f"{info.target_name or 'not known'} (this form does not name it)"),
    ]
    output.report([line for row in rows for line in label_text(*row)], beside_object=as_json)
    write_head_folder(folder, make_medusa_config(info), tensors, on_progress=show_fraction(output, "writing the head"))
    config = {"method": "medusa", "model": str(folder), "num_speculative_tokens": info.num_parts}
    target = shlex.quote(repo) if repo else UNKNOWN_TARGET
    command = f"vllm serve {target} --speculative-config {shlex.quote(json.dumps(config))}"
    output.report([*label_text("folder", str(folder)), f"{'next':<{LABEL}}{command}"], beside_object=as_json)
    if as_json:
        output.object({"head": {"name": info.name, "kind": info.method}, "folder": str(folder), "next": command})


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

    repo = check_target_repo(given) if given is not None else find_target_repo(head.info)
    if not repo and form == SPECULATORS:
        made_for = f", made for {head.info.target_name}," if head.info.target_name else ""
        what = f"the head{made_for} does not say which repository its target comes from"
        raise UsageError(what, hint="--target-repo USER/REPO")
    return repo


def export_lines(head: ExportHead, form: str, target_repo: str, notes: Sequence[str]) -> list[str]:
    """Return lines that say what will be written."""
    info, weights = head.info, head.dtype("fc.weight").lower()
    if head.quantized:
        types = sorted({head.header.tensors[name].type.name.lower() for name in head.quantized})
        weights = f"{weights}; {len(head.quantized)} matrices were {', '.join(types)} and are decoded"
    layers = "one layer" if info.n_layer == 1 else f"{info.n_layer} layers"
    rows = [
        (
            "head",
            f"{info.name}: {info.method}, {layers}, {info.width} wide, taps {', '.join(map(str, info.target_layers))}",
        ),
        ("target", target_repo or f"{info.target_name or 'not known'} (this format does not name it)"),
        ("format", form),
        ("weights", weights),
        *(("note", note) for note in notes),
    ]
    return [line for label, text in rows for line in label_text(label, text)]


def make_serve_command(head: ExportHead, form: str, target_repo: str, folder: Path) -> str:
    """Return the command that serves target and head: SGLang's if it runs the head as it is, else vLLM's."""
    from eaglelocal.hub.heads.export_tensors import DRAFT_LENGTH, SPECFORGE

    info, target = head.info, shlex.quote(target_repo) if target_repo else UNKNOWN_TARGET
    if form == SPECFORGE and info.mask is None and not info.norm_before_residual:
        window = f" --speculative-draft-window-size {info.window}" if info.window else ""
        return (
            f"python -m sglang.launch_server --model-path {target} --speculative-algorithm EAGLE3 "
            f"--speculative-draft-model-path {shlex.quote(str(folder))} --speculative-num-steps {DRAFT_LENGTH} "
            f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {DRAFT_LENGTH + 1}{window}"
        )
    parallel = {"parallel_drafting": True} if info.mask is not None else {}
    length = DRAFT_LENGTH if info.mask is None else info.num_depths
    config = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": length, **parallel}
    return f"vllm serve {target} --speculative-config {shlex.quote(json.dumps(config))}"

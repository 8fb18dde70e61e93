"""The output of `eaglelocal export`: the head, its format, its folder. Pure: figures in, texts out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from eaglelocal.cli.reports.import_head import join_layers, wrap_labelled
from eaglelocal.core.byte_sizes import count_noun, format_disk
from eaglelocal.hub.heads.export_tensors import DRAFT_LENGTH, SPECFORGE, ExportHead

UNKNOWN_TARGET = "TARGET"  # in a command, in the place of a repository


def export_lines(head: ExportHead, form: str, target_repo: str, notes: Sequence[str]) -> list[str]:
    """Return what is written, before it is."""
    info = head.info
    layers = "one layer" if info.n_layer == 1 else f"{info.n_layer} layers"
    rows = [
        ("head", f"{info.name}: {info.method}, {layers}, {info.width} wide, taps {join_layers(info.target_layers)}"),
        ("target", target_repo or f"{info.target_name or 'not known'} (this format does not name it)"),
        ("format", form),
        ("weights", describe_weights(head)),
        *(("note", note) for note in notes),
    ]
    return [line for label, text in rows for line in wrap_labelled(label, text)]


def describe_weights(head: ExportHead) -> str:
    written = head.dtype("fc.weight").lower()
    if not head.quantized:
        return written
    types = sorted({head.header.tensors[name].type.name.lower() for name in head.quantized})
    return f"{written}; {len(head.quantized)} matrices were {', '.join(types)} and are decoded"


def folder_lines(folder: Path, files: Sequence[str], num_bytes: int, command: str) -> list[str]:
    size = f"{format_disk(num_bytes)} in {count_noun(len(files), 'file')}"
    folder_line = wrap_labelled("folder", f"{folder} ({size})")
    return [*folder_line, f"{'next':<9}{command}"]


def make_serve_command(head: ExportHead, form: str, target_repo: str, folder: Path) -> str:
    """Return the command that serves target and head: SGLang's if it runs the head as it is, else vLLM's."""
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


def report_object(
    head: ExportHead, form: str, target_repo: str, notes: Sequence[str], folder: Path, files: Sequence[str]
) -> dict[str, object]:
    info = head.info
    return {
        "head": {"name": info.name, "kind": info.method, "layers": info.n_layer, "taps": list(info.target_layers)},
        "target": target_repo or None,
        "format": form,
        "type": head.dtype("fc.weight").lower(),
        "decoded": list(head.quantized),
        "notes": list(notes),
        "folder": str(folder),
        "files": list(files),
    }

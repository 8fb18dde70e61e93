"""The flags and arguments of `export`, and the values that some of them take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eaglelocal.cli.completion import complete_draft, complete_head, complete_machine, complete_words
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path

FORMATS = ("speculators", "specforge")
TYPES = ("keep", "bf16", "f16", "f32")
VLLM, COMPOSE, HELM = FORMS = ("vllm", "compose", "helm")
LOADS = ("interactive", "batch")
METHODS = ("eagle3", "peagle", "draft_model", "dflash", "dspark", "medusa", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFlags:
    """The arguments and flags of `export`, as typed. what: a head, or one of FORMS for `target`."""

    what: Annotated[
        str,
        typer.Argument(
            metavar="HEAD|vllm|compose|helm",
            help="A head to write (its GGUF, or its name in `eaglelocal ls`), or what to write for TARGET.",
            autocompletion=complete_head,
        ),
    ]
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="Of vllm, compose and helm: qwen3-8b, ./model.gguf.")
    ] = None
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="speculators: for vLLM; specforge: for SGLang and vLLM.",
            autocompletion=complete_words(*FORMATS),
        ),
    ] = FORMATS[0]
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="PATH", help="Folder of a head, or file, to write.")
    ] = None
    target_repo: Annotated[
        str | None,
        typer.Option(metavar="REPO", help="Repository of the target's original weights, if it is not known."),
    ] = None
    weight_type: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="|".join(TYPES),
            help="Weight type; keep: as in the file, bf16 if quantized.",
            autocompletion=complete_words(*TYPES),
        ),
    ] = TYPES[0]
    force: Annotated[bool, typer.Option("--force", help="Replace a folder with an exported head, or a file.")] = False
    draft: Annotated[
        str,
        typer.Option(
            metavar="auto|none|ngram|suffix|mtp|REF", help="Draft of the target.", autocompletion=complete_draft
        ),
    ] = "auto"
    revision: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="Of the target's repository. Unset: its newest.")
    ] = None
    draft_repo: Annotated[str | None, typer.Option(metavar="REPO", help="Repository of the draft.")] = None
    draft_revision: Annotated[str | None, typer.Option(metavar="COMMIT", help="Of the draft's repository.")] = None
    draft_method: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(METHODS),
            help="How a --draft-repo drafts that the catalog does not know.",
            autocompletion=complete_words(*METHODS),
        ),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine", metavar="NAME", help="Machine of `plan`; unset: this one.", autocompletion=complete_machine
        ),
    ] = None
    ctx: Annotated[int | None, typer.Option(metavar="N", min=256, help="Tokens of a conversation.")] = None
    parallel: Annotated[int | None, typer.Option(metavar="N", min=1, max=4096, help="Most answers at once.")] = None
    load: Annotated[
        str,
        typer.Option(
            metavar="|".join(LOADS),
            help="interactive: up to 32 answers at once; batch: up to 256.",
            autocompletion=complete_words(*LOADS),
        ),
    ] = "interactive"
    mig: Annotated[bool, typer.Option("--mig", help="Use the smallest slice of the card that is large enough.")] = False
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Queue of Kueue. Unset: interactive or batch.")] = (
        None
    )
    check: Annotated[str | None, typer.Option(metavar="FILE", help="Check Helm values; write nothing.")] = None

    @property
    def queue_name(self) -> str:
        return self.queue or self.load

    @property
    def file(self) -> Path | None:
        return expand_path(self.out) if self.out else None

"""`eaglelocal export`: write a head for other engines, or what serves a target and its draft with vLLM.

The first word chooses: vllm, compose and helm write for a target; anything else is a head.
"""

from __future__ import annotations

from typing import Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_draft, complete_head, complete_machine, complete_words
from eaglelocal.cli.export_head import FORMATS, TYPES, HeadOrder, export_head
from eaglelocal.cli.export_serving import FORMS, LOADS, METHODS, check_helm_file, export_serving, make_order
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import UsageError

What = Annotated[
    str,
    typer.Argument(
        metavar="HEAD|vllm|compose|helm",
        help="A head to write (its GGUF, or its name in `eaglelocal ls`), or what to write for TARGET.",
        autocompletion=complete_head,
    ),
]
Target = Annotated[
    str | None, typer.Argument(metavar="TARGET", help="Of vllm, compose and helm: qwen3-8b, ./model.gguf.")
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
Out = Annotated[str | None, typer.Option("--out", "-o", metavar="PATH", help="Folder of a head, or file, to write.")]
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
Force = Annotated[bool, typer.Option("--force", help="Replace a folder with an exported head, or a file.")]
Draft = Annotated[
    str,
    typer.Option(metavar="auto|none|ngram|suffix|mtp|REF", help="Draft of the target.", autocompletion=complete_draft),
]
Revision = Annotated[str | None, typer.Option(metavar="COMMIT", help="Of the target's repository. Unset: its newest.")]
DraftRepo = Annotated[str | None, typer.Option(metavar="REPO", help="Repository of the draft.")]
DraftRevision = Annotated[str | None, typer.Option(metavar="COMMIT", help="Of the draft's repository.")]
DraftMethod = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(METHODS),
        help="How a --draft-repo drafts that the catalog does not know.",
        autocompletion=complete_words(*METHODS),
    ),
]
MachineName = Annotated[
    str | None,
    typer.Option(
        "--machine", metavar="NAME", help="Machine of `plan`; unset: this one.", autocompletion=complete_machine
    ),
]
Ctx = Annotated[int | None, typer.Option(metavar="N", min=256, help="Tokens of a conversation.")]
Parallel = Annotated[int | None, typer.Option(metavar="N", min=1, max=4096, help="Most answers at once.")]
Load = Annotated[
    str,
    typer.Option(
        metavar="|".join(LOADS),
        help="interactive: up to 32 answers at once; batch: up to 256.",
        autocompletion=complete_words(*LOADS),
    ),
]
Mig = Annotated[bool, typer.Option("--mig", help="Use the smallest slice of the card that is large enough.")]
Queue = Annotated[str | None, typer.Option(metavar="NAME", help="Queue of Kueue. Unset: interactive or batch.")]
Check = Annotated[str | None, typer.Option(metavar="FILE", help="Check Helm values; write nothing.")]


def export(
    context: typer.Context,
    what: What,
    target: Target = None,
    form: Form = FORMATS[0],
    out: Out = None,
    target_repo: TargetRepo = None,
    weight_type: WeightType = TYPES[0],
    force: Force = False,
    draft: Draft = "auto",
    revision: Revision = None,
    draft_repo: DraftRepo = None,
    draft_revision: DraftRevision = None,
    draft_method: DraftMethod = None,
    machine: MachineName = None,
    ctx: Ctx = None,
    parallel: Parallel = None,
    load: Load = "interactive",
    mig: Mig = False,
    queue: Queue = None,
    check: Check = None,
    as_json: flags.AsJson = False,
) -> None:
    """Write a draft head, or a target with its draft, for vLLM.

    A head is written as config.json and safetensors. vllm, compose and helm write a command line, a compose file or
    Helm values that pin target and draft.

    \b
    eaglelocal export ./head.gguf --target-repo Qwen/Qwen3-8B --out ./my-head
    eaglelocal export vllm qwen3-8b --machine rtx-4090
    eaglelocal export helm qwen3-8b --machine h100-sxm --mig --out values.yaml
    eaglelocal export helm --check values.yaml
    """
    if what not in FORMS:
        if target is not None:
            raise UsageError(
                f"{what!r} is not one of {', '.join(FORMS)}", hint=f"eaglelocal export vllm {quote_path(target)}"
            )
        export_head(HeadOrder(what, form, out, target_repo, weight_type, force), as_json=as_json)
        return
    if check is not None:
        check_helm_file(what, check, as_json=as_json)
        return
    export_serving(make_order(context.params), as_json=as_json)

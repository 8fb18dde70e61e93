"""`eaglelocal export`: write a head for other engines, or what serves a target and its draft with vLLM.

The first word chooses: vllm, compose and helm write for a target; anything else is a head.
"""

from __future__ import annotations

from eaglelocal.cli import flags
from eaglelocal.cli.export_flags import FORMS, ExportFlags
from eaglelocal.cli.export_head import export_head
from eaglelocal.cli.export_serving import check_helm_file, export_serving
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import UsageError


@flags.takes()
def export(given: ExportFlags, as_json: flags.AsJson = False) -> None:
    """Write a draft head, or a target with its draft, for vLLM.

    A head is written as config.json and safetensors. vllm, compose and helm write a command line, a compose file or
    Helm values that pin target and draft.

    \b
    eaglelocal export ./head.gguf --target-repo Qwen/Qwen3-8B --out ./my-head
    eaglelocal export vllm qwen3-8b --machine rtx-4090
    eaglelocal export helm qwen3-8b --machine h100-sxm --mig --out values.yaml
    eaglelocal export helm --check values.yaml
    """
    what, target = given.what, given.target
    if what not in FORMS:
        if target is not None:
            raise UsageError(
                f"{what!r} is not one of {', '.join(FORMS)}", hint=f"eaglelocal export vllm {quote_path(target)}"
            )
        return export_head(given, as_json=as_json)
    if given.check is not None:
        return check_helm_file(what, given.check, as_json=as_json)
    return export_serving(given, as_json=as_json)

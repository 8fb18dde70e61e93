"""`eaglelocal show`: describe a model on disk from its header; nothing is loaded."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.catalog.draft_entries import MTP
from eaglelocal.cli import flags
from eaglelocal.cli.amounts import path_text, size_text
from eaglelocal.cli.output import standard_output
from eaglelocal.core.sampling import sampling_text
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.draft_pairing import HEAD_ARCHITECTURES
from eaglelocal.gguf.model_shape import BLOCK
from eaglelocal.gguf.recommended_sampling import recommended_sampling
from eaglelocal.memory.projector_bytes import encoding_bytes

if TYPE_CHECKING:
    from eaglelocal.hub.model_details import KnownDraft, ModelDetails

WIDTH, INDENT = 79, 10
DEFAULT_CTX = 4096

Which = Annotated[str, typer.Argument(metavar="REF", help="As `eaglelocal ls` shows it, or a .gguf file.")]


def show(ref: Which, as_json: flags.AsJson = False) -> None:
    """Show what one model is and needs.

    \b
    eaglelocal show user/repo-GGUF:Q4_K_M
    eaglelocal show ./model.gguf --json | jq .context
    """
    from eaglelocal.hub.model_details import describe_model

    output = standard_output()
    look = describe_model(ref)
    if as_json:
        return output.object(look_object(look))
    width = WIDTH if output.is_terminal else None
    for name, text in facts(look):
        for line in folded(name, text, width):
            output.data(line)
    return None


def folded(name: str, text: str, width: int | None) -> list[str]:
    """Return `name      text` wrapped to `width` columns (None: one line), further lines indented to the text."""
    head = f"{name:<{INDENT}}"
    if width is None:
        return [f"{head}{text}"]
    return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * INDENT, break_on_hyphens=False)


def facts(look: ModelDetails) -> list[tuple[str, str]]:
    about = look.about
    lines = [
        ("model", look.reference),
        ("name", about.name),
        ("kind", _kind(look)),
        ("shape", _shape(look)),
        ("context", f"{about.context} tokens" if about.context else ""),
        ("size", _size(look)),
        ("memory", _memory(look)),
        ("images", _images(look)),
        ("template", template_text(look.chat_template) if about.kind == "model" else ""),
        ("sampling", sampling_text(recommended_sampling(look.header))),
        ("licence", look.licence),
        *_drafts(look),
        *(("" if n else "file", path_text(path)) for n, path in enumerate(look.paths)),
    ]
    return [(name, text) for name, text in lines if text]


def _kind(look: ModelDetails) -> str:
    if look.about.architecture == BLOCK:
        head = BlockInfo.from_header(look.header)
        return f"{head.kind} head: {head.max_draft} tokens at once"
    words = {"head": "draft head", "model": f"{look.about.architecture} model"}
    if look.about.kind == "head" and look.about.architecture not in HEAD_ARCHITECTURES:
        return f"MTP layer of a {look.about.architecture} model"
    return words.get(look.about.kind, look.about.kind)


def _shape(look: ModelDetails) -> str:
    shape = look.shape
    if shape is None:
        return ""
    layers = f"{shape.n_layer} layer{'s' if shape.n_layer > 1 else ''}"
    experts = f", {shape.n_expert_used} of {shape.n_expert} experts" if shape.n_expert else ""
    if shape.expert_bytes:
        experts += f" ({size_text(sum(shape.expert_bytes))})"
    return f"{layers} of width {shape.n_embd}{experts}, vocabulary of {shape.n_vocab}"


def _size(look: ModelDetails) -> str:
    state = "not written yet: the first use does that" if look.unwritten_bytes else ""
    parts = [size_text(look.size_bytes), look.about.quant, state, f"{len(look.paths)} parts" * (len(look.paths) > 1)]
    return ", ".join(part for part in parts if part)


def _memory(look: ModelDetails) -> str:
    """Return the memory of weights and KV cache; buffers come on top and depend on the machine."""
    n_ctx = _usual_ctx(look)
    cache = look.cache_bytes(n_ctx)
    if look.shape is None or cache is None or look.about.kind != "model":
        return ""
    weights = look.shape.weights_bytes
    total = size_text(weights + cache)
    return f"{total}: weights {size_text(weights)}, cache {size_text(cache)} for {n_ctx} tokens in f16; buffers besides"


def _images(look: ModelDetails) -> str:
    """Return which projector reads images and the memory it takes; the note on images, or "", if there is none."""
    path, projector = look.projector.path, look.projector.projector
    if path is None or projector is None:
        return look.projector.note
    computing = size_text(encoding_bytes(projector))
    return f"read with {path.name}: {size_text(path.stat().st_size)}, and up to {computing} while it encodes one"


def _usual_ctx(look: ModelDetails) -> int:
    return min(look.about.context or DEFAULT_CTX, DEFAULT_CTX)


def template_text(template: str) -> str:
    """Return what the chat template supports: the form of tool calls, and reasoning."""
    from eaglelocal.text.reasoning.model_families import detect_family

    if not template:
        return "none: a stand-in is used"
    family = detect_family(template)
    tools = f"tool calls as {family.form.label} writes them" if family.takes_tools else "knows no tools"
    thoughts = f", thinks in {family.reasoning.begin}" if family.reasoning else ""
    return f"{tools}{thoughts}"


def _drafts(look: ModelDetails) -> list[tuple[str, str]]:
    if look.about.kind != "model":
        return []
    others = [("", _draft_text(draft)) for draft in look.drafts if not (look.has_mtp and draft.kind == MTP)]
    if look.own_head is not None:
        return [("drafts", "its own EAGLE-3.1 head")]
    if look.has_mtp and look.has_pulled_draft:
        return [("drafts", others[0][1]), ("", "its own MTP layer, with --draft mtp")]
    if look.has_mtp:
        return [("drafts", "its own MTP layer"), *others]
    if not others:
        return [("drafts", "none known; --draft ngram looks up what was already said")]
    return [("drafts", others[0][1]), *others[1:]]


def _draft_text(draft: KnownDraft) -> str:
    state = draft.problem or ("on disk" if draft.is_on_disk else "to be imported" if draft.needs_import else "")
    return f"{draft.reference} ({', '.join(part for part in (draft.kind, state) if part)})"


def look_object(look: ModelDetails) -> dict[str, object]:
    about, shape = look.about, look.shape
    n_ctx = _usual_ctx(look)
    return {
        "reference": look.reference,
        "name": about.name or None,
        "kind": about.kind,
        "architecture": about.architecture or None,
        "quant": about.quant or None,
        "context": about.context,
        "layers": shape.n_layer if shape else None,
        "width": shape.n_embd if shape else None,
        "vocabulary": shape.n_vocab if shape else None,
        "experts": shape.n_expert if shape else None,
        "size_bytes": look.size_bytes,
        "on_disk": not look.unwritten_bytes,
        "memory": {
            "weights_bytes": shape.weights_bytes if shape else None,
            "expert_bytes": sum(shape.expert_bytes) if shape else None,
            "cache_bytes": look.cache_bytes(n_ctx),
            "ctx": n_ctx,
        },
        "projector": _text(look.projector.path),
        "images_bytes": _images_bytes(look),
        "template": template_text(look.chat_template) if about.kind == "model" else None,
        "sampling": recommended_sampling(look.header),
        "licence": look.licence or None,
        "own_head": _text(look.own_head),
        "mtp": look.has_mtp,
        "drafts": [
            {
                "reference": draft.reference,
                "kind": draft.kind,
                "on_disk": draft.is_on_disk,
                "needs_import": draft.needs_import,
                "problem": draft.problem or None,
            }
            for draft in look.drafts
        ],
        "repo": look.repo or None,
        "commit": look.commit or None,
        "path": str(look.paths[0]),
        "files": [str(path) for path in look.paths],
    }


def _images_bytes(look: ModelDetails) -> int | None:
    projector = look.projector.projector
    return None if projector is None else projector.weights_bytes + encoding_bytes(projector)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)

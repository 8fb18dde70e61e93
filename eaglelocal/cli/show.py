"""`eaglelocal show`: describe a model on disk from its header; nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.flags import argument, flag
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import WIDTH, path_text, standard_output, wrap_text
from eaglelocal.core.amounts import count_noun, format_disk, format_memory
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import LOOKUP, WARNING
from eaglelocal.core.sampling import sampling_text
from eaglelocal.errors import ModelFileError

if TYPE_CHECKING:
    from eaglelocal.hub.model_details import KnownDraft, ModelDetails
    from eaglelocal.probe.rpc_servers import RpcServer

INDENT = 10  # columns before the texts
LOOKUP_HINT = f"--draft ngram drafts by {LOOKUP}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowFlags:
    """The argument and flags of `show`."""

    ref: str = argument("REF", "Model as `eaglelocal ls` shows it, or a .gguf file.", complete_on_disk)
    rpc: str | None = flag(None, "HOST:PORT,...", "Show the memory of these rpc-servers, and the link to them.")
    as_json: flags.AsJson = False


@flags.takes()
def show(given: ShowFlags) -> None:
    """Describe a model and the memory it needs.

    \b
    eaglelocal show user/repo-GGUF:Q4_K_M
    eaglelocal show ./model.gguf --json | jq .context
    """
    from eaglelocal.hub.model_details import describe_model
    from eaglelocal.probe.rpc_servers import ask_rpc_server

    output, settings = standard_output(), load_settings({"rpc": given.rpc})
    details = describe_model(given.ref, settings.model_folders)
    asked = settings.rpc if given.rpc else ()  # those of the settings may be busy
    servers = [ask_rpc_server(address) for address in asked]
    if given.as_json:
        return output.object(details_object(details) | {"rpc": list(map(server_object, servers))})
    width = WIDTH if output.is_terminal else None
    for name, text in (*details_rows(details), *server_rows(servers)):
        begin = f"{name:<{INDENT}}"
        output.lines([begin + text] if width is None else wrap_text(begin, text, width=width))
    return None


def details_rows(details: ModelDetails) -> list[tuple[str, str]]:
    from eaglelocal.gguf.model_info import read_recommended_sampling

    about = details.about
    rows = [
        ("model", details.reference),
        ("name", about.name),
        ("kind", _kind(details)),
        ("problem", _problem(details)),
        ("shape", _shape(details)),
        ("adapter", _adapter(details)),
        ("context", f"{about.context} tokens" if about.context else ""),
        ("size", _size(details)),
        ("memory", _memory(details)),
        ("images", _images(details)),
        ("template", template_text(details.chat_template) if about.kind == "model" else ""),
        ("sampling", sampling_text(read_recommended_sampling(details.header))),
        ("licence", details.licence),
        *_drafts(details),
        *(("" if n else "file", path_text(path)) for n, path in enumerate(details.paths)),
    ]
    return [(name, text) for name, text in rows if text]


def _kind(details: ModelDetails) -> str:
    from eaglelocal.gguf.architectures import BLOCK, HEAD_ARCHITECTURES
    from eaglelocal.gguf.block_info import BlockInfo

    if details.about.architecture == BLOCK:
        head = BlockInfo.from_header(details.header)
        return f"{head.kind} head: {head.max_draft} tokens at once"
    words = {"head": "draft head", "model": f"{details.about.architecture} model"}
    if details.about.kind == "head" and details.about.architecture not in HEAD_ARCHITECTURES:
        return f"MTP layer of a {details.about.architecture} model"
    return words.get(details.about.kind, details.about.kind)


def _problem(details: ModelDetails) -> str:
    """Return why llama.cpp cannot run the model, and what would be needed."""
    from eaglelocal.gguf.architectures import check_known

    try:
        if details.about.kind == "model":
            check_known(details.header.architecture, details.header.path.name)
    except ModelFileError as error:
        return f"{error.message}; {error.hint}"
    return ""


def _adapter(details: ModelDetails) -> str:
    from eaglelocal.gguf.lora_adapter import is_adapter, read_adapter

    if not is_adapter(details.header):
        return ""
    adapter = read_adapter(details.header)
    parts = f"of rank {adapter.max_rank}, alpha {adapter.alpha:g}, for {count_noun(len(adapter.pairs), 'weight')}"
    return f"{parts} of a {adapter.architecture} model; `--lora FILE` applies it"


def _shape(details: ModelDetails) -> str:
    shape = details.shape
    if shape is None:
        return ""
    layers = count_noun(shape.n_layer, "layer")
    experts = f", {shape.n_expert_used} of {shape.n_expert} experts" if shape.n_expert else ""
    if shape.expert_bytes:
        experts += f" ({format_memory(sum(shape.expert_bytes))})"
    return f"{layers} of width {shape.n_embd}{experts}, vocabulary of {shape.n_vocab}"


def _size(details: ModelDetails) -> str:
    state = "not written yet: the first use writes it" if details.unwritten_bytes else ""
    num_parts = f"{len(details.paths)} parts" if len(details.paths) > 1 else ""
    return ", ".join(filter(None, [format_disk(details.size_bytes), details.about.quant, state, num_parts]))


def _memory(details: ModelDetails) -> str:
    """Return the memory of weights and KV cache; buffers come on top and depend on the machine."""
    n_ctx = _usual_ctx(details)
    cache = details.cache_bytes(n_ctx)
    if details.shape is None or cache is None or details.about.kind != "model":
        return ""
    weights = details.shape.weights_bytes
    parts = f"weights {format_memory(weights)}, cache {format_memory(cache)} for {n_ctx} tokens in f16"
    return f"{format_memory(weights + cache)}: {parts}; plus buffers"


def _images(details: ModelDetails) -> str:
    """Return which projector reads images and the memory it takes; the note on images, or "", if there is none."""
    from eaglelocal.memory.estimate import encoding_bytes

    path, projector = details.projector.path, details.projector.projector
    if path is None or projector is None:
        return details.projector.note
    computing = format_memory(encoding_bytes(projector))
    return f"read with {path.name}: {format_disk(path.stat().st_size)}, and up to {computing} while it encodes one"


def _usual_ctx(details: ModelDetails) -> int:
    from eaglelocal.planning.candidate import COMFORTABLE_CTX

    return min(details.about.context or COMFORTABLE_CTX, COMFORTABLE_CTX)


def template_text(template: str) -> str:
    """Return what the chat template supports: the form of tool calls, and reasoning."""
    from eaglelocal.text.reasoning.model_families import detect_family

    if not template:
        return "none: a default is used"
    family = detect_family(template)
    tools = f"tool calls as {family.form.label} writes them" if family.takes_tools else "no tools"
    if not family.thinks:
        return f"{tools}, no thinking"
    return f"{tools}, thinks in {family.reasoning.begin}" if family.reasoning else f"{tools}, thinks"


def _drafts(details: ModelDetails) -> list[tuple[str, str]]:
    if details.about.kind != "model" or _problem(details):
        return []
    texts = list(_draft_texts(details)) or [f"none known; {LOOKUP_HINT}"]
    return [("" if number else "drafts", text) for number, text in enumerate(texts)]


def _draft_texts(details: ModelDetails) -> Iterator[str]:
    """Yield the drafts, first the choice of `--draft auto`, with the reason why each other is not taken."""
    from eaglelocal.catalog.draft_entries import MTP
    from eaglelocal.hub.draft_resolver import NO_KNOWN_HEAD

    takes_other = any(draft.is_auto for draft in details.drafts)
    if details.own_head is not None and not takes_other:
        yield "its own EAGLE-3.1 head"
    if details.has_mtp and not takes_other:
        yield "its own MTP layer"
    for draft in details.drafts:
        if draft.is_auto or not (details.has_mtp and draft.kind == MTP):
            yield _draft_text(draft)
    if details.has_mtp and takes_other:
        yield "its own MTP layer, with --draft mtp"
    auto = details.auto_draft
    if auto is not None and auto.note:
        yield auto.note
    elif auto is not None and auto.reason not in ("", NO_KNOWN_HEAD):
        yield f"no head: {auto.reason}" + (f"; {LOOKUP_HINT}" if auto.kind == "ngram" else "")


def _draft_text(draft: KnownDraft) -> str:
    origin = "imported" if draft.is_imported else "on disk" if draft.is_on_disk else ""
    state = draft.problem or origin or ("to be imported" if draft.needs_import else "")
    parts = (draft.kind, state, "used by default" if draft.is_auto else "")
    name = path_text(draft.path) if draft.is_imported and draft.path else draft.reference
    return f"{name} ({', '.join(filter(None, parts))})"


def details_object(details: ModelDetails) -> dict[str, object]:
    from eaglelocal.gguf.model_info import read_recommended_sampling
    from eaglelocal.memory.estimate import encoding_bytes

    about, shape, projector = details.about, details.shape, details.projector.projector
    n_ctx = _usual_ctx(details)
    return {
        "reference": details.reference,
        "name": about.name or None,
        "kind": about.kind,
        "architecture": about.architecture or None,
        "quant": about.quant or None,
        "context": about.context,
        "layers": shape.n_layer if shape else None,
        "width": shape.n_embd if shape else None,
        "vocabulary": shape.n_vocab if shape else None,
        "experts": shape.n_expert if shape else None,
        "size_bytes": details.size_bytes,
        "on_disk": not details.unwritten_bytes,
        "memory": {
            "weights_bytes": shape.weights_bytes if shape else None,
            "expert_bytes": sum(shape.expert_bytes) if shape else None,
            "cache_bytes": details.cache_bytes(n_ctx),
            "ctx": n_ctx,
        },
        "projector": _text(details.projector.path),
        "images_bytes": None if projector is None else projector.weights_bytes + encoding_bytes(projector),
        "template": template_text(details.chat_template) if about.kind == "model" else None,
        "sampling": read_recommended_sampling(details.header),
        "licence": details.licence or None,
        "own_head": _text(details.own_head),
        "mtp": details.has_mtp,
        "drafts": [
            {
                "reference": draft.reference,
                "kind": draft.kind,
                "needs_import": draft.needs_import,
                "on_disk": draft.is_on_disk,
                "problem": draft.problem or None,
                "imported": draft.is_imported,
                "used_by_default": draft.is_auto,
            }
            for draft in details.drafts
        ],
        "auto_draft": None if details.auto_draft is None else details.auto_draft.label,
        "repo": details.repo or None,
        "commit": details.commit or None,
        "path": str(details.paths[0]),
        "files": [str(path) for path in details.paths],
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


# ---- rpc-servers: address, memory, measured link
def server_rows(servers: Sequence[RpcServer]) -> list[tuple[str, str]]:
    """Return a name and a text for each server, with the memory of each device, and the warning if there is any."""
    rows = []
    for server in servers:
        devices = server.devices
        free = (f"{format_memory(each.free_bytes)} of {format_memory(each.total_bytes)} free" for each in devices)
        rows.append(("server", f"{server.address}: {', '.join(free)}; {describe_link(server)}"))
    return [*rows, ("warning", WARNING)] if rows else []


def describe_link(server: RpcServer) -> str:
    return f"{server.latency_s * 1e3:.2f} ms, {server.bytes_s / 1e6:.0f} MB/s, both measured"


def link_object(server: RpcServer) -> dict[str, object]:
    return {"address": server.address, "latency_s": server.latency_s, "bytes_s": server.bytes_s}


def server_object(server: RpcServer) -> dict[str, object]:
    devices = [{"free_bytes": each.free_bytes, "total_bytes": each.total_bytes} for each in server.devices]
    return link_object(server) | {"devices": devices}

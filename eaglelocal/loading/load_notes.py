"""Notes for the user about a loaded engine: settings without effect, badly fitting drafts, unusable templates."""

from __future__ import annotations

import hashlib

from eaglelocal import locations
from eaglelocal.backend.cpu_repack import AMX
from eaglelocal.backend.dry_run import DryRunPart
from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.backend.weight_loading import REPACKED_TYPES
from eaglelocal.core.draft import describe_cut_length
from eaglelocal.core.own_files import fingerprint
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import NGRAM, WARNING
from eaglelocal.engine.conversation_files import ConversationFiles
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.draft_pairing import HeadInfo, branch_problem, draft_warnings
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.loading.calibration_store import load, make_template_key, save
from eaglelocal.loading.fit import FittedPlan
from eaglelocal.text.templates.chat_template import ChatTemplate


def collect_notes(
    parts: FittedPlan, target: ModelInfo, library: LlamaLibrary, lacks: tuple[str, ...], max_draft: int
) -> tuple[str, ...]:
    """Return all notes about an engine.

    lacks      why a chat template of our own is used, or none can be; why no images are read; empty texts are left out
    max_draft  tokens that can be drafted at most
    """
    header = parts.target.header
    return (
        *filter(None, [*lacks, parts.plan.draft_note]),
        *list_draft_notes(parts.draft, header, target, parts.plan.n_ctx),
        *list_tree_notes(parts.plan, parts.shape),
        *list_length_notes(parts.plan, max_draft),
        *parts.notes,
        *list_repack_notes(library, header),
        *list_memory_notes(parts.plan),
        *([WARNING] if parts.plan.rpc else ()),
    )


def list_length_notes(plan: Plan, max_draft: int) -> tuple[str, ...]:
    """Return a note if fewer tokens are drafted than --spec asks for, unless FittedPlan.notes explains it already."""
    asked = plan.spec.num_draft_tokens
    if plan.rollback is not None and plan.rollback <= max_draft:
        return ()
    cut = describe_cut_length(asked, max_draft)
    return (f"--spec {asked}: {cut}",) if cut and plan.speculates else ()


def list_memory_notes(plan: Plan) -> tuple[str, ...]:
    """Return notes if texts of questions and answers are kept on disk."""
    cells = f"conversations: up to {plan.cache_disk:g} GB of their caches stay in {locations.conversation_cells_dir()}"
    disk = (f"{cells}; `eaglelocal forget` deletes them",) if plan.cache_disk else ()
    if not (plan.lookup_memory and plan.speculates and NGRAM in plan.lookups):
        return disk
    kept = f"the newest {plan.lookup_memory} tokens of each key's texts"
    return (f"lookup memory: {kept} stay in {locations.lookups_dir()}; `eaglelocal forget` deletes them", *disk)


def list_repack_notes(library: LlamaLibrary, target: Header) -> tuple[str, ...]:
    """Return a note if weights decode more slowly than they could."""
    if AMX not in library.layouts or target.main_type not in REPACKED_TYPES:
        return ()
    return ("weights are not repacked for this processor: llama.cpp would use AMX, where its kernels crash",)


def list_tree_notes(plan: Plan, target: ModelShape) -> tuple[str, ...]:
    """Return a note if drafts are chains, not trees, because of the model."""
    if not plan.speculates or plan.draft_kind == "ngram":
        return ()
    problem = branch_problem(target)
    return (f"drafts are chains: {problem}",) if problem else ()


def list_draft_notes(part: DryRunPart | None, beside: Header, target: ModelInfo, n_ctx: int) -> tuple[str, ...]:
    """Return notes about a draft that fits its target only partly.

    It is not refused: it drafts badly, but never changes the answers' distribution.
    """
    if part is None:
        return ()
    return (
        *draft_warnings(part.info, part.header, target_header=beside, target=target),
        *list_context_notes(part, n_ctx),
    )


def list_context_notes(part: DryRunPart, n_ctx: int) -> tuple[str, ...]:
    """Return a note about a draft model that was trained for less than the `n_ctx` positions of the target."""
    if isinstance(part.info, HeadInfo):
        return ()
    trained = part.info.context_length
    if not 0 < trained < n_ctx:
        return ()
    return (f"the draft model was trained for {trained} of {n_ctx} positions; after them fewer drafts are accepted",)


# ---- template check: check the chat template of a model, unless an earlier engine did
LATER_S = 1.0  # seconds after a server's start: until then its processes need all cores of a small machine


class TemplateCheck:
    """Starts the template's process in time for the first conversation.

    template   what conversations are rendered with; its process is not started yet
    is_urgent  a conversation follows as soon as the engine is loaded
    """

    def __init__(self, template: ChatTemplate, *, is_urgent: bool) -> None:
        self._template = template
        self._key = make_template_key(template.text)
        self._is_known = load(self._key) is not None
        template.start(after_s=0.0 if is_urgent or not self._is_known else LATER_S)

    def note(self) -> str:
        """Return a note for the user if another template is used, or none can be. In the latter case chats fail, but
        loading succeeds.
        """
        if not self._is_known:
            try:
                self._template.check()
            except EagleLocalError as error:
                return error.message
            save(self._key, True)
        return self._template.note


# ---- conversation folder: opens the conversations on disk (`--cache-disk`) that a plan can continue
GB = 10**9


def open_conversation_files(parts: FittedPlan, library: str) -> ConversationFiles | None:
    """Open the conversations on disk; None if none are kept.

    library  llama.cpp's build: another build may lay out cells differently
    """
    plan = parts.plan
    if not plan.cache_disk or not parts.can_swap or plan.is_brief:
        return None
    weights = [fingerprint(shard.path) for shard in parts.target.header.shards]
    context = f"{plan.n_ctx} {plan.swa_full} {parts.uses_gpu}"  # LongRoPE rotates keys by the length of the context
    layout = [*weights, plan.kv_type, plan.flash_attn, context, library]
    folder = hashlib.blake2b("\n".join(layout).encode(), digest_size=12).hexdigest()
    adapters = [fingerprint(adapter.path) for adapter in plan.adapters]
    cells = locations.conversation_cells_dir() / folder
    return ConversationFiles(cells, int(plan.cache_disk * GB), dict(plan.owners.names), adapters)

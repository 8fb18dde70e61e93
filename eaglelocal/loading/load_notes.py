"""Notes for the user about a loaded engine: settings without effect, badly fitting drafts, unusable templates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from eaglelocal import locations
from eaglelocal.backend.cpu_repack import AMX
from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.backend.weight_loading import REPACKED_TYPES
from eaglelocal.core.amounts import format_memory
from eaglelocal.core.draft import describe_cut_length
from eaglelocal.core.own_files import fingerprint
from eaglelocal.core.run_options import NGRAM, WARNING
from eaglelocal.core.thinking import Efforts
from eaglelocal.engine.conversation_files import ConversationFiles
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.draft_pairing import branch_problem, draft_warnings
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import HeadInfo
from eaglelocal.loading.calibration_store import load, make_template_key, save
from eaglelocal.loading.fit import COMPUTING_BYTES, FittedPlan
from eaglelocal.memory.budget import RAM, FreeMemory
from eaglelocal.probe.machine import Machine
from eaglelocal.text.reasoning.efforts import describe_efforts
from eaglelocal.text.templates.chat_template import ChatTemplate


def list_notes(
    parts: FittedPlan, target: ModelInfo, library: LlamaLibrary, lacks: tuple[str, ...], max_draft: int
) -> Iterator[str]:
    """Yield all notes about an engine. A draft that fits its target only partly is no reason to refuse it: it drafts
    badly, but never changes the answers' distribution.

    lacks      why a chat template of our own is used, or none can be; why no images are read; empty texts are left out
    max_draft  tokens that can be drafted at most
    """
    plan, header, draft = parts.plan, parts.target.header, parts.draft
    yield from filter(None, [*lacks, plan.draft_note])
    if draft is not None:
        yield from draft_warnings(draft.info, target)
        if not isinstance(draft.info, HeadInfo) and 0 < (trained := draft.info.context_length) < plan.n_ctx:
            positions = f"{trained} of {plan.n_ctx} positions"
            yield f"the draft model was trained for {positions}; after them fewer drafts are accepted"
    if plan.speculates and plan.draft_kind != NGRAM and (problem := branch_problem(parts.shape)):
        yield f"drafts are chains: {problem}"
    asked = plan.spec.num_draft_tokens
    is_explained = plan.rollback is not None and plan.rollback <= max_draft  # by the notes of the fitted plan
    if plan.speculates and not is_explained and (cut := describe_cut_length(asked, max_draft)):
        yield f"--spec {asked}: {cut}"
    yield from parts.notes
    if is_repacked_less(library, header):
        yield "weights are not repacked for this processor: llama.cpp would use AMX, where its kernels crash"
    if plan.lookup_memory and plan.speculates and NGRAM in plan.lookups:
        kept = f"the newest {plan.lookup_memory} tokens of each key's texts"
        yield f"lookup memory: {kept} stay in {locations.lookups_dir()}; `eaglelocal forget` deletes them"
    if plan.cache_disk:
        cells = f"up to {plan.cache_disk:g} GB of their caches stay in {locations.conversation_cells_dir()}"
        yield f"conversations: {cells}; `eaglelocal forget` deletes them"
    if plan.rpc:
        yield WARNING


def explain_full_cards(machine: Machine, free: Sequence[FreeMemory]) -> Iterator[str]:
    """Yield a note on each card that is full after loading, where its driver lets it spill into main memory.

    free  the free memory of each device after loading
    """
    for card in free if machine.system.wsl == 2 else ():
        if card.device != RAM and not card.in_ram and card.free_bytes is not None and card.free_bytes < COMPUTING_BYTES:
            left = f"{card.device} has {format_memory(card.free_bytes)} left"
            yield f"{left}: WSL 2 moves more into main memory without an error, and decoding then takes far longer"


def is_repacked_less(library: LlamaLibrary, target: Header) -> bool:
    """Return whether weights decode more slowly than they could on this processor."""
    return AMX in library.layouts and target.main_type in REPACKED_TYPES


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
        known = read_efforts(load(self._key))
        self._is_known = known is not None
        if known is not None:
            template.efforts = known
        template.start(after_s=0.0 if is_urgent or not self._is_known else LATER_S)

    def list_notes(self) -> list[str]:
        """Return notes if another template is used, or none can be (then the model loads, but chats fail), and on the
        effort with which it thinks. Some may be empty.
        """
        if not self._is_known:
            try:
                self._template.check()
            except EagleLocalError as error:
                return [error.message]
            save(self._key, asdict(self._template.efforts))
        return [self._template.note, describe_efforts(self._template.efforts)]


def read_efforts(stored: object) -> Efforts | None:
    """Return the efforts as they were saved; None if there is nothing to read."""
    if not isinstance(stored, dict):
        return None
    try:
        return Efforts(**{**stored, "words": tuple(stored["words"])})
    except (TypeError, KeyError):
        return None


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

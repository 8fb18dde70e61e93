"""Opens the drafters of a plan, over the models that are loaded."""

from __future__ import annotations

import hashlib

import numpy as np

from eaglelocal import locations
from eaglelocal.backend.block_head_context import BlockFormat, LlamaBlockContext
from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.dry_run import DryRunPart
from eaglelocal.backend.head_context import HeadNorms, LlamaHeadContext
from eaglelocal.backend.medusa_context import LlamaMedusaContext, MedusaFormat
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.batch import Floats
from eaglelocal.core.draft_sources import LOOKAHEAD
from eaglelocal.core.plan import Plan
from eaglelocal.drafters.block_drafter import BlockDrafter
from eaglelocal.drafters.branch_sequences import BranchSequences, SharingCache
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.lookahead import Lookahead
from eaglelocal.drafters.lookup_memory import LookupMemory
from eaglelocal.drafters.medusa import Medusa
from eaglelocal.drafters.mtp_layers import MtpLayers
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.drafters.p_eagle import Mask, PEagle
from eaglelocal.drafters.target_cache import TargetCacheDrafter
from eaglelocal.gguf.arch_keys import TOKENS_KEY
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.eagle_info import MASK_HIDDEN_KEY, EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import BIASES_KEY, MedusaInfo
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.loading.model_loader import PlanLoader

NUM_CHOICES = 3  # that are proposed after each token, where drafts may be trees; a fourth hardly adds anything
MAX_PROMPT_ROWS = 256  # newest rows of a prompt that an EAGLE head gets


def open_drafters(
    loader: PlanLoader, model: LlamaModel | None, target: LlamaModel, context: LlamaContext
) -> tuple[Drafter, ...]:
    """Return the drafters, cheapest first: where one without a model is promising, the draft's model is not run.

    model    the draft's; None: only lookups draft
    context  the target's
    """
    if not loader.parts.plan.speculates:
        return ()
    lookups = tuple(open_lookup(name, loader, target) for name in loader.parts.plan.lookups)
    if model is None or loader.parts.draft is None:
        return lookups
    return *lookups, open_model_drafter(loader, loader.parts.draft, model, target, context)


def open_lookup(name: str, loader: PlanLoader, target: LlamaModel) -> Drafter:
    """Return the drafter without a model that has this name."""
    if name == LOOKAHEAD:
        return Lookahead()
    plan = loader.parts.plan
    return Ngram(plan.n_ctx, memory=open_memory(plan, loader.parts.target.header, target.vocabulary.n_tokens))


def open_memory(plan: Plan, target: Header, n_vocab: int) -> LookupMemory | None:
    """Return the memory of lookups, in a folder of the target's vocabulary; None: the user wants none."""
    if not plan.lookup_memory:
        return None
    vocabulary = hashlib.blake2b(target.array_bytes(TOKENS_KEY), digest_size=8).hexdigest()
    return LookupMemory(locations.lookups_dir() / vocabulary, plan.lookup_memory, n_vocab, dict(plan.owners.names))


def open_model_drafter(
    loader: PlanLoader, part: DryRunPart, model: LlamaModel, target: LlamaModel, context: LlamaContext
) -> Drafter:
    """Return the drafter over the draft's model, of the kind that its file is."""
    branches = NUM_CHOICES if loader.parts.num_branches else 1

    def branch_sequences(context: SharingCache) -> BranchSequences:
        num_slots = part.context.num_sequences
        return BranchSequences(context, num_slots, part.context.num_branches // num_slots)

    match part.info:
        case MtpInfo(reads_cache=reads_cache, num_layers=num_layers) as mtp:
            layer = LlamaHeadContext(
                model,
                part.context,
                target=context,
                has_encoder=False,
                reads_cache=reads_cache,
                num_layers=num_layers,
                selects_outputs=mtp.selects_outputs,
            )
            loader.opened.callback(layer.close)
            taps = (target.n_layer,)
            if reads_cache:
                return TargetCacheDrafter(layer, taps)
            if num_layers > 1:
                return MtpLayers(layer, taps, num_layers, branches=branches)
            return Eagle3(layer, taps, branches=branches, sequences=branch_sequences(layer), name="mtp")
        case EagleInfo() as info:
            head = LlamaHeadContext(model, part.context, target=context, norms=read_head_norms(part.header, info))
            loader.opened.callback(head.close)
            return make_eagle(head, part.header, info, branches=branches, sequences=branch_sequences(head))
        case MedusaInfo() as info:
            medusa = LlamaMedusaContext(model, part.context, read_medusa_format(part.header, info), target=context)
            loader.opened.callback(medusa.close)
            return Medusa(medusa, info.target_layers[0], block_size=info.num_parts, branches=branches)
        case BlockInfo() as info:
            assert info.mask is not None  # checked by read_draft
            lattice = info.lattice.num_candidates if info.lattice else 0
            block = BlockFormat(info.mask, info.skips_root, info.is_causal, lattice)
            block_head = LlamaBlockContext(model, part.context, block, target=context)
            loader.opened.callback(block_head.close)
            return BlockDrafter(block_head, info.target_layers, block_size=info.max_draft, branches=branches)
        case _:
            draft_context = LlamaContext(model, part.context)
            loader.opened.callback(draft_context.close)
            return DraftModel(draft_context, branches=branches, sequences=branch_sequences(draft_context))


def make_eagle(
    head: LlamaHeadContext,
    header: Header,
    info: EagleInfo,
    *,
    branches: int = 1,
    sequences: BranchSequences | None = None,
) -> Eagle3:
    """Return the drafter over the context of an EAGLE or P-EAGLE head."""
    taps, window = info.target_layers, info.window
    if info.mask is None:
        return Eagle3(
            head, taps, branches=branches, sequences=sequences, window=window, max_prompt_rows=MAX_PROMPT_ROWS
        )
    (state,) = head.encode([read_mask_hidden(header, info)])
    mask = Mask(info.mask, state, info.num_depths)
    return PEagle(head, taps, mask, branches=branches, window=window, max_prompt_rows=MAX_PROMPT_ROWS)


def read_head_norms(header: Header, info: EagleInfo) -> HeadNorms:
    """Return the head's norms, by its file; llama.cpp ignores the keys that flag them."""
    return HeadNorms(
        tap_eps=info.fc_norm_eps if info.fc_norm else None,
        output_gains=read_tensor(header.path, header, "output_norm.weight") if info.norm_output else None,
        output_eps=info.rms_eps,
    )


def read_mask_hidden(header: Header, info: EagleInfo) -> Floats:
    """Return what a P-EAGLE head reads where a row's states are not known: one row [1, taps, target hidden size]."""
    values = np.array(header.array(MASK_HIDDEN_KEY), np.float32)
    return values.reshape(1, len(info.target_layers), info.target_hidden_size)


def read_medusa_format(header: Header, info: MedusaInfo) -> MedusaFormat:
    """Return the sizes and biases of a Medusa head."""
    biases = header.array(BIASES_KEY)
    return MedusaFormat(
        num_parts=info.num_parts,
        num_layers=info.num_layers,
        state_width=info.state_width,
        input_width=info.input_width,
        biases=None if biases is None else np.array(biases, np.float32),
        rms_eps=info.rms_eps,
    )

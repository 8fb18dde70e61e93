"""Opens the drafters of a plan, over the models that are loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from eaglelocal import locations
from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.dry_run import DryRunPart
from eaglelocal.backend.head_context import (
    BlockFormat,
    HeadFormat,
    LlamaBlockContext,
    LlamaHeadContext,
    LlamaMedusaContext,
    MedusaFormat,
)
from eaglelocal.backend.llama_library import free_memory
from eaglelocal.backend.model import D2T, LlamaModel
from eaglelocal.backend.weight_loading import moving_weights
from eaglelocal.core.amounts import format_memory
from eaglelocal.core.plan import Plan
from eaglelocal.core.ports import Cache
from eaglelocal.core.run_options import LOOKAHEAD, NGRAM
from eaglelocal.drafters.block_drafter import BlockDrafter, Mask, Medusa, PEagle
from eaglelocal.drafters.branch_sequences import BranchSequences
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter, Exchangeable, Lookup
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.head_holder import HeadHolder, OpenHead
from eaglelocal.drafters.lookahead import Lookahead
from eaglelocal.drafters.lookup_memory import LookupMemory
from eaglelocal.drafters.mtp_layers import MtpLayers, TargetCacheDrafter
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.errors import IncompatibleError, ResourceError
from eaglelocal.gguf.architectures import TOKENS_KEY
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.draft_pairing import read_draft
from eaglelocal.gguf.eagle_info import MASK_HIDDEN_KEY, EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import BIASES_KEY, MedusaInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import DraftInfo, describe_shape
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.gguf.upper_layers import find_upper_layers
from eaglelocal.loading.model_loader import PlanLoader
from eaglelocal.memory.budget import RAM, subtract_margins
from eaglelocal.memory.cache_bytes import cache_bytes
from eaglelocal.memory.contexts import plan_contexts
from eaglelocal.memory.placement import choose_gpus, place_layers
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.probe import read_memory

NUM_CHOICES = 3  # proposals after each token where drafts may be trees; a fourth would hardly add anything
MAX_PROMPT_ROWS = 256  # newest rows of a prompt that an EAGLE head gets


def open_drafters(
    loader: PlanLoader, model: LlamaModel | None, target: LlamaModel, context: LlamaContext
) -> tuple[Drafter, ...]:
    """Open the drafters, cheapest first: if one without a model is promising, the draft model is not run.

    model    the draft's; None: only lookups draft
    context  the target's
    """
    if not loader.parts.plan.speculates:
        return ()
    lookups = tuple(LOOKUP_OPENERS[name](loader, target) for name in loader.parts.plan.lookups)
    if model is None or loader.parts.draft is None:
        return lookups
    return *lookups, open_model_drafter(loader, loader.parts.draft, model, target, context)


def open_ngram(loader: PlanLoader, target: LlamaModel) -> Lookup:
    plan = loader.parts.plan
    return Ngram(plan.n_ctx, memory=open_memory(plan, loader.parts.target.header, target.vocabulary.n_tokens))


def open_lookahead(loader: PlanLoader, target: LlamaModel) -> Lookup:
    return Lookahead()


# drafters without a model, by their names in core/run_options.py
LOOKUP_OPENERS: dict[str, Callable[[PlanLoader, LlamaModel], Lookup]] = {
    NGRAM: open_ngram,
    LOOKAHEAD: open_lookahead,
}


def open_memory(plan: Plan, target: Header, n_vocab: int) -> LookupMemory | None:
    """Open the memory of lookups, in a folder for the target's vocabulary; None unless the user wants one."""
    if not plan.lookup_memory:
        return None
    vocabulary = hashlib.blake2b(target.array_bytes(TOKENS_KEY), digest_size=8).hexdigest()
    return LookupMemory(locations.lookups_dir() / vocabulary, plan.lookup_memory, n_vocab, dict(plan.owners.names))


def open_model_drafter(
    loader: PlanLoader, part: DryRunPart, model: LlamaModel, target: LlamaModel, context: LlamaContext
) -> Drafter:
    """Open the drafter over the draft's model, according to the kind of its file."""
    num_choices = NUM_CHOICES if loader.parts.num_branches else 1

    def branch_sequences(context: Cache) -> BranchSequences:
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
                return MtpLayers(layer, taps, num_layers, num_choices=num_choices)
            return Eagle3(layer, taps, num_choices=num_choices, sequences=branch_sequences(layer), name="mtp")
        case EagleInfo() as info:
            head = LlamaHeadContext(model, part.context, target=context, form=read_head_format(info))
            loader.opened.callback(head.close)
            return make_eagle(head, part.header, info, num_choices=num_choices, sequences=branch_sequences(head))
        case MedusaInfo() as info:
            medusa = LlamaMedusaContext(model, part.context, read_medusa_format(info), target=context)
            loader.opened.callback(medusa.close)
            return Medusa(medusa, info.target_layers[0], block_size=info.num_parts, num_choices=num_choices)
        case BlockInfo() as info:
            assert info.mask is not None  # checked by read_draft
            lattice = info.lattice.num_candidates if info.lattice else 0
            block = BlockFormat(info.mask, info.skips_root, info.is_causal, lattice)
            block_head = LlamaBlockContext(model, part.context, block, target=context)
            loader.opened.callback(block_head.close)
            return BlockDrafter(block_head, info.target_layers, block_size=info.max_draft, num_choices=num_choices)
        case _:
            draft_context = LlamaContext(model, part.context)
            loader.opened.callback(draft_context.close)
            return DraftModel(draft_context, num_choices=num_choices, sequences=branch_sequences(draft_context))


def make_eagle(
    head: LlamaHeadContext,
    header: Header,
    info: EagleInfo,
    *,
    num_choices: int = 1,
    sequences: BranchSequences | None = None,
) -> Eagle3:
    """Return the drafter over the context of an EAGLE or P-EAGLE head."""
    taps, window = info.target_layers, info.window
    if info.mask is None:
        return Eagle3(
            head, taps, num_choices=num_choices, sequences=sequences, window=window, max_prompt_rows=MAX_PROMPT_ROWS
        )
    # what it reads for rows whose states are unknown: [1, taps, target hidden size]
    hidden = np.array(header.array(MASK_HIDDEN_KEY), np.float32)
    (state,) = head.encode([hidden.reshape(1, len(info.target_layers), info.target_hidden_size)])
    mask = Mask(info.mask, state, info.num_depths)
    return PEagle(head, taps, mask, num_choices=num_choices, window=window, max_prompt_rows=MAX_PROMPT_ROWS)


def read_head_format(info: EagleInfo) -> HeadFormat:
    """Read what the engine adds from its file; llama.cpp ignores the keys that announce it."""
    return HeadFormat(
        tap_eps=info.fc_norm_eps if info.fc_norm else None,
        output_gains=read_tensor(info.header, "output_norm.weight") if info.norm_output else None,
        output_eps=info.rms_eps,
        row_size=info.input_width,
    )


def read_medusa_format(info: MedusaInfo) -> MedusaFormat:
    """Return the sizes and biases of a Medusa head."""
    biases = info.header.array(BIASES_KEY)
    return MedusaFormat(
        num_parts=info.num_parts,
        num_layers=info.num_layers,
        state_width=info.state_width,
        input_width=info.input_width,
        biases=None if biases is None else np.array(biases, np.float32),
        rms_eps=info.rms_eps,
    )


# ---- head opener: opens heads that replace the one in use while the engine runs
#
# They are opened in any thread while steps run, with the parameters of the first head, and both are in memory for a
# moment. Only the weights may differ; other heads are refused here.
def hold_head(loader: PlanLoader, drafters: Sequence[Drafter], opener: HeadOpener) -> tuple[Drafter, ...]:
    """Wrap the last drafter so that its head can be exchanged, if its kind allows that.

    `loader.opened` closes that head and nothing else.
    """
    part = loader.parts.draft
    if part is None or not drafters or not isinstance(part.info, EagleInfo | MedusaInfo):
        return tuple(drafters)
    *others, last = drafters
    if not isinstance(last, Exchangeable):
        return tuple(drafters)
    version = loader.parts.plan.draft_version
    head = OpenHead(drafter=last, close=loader.opened.close, path=part.header.path, version=version)
    return *others, HeadHolder(head, opener.open)


class HeadOpener:
    """Opens heads for the target's context."""

    def __init__(self, loader: PlanLoader, machine: Machine, target: LlamaModel, context: LlamaContext) -> None:
        self._loader, self._machine, self._target, self._context = loader, machine, target, context

    def open(self, path: Path, version: int) -> OpenHead:
        """Return the head in a file; it is not in use yet.

        Raises ModelFileError or IncompatibleError for a file that is damaged or differs in kind, ResourceError where a
        second head does not fit in memory.
        """
        part = self._make_part(read_header(path))
        self._check_memory(part)
        with contextlib.ExitStack() as opened:
            parts = dataclasses.replace(self._loader.parts, draft=part)
            loader = dataclasses.replace(self._loader, parts=parts, report=lambda progress: None, opened=opened)
            model = loader.load_model(part, 0.0, 1.0)
            drafter = open_model_drafter(loader, part, model, self._target, self._context)
            assert isinstance(drafter, Exchangeable)  # the same mask as the first head, because it is of the same kind
            opened.enter_context(moving_weights(model.mapped if part.placement.moves_weights else ()))
            return OpenHead(drafter=drafter, close=opened.pop_all().close, path=path, version=version)

    def _make_part(self, header: Header) -> DryRunPart:
        """Return the head with the parameters of the first one. Raises IncompatibleError if they do not suit it."""
        parts = self._loader.parts
        target, first = parts.target, parts.draft
        assert first is not None and isinstance(target.info, ModelInfo)
        info = read_draft(header, target.info, kind=parts.plan.draft_kind)
        if problem := find_difference(first.info, info):
            raise IncompatibleError(
                f"{header.path.name} cannot replace the head in use: {problem}",
                hint="restart with it: `--draft HEAD.gguf`",
            )
        return dataclasses.replace(first, info=info)

    def _check_memory(self, part: DryRunPart) -> None:
        """Raise ResourceError if the head does not fit beside the one in use."""
        parts = self._loader.parts
        plan, shape = parts.plan, describe_shape(part.info)
        available_bytes = read_memory().available_bytes
        free = free_memory(self._loader.library, ram_bytes=available_bytes, unified=self._machine.lends_memory)
        gpus = choose_gpus(free, device=part.placement.devices, split=part.placement.split)
        device = place_layers(shape, gpus, part.placement.shares, gpu_layers=part.placement.gpu_layers)[-1]
        needed_bytes = shape.weights_bytes + cache_bytes(shape, plan_contexts(plan, parts.shape, shape)[1].sizes)
        usable_bytes = next((each.free_bytes for each in subtract_margins(free) if each.device == device), None)
        if usable_bytes is not None and needed_bytes > usable_bytes:
            place = "in RAM" if device == RAM else f"on {device}"
            raise ResourceError(
                f"{format_memory(needed_bytes)} for a second head do not fit the {format_memory(usable_bytes)} "
                f"that are free {place}: the head in use stays",
                hint="restart with it: `--draft HEAD.gguf`",
            )


def find_difference(old: DraftInfo, info: DraftInfo) -> str:
    """Describe how another head differs in what the engine was built for, or in the tensors that decide its placement;
    empty if only weights differ.
    """
    if isinstance(old, EagleInfo) and isinstance(info, EagleInfo):
        is_alike = (old.mask is None, old.num_depths) == (info.mask is None, info.num_depths)
    elif isinstance(old, MedusaInfo) and isinstance(info, MedusaInfo):
        is_alike = old.num_parts == info.num_parts
    else:
        return "it is of another kind"
    if old.target_layers != info.target_layers:
        return f"it reads the target's layers {info.target_layers}, not {old.target_layers}"
    if not is_alike:
        return "it drafts another number of tokens in one pass"
    if (find_upper_layers(old.header) is None) != (find_upper_layers(info.header) is None):
        return "it has another number of layers"
    if (D2T in old.tensors) != (D2T in info.tensors):
        return "it drafts from another vocabulary"
    return ""
